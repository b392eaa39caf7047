"""Functions on typed scalars that the front end and the languages above are built from."""

from __future__ import annotations

from typing import Any

from . import emit, host
from .meta import INTEGERS, TYPES, FloatMeta, NumericMeta
from .operands import PLAIN, plain_scalar
from .operators import extremum
from .promotion import type_of_python


def minimum(a: object, b: object) -> Any:
    """Return the smaller of `a` and `b`, two numbers, in their common type. A NaN loses against a number."""
    return _extremum("min", min, a, b)


def maximum(a: object, b: object) -> Any:
    """Return the larger of `a` and `b`, two numbers, in their common type. A NaN loses against a number."""
    return _extremum("max", max, a, b)


def _extremum(name: str, python: Any, a: Any, b: Any) -> Any:
    if not (isinstance(type(a), NumericMeta) or isinstance(type(b), NumericMeta)):
        return python(a, b)
    result = extremum(name, a, b)
    if result is NotImplemented:
        raise TypeError(f"{name} of {type(a).__name__} and {type(b).__name__}: both must be numbers")
    return result


def logical_not(x: Any) -> Any:
    """Return Python's `not x`, also where `x` is a dynamic Boolean."""
    t = type(x)
    if not isinstance(t, NumericMeta):
        return not x
    boolean = TYPES["Boolean"]
    if type(x._value) in PLAIN:
        return boolean._make(not x._value)
    return boolean._make(emit.compare("eq", t, x._value, emit.constant(t, t.zero)))


def join(a: object, b: object) -> Any:
    """Return the type of a variable that is `a` on one path and `b` on the other, or None if there is none.

    Two typed values must be of one type; a type of the program joins the one it is made of as that. A Python scalar takes
    the type of the typed one if that keeps its kind and value.
    """
    t = _joined(a, b)
    return t if t is not None and all(_is_kept(t, x) for x in (a, b)) else None


def lost_by_joining(a: object, b: object) -> tuple[str, str]:
    """Return what a number would lose if two values joined, and what to write; nothing if they join or cannot."""
    t = _joined(a, b)
    for x in (a, b):
        if t is not None and not _is_kept(t, x):
            return f"{type(x).__name__} {x} is no value of {t.__name__}, the type it would have", host.keeping(t, x)
    return "", ""


def _is_kept(t: object, x: object) -> bool:
    return isinstance(type(x), NumericMeta) or host.keeps(t, plain_scalar(x))  # type: ignore[arg-type]


def _joined(a: Any, b: Any) -> Any:
    """Return the type that the kinds of two values join in."""
    if isinstance(type(b), NumericMeta):
        a, b = b, a
    s = type(a)
    t = type(b)
    if isinstance(s, NumericMeta) and isinstance(t, NumericMeta):
        return s if s is t or s is t._model else t if t is s._model else None
    first = a if isinstance(s, NumericMeta) else plain_scalar(a)
    second = plain_scalar(b)
    if first is None or second is None:
        return None
    if isinstance(s, NumericMeta):
        return _join_weak(s, second)
    kinds = {type(first), type(second)}
    if kinds == {int, float}:
        return TYPES["Float32"]
    if len(kinds) == 2:
        return None
    if kinds == {int}:  # one that fits nowhere does not fit in the widest type either
        return max((_type_of_int(x) for x in (first, second)), key=lambda t: t.width)
    return type_of_python(first)


def _type_of_int(value: Any) -> Any:
    widest = INTEGERS[128, True]
    return type_of_python(value) if widest.min <= value <= widest.max else widest


def _join_weak(t: Any, value: bool | int | float) -> Any:
    if isinstance(value, bool):
        return t if t.is_integer and t.is_boolean else None
    if isinstance(t, FloatMeta):
        return t
    return None if isinstance(value, float) or t.is_boolean else t


def zero_of(t: Any) -> Any:
    """Return zero as a value of type `t`."""
    return t(t.zero)


def cast(x: Any, t: Any) -> Any:
    """Return `x` as a value of type `t`."""
    return t(x)
