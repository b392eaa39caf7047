# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Basis elements ``E(i)``: strides that produce coordinates instead of offsets.

A layout whose strides are scaled basis elements maps a coordinate to a coordinate:
``(4,8):(1@0,1@1)`` is the identity on a 4 by 8 grid. ``2@1`` is 2 steps in mode 1; ``1@1@0`` is one step
in mode 1 *of mode 0* (the innermost mode is printed first, as CuTe prints it).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from .int_tuple import may_be_equal, pretty_str, tree_get, tree_hash
from .leaf import LayoutError, is_dynamic_leaf, leaf_add, leaf_equal, leaf_mul, leaf_str

__all__ = ["E", "Ratio", "ScaledBasis", "basis_get", "basis_value"]


class Ratio:
    """An exact quotient of two ints, for scales that are not whole. Immutable."""

    __kiln_immutable__ = True
    __slots__ = ("denominator", "numerator")

    numerator: int
    denominator: int

    def __init__(self, numerator: int, denominator: int) -> None:
        if not isinstance(numerator, int) or not isinstance(denominator, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DSLUserCodeTypeError(f"Ratio needs two ints, but got {numerator!r} and {denominator!r}")
        if denominator == 0:
            raise ZeroDivisionError(f"Ratio({numerator}, 0)")
        object.__setattr__(self, "numerator", numerator)
        object.__setattr__(self, "denominator", denominator)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a Ratio cannot be changed")

    def is_integral(self) -> bool:
        """Return whether the quotient is a whole number."""
        return self.numerator % self.denominator == 0

    def reduced(self) -> Ratio:
        """Return the same quotient in lowest terms, with a positive denominator."""
        g = gcd(self.numerator, self.denominator) * (1 if self.denominator > 0 else -1)
        return Ratio(self.numerator // g, self.denominator // g)

    def to(self, dtype: type) -> Any:
        """Return the quotient as a Ratio, a float or an int (rounded down)."""
        if dtype is Ratio:
            return self
        if dtype is float:
            return self.numerator / self.denominator
        if dtype is int:
            return self.numerator // self.denominator
        raise DSLUserCodeTypeError(f"a Ratio converts to Ratio, float or int, not to {dtype!r}")

    def __mul__(self, other: object) -> Ratio:
        if isinstance(other, Ratio):
            return Ratio(self.numerator * other.numerator, self.denominator * other.denominator)
        if isinstance(other, int):
            return Ratio(self.numerator * other, self.denominator)
        return NotImplemented

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.numerator == other * self.denominator
        if isinstance(other, Ratio):
            return self.numerator * other.denominator == other.numerator * self.denominator
        return NotImplemented

    def __hash__(self) -> int:
        if self.is_integral():
            return hash(self.numerator // self.denominator)
        r = self.reduced()
        return hash((r.numerator, r.denominator))

    def __repr__(self) -> str:
        return f"{self.numerator}/{self.denominator}"


class ScaledBasis:
    """``value`` steps along the basis element of ``mode``, a path of mode indices from the outermost in.

    ``value`` is an int, a dynamic leaf or a Ratio. Immutable; prints as ``2@1`` or ``4@1@0``.
    """

    __kiln_immutable__ = True
    __slots__ = ("_mode", "_value")

    _value: Any
    _mode: tuple[int, ...]

    def __init__(self, value: object, mode: int | Iterable[int]) -> None:
        if isinstance(mode, int):
            path = (mode,)
        else:
            try:
                path = tuple(mode)
            except TypeError:
                path = (mode,)  # refused just below
        if not all(isinstance(m, int) and m >= 0 for m in path):
            raise DSLUserCodeTypeError(
                f"the mode of a basis element is a non-negative int or a list of them, but got {mode!r}"
            )
        if not isinstance(value, (int, Ratio)) and not is_dynamic_leaf(value):
            raise DSLUserCodeTypeError(
                f"the scale of a basis element is an int, a dynamic integer or a Ratio, but got {value!r}"
            )
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_mode", path)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("a ScaledBasis cannot be changed")

    @property
    def value(self) -> Any:
        """The number that the basis vector is multiplied by."""
        return self._value

    @property
    def mode(self) -> list[int]:
        """The path of the basis element, outermost mode first."""
        return list(self._mode)

    def is_static(self) -> bool:
        """Return whether the scale is known."""
        return not is_dynamic_leaf(self._value)

    def to(self, dtype: type) -> Any:
        """Return itself, for ``dtype`` ScaledBasis."""
        if dtype is ScaledBasis:
            return self
        raise DSLUserCodeTypeError(f"a ScaledBasis converts to ScaledBasis only, not to {dtype!r}")

    def __mul__(self, scale: object) -> Any:
        if isinstance(scale, (int, Ratio)) or is_dynamic_leaf(scale):
            return ScaledBasis(leaf_mul(self._value, scale), self._mode)
        return NotImplemented

    __rmul__ = __mul__

    def __add__(self, other: object) -> Any:
        return add_coords(basis_coord([(1, self)]), other)

    __radd__ = __add__

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, ScaledBasis):
            return False
        return self._mode == other._mode and leaf_equal(self._value, other._value)

    def _may_be_equal(self, other: object) -> bool:
        return isinstance(other, ScaledBasis) and self._mode == other._mode and may_be_equal(self._value, other._value)

    def _leaves(self) -> tuple[Any, ...]:
        return () if self.is_static() else (self._value,)

    def _with_leaves(self, leaves: Any) -> ScaledBasis:
        return self if self.is_static() else ScaledBasis(next(iter(leaves)), self._mode)

    def __hash__(self) -> int:
        return hash((tree_hash(self._value), self._mode))

    def __repr__(self) -> str:
        return leaf_str(self._value) + "".join(f"@{m}" for m in reversed(self._mode))


def E(mode: int | Iterable[int]) -> Any:
    """Return the unit basis element of ``mode``: ``E(1)`` is ``1@1``, ``E([0,1])`` is ``1@1@0``, ``E([])`` is 1."""
    if not isinstance(mode, int):
        mode = tuple(mode)
        if not mode:
            return 1
    return ScaledBasis(1, mode)


def basis_value(e: object) -> Any:
    """Return the scale of the basis element ``e``: 3 for ``3@1``. An integer is returned as it is."""
    return e.value if isinstance(e, ScaledBasis) else e


def basis_get(basis: object, t: object) -> Any:
    """Return the part of ``t`` that a basis element points to.

    Args:
        basis: a basis element such as ``1@0``, or an integer, which points to all of ``t``.
        t: a tuple, as nested as the path of ``basis`` needs.
    """
    return tree_get(t, basis._mode) if isinstance(basis, ScaledBasis) else t  # pyright: ignore[reportPrivateUsage]


def basis_like(shape: object, path: tuple[int, ...] = ()) -> Any:
    """Return unit basis elements arranged like ``shape``; 1 for a leaf."""
    if isinstance(shape, tuple):
        return tuple(basis_like(s, (*path, i)) for i, s in enumerate(shape))
    return E(path)


def add_coords(a: object, b: object) -> Any:
    """Return the sum of two coordinates. The shorter of two tuples is padded with zeros; a static 0 adds nothing."""
    if isinstance(a, ScaledBasis):
        a = basis_coord([(1, a)])
    if isinstance(b, ScaledBasis):
        b = basis_coord([(1, b)])
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(a) < len(b):
                a, b = b, a
            return tuple(add_coords(x, y) for x, y in zip(a, b)) + a[len(b) :]
        if isinstance(b, int) and b == 0:
            return a
    elif not isinstance(b, tuple):
        return leaf_add(a, b)
    elif isinstance(a, int) and a == 0:
        return b
    raise LayoutError(f"the coordinates {pretty_str(a)} and {pretty_str(b)} cannot be added: their nesting differs")


def basis_coord(terms: Iterable[tuple[Any, Any]]) -> Any:
    """Return the coordinate ``sum(c * e)`` over pairs of a factor and a basis element (or a static 0).

    It has a leaf for every mode up to the largest one mentioned, 0 where nothing was added.
    """
    tree: dict[int, Any] = {}
    for c, e in terms:
        if isinstance(e, int):
            if e == 0 or (isinstance(c, int) and c == 0):
                continue
            raise LayoutError(f"an integer stride ({e}) cannot be mixed with basis strides, which give coordinates")
        node = tree
        for m in e._mode[:-1]:
            node = node.setdefault(m, {})
            if not isinstance(node, dict):
                raise LayoutError(f"the basis stride {e} points inside a mode that another stride addresses as a whole")
        last = e._mode[-1]
        old = node.get(last, 0)
        if isinstance(old, dict):
            raise LayoutError(f"the basis stride {e} addresses a mode as a whole that another stride points inside of")
        node[last] = leaf_add(old, leaf_mul(c, e.value))
    return _coord_of(tree)


def _coord_of(node: object) -> Any:
    if not isinstance(node, dict):
        return node
    if not node:
        return 0
    return tuple(_coord_of(node.get(i, 0)) for i in range(max(node) + 1))
