"""Coordinates of a tensor's elements in the tensor it was cut from: the sanitizer finds accesses outside it by them,
kernels of `cute.experimental` predicate copies and place TMA boxes by them.

Addresses do not tell: column 9 of a view of 8 columns is memory of its array, and the column after the last one is the
start of the next row. So a tensor whose accesses are checked carries the coordinates of its elements, as a coordinate
tensor does, through slices, tiles and partitions. Predicated accesses are checked where their predicate holds. Where
coordinates cannot be followed (`recast_tensor`, a layout made by hand) the tensor is not checked, or counts as a
tensor of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ...base_dsl import sanitizing, target
from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.typing import Int32, Int64
from ..deferred_dialects import cute
from ..layout.basis import ScaledBasis, add_coords
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, product
from ..layout.layout import Layout, crd2idx
from ..layout.leaf import LayoutError
from ..layout.modes import slice_
from ..layout.offset_width import leaf_width
from .iterator import AddressSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .pointer import Pointer

_MOST_MODES = 8
_UNBOUNDED = 1 << 62


class Extents:
    """`origin` plus `layout(c)` is the coordinate that c has in the first tensor, whose extents are `sizes`. Immutable.

    Coordinates are flat: one number for each leaf of that tensor's shape. `root` is the pointer and the layout of the
    first tensor; None if regions carried it, which carry only coordinates.
    """

    __slots__ = ("layout", "origin", "root", "sizes")

    def __init__(
        self,
        layout: Layout,
        origin: tuple[object, ...],
        sizes: tuple[object, ...],
        root: tuple[object, object] | None = None,
    ) -> None:
        self.layout: Layout = layout
        self.origin: tuple[Any, ...] = origin
        self.sizes: tuple[Any, ...] = sizes
        self.root: tuple[Any, Any] | None = root

    @staticmethod
    def of(layout: Any, iterator: object = None) -> Extents | None:
        """Return the extents of a tensor with a layout, its own shape; None if it has too many modes."""
        shape = (layout.outer if isinstance(layout, ComposedLayout) else layout).shape
        sizes = flatten_to_tuple(shape)
        if not 0 < len(sizes) <= _MOST_MODES:
            return None
        places = Layout(shape, _numbered(shape, iter(range(len(sizes)))))
        return Extents(places, (0,) * len(sizes), sizes, None if iterator is None else (iterator, layout))

    def sliced(self, coord: object) -> Extents | None:
        """Return the extents of a slice."""
        return self._changed(lambda: (slice_(self.layout, coord), crd2idx(coord, self.layout)))

    def moved(self, coord: object) -> Extents | None:
        """Return the extents of the same layout from a coordinate on."""
        return self._changed(lambda: (self.layout, crd2idx(coord, self.layout)))

    def mapped(self, f: Callable[[Any], Any], shape: object) -> Extents | None:
        """Return the extents of a tensor whose layout `f` changed to one of this shape; None if they are not known."""
        extents = self._changed(lambda: (f(self.layout), 0))
        return extents if extents is not None and _covers(shape, extents.layout.shape) else None

    def _changed(self, change: Callable[[], tuple[object, object]]) -> Extents | None:
        try:
            layout, offset = change()
            origin = add_coords(self.origin, offset)
        except (LayoutError, TypeError, ValueError):
            return None
        return Extents(layout, origin, self.sizes, self.root) if isinstance(layout, Layout) else None

    def values(self) -> list[ir.Value]:
        """Return the values that regions carry."""
        numbers = [Int64(x).ir_value() for x in (*self.origin, *self.sizes)]
        return [*numbers, *(_leaf_of(leaf)(leaf).ir_value() for leaf in self.layout._leaves())]

    def count(self) -> int:
        """Return the number of `values`."""
        return 2 * len(self.origin) + len(self.layout._leaves())

    def rebuilt(self, values: Sequence[object]) -> Extents:
        """Return the extents made of other values."""
        modes = len(self.origin)
        numbers = tuple(Int64._make(v) for v in values[: 2 * modes])
        leaves = [
            _leaf_of(leaf)._make(v, leaf.nonneg, leaf.divisibility)
            for leaf, v in zip(self.layout._leaves(), values[2 * modes :], strict=True)
        ]
        layout = self.layout._with_leaves(leaves) if leaves else self.layout
        return Extents(layout, numbers[:modes], numbers[modes:])

    def key(self) -> tuple[Any, ...]:
        """Return the key in which two must agree to be carried as one."""
        return (str(self.layout), len(self.origin), [leaf_width(leaf) for leaf in self.layout._leaves()])

    def unbounded(self) -> Extents:
        """Return extents of the same key without bounds."""
        leaves = [_leaf_of(leaf)(0) for leaf in self.layout._leaves()]
        layout = self.layout._with_leaves(leaves) if leaves else self.layout
        return Extents(layout, (0,) * len(self.origin), (_UNBOUNDED,) * len(self.sizes))


def _leaf_of(leaf: object) -> Any:
    return Int64 if leaf_width(leaf) == 64 else Int32


def watched() -> bool:
    """Return whether accesses are checked against the extents of tensors."""
    return "memory" in sanitizing.kinds() and target.target_name() == "cpu"


FOLLOWED = "coordinates of tensors in global memory"
"""The note of a kernel in which they are known although accesses are not checked."""


def extents_of(layout: object, iterator: object) -> Extents | None:
    """Return the extents of a new tensor, its own shape; None if nobody asks for coordinates."""
    return Extents.of(layout, iterator) if watched() or _followed(iterator) else None


def extents_of_view(layout: object, iterator: object) -> Extents | None:
    """Return the extents of a tensor that a kernel makes of a pointer and a layout; None if nobody asks for coordinates.

    A mode of stride 0 repeats one element, and nothing lies behind its end: a row of statistics seen as a matrix may
    be partitioned as a matrix of more columns, as one CTA of a pair does.
    """
    extents = extents_of(layout, iterator)
    if extents is None or _followed(iterator) or not isinstance(layout, Layout):
        return extents
    strides = flatten_to_tuple(layout.stride)
    sizes = tuple(
        _UNBOUNDED if isinstance(d, int) and d == 0 and not (isinstance(n, int) and n == 1) else n
        for n, d in zip(extents.sizes, strides, strict=True)
    )
    return Extents(extents.layout, extents.origin, sizes, extents.root)


def _followed(iterator: Any) -> bool:
    active = tracing.current()
    in_gmem = iterator.memspace in (AddressSpace.gmem, AddressSpace.generic)
    return in_gmem and active is not None and bool(active.functions) and FOLLOWED in active.function.notes


def _numbered(shape: object, numbers: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(_numbered(s, numbers) for s in shape)
    return ScaledBasis(1, next(numbers))


def _covers(shape: object, other: object) -> bool:
    """Return whether coordinates of a shape are coordinates of another one, of the same extents."""
    if isinstance(shape, tuple):
        return isinstance(other, tuple) and len(shape) == len(other) and all(map(_covers, shape, other))
    mine = product(shape)
    theirs = product(other)
    return not (isinstance(mine, int) and isinstance(theirs, int)) or mine == theirs


def join(a: Extents | None, b: Extents | None) -> tuple[Extents | None, Extents | None]:
    """Return both if regions can carry them as one, else (None, None)."""
    return (a, b) if a is not None and b is not None and a.key() == b.key() else (None, None)


def coerce(x: Extents | None, like: Extents | None) -> Extents | None:
    """Return extents that can be carried in place of `like`."""
    if like is None:
        return None
    return x if x is not None and x.key() == like.key() else like.unbounded()


def check_element(extents: Extents | None, pointer: Pointer, coord: object, write: bool) -> None:
    """Check an access to the element at a coordinate."""
    if extents is not None:
        try:
            place = add_coords(extents.origin, extents.layout(coord))
        except (LayoutError, TypeError, ValueError):
            return
        _check(extents, pointer, place, place, write)


def check_elements(extents: Extents | None, pointer: Pointer, indices: Iterable[int], write: bool) -> None:
    """Check an access to the elements at some indices."""
    if extents is None:
        return
    if all(isinstance(leaf, int) for leaf in flatten_to_tuple(extents.layout.shape)) and not extents.layout._leaves():
        low, high = _box(extents.layout, tuple(indices), len(extents.origin))
        _check(extents, pointer, add_coords(extents.origin, low), add_coords(extents.origin, high), write)
        return
    for index in indices:
        check_element(extents, pointer, index, write)


@functools.lru_cache(maxsize=1024)
def _box(layout: Layout, indices: tuple[int, ...], modes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lowest and the highest number of each mode among the coordinates at some indices."""
    places = [add_coords((0,) * modes, layout(i)) for i in indices]
    return tuple(map(min, zip(*places))), tuple(map(max, zip(*places)))


def _check(extents: Extents, pointer: Pointer, low: Any, high: Any, write: bool) -> None:
    if not watched():  # the coordinates are for predicates only
        return
    modes = list(zip(low, high, extents.sizes, strict=True))
    if all(isinstance(x, int) for mode in modes for x in mode) and all(a >= 0 and b < n for a, b, n in modes):
        return
    values = [Int64(x).ir_value() for part in zip(*modes) for x in part]
    cute.bounds(pointer._base, values, write)
