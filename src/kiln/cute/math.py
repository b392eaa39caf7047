"""Mathematical functions of scalars and vectors, as operations of the `math` dialect.

A function takes a typed scalar, a `TensorSSA` or a Python number (a Float32 inside a trace) and gives the same kind;
integers become floats first (Float32, Float64 beyond 32 bits). Types of less than 16 bits are computed in Float32.
`fastmath=True` lets the target use approximations and ignore NaN, infinities and signed zeros; `approx=True` only the
former; `ftz` has no effect. `docs/tensors.md` states the error of each function.
"""

from __future__ import annotations

from typing import Any, TypeVar, Union

from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..base_dsl.numeric import emit
from ..base_dsl.numeric.operators import check_chosen, select
from ..base_dsl.numeric.promotion import weak_type
from ..base_dsl.typing import Boolean, Float32, Numeric, maximum, minimum
from .elementwise import RoundingMode, apply, directed, direction_of
from .layout.int_tuple import product
from .math_operators import absi, add, div, fpowi, ipowi, mul, neg, rem, sub
from .tensor.tensor_ssa import TensorSSA, _meet, _operands, where

__dir__ = lazy.listing(__name__)
__all__ = [
    "MathOperand",
    "RoundingMode",
    "abs",
    "absf",
    "absi",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "clamp",
    "copysign",
    "cos",
    "cosh",
    "div",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "fma",
    "fpowi",
    "ipowi",
    "isfinite",
    "isinf",
    "isnan",
    "isnormal",
    "log",
    "log1p",
    "log2",
    "log10",
    "max",
    "min",
    "mul",
    "neg",
    "pow",
    "rcp",
    "rem",
    "round",
    "roundeven",
    "rsqrt",
    "sigmoid",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "sub",
    "tan",
    "tanh",
    "trunc",
]

MathOperand = Union[Numeric, TensorSSA, float, int, bool]  # noqa: UP007 - Python 3.10 has no `|` of these
"""What functions of this module take."""
V = TypeVar("V", bound="Numeric | TensorSSA | float")
"""A number, or a vector of numbers."""


def exp(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return e to the power of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.exp", (x,), fastmath, approx)


def exp2(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return 2 to the power of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.exp2", (x,), fastmath, approx)


def expm1(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return exp(`x`) - 1, exact for small `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.expm1", (x,), fastmath, approx)


def log(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the natural logarithm of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.log", (x,), fastmath, approx)


def log2(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the logarithm of `x` to base 2.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.log2", (x,), fastmath, approx)


def log10(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the logarithm of `x` to base 10.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.log10", (x,), fastmath, approx)


def log1p(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return log(1 + `x`), exact for small `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.log1p", (x,), fastmath, approx)


def sin(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the sine of `x`, an angle in radians.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.sin", (x,), fastmath, approx)


def cos(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the cosine of `x`, an angle in radians.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.cos", (x,), fastmath, approx)


def tan(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the tangent of `x`, an angle in radians.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.tan", (x,), fastmath, approx)


def asin(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the arc sine of `x`, in radians; NaN outside of -1 to 1.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.asin", (x,), fastmath, approx)


def acos(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the arc cosine of `x`, in radians; NaN outside of -1 to 1.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.acos", (x,), fastmath, approx)


def atan(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the arc tangent of `x`, in radians.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.atan", (x,), fastmath, approx)


def sinh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the hyperbolic sine of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.sinh", (x,), fastmath, approx)


def cosh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the hyperbolic cosine of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.cosh", (x,), fastmath, approx)


def tanh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the hyperbolic tangent of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.tanh", (x,), fastmath, approx)


def asinh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the inverse hyperbolic sine of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.asinh", (x,), fastmath, approx)


def acosh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the inverse hyperbolic cosine of `x`; NaN below 1.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.acosh", (x,), fastmath, approx)


def atanh(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the inverse hyperbolic tangent of `x`; NaN outside of -1 to 1.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.atanh", (x,), fastmath, approx)


def erf(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the error function of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.erf", (x,), fastmath, approx)


def erfc(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return 1 - erf(`x`), exact for large `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.erfc", (x,), fastmath, approx)


def cbrt(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the cube root of `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.cbrt", (x,), fastmath, approx)


def floor(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the largest integer that is not above `x`, as a float.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.floor", (x,), fastmath, approx)


def ceil(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the smallest integer that is not below `x`, as a float.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.ceil", (x,), fastmath, approx)


def trunc(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return `x` rounded towards zero, as a float.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.trunc", (x,), fastmath, approx)


def round(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the integer nearest to `x`, halves away from zero, as a float.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.round", (x,), fastmath, approx)


def roundeven(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return the integer nearest to `x`, halves to even, as a float.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.roundeven", (x,), fastmath, approx)


def sqrt(
    x: V,
    fastmath: bool = False,
    approx: bool = False,
    ftz: bool = False,
    rounding: object = None,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the square root of `x`; NaN for negative numbers.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
    """
    if direction := direction_of(rounding):
        return directed("sqrt", direction, (x,))
    return apply("math.sqrt", (x,), fastmath, approx)


def rsqrt(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> V:
    """Return 1 / sqrt(`x`).

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return apply("math.rsqrt", (x,), fastmath, approx)


def rcp(
    x: V,
    fastmath: bool = False,
    approx: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return 1 / `x`.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    if direction := direction_of(rounding):
        return directed("rcp", direction, (x,))
    return apply("arith.divf", (1.0, x), fastmath, approx)


def sigmoid(x: V, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return the sigmoid of `x`, 1 / (1 + exp(-x)), which is exactly 0 and 1 at its ends.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Types below 32 bits are computed in Float32.
        fastmath: allow approximations of exp and of the division.
    """
    v: Any = x
    if isinstance(v, (TensorSSA, Numeric)) and v.dtype.is_float and v.dtype.width < 32:
        wide: Any = sigmoid(v.to(Float32), fastmath)
        return wide.to(v.dtype)  # rounded once
    if fastmath:
        power: Any = exp(-v, fastmath)
        return rcp(power + 1.0, fastmath)
    # exp(-|x|) does not overflow where the result is tiny
    small = exp(-abs(v))
    choose: Any = where if isinstance(small, TensorSSA) else select
    return choose(v < 0, small, 1.0) / (small + 1.0)


def fma(
    a: V,
    b: V | Numeric | float,
    c: V | Numeric | float,
    fastmath: bool = False,
    rounding: object = None,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return `a` * `b` + `c`, rounded once.

    Args:
        a: a number, or a `TensorSSA`.
        b: a number, or a `TensorSSA` whose shape broadcasts with that of `a`.
        c: a number, or a `TensorSSA` whose shape broadcasts with that of `a`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
        rounding: how to round, in kernels, Float32 and Float64: to nearest even unless given.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    if direction := direction_of(rounding):
        return directed("fma", direction, (a, b, c))
    return apply("math.fma", (a, b, c), fastmath)


def pow(base: V, exponent: V | Numeric | float, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return `base` to the power of `exponent`.

    Args:
        base: the base, a number or a `TensorSSA`.
        exponent: the exponent, a number or a `TensorSSA` whose shape broadcasts with that of `base`.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
    """
    return apply("math.powf", (base, exponent), fastmath)


def atan2(y: V, x: V | Numeric | float, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return the angle of the point (`x`, `y`) in radians, between -pi and pi.

    Args:
        y: the vertical coordinate, a number or a `TensorSSA`.
        x: the horizontal coordinate, a number or a `TensorSSA` whose shape broadcasts with that of `y`.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
    """
    return apply("math.atan2", (y, x), fastmath)


def copysign(mag: V, sign: V | Numeric | float, fastmath: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return the magnitude of `mag` with the sign of `sign`.

    Args:
        mag: a number, or a `TensorSSA`.
        sign: a number, or a `TensorSSA` whose shape broadcasts with that of `mag`.
        fastmath: assume that there are no NaN, infinities or signed zeros.
    """
    return apply("math.copysign", (mag, sign), fastmath)


def isnan(
    x: Numeric | TensorSSA | float, fastmath: bool = False, *, loc: object = None, ip: object = None
) -> Boolean | TensorSSA:
    """Return whether `x` is NaN, for a `TensorSSA` by element. `fastmath` changes nothing: it would exclude the answer."""
    return apply("math.isnan", (x,), result=Boolean)


def isinf(
    x: Numeric | TensorSSA | float, fastmath: bool = False, *, loc: object = None, ip: object = None
) -> Boolean | TensorSSA:
    """Return whether `x` is infinite, for a `TensorSSA` by element. `fastmath` changes nothing: it would exclude the answer."""
    return apply("math.isinf", (x,), result=Boolean)


def isfinite(
    x: Numeric | TensorSSA | float, fastmath: bool = False, *, loc: object = None, ip: object = None
) -> Boolean | TensorSSA:
    """Return whether `x` is neither infinite nor NaN, for a `TensorSSA` by element. `fastmath` changes nothing: it would exclude the answer."""
    return apply("math.isfinite", (x,), result=Boolean)


def abs(x: V, fastmath: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None) -> V:
    """Return the absolute value of `x`, in the type of `x`.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        fastmath: no effect; the result is exact.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return x.__abs__()  # pyright: ignore[reportAttributeAccessIssue, reportReturnType]


absf = abs


def _extremum(name: str, x: object, y: object, propagate_nan: bool) -> Any:
    if not isinstance(x, TensorSSA):
        if not isinstance(y, TensorSSA) and not propagate_nan:
            return (maximum if name == "max" else minimum)(x, y)
        x, y = y, x
    if isinstance(x, TensorSSA):
        t = _meet(x, y, weak_type)
        if t is None:
            raise type_error(f"{name}() of a vector and {type(y).__name__}")
        check_chosen(f"{name}()", t, y)
        if t.is_integer:
            a, b, shape = _operands(x, y, t)
            extreme = (emit.integer_max if name == "max" else emit.integer_min)(t, a, b, product(shape))
            return TensorSSA(extreme, shape, t)
    op = {"max": "arith.maxnumf", "min": "arith.minnumf"}[name]
    if propagate_nan:
        op = {"max": "arith.maximumf", "min": "arith.minimumf"}[name]
    return apply(op, (x, y))


def max(
    x: V,
    y: V | Numeric | float,
    propagate_nan: bool = False,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the larger of `x` and `y`, element by element.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        propagate_nan: return NaN if one of them is NaN. By default a NaN loses against a number.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _extremum("max", x, y, propagate_nan)


def min(
    x: V,
    y: V | Numeric | float,
    propagate_nan: bool = False,
    ftz: bool = False,
    *,
    loc: object = None,
    ip: object = None,
) -> V:
    """Return the smaller of `x` and `y`, element by element.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        y: a number, or a `TensorSSA` whose shape broadcasts with that of `x`.
        propagate_nan: return NaN if one of them is NaN. By default a NaN loses against a number.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _extremum("min", x, y, propagate_nan)


def clamp(x: V, lo: V | Numeric | float, hi: V | Numeric | float, *, loc: object = None, ip: object = None) -> V:
    """Return `x`, or the nearest of `lo` and `hi` if it lies outside of them. A NaN becomes `lo`.

    Args:
        x: a number or a `TensorSSA`, of integers or floats.
        lo: the smallest result.
        hi: the largest result, not below `lo`.
    """
    return min(max(x, lo), hi)


def isnormal(x: Numeric | TensorSSA | float, *, loc: object = None, ip: object = None) -> Boolean | TensorSSA:
    """Return whether `x` is neither zero, subnormal, infinite nor NaN, for a `TensorSSA` by element."""
    return apply("math.isnormal", (x,), result=Boolean)


def sincos(
    x: V, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: object = None, ip: object = None
) -> tuple[V, V]:
    """Return the sine and the cosine of `x`, an angle in radians.

    Args:
        x: a number, or a `TensorSSA` (every element by itself). Integers become floats first.
        fastmath: allow approximations, and assume that there are no NaN, infinities or signed zeros.
        approx: allow the hardware's approximation, which is faster.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return sin(x, fastmath, approx), cos(x, fastmath, approx)
