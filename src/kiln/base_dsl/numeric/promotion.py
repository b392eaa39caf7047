"""Type promotion: the type of an operation on two values, as in the table of `docs/numeric-types.md`."""

from __future__ import annotations

import math
from typing import Any

from .array_rules import active_rules
from .meta import INTEGERS, TYPES, FloatMeta, IntegerMeta, NumericMeta, type_of_python

_pairs: dict[tuple[NumericMeta, NumericMeta], NumericMeta] = {}
_WIDTHS = (4, 8, 16, 32, 64, 128)


def common_type(a: Any, b: Any) -> Any:
    """Return the type in which values of types `a` and `b` meet. Equal types stay as they are."""
    if a is b:
        return a
    rules = active_rules()
    if rules is not None and not (a._model or b._model):
        met = rules.common_type(a, b)
        if met is not None:
            return met
    common = _pairs.get((a, b))
    if common is None:
        common = _pairs[a, b] = _common_type(a, b)
    return common


def _common_type(a: NumericMeta, b: NumericMeta) -> NumericMeta:
    if a._model or b._model:
        return _common_own_type(a, b)
    if isinstance(a, IntegerMeta) and isinstance(b, IntegerMeta):
        if a.is_boolean or b.is_boolean:
            return b if a.is_boolean else a
        if a.width != b.width:
            return a if a.width > b.width else b
        return b if a.signed else a
    for one, other in ((a, b), (b, a)):
        if isinstance(one, FloatMeta):
            refuse_packed(one)
            if isinstance(other, IntegerMeta):
                # too few integers are exact in a narrow float, and those of 16 bits and more count as floats of their width
                float_ = one._compute
                return float_ if other.width < 16 else common_type(float_, TYPES[f"Float{min(other.width, 64)}"])
    assert isinstance(a, FloatMeta)
    assert isinstance(b, FloatMeta)
    for one, other in ((a, b), (b, a)):
        if one._format.contains(other._format):
            return one
    return TYPES["Float32"]


def _common_own_type(a: NumericMeta, b: NumericMeta) -> NumericMeta:
    """Return the common type where one is a program's own: it meets others as the type it is made of, and stays where
    the result has that type.

    Of two that could stay, the one made from the other does; if neither is, neither does.
    """
    met = common_type(a._model or a, b._model or b)
    own = [t for t in (a, b) if t._model is met]
    return next((t for t in own if all(issubclass(t, other) for other in own)), met)


def refuse_packed(t: Any) -> None:
    """Raise an error for a packed storage type, which has no values to compute with."""
    if t._format is None:
        raise TypeError(
            f"{t.__name__} is a packed storage type: convert its elements to a float type to compute with them"
        )


def holding_both(a: IntegerMeta, b: IntegerMeta) -> Any:
    """Return the smallest integer type with all values of both: comparisons of mixed signs are made there.

    128 bits are the end: Int128 against Uint128 is compared as Uint128.
    """
    return _smallest_integer(min(a.min, b.min), max(a.max, b.max), a.signed) or common_type(a, b)


def _smallest_integer(low: int, high: int, signed_first: bool) -> Any:
    for width in _WIDTHS:
        for signed in (signed_first, not signed_first):
            candidate = INTEGERS[width, signed]
            if candidate.min <= low and high <= candidate.max:
                return candidate
    return None


def float_of(t: Any) -> Any:
    """Return the float type that stands for an integer type in a true division or beside a Python float."""
    rules = active_rules()
    if rules is not None:
        return rules.float_of(t)
    return t if isinstance(t, FloatMeta) else TYPES["Float64" if t.width > 32 else "Float32"]


_beside: dict[tuple[NumericMeta, type], tuple[NumericMeta, float, float]] = {}


def operand_type(t: Any, value: bool | int | float) -> Any:
    """Return the type in which a value of type `t` meets a Python scalar in arithmetic: an int counts as Int32, a float
    as Float32.

    The scalar's kind decides, not its value; only an int that the integer type found so does not have widens it, so
    that no bit is lost.
    """
    if active_rules() is not None:
        return weak_type(t, value)
    kind = type(value)
    cached = _beside.get((t, kind))
    if cached is None:
        met = t if kind is bool else common_type(t, TYPES["Float32" if kind is float else "Int32"])
        low, high = (met.min, met.max) if kind is int and isinstance(met, IntegerMeta) else (-math.inf, math.inf)
        cached = _beside[t, kind] = (met, low, high)
    met, low, high = cached
    return weak_type(met, value) if value < low or value > high else met


def weak_type(t: Any, value: bool | int | float) -> Any:
    """Return the type of a choice between a value of type `t` and a Python scalar, and in which their integers are
    compared: `t`, or what keeps the scalar's kind and all bits of an int."""
    rules = active_rules()
    if rules is not None and (met := rules.beside(t, value)) is not None:
        return met
    if isinstance(t, FloatMeta):
        return t
    if isinstance(value, float):
        return float_of(t)
    if isinstance(value, bool):
        return t
    if t.is_boolean:
        return type_of_python(value)
    if t.min <= value <= t.max:
        return t
    widened = _smallest_integer(min(value, t.min), max(value, t.max), t.signed)
    if widened is None:
        raise OverflowError(f"the int {value} does not fit beside {t.__name__} in 128 bits")
    return widened
