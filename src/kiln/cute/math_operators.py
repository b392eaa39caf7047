"""Operators as functions, which also take a rounding mode: `cute.math.add` and the like."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

from ..base_dsl.diagnostics import type_error
from ..base_dsl.numeric.operators import select
from ..base_dsl.typing import Numeric
from .elementwise import apply, directed, direction_of
from .tensor.tensor_ssa import TensorSSA, where

__all__ = ["absi", "add", "div", "fpowi", "ipowi", "mul", "neg", "rem", "sub"]

V = TypeVar("V", bound="Numeric | TensorSSA | float")
"""A number, or a vector of numbers."""


def _operator(name: str, x: V, y: object, fastmath: bool, rounding: object) -> V:
    if direction := direction_of(rounding):
        return directed(name, direction, (x, y))
    if fastmath and _has_float(x, y):
        return apply(f"arith.{name}f", (x, y), fastmath)
    return _OPERATORS[name](x, y)


def _has_float(*arguments: object) -> bool:
    kinds = [x.dtype for x in arguments if isinstance(x, (TensorSSA, Numeric))]
    return any(kind.is_float for kind in kinds) or any(isinstance(x, float) for x in arguments)


_OPERATORS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def add(
    x: V,
    y: V | Numeric | float,
    fastmath: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return `x` + `y`, element by element.

    Args:
        x: a number or a `TensorSSA`.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _operator("add", x, y, fastmath, rounding)


def sub(
    x: V,
    y: V | Numeric | float,
    fastmath: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return `x` - `y`, element by element.

    Args:
        x: a number or a `TensorSSA`.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _operator("sub", x, y, fastmath, rounding)


def mul(
    x: V,
    y: V | Numeric | float,
    fastmath: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return `x` * `y`, element by element.

    Args:
        x: a number or a `TensorSSA`.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _operator("mul", x, y, fastmath, rounding)


def div(
    x: V,
    y: V | Numeric | float,
    fastmath: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    full: bool = False,
    approx: bool = False,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return `x` / `y`, of integers as floats, element by element.

    Args:
        x: a number or a `TensorSSA`.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
        full: the quotient may be off by 2 units in the last place; here it is not.
        approx: likewise, and a divisor may have to be within 2^-126 to 2^126.
    """
    return _operator("div", x, y, fastmath, rounding)


def rem(x: V, y: V | Numeric | float, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return what is left of `x` after as many whole `y` as fit in; it has the sign of `x`, unlike Python's `%`.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
    """
    if _has_float(x, y) or not any(isinstance(v, (Numeric, TensorSSA)) for v in (x, y)):
        left = apply("arith.remf", (x, y), fastmath)
        return left if _has_float(x, y) else type(x)(left)  # pyright: ignore[reportArgumentType, reportCallIssue]
    whole = abs(x) % abs(y)  # pyright: ignore[reportArgumentType]
    return _chosen(x < 0, -whole, whole)  # pyright: ignore[reportOperatorIssue]


def _chosen(condition: Any, x: V, y: V) -> V:
    return (where if isinstance(condition, TensorSSA) else select)(condition, x, y)  # pyright: ignore[reportReturnType, reportArgumentType]


def neg(x: V, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return -`x`, in the type of `x`.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        fastmath: no effect; the result is exact.
    """
    return -x  # pyright: ignore[reportReturnType, reportOperatorIssue]


def absi(x: V, *, loc: object = None, ip: object = None) -> V:
    """Return the absolute value of `x`, a number or a `TensorSSA` of integers. That of the lowest number is itself."""
    if _has_float(x):
        raise type_error(f"absi() takes integers, got {x}", "cute.math.abs() takes floats, too")
    return x.__abs__()  # pyright: ignore[reportAttributeAccessIssue, reportReturnType]


def fpowi(x: V, y: V | Numeric | int, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return `x` to the power of an integer `y`.

    Args:
        x: a float, or a `TensorSSA` of floats.
        y: an integer, or a `TensorSSA` of integers whose shape broadcasts with that of `x`.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
    """
    if _has_float(y):
        raise type_error(f"the exponent of fpowi() is {y}", "an integer; cute.math.pow() takes floats")
    return apply("math.powf", (x, y), fastmath)


def ipowi(x: V, y: int, *, loc: object = None, ip: object = None) -> V:
    """Return `x` to the power of `y`, as an integer that wraps; 0 for negative powers, but of 1 and -1.

    Args:
        x: an integer, or a `TensorSSA` of integers.
        y: a Python integer.
    """
    if _has_float(x) or not isinstance(y, int):
        raise type_error(f"ipowi() of {x} and {y}", "an integer or a vector of them, and a Python integer")
    base: Any = x
    if y < 0:
        sign = base if y % 2 else base * base
        if isinstance(base, int):
            return sign if base in (1, -1) else 0  # pyright: ignore[reportArgumentType, reportReturnType]
        return _chosen(base * base == 1, sign, sign - sign)
    power: Any = None
    for bit in range(y.bit_length()):
        if y >> bit & 1:
            power = base if power is None else power * base
        base = base * base
    return base - base + 1 if power is None else power
