"""Python's operators on IR values of numbers, which the operations that programs build themselves return."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import cast

from .. import trace
from ..bindings import ir
from .operands import as_numeric, is_numeric

_BOTH_WAYS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_ONE_WAY = ("lt", "le", "gt", "ge", "neg", "pos", "invert", "abs")


@functools.lru_cache(maxsize=1)
def have_operators() -> None:
    """Let Python's operators take IR values in a trace: they compute with the numbers that `as_numeric` returns.

    With a typed scalar they give one, else an IR value.
    """
    for name in (*_BOTH_WAYS, *_ONE_WAY):
        compute = getattr(operator, f"__{name}__")
        setattr(ir.Value, f"__{name}__", _of_numbers(compute))
        if name in _BOTH_WAYS:
            setattr(ir.Value, f"__r{name}__", _of_numbers(lambda x, y, compute=compute: compute(y, x)))
    same = ir.Value.__eq__
    ir.Value.__eq__ = _comparison(operator.eq, same)
    ir.Value.__ne__ = _comparison(operator.ne, lambda x, y: not same(x, y))


def _in_type_of(operand: object, other: object) -> object:
    """Return a Python integer as a number of the type of an IR value, whose bits it may state: 0x80000000 of an i32."""
    if type(operand) is not int or not isinstance(other, ir.Value):
        return operand
    kind = cast("ir.Value", other).type
    if not isinstance(kind, ir.IntegerType):
        return operand
    width = kind.width
    is_pattern = 1 << width - 1 <= operand < 1 << width
    return operand - (1 << width) if width > 1 and is_pattern else operand


def _of_numbers(compute: Callable[..., object]) -> Callable[..., object]:
    def run(*operands: object) -> object:
        if len(operands) == 2:
            left, right = operands
            operands = (_in_type_of(left, right), _in_type_of(right, left))
        try:
            numbers = [as_numeric(x) for x in operands]
        except TypeError:
            return NotImplemented
        result = compute(*numbers)
        return result if any(map(is_numeric, operands)) or not is_numeric(result) else as_numeric(result).ir_value()

    return run


def _comparison(compute: Callable[..., object], of_values: Callable[..., bool]) -> Callable[..., bool]:
    """Return `==` or `!=`: of numbers in a trace; of two IR values only where rewritten code asks, not Kiln itself."""
    of_numbers = _of_numbers(compute)

    def run(x: object, y: object) -> object:
        rewritten = "__kiln__" in sys._getframe(1).f_code.co_freevars
        if trace.state.trace is None or (isinstance(y, ir.Value) and not rewritten):
            return of_values(x, y)
        compared = of_numbers(x, y)
        return of_values(x, y) if compared is NotImplemented else compared

    return run  # pyright: ignore[reportReturnType] - a comparison of numbers is one of the program
