"""Functions on typed scalars that the front end and the languages above are built from."""

from __future__ import annotations

from typing import Any

from . import emit
from .meta import TYPES, FloatMeta, NumericMeta
from .operands import PLAIN, plain_scalar
from .operators import extremum
from .promotion import type_of_python


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers, in their common type. A NaN loses against a number."""
    return _extremum("min", min, a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers, in their common type. A NaN loses against a number."""
    return _extremum("max", max, a, b)


def _extremum(name: str, python: Any, a: Any, b: Any) -> Any:
    if not (isinstance(type(a), NumericMeta) or isinstance(type(b), NumericMeta)):
        return python(a, b)
    result = extremum(name, a, b)
    if result is NotImplemented:
        raise TypeError(f"{name} of {type(a).__name__} and {type(b).__name__}: both must be numbers")
    return result


def logical_not(x: Any) -> Any:
    """Python's `not`, for a dynamic value too."""
    t = type(x)
    if not isinstance(t, NumericMeta):
        return not x
    boolean = TYPES["Boolean"]
    if type(x._value) in PLAIN:
        return boolean._make(not x._value)
    return boolean._make(emit.compare("eq", t, x._value, emit.constant(t, t.zero)))


def join(a: Any, b: Any) -> Any:
    """The type of a variable that is `a` on one path and `b` on the other, or None if there is none.

    Two typed values must be of one type. A Python scalar takes the typed one's type if that keeps its kind and value.
    """
    if isinstance(type(b), NumericMeta):
        a, b = b, a
    s, t = type(a), type(b)
    if isinstance(s, NumericMeta) and isinstance(t, NumericMeta):
        return s if s is t else None
    first, second = a if isinstance(s, NumericMeta) else plain_scalar(a), plain_scalar(b)
    if first is None or second is None:
        return None
    if isinstance(s, NumericMeta):
        return _join_weak(s, second)
    kinds = {type(first), type(second)}
    if kinds == {int, float}:
        return TYPES["Float32"]
    if len(kinds) == 2:
        return None
    s, t = type_of_python(first), type_of_python(second)
    return s if s.width >= t.width else t


def _join_weak(t: Any, value: bool | int | float) -> Any:
    if isinstance(value, bool):
        return t if t.is_integer and t.is_boolean else None
    if isinstance(t, FloatMeta):
        return t
    if isinstance(value, float) or t.is_boolean:
        return None
    return t if t.min <= value <= t.max else None


def zero_of(t: Any) -> Any:
    """Zero as a value of type `t`."""
    return t(t.zero)


def cast(x: Any, t: Any) -> Any:
    """`x` as a value of type `t`."""
    return t(x)
