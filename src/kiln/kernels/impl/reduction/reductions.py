"""Sum, mean, maximum, minimum and their positions, over any axes of an array."""

from __future__ import annotations

import operator
from typing import Any

from ...dispatch import arrays, devices
from ...dispatch.arrays import AnyArray
from ...dispatch.recorder import kernel_function
from .implementations import REGISTRY, ReductionArguments
from .problem import ReductionProblem, types_of

__all__ = ["argmax", "argmin", "max", "mean", "min", "sum"]


def _axes(x: Any, axis: Any, name: str) -> tuple[int, ...]:
    """Return the modes of a reduction, from 0 on."""
    if axis is None:
        return tuple(range(x.ndim))
    listed = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes: list[int] = []
    for a in listed:
        try:
            number = operator.index(a)
        except TypeError:
            raise arrays.refusal(
                f"{name} over axis {a!r}: axes are integers", hint="an axis, a tuple of axes, or None for all"
            ) from None
        arrays.require(
            -x.ndim <= number < x.ndim,
            f"{name} over axis {number} of an array of {x.ndim} modes of shape {tuple(x.shape)}",
        )
        arrays.require(
            number % x.ndim not in axes, f"{name} over axes {tuple(listed)}: axis {number} stands there twice"
        )
        axes.append(number % x.ndim)
    return tuple(sorted(axes))


def _reduce(name: str, x: Any, axis: Any, keepdims: bool, out: Any, config: Any) -> Any:
    axes = _axes(x, axis, name)
    arrays.require_usable(x, "the array")
    if name.startswith("arg"):
        arrays.require(
            axis is None or len(axes) == 1,
            f"{name} over axes {axes}",
            hint="one axis, or None for the place in all elements",
        )
    layout = arrays.layout_of(x)
    out_dtype = types_of(name, layout.dtype)[1] if out is None else arrays.element_type(out)
    problem = ReductionProblem(name, layout, axes, out_dtype)
    shape = tuple(1 if m in axes else e for m, e in enumerate(x.shape) if keepdims or m not in axes)
    if out is not None:
        arrays.require(tuple(out.shape) == shape, f"{name} of shape {shape} into an array of shape {tuple(out.shape)}")
        arrays.require_usable(out, "out", written=True)
    direct = out is not None and (0 in shape or problem.count == 0 or arrays.is_contiguous(out))
    result = out if direct and out is not None else arrays.empty(x, shape, arrays.framework_dtype(out_dtype, x))
    if 0 in shape or problem.count == 0:
        arrays.fill(result, float("nan") if name == "mean" else 0)
        return result
    if problem.view is None:
        arrays.require(
            problem.results < 1 << 31,
            f"{name} of shape {tuple(x.shape)} over axes {axes}: more results than 32 bits count",
        )
        order = [m for m in range(x.ndim) if m not in axes] + list(axes)
        x = arrays.contiguous(arrays.permuted(x, order))
        problem = ReductionProblem(name, arrays.layout_of(x), tuple(range(x.ndim - len(axes), x.ndim)), out_dtype)
    REGISTRY.run(problem, devices.current(), ReductionArguments(x, result), config)
    if out is None or direct:
        return result
    arrays.assign(out, result)
    return out


# --- the functions ---------------------------------------------------------------------------------------------------


@kernel_function("x", "out")
def sum(x: AnyArray, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> AnyArray:
    """Return the sum over some axes; of nothing 0.

    Floats are added in f32 (f64 in f64), integers exactly in Int64.

    Args:
        x: an array of any shape and strides.
        axis: the axis, or a tuple of them; None for all.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("sum", x, axis, keepdims, out, config)


@kernel_function("x", "out")
def mean(x: AnyArray, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> AnyArray:
    """Return the mean over some axes; that of integers is Float32, of nothing NaN.

    Args:
        x: an array of any shape and strides.
        axis: the axis, or a tuple of them; None for all.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("mean", x, axis, keepdims, out, config)


@kernel_function("x", "out")
def max(x: AnyArray, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> AnyArray:
    """Return the largest element over some axes; NaN if one is.

    Args:
        x: an array of any shape and strides.
        axis: the axis, or a tuple of them; None for all.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("max", x, axis, keepdims, out, config)


@kernel_function("x", "out")
def min(x: AnyArray, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> AnyArray:
    """Return the smallest element over some axes; NaN if one is.

    Args:
        x: an array of any shape and strides.
        axis: the axis, or a tuple of them; None for all.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("min", x, axis, keepdims, out, config)


@kernel_function("x", "out")
def argmax(x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> Any:
    """Return the position of the largest element as Int64; of equal elements the first, and the first NaN if there is
    one.

    Args:
        x: an array of any shape and strides.
        axis: the axis; None for all elements in row-major order.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("argmax", x, axis, keepdims, out, config)


@kernel_function("x", "out")
def argmin(x: Any, axis: Any = None, *, keepdims: bool = False, out: Any = None, config: Any = None) -> Any:
    """Return the position of the smallest element as Int64; of equal elements the first, and the first NaN if there is
    one.

    Args:
        x: an array of any shape and strides.
        axis: the axis; None for all elements in row-major order.
        keepdims: keep the axes with extent 1.
        out: an array for the result.
        config: a config of the implementation; by default the library chooses.
    """
    return _reduce("argmin", x, axis, keepdims, out, config)
