"""Mathematical functions of scalars and vectors, as operations of the `math` dialect.

A function takes a typed scalar, a `TensorSSA` or a Python number (a Float32 inside a trace) and gives the same kind;
integers become floats first (Float32, Float64 beyond 32 bits). Types of less than 16 bits are computed in Float32.
`fastmath=True` lets the target use approximations and ignore NaN, infinities and signed zeros; `approx=True` only the
former; `ftz` flushes subnormals to zero where the target can. `docs/tensors.md` states the error of each function.
"""

from __future__ import annotations

import enum
import functools
import math as python_math
from collections.abc import Callable
from typing import Any

from ..base_dsl import trace as tracing
from ..base_dsl.bindings import context, ir
from ..base_dsl.diagnostics import type_error
from ..base_dsl.numeric import emit
from ..base_dsl.numeric.emit import convert
from ..base_dsl.numeric.operators import arithmetic_type, check_chosen, select
from ..base_dsl.numeric.promotion import float_of, weak_type
from ..base_dsl.typing import Boolean, Float32, Numeric, as_numeric, common_type, maximum, minimum, plain_scalar
from .layout.int_tuple import product
from .tensor.tensor_ssa import TensorSSA, _broadcast_shape, _meet, _operands, splat, where

__all__ = [
    "RoundingMode", "abs", "absf", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "copysign", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fma", "isfinite", "isinf", "isnan", "log",
    "log1p", "log2", "log10", "max", "min", "pow", "rcp", "round", "roundeven", "rsqrt", "sigmoid", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
]  # fmt: skip


class RoundingMode(enum.Enum):
    """How an operation rounds. Only to nearest even is available on every target."""

    RN = "rn"
    RZ = "rz"
    RM = "rm"
    RP = "rp"


@functools.cache
def _flags(fastmath: bool, approx: bool) -> dict[str, ir.Attribute] | None:
    if not fastmath and not approx:
        return None
    # without `reassoc`: what other operations round stays rounded
    flags = "nnan,ninf,nsz,arcp,afn" if fastmath else "afn"
    return {"fastmath": ir.Attribute.parse(f"#arith.fastmath<{flags}>", context())}


def _apply(
    op: str, arguments: tuple[Any, ...], python: Callable[..., Any] | None, fastmath: bool = False,
    approx: bool = False, result: Any = None,
) -> Any:  # fmt: skip
    """Return an operation on floats of one type. `result`: the type of the result, if another."""
    traced = tracing.current() is not None and bool(tracing.current().functions)  # type: ignore[union-attr]
    if not traced:
        return _on_host(op, arguments, python)
    t = _float_type(op, arguments)
    compute = t._compute
    shape = _shape(op, arguments)
    count = None if shape is None else product(shape)
    values = [_operand(x, compute, shape, count) for x in arguments]
    made = tracing.emit_value(
        op, emit.ir_type(result or compute, count), values, _flags(fastmath, approx) or emit.float_attributes()
    )
    if result is None and compute is not t:
        made = convert(made, compute, t, count)
    kind = result or t
    return kind._make(made) if shape is None else TensorSSA(made, shape, kind)


def _float_type(op: str, arguments: tuple[Any, ...]) -> Any:
    """Return the type the arguments meet in: Python numbers take the type of the others."""
    found: Any = None
    for x in arguments:
        if isinstance(x, (TensorSSA, Numeric)):
            found = x.dtype if found is None else common_type(found, x.dtype)
        elif plain_scalar(x) is None:
            raise type_error(
                f"{op.removeprefix('math.')}() takes a number or a vector, got {type(x).__name__}",
                "load a tensor first: t.load()",
            )
    return Float32 if found is None else float_of(arithmetic_type(found))


def _shape(op: str, arguments: tuple[Any, ...]) -> Any:
    shape: Any = None
    for x in arguments:
        if isinstance(x, TensorSSA):
            found = x.shape if shape is None else _broadcast_shape(shape, x.shape)
            if found is None:
                raise type_error(f"{op.removeprefix('math.')}(): shapes {shape} and {x.shape} do not go together")
            shape = found
    return shape


def _operand(x: Any, t: Any, shape: Any, count: int | None) -> ir.Value:
    if isinstance(x, TensorSSA):
        return x.broadcast_to(shape).to(t).value
    if shape is None:
        return t(x).ir_value()
    assert count is not None
    return splat(x, t, count)


def _on_host(op: str, arguments: tuple[Any, ...], python: Callable[..., Any] | None) -> Any:
    if python is None:
        raise type_error(f"{op.removeprefix('math.')}() is only available in a traced function")
    typed = [x for x in arguments if isinstance(x, Numeric)]
    made = python(*[float(as_numeric(x).value) for x in arguments])
    return typed[0].dtype(made) if typed and not isinstance(made, bool) else made


def _unary(name: str, python: Callable[[float], float] | None, doc: str) -> Callable[..., Any]:
    def function(
        x: Any, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: Any = None, ip: Any = None
    ) -> Any:
        return _apply(f"math.{name}", (x,), python, fastmath, approx)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


exp = _unary("exp", python_math.exp, "e to the power of x.")
exp2 = _unary("exp2", lambda x: 2.0**x, "2 to the power of x.")
expm1 = _unary("expm1", python_math.expm1, "exp(x) - 1, exact for small x.")
log = _unary("log", python_math.log, "The natural logarithm.")
log2 = _unary("log2", python_math.log2, "The logarithm to base 2.")
log10 = _unary("log10", python_math.log10, "The logarithm to base 10.")
log1p = _unary("log1p", python_math.log1p, "log(1 + x), exact for small x.")
sin = _unary("sin", python_math.sin, "The sine of an angle in radians.")
cos = _unary("cos", python_math.cos, "The cosine of an angle in radians.")
tan = _unary("tan", python_math.tan, "The tangent of an angle in radians.")
asin = _unary("asin", python_math.asin, "The arc sine.")
acos = _unary("acos", python_math.acos, "The arc cosine.")
atan = _unary("atan", python_math.atan, "The arc tangent.")
sinh = _unary("sinh", python_math.sinh, "The hyperbolic sine.")
cosh = _unary("cosh", python_math.cosh, "The hyperbolic cosine.")
tanh = _unary("tanh", python_math.tanh, "The hyperbolic tangent.")
asinh = _unary("asinh", python_math.asinh, "The inverse of the hyperbolic sine.")
acosh = _unary("acosh", python_math.acosh, "The inverse of the hyperbolic cosine.")
atanh = _unary("atanh", python_math.atanh, "The inverse of the hyperbolic tangent.")
erf = _unary("erf", python_math.erf, "The error function.")
erfc = _unary("erfc", python_math.erfc, "1 - erf(x), exact for large x.")
cbrt = _unary("cbrt", lambda x: python_math.copysign(python_math.fabs(x) ** (1 / 3), x), "The cube root.")
floor = _unary("floor", python_math.floor, "The largest integer not above x, as a float.")
ceil = _unary("ceil", python_math.ceil, "The smallest integer not below x, as a float.")
trunc = _unary("trunc", python_math.trunc, "x without its fraction, as a float.")
round = _unary("round", None, "The nearest integer, halves away from zero, as a float.")
roundeven = _unary("roundeven", lambda x: float(_round(x)), "The nearest integer, halves to even, as a float.")


def _round(x: float) -> int:
    return python_math.floor(x + 0.5) if x % 1 != 0.5 else 2 * python_math.floor(x / 2 + 0.5)


def sqrt(
    x: Any, fastmath: bool = False, approx: bool = False, ftz: bool = False, rounding: Any = None, *, loc: Any = None,
    ip: Any = None,
) -> Any:  # fmt: skip
    """Return the square root."""
    _only_nearest(rounding, "sqrt")
    return _apply("math.sqrt", (x,), python_math.sqrt, fastmath, approx)


def rsqrt(
    x: Any, fastmath: bool = False, approx: bool = False, ftz: bool = False, *, loc: Any = None, ip: Any = None
) -> Any:
    """Return 1 / sqrt(x)."""
    return _apply("math.rsqrt", (x,), lambda v: 1.0 / python_math.sqrt(v), fastmath, approx)


def rcp(
    x: Any, fastmath: bool = False, approx: bool = False, rounding: Any = None, ftz: bool = False, *, loc: Any = None,
    ip: Any = None,
) -> Any:  # fmt: skip
    """Return 1 / x."""
    _only_nearest(rounding, "rcp")
    return _apply("arith.divf", (1.0, x), lambda one, v: one / v, fastmath, approx)


def sigmoid(x: Any, fastmath: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return 1 / (1 + exp(-x)). Exact at both ends: 0 and 1."""
    if isinstance(x, (TensorSSA, Numeric)) and x.dtype.is_float and x.dtype.width < 32:
        return sigmoid(x.to(Float32), fastmath).to(x.dtype)  # rounded once
    if fastmath or tracing.current() is None:
        return rcp(exp(-x, fastmath) + 1.0, fastmath)
    # exp(-|x|) does not overflow where the result is tiny
    small = exp(-abs(x))
    choose = where if isinstance(small, TensorSSA) else select
    return choose(x < 0, small, 1.0) / (small + 1.0)


def fma(
    a: Any, b: Any, c: Any, fastmath: bool = False, rounding: Any = None, ftz: bool = False, *, loc: Any = None,
    ip: Any = None,
) -> Any:  # fmt: skip
    """Return a * b + c, rounded once."""
    _only_nearest(rounding, "fma")
    return _apply("math.fma", (a, b, c), lambda x, y, z: x * y + z, fastmath)


def pow(x: Any, y: Any, fastmath: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return x to the power of y."""
    return _apply("math.powf", (x, y), python_math.pow, fastmath)


def atan2(y: Any, x: Any, fastmath: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return the angle of the point (x, y), between -pi and pi."""
    return _apply("math.atan2", (y, x), python_math.atan2, fastmath)


def copysign(x: Any, y: Any, fastmath: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return x with the sign of y."""
    return _apply("math.copysign", (x, y), python_math.copysign, fastmath)


def isnan(x: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """Return whether x is not a number."""
    return _apply("math.isnan", (x,), python_math.isnan, result=Boolean)


def isinf(x: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """Return whether x is infinite."""
    return _apply("math.isinf", (x,), python_math.isinf, result=Boolean)


def isfinite(x: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """Return whether x is neither infinite nor not a number."""
    return _apply("math.isfinite", (x,), python_math.isfinite, result=Boolean)


def abs(x: Any, fastmath: bool = False, ftz: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return the absolute value, in the type of x."""
    return x.__abs__()


absf = abs


def _extremum(name: str, x: Any, y: Any, propagate_nan: bool) -> Any:
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
            made = (emit.integer_max if name == "max" else emit.integer_min)(t, a, b, product(shape))
            return TensorSSA(made, shape, t)
    op = {"max": "arith.maxnumf", "min": "arith.minnumf"}[name]
    if propagate_nan:
        op = {"max": "arith.maximumf", "min": "arith.minimumf"}[name]
    return _apply(op, (x, y), None)


def max(x: Any, y: Any, propagate_nan: bool = False, ftz: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return the larger, element by element. A NaN loses against a number, unless it is to be propagated."""
    return _extremum("max", x, y, propagate_nan)


def min(x: Any, y: Any, propagate_nan: bool = False, ftz: bool = False, *, loc: Any = None, ip: Any = None) -> Any:
    """Return the smaller, element by element. A NaN loses against a number, unless it is to be propagated."""
    return _extremum("min", x, y, propagate_nan)


def _only_nearest(rounding: Any, name: str) -> None:
    if rounding is not None and getattr(rounding, "name", "RN").upper() != "RN":
        raise type_error(f"{name}() with rounding {rounding}: only to nearest even is available")
