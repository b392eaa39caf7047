"""`TensorSpec`: how a kernel sees an array of JAX; and the element types of both."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base_dsl.diagnostics import type_error, value_error
from ...base_dsl.numeric.meta import TYPES
from ...cute.host import runtime
from ...cute.host.arrays import numpy_element_type

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST_ALIGNMENT = 64
"""The least alignment of XLA's arrays on the host, in bytes."""
_MOST_MODES = 8


def cutlass_to_jax_dtype(dtype: object) -> Any:
    """Return JAX's dtype of an element type."""
    for kind in TYPES.values():
        if kind is dtype and kind._numpy_name is not None:
            import ml_dtypes

            name = kind._numpy_name.rstrip("_")
            return np.dtype(getattr(ml_dtypes, name, name))
    raise type_error(f"JAX has no type of elements for {getattr(dtype, '__name__', dtype)}")


def jax_to_cutlass_dtype(dtype: Any) -> Any:
    """Return the element type of a dtype of JAX."""
    return numpy_element_type(np.dtype(dtype))


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """The tensor as which a kernel sees one array."""

    layout: tuple[int, ...] | None = None
    """The order in which XLA lays out its axes, from the slowest on; by default row-major."""
    mode: tuple[int, ...] | None = None
    """Which axis each mode of the tensor is; by default in order."""
    static: bool | None = None
    """Whether its shape and strides are compiled in; None: as the call says."""
    ptr_assumed_align: int = 256
    """The alignment of its address in bytes; on the host at most 64."""
    divisibility: int | tuple[int | None, ...] | None = None
    """Divisors of its extents: one for all, or one for each axis."""

    def __post_init__(self) -> None:
        for name in ("layout", "mode"):
            order = getattr(self, name)
            if order is None:
                continue
            object.__setattr__(self, name, tuple(order))
            if sorted(order) != list(range(len(order))):
                raise value_error(f"TensorSpec({name}={tuple(order)}): not an order of {len(order)} axes")
        if isinstance(self.divisibility, list):
            object.__setattr__(self, "divisibility", tuple(self.divisibility))
        align = self.ptr_assumed_align
        if align < 1 or align & (align - 1):
            raise value_error(f"TensorSpec(ptr_assumed_align={align}): not a power of two")

    def checked(self, rank: int, what: str) -> TensorSpec:
        """Return this spec; refuses it for arrays of another rank."""
        if rank > _MOST_MODES:
            raise value_error(f"{what} has {rank} axes, and a call takes arrays of at most {_MOST_MODES}")
        for name in ("layout", "mode", "divisibility"):
            order = getattr(self, name)
            if isinstance(order, tuple) and len(order) != rank:
                raise value_error(f"TensorSpec({name}={order}) has {len(order)} entries, and {what} has {rank} axes")
        return self

    def with_axis(self) -> TensorSpec:
        """Return the spec for arrays with one more axis in front."""

        def moved(order: tuple[int, ...] | None) -> tuple[int, ...] | None:
            return None if order is None else (0, *(axis + 1 for axis in order))

        multiples = (None, *self.divisibility) if isinstance(self.divisibility, tuple) else self.divisibility
        return dataclasses.replace(self, layout=moved(self.layout), mode=moved(self.mode), divisibility=multiples)

    def order(self, rank: int) -> tuple[int, ...]:
        """Return the axes of the array that the modes of the tensor are."""
        return tuple(range(rank)) if self.mode is None else self.mode

    def major(self, rank: int) -> tuple[int, ...]:
        """Return the axes of the array by their strides."""
        return tuple(range(rank)) if self.layout is None else self.layout

    def fake(self, shape: Sequence[Any], dtype: Any, static: bool, on_host: bool, what: str) -> Any:
        """Return the fake tensor to compile for. Symbolic axes of one name have one extent."""
        rank = len(shape)
        kind = jax_to_cutlass_dtype(dtype)
        multiples = self.divisibility if isinstance(self.divisibility, tuple) else (self.divisibility,) * rank
        static = static if self.static is None else self.static
        if static and not all(isinstance(extent, int) for extent in shape):
            raise value_error(f"{what} has the symbolic shape {tuple(shape)} and was asked to be static")
        for extent, multiple in zip(shape, multiples, strict=True):
            if multiple and isinstance(extent, int) and extent % multiple:
                raise value_error(f"{what} has the extent {extent}, which is no multiple of {multiple} (divisibility)")
        extents = [
            extent if static else _dynamic(extent, multiple) for extent, multiple in zip(shape, multiples, strict=True)
        ]
        strides: list[Any] = [None] * rank
        step: Any = 1
        for axis in reversed(self.major(rank)):
            strides[axis] = step if isinstance(step, int) else runtime.sym_int64(divisibility=step.divisibility)
            step = step * extents[axis] if static else _product(step, extents[axis])
        align = min(self.ptr_assumed_align, HOST_ALIGNMENT) if on_host else self.ptr_assumed_align
        order = self.order(rank)
        return runtime.make_fake_tensor(
            kind, tuple(extents[axis] for axis in order), tuple(strides[axis] for axis in order), assumed_align=align
        )


def _product(step: Any, extent: Any) -> Any:
    before = step if isinstance(step, int) else step.divisibility
    return runtime.sym_int64(divisibility=before * extent.divisibility)


def _dynamic(extent: object, multiple: int | None) -> Any:
    if isinstance(extent, int):
        return runtime.sym_int(divisibility=multiple or 1)
    least = multiple or 1
    powers = (2**power for power in range(12, 0, -1))
    divisor = next((factor for factor in powers if factor > least and _is_multiple(extent, factor)), least)
    return runtime.sym_int(divisibility=divisor, symbol=str(extent))


def _is_multiple(extent: Any, factor: int) -> bool:
    """Return whether a symbolic extent is a multiple of `factor` for all values of its variables."""
    try:
        return isinstance(extent % factor, int) and extent % factor == 0
    except Exception:  # not decidable
        return False
