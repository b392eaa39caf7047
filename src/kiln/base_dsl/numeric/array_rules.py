"""Type promotion of arrays, as PyTorch or numpy does it, inside functions that are called with elements of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .meta import INTEGERS, TYPES, FloatMeta, IntegerMeta, NumericMeta


class ArrayRules:
    """The rules of PyTorch: the kind decides (Boolean, integers, floats), then the width; an integer beside a float counts
    as that float, and as Float32 where it becomes one by itself."""

    def common_type(self, a: NumericMeta, b: NumericMeta) -> Any:
        """Return the type in which two arrays meet; None where the library has no such type."""
        if _kind(a) != _kind(b):
            return a if _kind(a) > _kind(b) else b
        return common_integer(a, b) if isinstance(a, IntegerMeta) and isinstance(b, IntegerMeta) else None

    def beside(self, t: NumericMeta, value: bool | int | float) -> Any:
        """Return the type in which an array meets a Python number, whose kind decides; None for an integer that the
        array's type does not have."""
        if isinstance(value, float):
            return self.float_of(t)
        if type(value) is bool or not isinstance(t, IntegerMeta):
            return t
        if t.is_boolean:
            return INTEGERS[64, True]
        return t if t.min <= value <= t.max else None

    def float_of(self, t: NumericMeta) -> Any:
        """Return the float type that an integer becomes in a division, a function of floats, or beside a float."""
        return t if isinstance(t, FloatMeta) else TYPES["Float32"]


class NumpyRules(ArrayRules):
    """The rules of numpy: a float has to hold all integers of the other type."""

    def common_type(self, a: NumericMeta, b: NumericMeta) -> Any:
        for one, other in ((a, b), (b, a)):
            if isinstance(one, FloatMeta) and isinstance(other, IntegerMeta) and other.width > 8:
                if one.width < 16 or one is TYPES["BFloat16"]:
                    return None
                return TYPES["Float32"] if other.width == 16 and one.width <= 32 else TYPES["Float64"]
        met = super().common_type(a, b)
        return TYPES["Float64"] if met is None and INTEGERS[64, False] in (a, b) else met

    def float_of(self, t: NumericMeta) -> Any:
        return t if isinstance(t, FloatMeta) else TYPES["Float64"]


RULES = {"torch": ArrayRules(), "numpy": NumpyRules()}


def common_integer(a: IntegerMeta, b: IntegerMeta) -> Any:
    """Return the narrowest integer type up to 64 bits with all values of two, which are no Booleans; None if there is
    none."""
    if a.signed == b.signed:
        return a if a.width >= b.width else b
    signed, unsigned = (a, b) if a.signed else (b, a)
    width = max(signed.width, 2 * unsigned.width)
    return INTEGERS[width, True] if width <= 64 else None


def zero_dim_type(own: NumericMeta, others: NumericMeta) -> Any:
    """Return the type of a PyTorch tensor without dimensions beside tensors with some, which meet in `others`: it keeps
    its own only if that is of a higher kind."""
    return own if _kind(own) > _kind(others) else others if _kind(own) == _kind(others) else own


_rules: ContextVar[ArrayRules | None] = ContextVar("array_rules", default=None)


@contextmanager
def array_rules(name: str) -> Iterator[None]:
    """Promote types by the rules of a library, "torch" or "numpy"; `/` of integer vectors gives floats."""
    before = _rules.set(RULES[name])
    try:
        yield
    finally:
        _rules.reset(before)


def active_rules() -> ArrayRules | None:
    """Return the rules that are in force, if it is those of arrays."""
    return _rules.get()


def _kind(t: NumericMeta) -> int:
    if isinstance(t, FloatMeta):
        return 2
    return 0 if isinstance(t, IntegerMeta) and t.is_boolean else 1
