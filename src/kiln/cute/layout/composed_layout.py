# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportPrivateUsage=false
# pyright: reportReturnType=false, reportUnnecessaryIsInstance=false
"""Composed layouts: ``inner(offset + outer(c))`` where ``inner`` need not be linear, a swizzle for example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import Any

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from ...base_dsl.numeric.operators import select
from .basis import add_coords
from .int_tuple import (
    as_int_tuple,
    common_divisor,
    dynamic_leaves,
    flatten_to_tuple,
    has_underscore,
    is_static_tree,
    pretty_str,
    tree_equal,
    tree_hash,
    tree_rank,
    with_dynamic_leaves,
)
from .layout import Layout, crd2idx, crd2idx_apart
from .leaf import LayoutError, leaf_and
from .modes import slice_
from .picture import Drawn
from .swizzle import Swizzle

__all__ = ["ComposedLayout", "get_nonswizzle_portion", "get_swizzle_portion", "make_composed_layout"]


class ComposedLayout(Drawn):
    """The function ``c -> inner(offset + outer(c))``.

    ``inner`` is a Swizzle, a Layout or any Python function of an offset or coordinate; ``outer`` is the
    layout that users see: shape, modes, slices and divisions are those of ``outer``. Immutable.
    """

    __kiln_immutable__ = True
    __slots__ = ("_inner", "_offset", "_outer")

    def __init__(self, inner: Any, offset: object, outer: Layout) -> None:
        if not isinstance(outer, Layout):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DSLUserCodeTypeError(f"the outer part of a composed layout is a layout, but got {outer!r}")
        if not callable(inner):
            raise DSLUserCodeTypeError(
                f"the inner part of a composed layout is a swizzle, a layout or a function, but got {inner!r}"
            )
        self._inner = inner
        self._offset = as_int_tuple(offset, "an offset")
        self._outer = outer

    @property
    def inner(self) -> Any:
        """The function that is applied last: a Swizzle, a Layout or a Python function."""
        return self._inner

    @property
    def offset(self) -> Any:
        """The offset that is added between the outer and the inner part."""
        return self._offset

    @property
    def outer(self) -> Layout:
        """The layout that is applied first, whose shape users see."""
        return self._outer

    @property
    def shape(self) -> Any:
        """The shape of the outer layout."""
        return self._outer._shape

    @property
    def stride(self) -> Any:
        """Not available: a composed layout is not linear."""
        raise AttributeError(
            f"the composed layout {self} has no strides; those of its outer layout are in .outer.stride"
        )

    @property
    def value(self) -> ComposedLayout:
        """The layout itself: what programs hand to functions of the IR."""
        return self

    @property
    def type(self) -> str:
        """The type as it is printed in the intermediate representation."""
        return f'!cute.composed_layout<"{self}">'

    @property
    def is_normal(self) -> bool:
        """Whether the inner part is a swizzle or a layout rather than a function."""
        return isinstance(self._inner, (Swizzle, Layout))

    @property
    def max_alignment(self) -> int:
        """Like :attr:`Layout.max_alignment`; 1 unless the inner part is a swizzle."""
        if not isinstance(self._inner, Swizzle):
            return 1
        return gcd(1 << self._inner.num_base, common_divisor(flatten_to_tuple(self._offset)), self._outer.max_alignment)

    def is_static(self) -> bool:
        """Return whether the offset and the layouts are known."""
        return is_static_tree(self._offset) and self._outer.is_static() and is_static_tree(self._inner)

    def __call__(self, *coord: object) -> Any:
        """Return the value at a coordinate, or the composed layout that is left if the coordinate has None in it."""
        c = coord[0] if len(coord) == 1 else coord
        if has_underscore(c):
            return self._slice(c)
        return self._inner(add_coords(self._offset, crd2idx(c, self._outer)))

    def __getitem__(self, mode: int, *, loc: object = None, ip: object = None) -> ComposedLayout:
        return self._with(outer=self._outer[mode])

    def __len__(self) -> int:
        return tree_rank(self._outer._shape)

    def __iter__(self) -> Iterator[ComposedLayout]:
        return (self._with(outer=mode) for mode in self._outer)

    def _with(self, *, offset: Any = None, outer: Layout) -> ComposedLayout:
        result = ComposedLayout.__new__(ComposedLayout)
        result._inner = self._inner
        result._offset = self._offset if offset is None else offset
        result._outer = outer
        return result

    def _map_layout(self, f: Callable[[Layout], Any]) -> ComposedLayout:
        return self._with(outer=f(self._outer))

    def _slice(self, coord: object) -> ComposedLayout:
        return self._with(
            offset=add_coords(self._offset, crd2idx(coord, self._outer)), outer=slice_(self._outer, coord)
        )

    def _slice_and_move(self, coord: object) -> tuple[Any, ComposedLayout]:
        """Return the slice without whole periods of a swizzle, and those: the slice is the one moved so far.

        What is a multiple of the period passes through a swizzle unchanged, so that a stage of a pipeline need not
        be part of what is swizzled, and the swizzle is the same in every turn of a loop.
        """
        if not isinstance(self._inner, Swizzle):
            return 0, self._slice(coord)
        moved, rest = crd2idx_apart(coord, self._outer, self._inner.period)
        return moved, self._with(offset=add_coords(self._offset, rest), outer=slice_(self._outer, coord))

    def _linear_slice(self, coord: object) -> tuple[Any, Layout] | None:
        """Return a slice at a dynamic coordinate as a plain layout and the swizzled offset it starts at, if it is one.

        Where no two bits that the swizzle combines vary in what is left, a step along a bit changes the swizzled offset
        by a fixed amount, whose sign the coordinate decides: strides are dynamic, and the swizzle is applied once.
        """
        inner = self._inner
        if not isinstance(inner, Swizzle) or inner.num_shift < 0 or self._offset != 0 or not self._outer.is_static():
            return None
        if _shared_bits(self._outer, inner.period):
            return None
        offset = crd2idx(coord, self._outer)
        rest = slice_(self._outer, coord)
        varying = _bits_of(rest, inner.period)
        if isinstance(offset, int) or varying is None or varying & (varying & inner.source_mask) >> inner.num_shift:
            return None
        start = inner(offset)
        shape, stride = _linear_modes(rest._shape, rest._stride, inner, start)
        return start, Layout(shape, stride)

    def _domain_offset(self, coord: object) -> ComposedLayout:
        return self._with(offset=add_coords(self._offset, crd2idx(coord, self._outer)), outer=self._outer)

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if not isinstance(other, ComposedLayout) or self._inner != other._inner:
            return False
        return leaf_and(tree_equal(self._offset, other._offset), self._outer == other._outer)

    def __hash__(self) -> int:
        return hash((self._inner, tree_hash(self._offset), self._outer))

    def __repr__(self) -> str:
        inner = self._inner if self.is_normal else getattr(self._inner, "__name__", repr(self._inner))
        return f"{inner} o {pretty_str(self._offset)} o {self._outer}"

    def _leaves(self) -> tuple[Any, ...]:
        """Return the dynamic leaves: those of the inner layout, the offset, the outer layout."""
        inner = self._inner._leaves() if isinstance(self._inner, Layout) else ()
        return (*inner, *dynamic_leaves(self._offset), *self._outer._leaves())

    def _with_leaves(self, leaves: Any) -> ComposedLayout:
        """Return the same composed layout with its dynamic leaves, in the order of :meth:`_leaves`, replaced."""
        rest = iter(leaves)
        inner = self._inner._with_leaves(rest) if isinstance(self._inner, Layout) else self._inner
        offset = with_dynamic_leaves(self._offset, rest)
        return ComposedLayout(inner, offset, self._outer._with_leaves(rest))


def _bits_of(layout: Layout, period: int) -> int | None:
    """Return the bits below a period that vary in the offsets of a static layout; None if a mode is no run of bits."""
    bits = 0
    for n, d in zip(flatten_to_tuple(layout._shape), flatten_to_tuple(layout._stride), strict=True):
        if not isinstance(d, int):
            return None
        if n == 1 or d % period == 0:
            continue
        if d <= 0 or n & (n - 1) or d & (d - 1):
            return None
        bits |= (n - 1) * d & (period - 1)
    return bits


def _shared_bits(layout: Layout, period: int) -> bool:
    """Return whether two modes of a static layout vary the same bit below a period, or one is no run of bits."""
    shared = 0
    for n, d in zip(flatten_to_tuple(layout._shape), flatten_to_tuple(layout._stride), strict=True):
        bits = _bits_of(Layout(n, d), period)
        if bits is None or shared & bits:
            return True
        shared |= bits
    return False


def _linear_modes(shape: Any, stride: Any, swizzle: Swizzle, start: Any) -> tuple[Any, Any]:
    """Return shape and stride of modes whose offsets are counted from the swizzled offset `start`.

    A mode is split so that its bits that the swizzle changes, or that change others, are modes of two elements.
    """
    if isinstance(shape, tuple):
        pairs = [_linear_modes(n, d, swizzle, start) for n, d in zip(shape, stride, strict=True)]
        return tuple(n for n, _ in pairs), tuple(d for _, d in pairs)
    if shape == 1 or stride % swizzle.period == 0:
        return shape, stride
    modes: list[tuple[int, Any]] = []
    for position in range(shape.bit_length() - 1):
        bit = stride << position
        if bit & swizzle.target_mask:
            modes.append((2, _signed(bit, start, bit)))
        elif bit & swizzle.source_mask:
            modes.append((2, _signed(bit >> swizzle.num_shift, start, bit >> swizzle.num_shift) + bit))
        elif modes and isinstance(modes[-1][1], int) and modes[-1][0] * modes[-1][1] == bit:
            modes[-1] = (2 * modes[-1][0], modes[-1][1])
        else:
            modes.append((2, bit))
    if len(modes) == 1:
        return modes[0]
    return tuple(n for n, _ in modes), tuple(d for _, d in modes)


def _signed(step: int, start: Any, bit: int) -> Any:
    """Return `step` where a bit of the swizzled offset is 0, else `-step`."""
    up = (start & bit) == 0
    return select(up, step, -step)._assume(divisibility=step)


def make_composed_layout(
    inner: object, offset: object, outer: Layout, *, loc: object = None, ip: object = None
) -> ComposedLayout:
    """Return the composed layout that maps a coordinate c to ``inner(offset + outer(c))``.

    Args:
        inner: what is applied last: a swizzle, a layout, or a function of an index.
        offset: what is added in between: an integer, or a coordinate of ``inner``.
        outer: the layout that takes coordinates, and gives the result its shape.
    """
    return ComposedLayout(inner, offset, outer)


def get_swizzle_portion(layout: object, *, loc: object = None, ip: object = None) -> Swizzle:
    """Return the swizzle of ``layout``; of a plain layout, the swizzle ``S<0,4,3>`` that changes nothing."""
    if isinstance(layout, Layout):
        return Swizzle(0, 4, 3)
    if isinstance(layout, ComposedLayout) and isinstance(layout._inner, Swizzle):
        return layout._inner
    raise LayoutError(f"{layout} has no swizzle")


def get_nonswizzle_portion(layout: Any, *, loc: object = None, ip: object = None) -> Layout:
    """Return the outer layout of ``layout``, without its swizzle; a plain layout is returned as it is."""
    return layout if isinstance(layout, Layout) else layout.outer
