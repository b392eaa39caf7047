"""The computation that the epilogue of a GEMM fuses: scales, C, bias, activation, a user's function."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ...dispatch.arrays import refusal, require
from ...parts.element_functions import Functions, of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable


def _identity(x: cute.TensorSSA) -> cute.TensorSSA:
    return x


def _relu(x: Any) -> Any:
    return cute.math.max(x, 0.0, propagate_nan=True)


def _silu(x: Any) -> Any:
    return x / (cute.math.exp(-x) + 1.0)


def _gelu(x: cute.TensorSSA) -> cute.TensorSSA:
    return x * 0.5 * (cute.math.erf(x * 0.7071067811865476) + 1.0)


def _square(x: cute.TensorSSA) -> cute.TensorSSA:
    return x * x


ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {"relu": _relu, "silu": _silu, "gelu": _gelu}
ROW_REDUCTIONS: dict[Any, Callable[[Any], Any]] = {"squares": _square}
_NO_FUNCTIONS = Functions(_identity)


@dataclasses.dataclass(frozen=True)
class EpilogueFusion:
    """What an epilogue computes: epilogue(activation(alpha * acc * scales + beta * c + bias), *extras)."""

    c: bool = False
    bias: bool = False
    functions: Functions = _NO_FUNCTIONS
    """The activation and, if there are any, the user's epilogue and the function of `row_reduction`."""
    scaled: bool = True
    """Whether accumulators are converted to f32 and multiplied by alpha; integers may stay as they are."""
    scales: int = 0
    """How many tensors multiply the accumulators."""
    outs: int = 1
    """How many results the user's epilogue returns."""
    epilogue: bool = False
    row_reduction: bool = False
    """Whether a function of the first result is added along rows."""

    @classmethod
    def of(
        cls,
        c: bool,
        bias: bool,
        activation: Any,
        epilogue: Any,
        scaled: bool,
        branching: Any = (),
        scales: int = 0,
        outs: int = 1,
        row_reduction: Any = None,
    ) -> EpilogueFusion:
        """Return the fusion for arguments of `gemm`; `branching` functions are called for one element at a time."""
        function = _identity if activation is None else _function("activation", activation, ACTIVATIONS)
        row_function = None
        if row_reduction is not None:
            row_function = _function("row_reduction", row_reduction, ROW_REDUCTIONS)
        functions = [f for f in (function, epilogue, row_function) if f is not None]
        return cls(
            c,
            bias,
            Functions(*functions, branching=branching),
            scaled,
            scales,
            outs,
            epilogue is not None,
            row_function is not None,
        )

    @property
    def plain(self) -> bool:
        """Whether accumulators are at most multiplied by alpha."""
        return not (self.c or self.bias or self.scales) and self.functions == _NO_FUNCTIONS

    def combiner(self) -> Callable[..., Any]:
        """Return the function combine(acc, alpha, beta, *inputs) that kernels call on register fragments.

        `inputs` are the fragments of scales, C, the bias and extras, in this order. It returns the values of each
        result, and then what is summed along rows.
        """
        activation, *functions = self.functions.callables()
        epilogue = functions[: int(self.epilogue)]
        row_function = functions[int(self.epilogue) :]
        # kernels hold these plain values, not the fusion: a loop looks through everything that it reaches
        c = self.c
        bias = self.bias
        scaled = self.scaled
        scales = self.scales
        outs = self.outs

        def combine(
            acc: cute.TensorSSA, alpha: Float32, beta: Float32, *inputs: cute.TensorSSA
        ) -> list[cute.TensorSSA]:
            converted = scales + c + bias  # integers and truth values among the extras stay what they are
            rest = [
                x.to(Float32) if x.dtype is not Float32 and (n < converted or x.dtype.is_float) else x
                for n, x in enumerate(inputs)
            ]
            value = acc.to(Float32) if scaled and acc.dtype is not Float32 else acc
            if scaled:
                value = value * alpha
            for _ in range(scales):
                value = value * rest.pop(0)
            if c:
                value = value + rest.pop(0) * beta
            if bias:
                value = value + rest.pop(0)
            value = _checked("activation", of_arrays(activation, value), value)
            values = [value]
            for function in epilogue:
                returned = of_arrays(function, value, *rest)
                results = returned if isinstance(returned, tuple) else (returned,)
                require(
                    len(results) == outs,
                    f"gemm: the epilogue returned {len(results)} values for {outs} results",
                    hint="out=(x, y) or out_dtype=(t, u): one for each value",
                )
                values = [_checked("epilogue", x, value) for x in results]
            for function in row_function:
                first = values[0].to(Float32) if values[0].dtype is not Float32 else values[0]
                summed = _checked("function of row_reduction", of_arrays(function, first), first)
                values.append(summed.to(Float32) if summed.dtype is not Float32 else summed)
            return values

        return combine


NO_FUSION = EpilogueFusion()
"""The epilogue of `alpha * a @ b`."""


def _function(what: str, value: Any, by_name: dict[Any, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that a user passed, or the one of a name."""
    function = by_name.get(value) if isinstance(value, str) else value
    if not callable(function):
        raise refusal(f"gemm: {what} is {value!r}; it must be one of {', '.join(by_name)}, or a function")
    return function


def _checked(what: str, returned: Any, value: cute.TensorSSA) -> Any:
    """Return what a user's function returned for a value: a tensor of the same shape, or one of a Python number."""
    if isinstance(returned, (bool, int, float)):
        return cute.full_like(value, float(returned))
    require(
        isinstance(returned, type(value)) and returned.shape == value.shape,
        f"gemm: the {what} returned {'None' if returned is None else type(returned).__name__}",
        hint="it must return a value for each element that it gets, of any type",
    )
    return returned


def check_parameters(what: str, function: Any, extras: int) -> None:
    """Refuse a user's function that does not take the value and the extras."""
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a built-in function
        return
    try:
        signature.bind(*range(1 + extras))
    except TypeError as wrong:
        arguments = f"the value and {extras} extras" if extras else "the value"
        raise refusal(f"gemm: the {what} is called with {arguments}: {wrong}") from None
