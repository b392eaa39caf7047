"""Typed scalars outside a trace: plain Python values, rounded and wrapped as their type says.

Integers are held as `int`, Boolean as `bool`, floats as a `float` that is exactly a value of the type.
The arithmetic of a type of 32 bits or fewer is done in double precision and rounded once, which gives the
correctly rounded result (53 >= 2 * 24 + 2).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .formats import BFLOAT16, FLOAT32, float_of_int
from .meta import FloatMeta, IntegerMeta

Plain = bool | int | float


def cast(t: object, value: Plain) -> Plain:
    """Return `value` as one of type `t`: ints wrap, floats round, float to int truncates and saturates (NaN: 0)."""
    if isinstance(t, FloatMeta):
        if t._format is None:  # packed storage: the bit pattern
            return int(value) & ((1 << t.width) - 1)
        if isinstance(value, int):
            value = _to_double(value) if t.width == 64 else float_of_int(value)
            if t._format is BFLOAT16:  # as compiled code does
                value = FLOAT32.round(value)
        return value if t.width == 64 else t._format.round(value)
    assert isinstance(t, IntegerMeta)
    if t.is_boolean:
        return bool(value)
    if isinstance(value, float):
        if value != value:
            return 0
        if math.isinf(value):
            return t.max if value > 0 else t.min
        return min(max(int(value), t.min), t.max)
    return wrap(t, value)


def _to_double(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def keeps(t: object, value: Plain) -> bool:
    """Return whether a Python number is the same number as a value of type `t`. A float may be rounded, as floats
    are where they meet a type, but not to an infinity or to the largest number."""
    if isinstance(value, float):
        return not isinstance(t, IntegerMeta) and in_range(t, value)
    return cast(t, value) == value


def keeping(t: Any, value: object) -> str:
    """Return what to write for a Python number that is no value of a type."""
    if isinstance(value, float):
        return f"convert both sides to a type that has {value!r}"
    if isinstance(t, FloatMeta):
        return f"write {t.__name__}({value}) to have it rounded, or convert both sides to a type that has it"
    if t.width == 128:
        return "numbers of a program have at most 128 bits: keep it a Python value (Constexpr, range_constexpr)"
    return f"convert both sides to a wider type than {t.__name__}"


def in_range(t: Any, value: Plain) -> bool:
    """Return whether a Python number, rounded to a type of floats, is one of its numbers. Infinities and NaN are
    where it has them."""
    if t._format is None:  # packed storage: the bit pattern
        return cast(t, value) == value
    if t._format is BFLOAT16 and not isinstance(value, float) and FLOAT32.has(value):  # as `cast` does
        value = FLOAT32.round(float_of_int(value))
    return t._format.has(value)


def wrap(t: IntegerMeta, value: int) -> int:
    """Return `value` modulo 2**width, in the range of `t`."""
    if t.is_boolean:
        return bool(value)
    if t.min <= value <= t.max:
        return int(value)
    value &= (1 << t.width) - 1
    return value - (1 << t.width) if value > t.max else value


def to_bits(t: Any, value: Plain) -> int:
    """Return the bit pattern of a value of type `t`, as a non-negative int of `t.width` bits."""
    if isinstance(t, FloatMeta) and t._format is not None:
        return t._format.encode(float(value))
    return int(value) & ((1 << t.width) - 1)


def from_bits(t: Any, bits: int) -> Plain:
    """Return the value of a bit pattern."""
    if isinstance(t, FloatMeta):
        return bits if t._format is None else t._format.decode(bits)
    return wrap(t, bits)


def text(t: Any, value: Plain) -> str:
    """Return the shortest decimal that is this value of type `t`."""
    if not isinstance(value, float) or t.width == 64 or not math.isfinite(value) or value.is_integer():
        return str(value)
    for digits in range(1, 10):
        shorter = float(f"{value:.{digits}g}")
        if t._format.round(shorter) == value:
            return str(shorter)
    return str(value)


def divide(a: float, b: float) -> float:
    """Return the IEEE quotient."""
    if b != 0.0:
        return a / b
    if a == 0.0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def float_mod(a: float, b: float) -> float:
    """Return Python's `%`; NaN where Python raises."""
    if b == 0.0 or math.isinf(a) or a != a or b != b:
        return math.nan
    return a % b


def float_floordiv(a: float, b: float) -> float:
    """Return Python's `//`; by zero as IEEE division does."""
    if b == 0.0:
        return divide(a, b)
    return a // b


def float_pow(a: float, b: float) -> float:
    """Return the IEEE power: NaN for a negative base with a fractional exponent, infinity for an overflow."""
    try:
        result = math.pow(a, b)
    except OverflowError:
        odd = b == math.floor(b) and math.fmod(b, 2.0) != 0.0
        return -math.inf if a < 0 and odd else math.inf
    except ValueError:
        if a == 0.0 and b < 0:
            odd = b == math.floor(b) and math.fmod(b, 2.0) != 0.0
            return math.copysign(math.inf, a) if odd else math.inf
        return math.nan
    return result


def int_pow(a: int, b: int) -> int:
    if b < 0:
        raise ValueError("a negative power of an integer is not an integer; convert the base to a float type")
    return pow(a, b, 1 << 128) if b > 1 << 12 else a**b


def shift_left(a: int, b: int) -> int:
    return 0 if b >= 128 else a << b


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_EXACT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}

INTEGER: dict[str, Callable[[int, int], int]] = {
    **_EXACT,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lshift": shift_left,
    "rshift": lambda a, b: a >> min(b, 128),
    "pow": int_pow,
    "min": min,
    "max": max,
}

FLOAT: dict[str, Callable[[float, float], float]] = {
    **_EXACT,
    "truediv": divide,
    "floordiv": float_floordiv,
    "mod": float_mod,
    "pow": float_pow,
    "min": lambda a, b: b if a != a or b < a else a,
    "max": lambda a, b: b if a != a or b > a else a,
}


def binary(name: str, t: Any, a: Plain, b: Plain) -> Plain:
    """Return `a op b` for two values of type `t`, as a value of `t`."""
    if isinstance(t, FloatMeta):
        value = FLOAT[name](float(a), float(b))
        return value if t.width == 64 else t._format.round(value)
    return wrap(t, INTEGER[name](int(a), int(b)))
