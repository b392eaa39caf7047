"""What follows the sums of a product: factors, other arrays, an activation, a user's function."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ...dispatch.arrays import refusal, require
from ...parts.element_functions import Functions, of_arrays

if TYPE_CHECKING:
    from collections.abc import Callable


def _identity(x: Any) -> Any:
    return x


def _relu(x: Any) -> Any:
    return cute.math.max(x, 0.0, propagate_nan=True)


def _silu(x: Any) -> Any:
    return x / (cute.math.exp(-x) + 1.0)


def _gelu(x: Any) -> Any:
    return x * 0.5 * (cute.math.erf(x * 0.7071067811865476) + 1.0)


ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {"relu": _relu, "silu": _silu, "gelu": _gelu}


def _squared(x: Any) -> Any:
    return x * x


ROW_SUM_FUNCTIONS: dict[Any, Callable[[Any], Any]] = {"squares": _squared}


NO_FUNCTIONS = Functions(_identity)


@dataclasses.dataclass(frozen=True)
class EpilogueFusion:
    """epilogue(activation(alpha * sums * factors + beta * c + bias), *extras): the values of `results` arrays.

    `functions` are the activation and, if there are such, the epilogue and what is summed along rows of the first value. Sums that are not
    `scaled` stay as they are: integers. `factors` is the number of tensors that sums are multiplied by.
    """

    c: bool = False
    bias: bool = False
    functions: Functions = NO_FUNCTIONS
    scaled: bool = True
    scales: int = 0
    outs: int = 1
    epilogue: bool = False
    row_sum: bool = False

    @classmethod
    def of(
        cls, c: bool, bias: bool, activation: Any, epilogue: Any, scaled: bool, branching: Any = (), factors: int = 0, results: int = 1,
        row_sum: Any = None,
    ) -> EpilogueFusion:  # fmt: skip
        """What `gemm` was asked for; `branching`: functions that are given one element at a time."""
        chosen: Any = activation if callable(activation) else ACTIVATIONS.get(activation)
        if activation is None:
            chosen = _identity
        require(
            chosen is not None, f"gemm with activation {activation!r}: one of {', '.join(ACTIVATIONS)}, or a function"
        )
        summed: Any = ROW_SUM_FUNCTIONS.get(row_sum, row_sum) if isinstance(row_sum, str) else row_sum
        require(
            summed is None or callable(summed),
            f"gemm with row_sum {row_sum!r}: one of {', '.join(ROW_SUM_FUNCTIONS)}, or a function",
        )
        functions = [f for f in (chosen, epilogue, summed) if f is not None]
        return cls(
            c, bias, Functions(*functions, branching=branching), scaled, factors, results, epilogue is not None, summed is not None
        )  # fmt: skip

    @property
    def key(self) -> tuple[Any, ...]:
        """What kernels are made for besides the functions."""
        return self.c, self.bias, self.scaled, self.scales, self.outs, self.epilogue, self.row_sum

    @property
    def plain(self) -> bool:
        """Whether sums are at most scaled."""
        return not (self.c or self.bias or self.scales) and self.functions == NO_FUNCTIONS

    def combiner(self) -> Callable[..., Any]:
        """The function of a thread's sums and its parts of the other tensors: factors, C, the bias, extras. It gives the values of each
        result, and what is summed along rows."""
        activation, *more = self.functions.callables()
        epilogue, summed = more[: int(self.epilogue)], more[int(self.epilogue) :]
        results = self.outs
        c, bias, scaled, factors = (
            self.c,
            self.bias,
            self.scaled,
            self.scales,
        )  # what a loop looks through is what kernels hold

        def combine(acc: Any, alpha: Any, beta: Any, *others: Any) -> Any:
            added = factors + c + bias  # integers and truth values among the extras stay what they are
            rest = [
                x.to(Float32) if x.dtype is not Float32 and (n < added or x.dtype.is_float) else x
                for n, x in enumerate(others)
            ]
            value = acc.to(Float32) if scaled and acc.dtype is not Float32 else acc
            if scaled:
                value = value * alpha
            for _ in range(factors):
                value = value * rest.pop(0)
            if c:
                value = value + rest.pop(0) * beta
            if bias:
                value = value + rest.pop(0)
            value = _returned("activation", of_arrays(activation, value), value)
            values = [value]
            for function in epilogue:
                made = of_arrays(function, value, *rest)
                found = made if isinstance(made, tuple) else (made,)
                require(
                    len(found) == results,
                    f"gemm: the epilogue returned {len(found)} values for {results} results",
                    hint="out=(x, y) or out_dtype=(t, u): one for each value",
                )
                values = [_returned("epilogue", x, value) for x in found]
            for function in summed:
                first = values[0].to(Float32) if values[0].dtype is not Float32 else values[0]
                made = _returned("function of row_sum", of_arrays(function, first), first)
                values.append(made.to(Float32) if made.dtype is not Float32 else made)
            return values

        return combine


NO_FUSION = EpilogueFusion()
"""Sums are scaled, no more."""


def _returned(what: str, made: Any, value: Any) -> Any:
    """What a user's function made of a value: another one, or a number for all of them."""
    if isinstance(made, (bool, int, float)):
        return cute.full_like(value, float(made))
    require(
        isinstance(made, type(value)) and made.shape == value.shape,
        f"gemm: the {what} returned {'None' if made is None else type(made).__name__}",
        hint="it returns the value for each element it is given, and may change its type",
    )
    return made


def check_parameters(what: str, function: Any, extras: int) -> None:
    """Refuse a user's function that does not take the value and the extras."""
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of something built in
        return
    try:
        signature.bind(*range(1 + extras))
    except TypeError as wrong:
        given = f"the value and {extras} extras" if extras else "the value"
        raise refusal(f"gemm: the {what} is called with {given}: {wrong}") from None
