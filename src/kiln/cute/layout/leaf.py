# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Leaves of integer trees: Python ints (static) and dynamic values, behind one set of operations.

A dynamic leaf is an object whose class sets ``_is_dynamic_int_leaf = True``. Everything in the layout
algebra that has to know the difference between a static and a dynamic leaf is in this file:

- the ``leaf_*`` functions fold what is known (``x * 1``, ``x + 0``, ``?{div=8} % 4``), so that nothing is
  emitted for it;
- they never ask a dynamic value for a Python truth value;
- what operators cannot express goes to a method of the proxy: ``x._leaf_min(y)``, ``x._leaf_max(y)`` and,
  on a dynamic condition, ``c._leaf_select(a, b)``.

A dynamic leaf may have an int attribute ``divisibility`` (default 1), a number it is known to be a
multiple of; its operators keep that up to date. Its ``width`` (32 or 64) is printed.
Dynamic leaves stand for extents, strides and indices: extents are taken to be at least 1, strides and
indices to be non-negative, as everywhere in CuTe.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ...base_dsl import trace as tracing
from ...base_dsl import tree
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import DSLUserCodeError, DSLUserCodeTypeError
from ...base_dsl.typing import Integer, as_numeric
from ..deferred_dialects import cute

if TYPE_CHECKING:
    from typing import TypeGuard


class LayoutError(DSLUserCodeError, ValueError):
    """A rule of the layout algebra is broken; the message states the rule and the values."""


class ModeError(LayoutError, IndexError):
    """A mode is asked for that a shape or a layout does not have."""


class DynamicInt(Protocol):
    """What the algebra asks of a dynamic leaf. Comparisons give dynamic Booleans."""

    _is_dynamic_int_leaf: ClassVar[bool]

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __floordiv__(self, other: Any, /) -> Any: ...
    def __rfloordiv__(self, other: Any, /) -> Any: ...
    def __mod__(self, other: Any, /) -> Any: ...
    def __rmod__(self, other: Any, /) -> Any: ...
    def __lt__(self, other: Any, /) -> Any: ...
    def __gt__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def _leaf_min(self, other: Any, /) -> Any: ...
    def _leaf_max(self, other: Any, /) -> Any: ...


Leaf = int | DynamicInt


def is_dynamic_leaf(x: object) -> TypeGuard[DynamicInt]:
    """Return whether ``x`` is a dynamic integer value."""
    return getattr(type(x), "_is_dynamic_int_leaf", False) is True


def is_integer(a: object) -> bool:
    """Return whether ``a`` is one integer, static or dynamic."""
    return isinstance(a, int) or is_dynamic_leaf(a)


def as_leaf(x: Any, what: str = "an integer") -> Any:
    """Return ``x`` as a leaf: ints (and whatever converts by ``__index__``, such as numpy's) and dynamic leaves.

    Raises TypeError for anything else.
    """
    if type(x) is int or is_dynamic_leaf(x):
        return x
    try:
        return operator.index(x)
    except TypeError:
        typed = _typed_leaf(x)
        if typed is not None:
            return typed
        raise DSLUserCodeTypeError(
            f"{what} must be an int, a dynamic integer or a nested tuple of them, but got {x!r}"
        ) from None


def _typed_leaf(x: object) -> Any:
    """Return a raw integer value of the bindings as a dynamic leaf; None for anything else."""
    if not tree.is_mlir_value(x):
        return None
    number = as_numeric(x)
    return number if isinstance(number, Integer) else None


def get_divisibility(x: object) -> int:
    """Return the largest number ``x`` is known to be a multiple of; 0 for a static 0, which is a multiple of all."""
    if isinstance(x, int):
        return abs(x)
    return int(getattr(x, "divisibility", 1))


def leaf_str(x: object) -> str:
    """Return ``8`` for a static leaf, ``?``, ``?{div=8}`` or ``?{i64 div=8}`` for a dynamic one, ``_`` for None."""
    if x is None:
        return "_"
    if not is_dynamic_leaf(x):
        return str(x)
    notes: list[str] = []
    if getattr(x, "width", 32) == 64:
        notes.append("i64")
    div = get_divisibility(x)
    if div > 1:
        notes.append(f"div={div}")
    return "?{" + " ".join(notes) + "}" if notes else "?"


def leaf_add(a: Any, b: Any) -> Any:
    """Return ``a + b``; adding a static 0 emits nothing."""
    if isinstance(a, int) and a == 0:
        return b
    if isinstance(b, int) and b == 0:
        return a
    return a + b


def leaf_sub(a: Any, b: Any) -> Any:
    """Return ``a - b``; subtracting a static 0 emits nothing, ``x - x`` is 0."""
    if isinstance(b, int) and b == 0:
        return a
    if a is b:
        return 0
    return a - b


def leaf_mul(a: Any, b: Any) -> Any:
    """Return ``a * b``; a static 0 or 1 emits nothing. Either may be a scaled basis element."""
    if isinstance(a, int):
        if a == 1:
            return b
        if a == 0:
            return 0
    if isinstance(b, int):
        if b == 1:
            return a
        if b == 0:
            return 0
    return a * b


def multiplied_extents(a: object, b: object) -> Any:
    """Return ``a * b`` of extents. The trace learns it where 32 bits may be too few: for extents of arguments."""
    extent = leaf_mul(a, b)
    if extent is not a and extent is not b and is_dynamic_leaf(extent) and getattr(type(extent), "width", 32) == 32:
        active = tracing.current()
        if active is not None and not active.multiplies_extents:
            values = [getattr(x, "_value", x) for x in (a, b)]
            active.multiplies_extents = all(isinstance(v, int) or _is_argument(active, v) for v in values)
    return extent


def _is_argument(active: tracing.Trace, value: Any) -> bool:
    """Return whether a value is an argument of the host function, also one that is passed on to a kernel.

    What a loop carries is none: tile schedulers carry numbers of tiles.
    """
    owner = value.owner
    frame = active.function
    if not isinstance(owner, ir.Block):
        return cute.Leaf.of(owner.operation) is not None
    if owner != frame.entry or frame.kind != "kernel":
        return owner == frame.entry
    number = ir.BlockArgument(value).arg_number
    return number < len(frame.passed) and isinstance(frame.passed[number].owner, ir.Block)


def leaf_floordiv(a: Any, b: Any) -> Any:
    """Return ``a // b`` for non-negative values; dividing by a static 1 emits nothing.

    It is 0 for a static 0: an index into a layout without elements, behind a guard that never lets it through.
    """
    if isinstance(b, int):
        if b == 1:
            return a
        if b == 0:
            return 0
        if isinstance(a, int):
            return a // b
    elif a is b:
        return 1
    if isinstance(a, int) and a == 0:
        return 0
    return a // b


def leaf_mod(a: Any, b: Any) -> Any:
    """Return ``a % b`` for non-negative values; 0 without emitting where divisibility proves it, or `b` is 0."""
    if isinstance(b, int):
        if b == 0:
            return 0
        if isinstance(a, int):
            return a % b
        if get_divisibility(a) % b == 0:
            return 0
    elif a is b or (isinstance(a, int) and a == 0):
        return 0
    return a % b


def leaf_ceil_div(a: Any, b: Any) -> Any:
    """Return ``ceil(a / b)`` for extents; exact (one division) where divisibility proves that ``b`` divides ``a``."""
    if isinstance(b, int):
        if b == 0:
            raise LayoutError(f"an extent of {leaf_str(a)} is divided into tiles of 0 elements")
        if isinstance(a, int):
            return -(-a // b)
        if b == 1:
            return a
        if get_divisibility(a) % b == 0:
            return a // b
        return (a + (b - 1)) // b
    if a is b:
        return 1
    if isinstance(a, int) and 0 <= a <= get_divisibility(b):  # b >= its divisibility >= a
        return min(a, 1)
    return (a + (b - 1)) // b


def leaf_min(a: Any, b: Any) -> Any:
    """Return the smaller of two extents. A static extent not above the divisibility of a dynamic one is the smaller."""
    if isinstance(a, int):
        if isinstance(b, int):
            return a if a <= b else b
        a, b = b, a
    if a is b or (isinstance(b, int) and b <= get_divisibility(a)):
        return b
    return a._leaf_min(b)


def leaf_max(a: Any, b: Any) -> Any:
    """Return the larger of two leaves."""
    if isinstance(a, int):
        if isinstance(b, int):
            return a if a >= b else b
        a, b = b, a
    if a is b:
        return a
    return a._leaf_max(b)


def leaf_abs(a: object) -> Any:
    """Return ``|a|`` of a static leaf; a dynamic leaf (taken to be non-negative) as it is."""
    return abs(a) if isinstance(a, int) else a


def leaf_equal(a: object, b: object) -> Any:
    """Return ``a == b`` as a bool where it is known, otherwise as a dynamic Boolean."""
    if a is b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a == b if not isinstance(a, int) else b == a


def leaf_and(a: Any, b: Any) -> Any:
    """Return the conjunction of two conditions; a static one emits nothing."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return a & b


def leaf_select(condition: Any, a: Any, b: Any) -> Any:
    """Return ``a if condition else b``, without a branch when the condition is dynamic."""
    if isinstance(condition, bool):
        return a if condition else b
    return a if a is b else condition._leaf_select(a, b)


def surely_equal(a: Any, b: Any) -> bool:
    """Return whether two leaves are known to be equal: equal ints, or the very same dynamic value."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def is_one(x: object) -> bool:
    """Return whether ``x`` is a static 1."""
    return isinstance(x, int) and x == 1


def is_zero(x: object) -> bool:
    """Return whether ``x`` is a static 0."""
    return isinstance(x, int) and x == 0
