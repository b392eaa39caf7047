"""Tensors: a pointer (or a coordinate) seen through a layout, inside a function being traced."""

from __future__ import annotations

import functools
from math import gcd
from typing import TYPE_CHECKING, Any

from ..base_dsl import sanitizing
from ..base_dsl import trace as tracing
from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..base_dsl.typing import Int32, Int64, Integer, Numeric, NumericMeta
from . import vector_access
from .basis import ScaledBasis, add_coords
from .composed_layout import ComposedLayout
from .extents import Extents, check_element, check_elements, coerce, extents_of, join
from .int_tuple import (
    as_int_tuple,
    dynamic_leaves,
    has_underscore,
    pretty_str,
    product,
    with_dynamic_leaves,
)
from .layout import (
    Layout,
    cosize,
    crd2idx,
    crd2idx_apart,
    leading_dim,
    make_identity_layout,
    make_layout,
    make_layout_like,
    rank,
)
from .leaf import get_divisibility, is_dynamic_leaf
from .modes import slice_
from .offset_width import leaf_width, needs_wide_offsets, with_wide_strides
from .pointer import AddressSpace, Pointer, element_bits, load_element, recast_ptr, seen_through, store_element
from .printing import layout_parts
from .recast import recast_layout
from .swizzle import Swizzle, upcast_swizzle
from .tiling import make_fragment_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..mlir import ir

__all__ = [
    "Tensor",
    "make_fragment",
    "make_fragment_like",
    "make_identity_tensor",
    "make_rmem_tensor",
    "make_rmem_tensor_like",
    "make_tensor",
    "rank",
    "recast_tensor",
]

_PRINTED_ELEMENTS = 256
"""Up to so many elements `printf` prints with a tensor; `print_tensor` prints any number."""
_LARGE = (AddressSpace.gmem, AddressSpace.generic)
RMEM_ALIGNMENT = 32
"""Bytes the memory of a register tensor is aligned to."""


class Tensor:
    """Elements and the layout they lie in: what annotations and `isinstance` name.

    Inside a trace tensors are made by `make_tensor` and its relatives and arrive as arguments; outside, by
    `cute.runtime.from_dlpack`.
    """

    __slots__ = ()

    def __class_getitem__(cls, parameters: Any) -> Any:
        return cls

    layout: Any
    iterator: Any

    if TYPE_CHECKING:  # what tensors of a program have besides
        load: Any
        store: Any
        fill: Any

        def __getitem__(self, coord: Any, *, loc: Any = None, ip: Any = None) -> Any: ...
        def __setitem__(self, coord: Any, value: Any, *, loc: Any = None, ip: Any = None) -> None: ...

    @property
    def shape(self) -> Any:
        """The extents of the layout."""
        return self.layout.shape

    @property
    def stride(self) -> Any:
        """The strides of the layout."""
        return self.layout.stride

    @property
    def element_type(self) -> Any:
        """The numeric type of the elements."""
        return self.iterator.dtype

    @property
    def dtype(self) -> Any:
        """The numeric type of the elements."""
        return self.element_type

    @property
    def memspace(self) -> AddressSpace:
        """The memory the elements lie in."""
        return self.iterator.memspace

    @property
    def leading_dim(self) -> Any:
        """The mode along which elements are adjacent; None without one. See `cute.leading_dim`."""
        layout = self.layout
        if isinstance(layout, ComposedLayout):
            layout = layout.outer
        return leading_dim(layout.shape, layout.stride)


class TracedTensor(Tensor):
    """A tensor of the object program. Immutable; the elements are not.

    `iterator` is a pointer, or, for a coordinate tensor, the coordinate of its origin. `t[coord]` is an element,
    `t[coord with None]` the tensor that is left; `t[...] = x` writes an element or all elements of a slice.
    """

    __kiln_immutable__ = True
    __slots__ = ("_extents", "_iterator", "_layout", "_promised", "_wide")

    def __init__(
        self, iterator: Any, layout: Any, promised: bool | None = None, extents: Extents | None = None
    ) -> None:
        self._iterator = iterator
        self._layout = layout
        self._extents = extents
        """Where its elements lie in the tensor that it was cut from, if accesses are compared with that."""
        if promised is None:  # nothing on a GPU is too large for 32 bits but global memory
            promised = not isinstance(iterator, Pointer) or iterator.memspace not in _LARGE
        self._promised = promised
        """Whether offsets are promised to fit 32 bits, see `offset_width`."""
        self._wide: bool | None = None

    @property
    def iterator(self) -> Any:  # type: ignore[override]
        """The pointer to the first element, or the coordinate of the origin."""
        return self._iterator

    @property
    def layout(self) -> Any:  # type: ignore[override]
        """The layout, plain or composed."""
        return self._layout

    @property
    def is_coordinates(self) -> bool:
        """Whether elements are coordinates rather than memory."""
        return not isinstance(self._iterator, Pointer)

    @property
    def element_type(self) -> Any:
        """The numeric type of the elements; Int32 for coordinates."""
        return self._iterator.dtype if isinstance(self._iterator, Pointer) else Int32

    @property
    def memspace(self) -> AddressSpace:
        """The memory the elements lie in."""
        return self._iterator.memspace if isinstance(self._iterator, Pointer) else AddressSpace.rmem

    @property
    def type(self) -> Any:
        """The IR type, with the layout in it."""
        if self.is_coordinates:
            return f'!cute.coord_tensor<"{pretty_str(self._iterator)}", "{self._layout}">'
        return _memref_type(self._iterator, self._layout)

    def __str__(self) -> str:
        origin = pretty_str(self._iterator) if self.is_coordinates else str(self._iterator)
        return f"tensor<{origin} o {self._layout}>"

    __repr__ = __str__

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __len__(self) -> int:
        return len(self._layout)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise error(
            DSLUserCodeTypeError,
            "a tensor cannot be iterated over",
            hint="loop over indices: for i in range(cute.size(t))",
        )

    def mark_layout_dynamic(self, leading_dim: int | None = None) -> Tensor:
        """Only for tensors outside a trace."""
        raise error(
            DSLUserCodeTypeError,
            "mark_layout_dynamic is called on arguments, before the call",
            hint="from_dlpack(x).mark_layout_dynamic()",
        )

    mark_compact_shape_dynamic = mark_layout_dynamic

    # -- elements and slices -----------------------------------------------------------------------------

    def _coordinate(self, coord: Any) -> Any:
        """An index expression as a coordinate whose dynamic parts are as wide as offsets in this tensor need."""
        return _as_coordinate(coord, self._layout, self._is_wide())

    def _is_wide(self) -> bool:
        wide = self._wide
        if wide is None:
            wide = self._wide = needs_wide_offsets(self._layout, self._promised)
        return wide

    @property
    def offset_layout(self) -> Any:
        """The layout, with leaves as wide as the offsets it gives have to be."""
        return with_wide_strides(self._layout) if self._is_wide() else self._layout

    def _at(self, coord: Any) -> tuple[Any, Any]:
        """A coordinate and the offset of its element, or the tensor that is left."""
        layout = self._layout
        if type(layout) is Layout and layout.is_static() and _is_known(coord):
            offset, rest = _known_access(layout, coord)
            return coord, offset if rest is None else self._known_slice(coord, offset, rest)
        if type(coord) is not int:
            coord = self._coordinate(coord)
            if has_underscore(coord):
                return coord, self._slice(coord)
        return coord, self.offset_layout(coord)

    def __getitem__(self, coord: Any, *, loc: Any = None, ip: Any = None) -> Any:
        coord, found = self._at(coord)
        if type(found) is TracedTensor:
            return found
        iterator = self._iterator
        if not isinstance(iterator, Pointer):
            return add_coords(iterator, found)
        if self._extents is not None:
            check_element(self._extents, iterator, coord, write=False)
        return load_element(iterator, found)

    def __setitem__(self, coord: Any, value: Any, *, loc: Any = None, ip: Any = None) -> None:
        iterator = self._iterator
        if not isinstance(iterator, Pointer):
            raise error(DSLUserCodeTypeError, "a coordinate tensor has no memory to write to")
        coord, part = self._at(coord)
        if type(part) is not TracedTensor:
            if self._extents is not None:
                check_element(self._extents, iterator, coord, write=True)
            store_element(iterator, part, value)
            return
        if isinstance(value, TracedTensor):
            value = value.load()
        if isinstance(value, (bool, int, float, Numeric)):
            part.fill(value)
        else:
            part.store(value)

    def _slice(self, coord: Any, by_thread: bool = False) -> TracedTensor:
        """What is left; `by_thread`: the coordinate is that of a thread.

        Whole periods of a swizzle move the pointer, but not a thread's: a pointer that all threads share is kept in a uniform
        register.
        """
        layout, coord = self._layout, self._coordinate(coord)
        extents = None if self._extents is None else self._extents.sliced(coord)
        if isinstance(layout, ComposedLayout):
            if by_thread or not isinstance(self._iterator, Pointer):
                return TracedTensor(self._iterator, layout._slice(coord), self._promised, extents)
            moved, rest = layout._slice_and_move(coord)
            return TracedTensor(self._moved(moved), rest, self._promised, extents)
        pointer = self._iterator
        if isinstance(pointer, Pointer) and (period := pointer._period()):
            moved, rest = crd2idx_apart(coord, layout, 0 if by_thread else period)
            pointer = pointer + moved
            pointer = pointer + rest if isinstance(rest, int) else pointer._plus(rest, by_thread)
        else:
            pointer = self._moved(crd2idx(coord, self.offset_layout))
        return TracedTensor(pointer, slice_(layout, coord), self._promised, extents)

    def _known_slice(self, coord: Any, offset: Any, rest: Layout) -> TracedTensor:
        """What is left, of a static layout at a static coordinate."""
        extents = None if self._extents is None else self._extents.sliced(coord)
        made = TracedTensor(self._moved(offset), rest, self._promised, extents)
        if self._wide is False:  # then no part of it is
            made._wide = False
        return made

    def _domain_offset(self, coord: Any) -> TracedTensor:
        layout, coord = self._layout, self._coordinate(coord)
        extents = None if self._extents is None else self._extents.moved(coord)
        if isinstance(layout, ComposedLayout):
            return TracedTensor(self._iterator, layout._domain_offset(coord), self._promised, extents)
        return TracedTensor(self._moved(crd2idx(coord, self.offset_layout)), layout, self._promised, extents)

    def _moved(self, offset: Any) -> Any:
        if isinstance(self._iterator, Pointer):
            return self._iterator + offset
        return add_coords(self._iterator, offset)

    def _map_layout(self, f: Callable[[Any], Any]) -> TracedTensor:
        layout = f(self._layout)
        extents = None if self._extents is None else self._extents.mapped(f, layout.shape)
        return TracedTensor(self._iterator, layout, self._promised, extents)

    # -- all elements ------------------------------------------------------------------------------------

    def load(self, *, loc: Any = None, ip: Any = None) -> Any:
        """All elements as one value (`TensorSSA`). The shape must be static."""
        from .tensor_ssa import TensorSSA

        iterator = self._memory("load")
        count = vector_access.static_size(self._layout, "load()")
        check_elements(self._extents, iterator, range(count), write=False)
        return TensorSSA(vector_access.load(iterator, self.offset_layout, count), self._layout.shape, iterator.dtype)

    def store(self, data: Any, *, loc: Any = None, ip: Any = None) -> None:
        """Write all elements. The value has as many elements, in the same order, of the same type."""
        from .tensor_ssa import TensorSSA

        iterator = self._memory("store")
        count = vector_access.static_size(self._layout, "store()")
        if not isinstance(data, TensorSSA):
            raise error(
                DSLUserCodeTypeError,
                f"store() takes the value of a tensor (TensorSSA), got {type(data).__name__}",
                hint="load the other tensor first, or use .fill(x) for one number",
            )
        if data.dtype is not iterator.dtype:
            raise error(
                DSLUserCodeTypeError,
                f"a value of {data.dtype.__name__} elements is stored in a tensor of {iterator.dtype.__name__}",
                hint=f"convert it: x.to({iterator.dtype.__name__})",
            )
        if data.numel() != count or _extents(data.shape) != _extents(self._layout.shape):
            raise error(
                DSLUserCodeTypeError,
                f"a value of shape {pretty_str(data.shape)} is stored in a tensor of shape {pretty_str(self._layout.shape)}",
                hint="shapes must agree mode by mode; reshape or broadcast_to makes them",
            )
        check_elements(self._extents, iterator, range(count), write=True)
        vector_access.store(iterator, self.offset_layout, count, data.value)

    def fill(self, value: Any, *, loc: Any = None, ip: Any = None) -> None:
        """Write the same number to all elements."""
        from ..base_dsl.numeric import emit
        from .pointer import element_value

        iterator = self._memory("fill")
        count = vector_access.static_size(self._layout, "fill()")
        dtype = iterator.dtype
        if isinstance(value, (bool, int, float)):
            from ..base_dsl.numeric import host

            vector = emit.constant(dtype, host.cast(dtype, value), count)
        else:
            vector = tracing.emit_value("vector.broadcast", dtype.vector_type(count), (element_value(value, dtype),))
        check_elements(self._extents, iterator, range(count), write=True)
        vector_access.store(iterator, self.offset_layout, count, vector)

    def _memory(self, what: str) -> Pointer:
        if not isinstance(self._iterator, Pointer):
            raise error(
                DSLUserCodeTypeError,
                f"{what}() needs a tensor in memory, and this one holds coordinates",
                hint="its elements are t[i]",
            )
        return self._iterator

    # -- crossing regions and functions ------------------------------------------------------------------

    @tracing.taking_apart
    def __extract_mlir_values__(self) -> list[ir.Value]:
        leaves = [_leaf_value(leaf) for leaf in _all_leaves(self)]
        if self.is_coordinates:
            return leaves
        from ..dialects import cute

        pointer = self._iterator
        memref = cute.view(pointer._base_value(), self._carried_type(), leaves)
        extents = [] if self._extents is None else self._extents.values()
        return [memref, *pointer._inside_values(), *extents]

    def _carried_type(self) -> ir.Type:
        """The type of the memref that crosses a region."""
        from ..dialects import cute

        pointer = self._iterator
        alignment = cute.info(pointer._base_type()).alignment
        return cute.memref_type(pointer.dtype.mlir_type, pointer.memspace.name, alignment, str(self._layout))

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> TracedTensor:
        if self.is_coordinates:
            made = iter([_leaf_like(leaf, v) for leaf, v in zip(_all_leaves(self), values, strict=True)])
            origin = with_dynamic_leaves(self._iterator, made)
            return TracedTensor(origin, self._layout._with_leaves(made), self._promised)
        from ..dialects import cute

        memref = values[0]
        pointer = self._iterator
        leaves = [
            _leaf_like(leaf, cute.leaf(memref, i, leaf_width(leaf))) for i, leaf in enumerate(self._layout._leaves())
        ]
        extents, rest = None, list(values[1:])
        if self._extents is not None:
            last = len(rest) - self._extents.count()
            extents, rest = self._extents.rebuilt(rest[last:]), rest[:last]
        base = pointer.__new_from_mlir_values__([cute.iter_(memref, pointer._base_type()), *rest])
        layout = self._layout._with_leaves(leaves) if leaves else self._layout
        return TracedTensor(base, layout, self._promised, extents)

    def __kiln_static_key__(self) -> Any:
        origin = None if self.is_coordinates else self._iterator.__kiln_static_key__()
        extents = None if self._extents is None else self._extents.key()
        return (origin, str(self._layout), getattr(self._layout, "inner", None), self._promised, extents)

    def __kiln_join__(self, other: TracedTensor) -> tuple[TracedTensor, TracedTensor] | None:
        if self.is_coordinates != other.is_coordinates or type(self._layout) is not type(other._layout):
            return None
        layouts = _join_layouts(self._layout, other._layout)
        if layouts is None:
            return None
        if self.is_coordinates:
            origins = _join_coords(self._iterator, other._iterator)
        else:
            origins = self._iterator.__kiln_join__(other._iterator)
        if origins is None:
            return None
        promised = self._promised and other._promised
        extents = join(self._extents, other._extents)
        first, second = zip(origins, layouts, (promised, promised), extents, strict=True)
        return TracedTensor(*first), TracedTensor(*second)

    def __kiln_coerce__(self, like: TracedTensor) -> TracedTensor | None:
        if self.is_coordinates != like.is_coordinates or type(self._layout) is not type(like._layout):
            return None
        layouts = _join_layouts(like._layout, self._layout)
        if layouts is None or str(layouts[0]) != str(like._layout):
            return None
        if not self.is_coordinates:
            origin = self._iterator.__kiln_coerce__(like._iterator)
            extents = coerce(self._extents, like._extents)
            return None if origin is None else TracedTensor(origin, layouts[1], like._promised, extents)
        origins = _join_coords(like._iterator, self._iterator)
        if origins is None or pretty_str(origins[0]) != pretty_str(like._iterator):
            return None
        return TracedTensor(origins[1], layouts[1], like._promised)

    def _head_parts(self) -> list[Any]:
        """Where it lies and its layout, for printing."""
        origin = [self._iterator] if self.is_coordinates else self._iterator.__kiln_print__()
        return [*origin, " o ", *layout_parts(self._layout)]

    def __kiln_print__(self) -> list[Any]:
        parts = self._head_parts()
        count = product(self._layout.shape)
        if not isinstance(count, int) or count > _PRINTED_ELEMENTS:
            return parts
        parts.append(" = \n  ( ")
        for i in range(count):
            parts += [", "] if i else []
            parts.append(self[i])
        return [*parts, " )"]


def _is_known(coord: Any) -> bool:
    """Whether a coordinate is made of ints and None."""
    if type(coord) is tuple:
        for c in coord:  # noqa: SIM110  a generator costs twice as much
            if c is not None and type(c) is not int and not _is_known(c):
                return False
        return True
    return coord is None or type(coord) is int


@functools.lru_cache(maxsize=8192)
def _known_access(layout: Layout, coord: Any) -> tuple[Any, Layout | None]:
    """The offset of a static coordinate in a static layout, and what is left; None of an element."""
    return crd2idx(coord, layout), slice_(layout, coord) if has_underscore(coord) else None


def _extents(shape: Any) -> list[int]:
    """The extents of the top-level modes that are not 1: what two shapes must agree in to be stored into each other."""
    modes = shape if isinstance(shape, tuple) else (shape,)
    sizes = [product(m) for m in modes]
    sizes = [s for s in sizes if s != 1]
    return sizes if len(sizes) > 1 else [product(shape)]


def _as_coordinate(coord: Any, layout: Any, wide: bool) -> Any:
    if isinstance(coord, (tuple, list)):
        return tuple(_as_coordinate(c, layout, wide) for c in coord)
    if coord is None or type(coord) is int:
        return coord
    if isinstance(coord, Integer) and not coord.is_static:
        width = type(coord).width
        if width >= 64 or (width == 32 and not wide):
            return coord
        return (Int64 if wide else Int32)(coord)
    if isinstance(coord, Integer):
        return int(coord)
    if isinstance(coord, slice) or coord is Ellipsis:
        raise error(
            DSLUserCodeTypeError,
            f"a tensor of layout {layout} is indexed by {'a slice' if isinstance(coord, slice) else '...'}",
            hint="write None for a whole mode: t[None, 0]; cut tiles with cute.local_tile",
        )
    if isinstance(coord, (bool, float, Numeric)) or not hasattr(coord, "__index__"):
        raise error(
            DSLUserCodeTypeError,
            f"a tensor is indexed by {type(coord).__name__}",
            hint="an index is an integer, None or a tuple of those",
        )
    return int(coord.__index__())


# --- leaves ----------------------------------------------------------------------------------------------------------


def _all_leaves(tensor: TracedTensor) -> tuple[Any, ...]:
    layout = tensor._layout._leaves()
    return layout if not tensor.is_coordinates else (*dynamic_leaves(tensor._iterator), *layout)


def _leaf_value(leaf: Any) -> ir.Value:
    """A dynamic leaf as an IR value of the width that the layout's text states."""
    kind = Int64 if leaf_width(leaf) == 64 else Int32
    return (leaf if type(leaf) is kind else kind(leaf)).ir_value()


def _leaf_like(leaf: Any, value: ir.Value) -> Any:
    """The same leaf with another IR value."""
    kind = Int64 if leaf_width(leaf) == 64 else Int32
    return kind._make(value, leaf.nonneg, leaf.divisibility)


def _join_leaf(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Two leaves under one description: equal static ones, or dynamic ones of the wider width and common divisor."""
    if isinstance(a, int) or isinstance(b, int):
        return (a, b) if isinstance(a, int) and isinstance(b, int) and a == b else None
    kind = Int64 if 64 in (leaf_width(a), leaf_width(b)) else Int32
    common = gcd(get_divisibility(a), get_divisibility(b))
    nonneg = a.nonneg and b.nonneg
    first, second = (x if type(x) is kind else kind(x) for x in (a, b))
    return (first._assume(nonneg=nonneg, divisibility=common), second._assume(nonneg=nonneg, divisibility=common))


def _join_trees(a: Any, b: Any) -> tuple[Any, Any] | None:
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
            return None
        pairs = [_join_trees(x, y) for x, y in zip(a, b, strict=True)]
        if any(p is None for p in pairs):
            return None
        return tuple(p[0] for p in pairs if p), tuple(p[1] for p in pairs if p)
    if isinstance(a, ScaledBasis) or isinstance(b, ScaledBasis):
        if not (isinstance(a, ScaledBasis) and isinstance(b, ScaledBasis)) or a.mode != b.mode:
            return None
        scales = _join_leaf(a.value, b.value)
        return None if scales is None else (ScaledBasis(scales[0], a.mode), ScaledBasis(scales[1], b.mode))
    return _join_leaf(a, b)


def _join_layouts(a: Any, b: Any) -> tuple[Any, Any] | None:
    if isinstance(a, ComposedLayout):
        if a.inner is not b.inner and a.inner != b.inner:
            return None
        offsets, outers = _join_coords(a.offset, b.offset), _join_layouts(a.outer, b.outer)
        if offsets is None or outers is None:
            return None
        return ComposedLayout(a.inner, offsets[0], outers[0]), ComposedLayout(b.inner, offsets[1], outers[1])
    shapes, strides = _join_trees(a.shape, b.shape), _join_trees(a.stride, b.stride)
    if shapes is None or strides is None:
        return None
    return Layout(shapes[0], strides[0]), Layout(shapes[1], strides[1])


def _join_coords(a: Any, b: Any) -> tuple[Any, Any] | None:
    """Two coordinates under one description: leaves that differ become dynamic."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)):
            return None
        pairs = [_join_coords(x, y) for x, y in zip(a, b, strict=True)]
        if any(p is None for p in pairs):
            return None
        return tuple(p[0] for p in pairs if p), tuple(p[1] for p in pairs if p)
    if isinstance(a, int) and isinstance(b, int) and a == b:
        return a, b
    return _join_leaf(Int32(a) if isinstance(a, int) else a, Int32(b) if isinstance(b, int) else b)


def _memref_type(pointer: Pointer, layout: Any) -> ir.Type:
    from ..dialects import cute

    return cute.memref_type(pointer.dtype.mlir_type, pointer.memspace.name, pointer.alignment, str(layout))


# --- making tensors --------------------------------------------------------------------------------------------------


def _as_layout(layout: Any) -> Any:
    return layout if isinstance(layout, (Layout, ComposedLayout)) else make_layout(as_int_tuple(layout, "a shape"))


def make_tensor(iterator: Any, layout: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """A pointer seen through a layout (or a shape, which stands for its compact layout, first mode fastest).

    With a coordinate (an integer or a tuple of them) in place of the pointer, a coordinate tensor.
    """
    layout = _as_layout(layout)
    if isinstance(iterator, TracedTensor):
        iterator = iterator.iterator
    if isinstance(iterator, Pointer) or getattr(type(iterator), "_is_tensor_iterator", False):
        made = TracedTensor(iterator, layout, extents=extents_of(layout))
        if sanitizing.kinds() and isinstance(iterator, Pointer) and iterator.memspace is AddressSpace.smem:
            _note_view(made)
            made = TracedTensor(_seen_through(iterator, layout), layout, extents=made._extents)
        return made
    if isinstance(iterator, (int, tuple, list)) or is_dynamic_leaf(iterator):
        return TracedTensor(as_int_tuple(iterator, "a coordinate"), layout)
    raise error(
        DSLUserCodeTypeError,
        f"make_tensor takes a pointer or a coordinate, got {type(iterator).__name__}",
        hint="a pointer is t.iterator, cute.make_ptr(...) or what an allocator returns",
    )


def _seen_through(pointer: Pointer, layout: Any) -> Pointer:
    """The pointer to shared memory of a tensor with this layout, as the sanitizer knows it."""
    if pointer.swizzle is not None:
        return pointer  # what it is seen through, an access says
    swizzle = layout.inner if isinstance(layout, ComposedLayout) and isinstance(layout.inner, Swizzle) else None
    if swizzle is None and not isinstance(layout, Layout):
        return pointer
    return pointer._copy(_base=seen_through(pointer.ir_value(), swizzle, element_bits(pointer.dtype)), _offset=0)


def _note_view(tensor: TracedTensor) -> None:
    """Let the module say what lies in shared memory, for the sanitizer: a view that nobody uses."""
    from ..dialects import cute

    pointer, layout = tensor._iterator, tensor._layout
    if pointer.swizzle is None or not pointer._period() or not isinstance(layout, Layout) or not layout.is_static():
        tensor.__extract_mlir_values__()
        return
    swizzle = upcast_swizzle(pointer.swizzle, element_bits(pointer.dtype) // 8)
    text = str(ComposedLayout(swizzle, 0, layout))
    alignment = cute.info(pointer._base_type()).alignment
    cute.view(
        pointer._base_value(), cute.memref_type(pointer.dtype.mlir_type, pointer.memspace.name, alignment, text), []
    )


def make_identity_tensor(shape: Any, *, loc: Any = None, ip: Any = None) -> TracedTensor:
    """The tensor whose element at a coordinate is that coordinate."""
    layout = make_identity_layout(shape)
    origin = _zeros(layout.shape)
    return TracedTensor(origin, layout)


def _zeros(shape: Any) -> Any:
    return tuple(_zeros(s) for s in shape) if isinstance(shape, tuple) else 0


def make_rmem_tensor(layout_or_shape: Any, dtype: Any, *, loc: Any = None, ip: Any = None) -> TracedTensor:
    """A tensor in the registers of a thread, undefined at first. The layout must be static."""
    if not isinstance(dtype, NumericMeta) and isinstance(layout_or_shape, NumericMeta):
        raise error(DSLUserCodeTypeError, "make_rmem_tensor takes the layout or shape first, then the type")
    if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
        raise error(DSLUserCodeTypeError, f"make_rmem_tensor takes a numeric type such as Float32, got {dtype!r}")
    layout = _as_layout(layout_or_shape)
    plain = layout.outer if isinstance(layout, ComposedLayout) else layout
    count = cosize(plain)
    if not isinstance(count, int) or not layout.is_static():
        raise error(
            DSLUserCodeTypeError,
            f"a register tensor needs a static layout, got {layout}",
            hint="registers are allocated when compiling: use static shapes (Constexpr)",
        )
    tracing.require("a register tensor")
    from ..dialects import cute

    type_ = cute.ptr_type(dtype.mlir_type, "rmem", RMEM_ALIGNMENT)
    base = cute.alloc_rmem(max(count, 1), type_)
    return TracedTensor(Pointer(base, dtype, AddressSpace.rmem, RMEM_ALIGNMENT), layout, extents=extents_of(layout))


def make_fragment(layout_or_shape: Any, dtype: Any, *, loc: Any = None, ip: Any = None) -> TracedTensor:
    """The older name of `make_rmem_tensor`."""
    return make_rmem_tensor(layout_or_shape, dtype)


def _type_like(src: Any, dtype: Any, what: str) -> Any:
    found = dtype if dtype is not None else getattr(src, "element_type", None)
    if found is None:
        raise error(
            DSLUserCodeTypeError,
            f"{what} of a layout needs the element type",
            hint=f"cute.{what}(layout, Float32)",
        )
    return found


def make_rmem_tensor_like(src: Any, dtype: Any = None, *, loc: Any = None, ip: Any = None) -> TracedTensor:
    """A register tensor of the same shape, compact, with strides in the same order."""
    from .tensor_ssa import TensorSSA

    found = _type_like(src, dtype, "make_rmem_tensor_like")
    if isinstance(src, TensorSSA):
        return make_rmem_tensor(src.shape, found)
    layout = src.layout if isinstance(src, Tensor) else src
    return make_rmem_tensor(make_layout_like(layout), found)


def make_fragment_like(src: Any, dtype: Any = None, *, loc: Any = None, ip: Any = None) -> Any:
    """A register tensor for what a thread holds of `src`: mode 0 compact, the others in the order of their strides.

    Of a layout without an element type: that layout.
    """
    if isinstance(src, (Layout, ComposedLayout)) and dtype is None:
        return make_fragment_layout(src)
    found = _type_like(src, dtype, "make_fragment_like")
    layout = src.layout if isinstance(src, Tensor) else src
    return make_rmem_tensor(make_fragment_layout(layout), found)


def recast_tensor(
    src: TracedTensor, dtype: Any, swizzle_: Any = None, *, loc: Any = None, ip: Any = None
) -> TracedTensor:
    """The same memory as elements of another type; the mode with stride 1 gets longer or shorter."""
    if not isinstance(src, TracedTensor) or src.is_coordinates:
        raise error(DSLUserCodeTypeError, f"recast_tensor takes a tensor in memory, got {type(src).__name__}")
    pointer = src.iterator
    swizzle = swizzle_ if swizzle_ is not None else pointer.swizzle
    made = recast_ptr(pointer, swizzle, dtype)
    layout = recast_layout(element_bits(dtype), element_bits(pointer.dtype), src.layout)
    fits = src._promised and element_bits(dtype) >= element_bits(pointer.dtype)
    return TracedTensor(made, layout, True if fits else None)


_Tensor = TracedTensor
"""The name programs know the class by."""


def __getattr__(name: str) -> Any:
    if name in ("ReductionOp", "TensorSSA"):
        from . import tensor_ssa

        return getattr(tensor_ssa, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
