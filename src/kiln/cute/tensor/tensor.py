"""Tensors: a pointer, or another iterator (`iterator.py`), seen through a layout, inside a function being traced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error, value_error
from ...base_dsl.numeric import emit, host
from ...base_dsl.typing import Boolean, Int32, Int64, Integer, Numeric, NumericMeta
from ...hardware.limits import LOCAL_MEMORY, REGISTERS_PER_THREAD
from ..deferred_dialects import cute
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import Coord, Shape, as_int_tuple, has_underscore, pretty_str, product
from ..layout.layout import (
    Layout,
    cosize,
    crd2idx,
    leading_dim,
    make_identity_layout,
    make_layout,
    make_layout_like,
    rank,
)
from ..layout.leaf import is_dynamic_leaf
from ..layout.modes import slice_
from ..layout.offset_width import needs_wide_offsets, with_wide_strides
from ..layout.recast import recast_layout
from ..layout.tiling import make_fragment_layout
from . import vector_access
from .extents import Extents, check_element, check_elements, coerce, extents_of, extents_of_view, join
from .iterator import Coordinates, TensorIterator
from .leaf_values import join_layouts, leaf_like, leaf_value
from .pointer import AddressSpace, Pointer, conversion, element_bits, element_value
from .printing import layout_parts
from .tensor_ssa import TensorSSA

if TYPE_CHECKING:
    from typing_extensions import Self
    from typing_extensions import TypeVar as TypeVarWithDefault

    from ...base_dsl.numeric.operator_types import Extent, Number
    from .vector_types import ElementCoord

    E_co = TypeVarWithDefault("E_co", covariant=True, default=Any)
else:
    E_co = TypeVar("E_co", covariant=True)
D = TypeVar("D")
"""A numeric type."""

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
"""The most elements that `printf` prints with a tensor; `print_tensor` prints any number."""
RMEM_ALIGNMENT = 32
"""The alignment of a register tensor's memory, in bytes."""


class Tensor(Generic[E_co]):
    """Elements and the layout they lie in: what annotations and `isinstance` name.

    Inside a trace tensors are made by `make_tensor` and its relatives and arrive as arguments; outside, by
    `cute.runtime.from_dlpack`. `t[i, j]` is an element, `t[None, j]` a column, `t.load()` all elements as a vector.
    `Tensor[Float32]` in an annotation tells type checkers the type of elements; calls do not check it.
    `Tensor["f16[m,n%8]@16"]` describes the argument: calls check it, and code is compiled for it.
    """

    __slots__ = ()

    def __class_getitem__(cls, parameters: object) -> Any:
        if isinstance(parameters, str):
            from ..host.tensor_pattern import annotation_of

            return annotation_of(parameters)
        return cls

    if TYPE_CHECKING:  # what tensors of a program have besides

        @property
        def layout(self) -> Layout:
            """The map from coordinates to offsets; a `ComposedLayout` for a swizzled tensor."""
            ...

        @property
        def iterator(self) -> Pointer:
            """The pointer to the first element; for a tensor of coordinates, the coordinate of its origin."""
            ...

        @overload
        def __getitem__(  # also of Tensor without a type
            self: Tensor[Number], coord: ElementCoord, *, loc: object = None, ip: object = None
        ) -> Number: ...
        @overload
        def __getitem__(self, coord: ElementCoord, *, loc: object = None, ip: object = None) -> E_co: ...
        @overload
        def __getitem__(
            self, coord: tuple[Any, ...] | list[Any] | None, *, loc: object = None, ip: object = None
        ) -> Self: ...
        def __getitem__(self, coord: Any, *, loc: object = None, ip: object = None) -> Any:
            """Return an element, or for a coordinate with None in it the tensor that is left."""
            ...

        def __setitem__(
            self,
            coord: Coord,
            value: Numeric | float | TensorSSA | Tensor[Any],
            *,
            loc: object = None,
            ip: object = None,
        ) -> None:
            """Write an element, or all elements of a slice."""
            ...

        def load(self, *, loc: object = None, ip: object = None) -> TensorSSA:
            """Return all elements as one value. The shape must be static."""
            ...

        def store(self, data: TensorSSA, *, loc: object = None, ip: object = None) -> None:
            """Write all elements. The value has as many elements, in the same order, of the same type."""
            ...

        def fill(self, value: Numeric | float, *, loc: object = None, ip: object = None) -> None:
            """Write the same number to all elements."""
            ...

        def mark_layout_dynamic(self, leading_dim: int | None = None) -> Self:
            """Make extents and strides dynamic, except the stride 1 of the leading mode; only outside a trace."""
            ...

        def mark_compact_shape_dynamic(
            self, mode: int, stride_order: Sequence[int] | None = None, divisibility: int = 1
        ) -> Self:
            """Make one extent of a compact layout dynamic, with the strides that depend on it; only outside a trace."""
            ...

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The extents of the layout."""
        return self.layout.shape

    @property
    def stride(self) -> tuple[Extent, ...]:
        """The strides of the layout."""
        return self.layout.stride

    @property
    def element_type(self) -> type[E_co]:
        """The numeric type of the elements."""
        return self.iterator.dtype  # pyright: ignore[reportReturnType]

    @property
    def dtype(self) -> type[E_co]:
        """The numeric type of the elements."""
        return self.element_type

    @property
    def _dtype(self) -> Any:
        """The same, by the name that programs for CuTe DSL also use, and assign after a recast to a type of their own."""
        return self.element_type

    @_dtype.setter
    def _dtype(self, dtype: object) -> None:
        if dtype is not self.element_type:
            raise type_error(
                f"the elements of a tensor are {self.element_type.__name__}, and {dtype} is assigned",
                "use cute.recast_tensor(t, dtype)",
            )

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


class TracedTensor(Tensor[E_co]):
    """A tensor of the object program. Immutable; the elements are not.

    `iterator` is a pointer, for a coordinate tensor the coordinate of its origin, or another `TensorIterator`.
    `t[coord]` is an element, `t[coord with None]` the tensor that is left; `t[...] = x` writes an element or all
    elements of a slice.
    """

    __kiln_immutable__ = True
    __slots__ = ("_extents", "_iterator", "_layout", "_promised", "_thread_slice", "_wide")

    def __init__(
        self, iterator: TensorIterator, layout: Any, promised: bool | None = None, extents: Extents | None = None
    ) -> None:
        self._iterator: Any = iterator
        self._layout = layout
        self._extents = extents
        """Where its elements lie in the tensor that it was cut from, if accesses are compared with that."""
        self._promised = not iterator.far if promised is None else promised
        """Whether offsets are promised to fit 32 bits, see `offset_width`."""
        self._wide: bool | None = None
        self._thread_slice: tuple[ComposedLayout, Any] | None = None
        """The swizzled layout of the tensor that this is a thread's slice of, and the thread's coordinate in it."""

    def _linear(self) -> tuple[Any, Layout] | None:
        """Return the offset and the plain layout of a thread's slice of a swizzled tensor, if it has one.

        Only programs that ask for `iterator` and `layout` get these. Copies keep the swizzle, where the step to another
        element is an XOR with a constant: dynamic strides would take registers.
        """
        return None if self._thread_slice is None else self._thread_slice[0]._linear_slice(self._thread_slice[1])

    @property
    def iterator(self) -> Pointer:
        """The pointer to the first element, the coordinate of the origin, or another iterator."""
        linear = self._linear()
        return self._iterator.exposed if linear is None else self._iterator.moved(linear[0])

    @property
    def layout(self) -> Layout:
        """The layout, plain or composed."""
        linear = self._linear()
        return self._layout if linear is None else linear[1]

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The extents of the layout."""
        return self._layout.shape

    @property
    def element_type(self) -> type[E_co]:
        """The numeric type of the elements; Int32 for coordinates."""
        return self._iterator.dtype

    @property
    def memspace(self) -> AddressSpace:
        """The memory the elements lie in; coordinates are in registers."""
        return self._iterator.memspace

    @property
    def in_memory(self) -> bool:
        """Whether loads, stores and plain copies reach the elements."""
        return self._iterator.in_memory

    @property
    def value(self) -> Self:
        """The tensor itself: what programs hand to functions of the IR."""
        return self

    @property
    def type(self) -> Any:
        """The IR type, with the layout in it."""
        return self._iterator.tensor_type(self._layout)

    def __str__(self) -> str:
        return f"tensor<{self._iterator} o {self._layout}>"

    __repr__ = __str__

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, (TracedTensor, TensorSSA, bool, int, float, Numeric)):
            raise type_error(
                "`==` and `!=` compare numbers, not tensors",
                "compare elements, x[i] == y[i], or the values of tiles, x.load() == y.load()",
            )
        return NotImplemented

    def __len__(self) -> int:
        raise type_error(
            "a tensor has no len()",
            "cute.size(x) is the number of elements, x.shape[0] that of mode 0, cute.rank(x) of modes",
        )

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise type_error("a tensor cannot be iterated over", "loop over indices: for i in range(cute.size(x)): x[i]")

    def __contains__(self, item: object) -> bool:
        raise type_error("`in` does not look into tensors", "loop over indices, and compare elements: x[i] == value")

    if not TYPE_CHECKING:

        def mark_layout_dynamic(self, leading_dim: int | None = None) -> Tensor:
            """Raise an error: only tensors outside a trace can be marked."""
            raise type_error(
                "mark_layout_dynamic is called on arguments, before the call", "from_dlpack(x).mark_layout_dynamic()"
            )

        mark_compact_shape_dynamic = mark_layout_dynamic

    def _coordinate(self, coord: object) -> Any:
        """Return an index expression as a coordinate whose dynamic parts are as wide as offsets in this tensor need."""
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

    def _at(self, coord: object) -> tuple[Any, Any]:
        """Return a coordinate and the offset of its element, or the tensor that is left."""
        layout = self._layout
        if type(layout) is Layout and layout.is_static() and _is_python_coord(coord):
            offset, rest = _static_access(layout, coord)
            return coord, offset if rest is None else self._static_slice(coord, offset, rest)
        if type(coord) is not int:
            coord = self._coordinate(coord)
            if has_underscore(coord):
                return coord, self._slice(coord)
        return coord, self.offset_layout(coord)

    if not TYPE_CHECKING:  # types: see `Tensor`

        def __getitem__(self, coord: object, *, loc: object = None, ip: object = None) -> Any:
            coord, place = self._at(coord)
            if type(place) is TracedTensor:
                return place
            if self._extents is not None:
                check_element(self._extents, self._iterator, coord, write=False)
            return self._iterator.element(place)

        def __setitem__(self, coord: object, value: object, *, loc: object = None, ip: object = None) -> None:
            coord, part = self._at(coord)
            if type(part) is not TracedTensor:
                if self._extents is not None:
                    check_element(self._extents, self._iterator, coord, write=True)
                self._iterator.set_element(part, value)
                return
            if isinstance(value, TracedTensor):
                value = value.load()
            if isinstance(value, (bool, int, float, Numeric)):
                part.fill(value)
            else:
                part.store(value)

    def _slice(self, coord: Any, by_thread: bool = False) -> TracedTensor:
        """Return the rest of a slice; `by_thread`: the coordinate is that of a thread."""
        coord = self._coordinate(coord)
        extents = None if self._extents is None else self._extents.sliced(coord)
        iterator, rest = self._iterator.sliced(self._layout, coord, self.offset_layout, by_thread)
        part = self._part(iterator, rest, extents)
        if by_thread and isinstance(self._layout, ComposedLayout):
            part._thread_slice = self._layout, coord
        return part

    def _part(self, iterator: Any, layout: Any, extents: Any) -> TracedTensor:
        """Return a tensor of some of the elements."""
        part = TracedTensor(iterator, layout, self._promised, extents)
        if self._wide is False:  # then no part of it is
            part._wide = False
        return part

    def _static_slice(self, coord: Any, offset: Any, rest: Layout) -> TracedTensor:
        """Return the rest of a slice, of a static layout at a static coordinate."""
        extents = None if self._extents is None else self._extents.sliced(coord)
        return self._part(self._iterator.moved(offset), rest, extents)

    def _domain_offset(self, coord: object) -> TracedTensor:
        layout = self._layout
        coord = self._coordinate(coord)
        extents = None if self._extents is None else self._extents.moved(coord)
        if isinstance(layout, ComposedLayout):
            return TracedTensor(self._iterator, layout._domain_offset(coord), self._promised, extents)
        moved = self._iterator.moved(crd2idx(coord, self.offset_layout))
        return TracedTensor(moved, layout, self._promised, extents)

    def _map_layout(self, f: Callable[[Any], Any]) -> TracedTensor:
        layout = f(self._layout)
        extents = None if self._extents is None else self._extents.mapped(f, layout.shape)
        return TracedTensor(self._iterator, layout, self._promised, extents)

    def load(self, *, loc: object = None, ip: object = None) -> TensorSSA:
        """Return all elements as one value (`TensorSSA`). The shape must be static."""
        iterator = self._memory("load()")
        count = vector_access.static_size(self._layout, "load()")
        check_elements(self._extents, iterator, range(count), write=False)
        return TensorSSA(vector_access.load(iterator, self.offset_layout, count), self._layout.shape, iterator.dtype)

    def store(self, data: object, *, loc: object = None, ip: object = None) -> None:
        """Write all elements. The value has as many elements, in the same order, of the same type."""
        iterator = self._memory("store()")
        count = vector_access.static_size(self._layout, "store()")
        if not isinstance(data, TensorSSA):
            raise type_error(
                f"store() takes the value of a tensor (TensorSSA), got {type(data).__name__}",
                "load the other tensor first, or use .fill(x) for one number",
            )
        if data.dtype is not iterator.dtype:
            raise type_error(
                f"a value of {data.dtype.__name__} elements is stored in a tensor of {iterator.dtype.__name__}",
                conversion(iterator.dtype.__name__),
            )
        if data.numel() != count or _extents(data.shape) != _extents(self._layout.shape):
            raise type_error(
                f"a value of shape {pretty_str(data.shape)} is stored in a tensor of shape {pretty_str(self._layout.shape)}",
                "shapes must agree mode by mode; reshape or broadcast_to makes them",
            )
        check_elements(self._extents, iterator, range(count), write=True)
        vector_access.store(iterator, self.offset_layout, count, data.value)

    def fill(self, value: object, *, loc: object = None, ip: object = None) -> None:
        """Write the same number to all elements."""
        iterator = self._memory("fill()")
        count = vector_access.static_size(self._layout, "fill()")
        dtype = iterator.dtype
        if isinstance(value, (bool, int, float)):
            vector = emit.constant(dtype, host.cast(dtype, value), count)
        else:
            vector = tracing.emit_value("vector.broadcast", dtype.vector_type(count), (element_value(value, dtype),))
        check_elements(self._extents, iterator, range(count), write=True)
        vector_access.store(iterator, self.offset_layout, count, vector)

    def _memory(self, what: str, who: str = "the tensor") -> Pointer:
        if not self._iterator.in_memory:
            self._iterator.refuse(what, who)
        return self._iterator

    @tracing.taking_apart
    def __extract_mlir_values__(self) -> list[ir.Value]:
        values = self._iterator.packed(self._layout, [leaf_value(leaf) for leaf in self._layout._leaves()])
        return values if self._extents is None else [*values, *self._extents.values()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> TracedTensor:
        extents = None
        if self._extents is not None:
            own = len(values) - self._extents.count()
            extents = self._extents.rebuilt(values[own:])
            values = values[:own]
        iterator, rest = self._iterator.unpacked(self._layout, values)
        layout = self._layout
        if rest:
            layout = layout._with_leaves([leaf_like(leaf, v) for leaf, v in zip(layout._leaves(), rest, strict=True)])
        return TracedTensor(iterator, layout, self._promised, extents)

    def __kiln_static_key__(self) -> Any:
        extents = None if self._extents is None else self._extents.key()
        origin = self._iterator.__kiln_static_key__()
        return (origin, str(self._layout), getattr(self._layout, "inner", None), self._promised, extents)

    def __kiln_join__(self, other: TracedTensor) -> tuple[TracedTensor, TracedTensor] | None:
        layouts = join_layouts(self._layout, other._layout)
        iterators = None if layouts is None else self._iterator.__kiln_join__(other._iterator)
        if layouts is None or iterators is None:
            return None
        promised = self._promised and other._promised
        extents = join(self._extents, other._extents)
        first, second = zip(iterators, layouts, (promised, promised), extents, strict=True)
        return TracedTensor(*first), TracedTensor(*second)

    def __kiln_coerce__(self, like: TracedTensor) -> TracedTensor | None:
        layouts = join_layouts(like._layout, self._layout)
        if layouts is None or str(layouts[0]) != str(like._layout):
            return None
        iterator = self._iterator.__kiln_coerce__(like._iterator)
        if iterator is None:
            return None
        return TracedTensor(iterator, layouts[1], like._promised, coerce(self._extents, like._extents))

    def _head_parts(self) -> list[Any]:
        """Return where it lies and its layout, for printing."""
        return [*self._iterator.__kiln_print__(), " o ", *layout_parts(self._layout)]

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


def _is_python_coord(coord: Any) -> bool:
    """Return whether a coordinate is made of ints and None."""
    if type(coord) is tuple:
        for c in coord:  # noqa: SIM110  a generator costs twice as much
            if c is not None and type(c) is not int and not _is_python_coord(c):
                return False
        return True
    return coord is None or type(coord) is int


@functools.lru_cache(maxsize=8192)
def _static_access(layout: Layout, coord: Any) -> tuple[Any, Layout | None]:
    """Return the offset of a static coordinate in a static layout, and what is left; None of an element."""
    return crd2idx(coord, layout), slice_(layout, coord) if has_underscore(coord) else None


def _extents(shape: object) -> list[Any]:
    """Return the extents of the top-level modes that are not 1, in which a value and a tensor must agree."""
    modes = shape if isinstance(shape, tuple) else (shape,)
    sizes = [product(m) for m in modes]
    sizes = [s for s in sizes if s != 1]
    return sizes if len(sizes) > 1 else [product(shape)]


def _as_coordinate(coord: Any, layout: object, wide: bool) -> Any:
    if isinstance(coord, (tuple, list)):
        return tuple(_as_coordinate(c, layout, wide) for c in coord)
    if coord is None or type(coord) is int:
        return coord
    if isinstance(coord, Integer) and not coord.is_static:
        width = type(coord).width
        if width >= 64 or (width == 32 and not wide):
            return coord
        if width == 1:
            raise _mask(coord)
        return (Int64 if wide else Int32)(coord)
    if isinstance(coord, (bool, Boolean)) or getattr(coord, "dtype", None) is Boolean:
        raise _mask(coord)
    if isinstance(coord, Integer):
        return int(coord)
    if isinstance(coord, slice) or coord is Ellipsis:
        raise type_error(
            f"a tensor of layout {layout} is indexed by {'a slice' if isinstance(coord, slice) else '...'}",
            "write None for a whole mode: t[None, 0]; cut tiles with cute.local_tile",
        )
    if isinstance(coord, Numeric) and type(coord).is_float:
        raise type_error(
            f"a tensor is indexed by {type(coord).__name__}", "an index is an integer: i // 2, or Int32(...)"
        )
    if isinstance(coord, (float, Numeric)) or not hasattr(coord, "__index__"):
        raise type_error(
            f"a tensor is indexed by {type(coord).__name__}", "an index is an integer, None or a tuple of those"
        )
    return int(coord.__index__())


def _mask(coord: object) -> Exception:
    return type_error(
        f"a tensor is indexed by a {type(coord).__name__}: there are no masks",
        "write `if x[i] > 0:`, or choose a value: `x[i] if x[i] > 0 else 0.0`; Int32(condition) is 0 or 1",
    )


def _as_layout(layout: object) -> Any:
    return layout if isinstance(layout, (Layout, ComposedLayout)) else make_layout(as_int_tuple(layout, "a shape"))


@overload
def make_tensor(
    iterator: Pointer | TensorIterator | Tensor[Any],
    layout: Layout | ComposedLayout | Shape,
    *,
    loc: object = None,
    ip: object = None,
) -> TracedTensor: ...
@overload
def make_tensor(
    iterator: int | Integer | tuple[Any, ...] | list[Any],
    layout: Layout | ComposedLayout | Shape,
    *,
    loc: object = None,
    ip: object = None,
) -> TracedTensor[Extent]: ...
def make_tensor(iterator: object, layout: object, *, loc: object = None, ip: object = None) -> Any:
    """Return a tensor: a pointer seen through a layout.

    Args:
        iterator: a pointer, what an allocator returns, or any `TensorIterator`. A coordinate (an integer, or a tuple of
            them) makes a coordinate tensor.
        layout: a layout, or a shape, which stands for its compact layout with the first mode fastest.
    """
    layout = _as_layout(layout)
    if isinstance(iterator, TracedTensor):
        iterator = iterator._iterator
    if isinstance(iterator, TensorIterator):
        extents = extents_of_view(layout, iterator) if iterator.in_memory else None
        return TracedTensor(iterator.viewed(layout), layout, extents=extents)
    if isinstance(iterator, (int, tuple, list)) or is_dynamic_leaf(iterator):
        return TracedTensor(Coordinates(as_int_tuple(iterator, "a coordinate")), layout)
    raise type_error(
        f"make_tensor takes a pointer or a coordinate, got {type(iterator).__name__}",
        "a pointer is t.iterator, cute.make_ptr(...) or what an allocator returns",
    )


def make_identity_tensor(shape: Shape, *, loc: object = None, ip: object = None) -> TracedTensor[Extent]:
    """Return the coordinate tensor of `shape`, whose element at a coordinate is that coordinate; used for predicates."""
    layout = make_identity_layout(shape)
    return TracedTensor(Coordinates(_zeros(layout.shape)), layout)


def _zeros(shape: object) -> Any:
    return tuple(_zeros(s) for s in shape) if isinstance(shape, tuple) else 0


def make_rmem_tensor(
    layout_or_shape: Layout | ComposedLayout | Shape, dtype: type[D], *, loc: object = None, ip: object = None
) -> TracedTensor[D]:
    """Return a tensor in the registers of a thread. Its elements are undefined at first.

    Args:
        layout_or_shape: a layout or shape, static, else TypeError is raised.
        dtype: the element type.
    """
    if not isinstance(dtype, NumericMeta) and isinstance(layout_or_shape, NumericMeta):
        raise type_error("make_rmem_tensor takes the layout or shape first, then the type")
    if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
        raise type_error(f"make_rmem_tensor takes a numeric type such as Float32, got {dtype!r}")
    layout = _as_layout(layout_or_shape)
    plain = layout.outer if isinstance(layout, ComposedLayout) else layout
    count = cosize(plain)
    if not isinstance(count, int) or not layout.is_static():
        raise type_error(
            f"a register tensor needs a static layout, got {layout}",
            "registers are allocated when compiling: use static shapes (Constexpr)",
        )
    tracing.require("a register tensor")
    if (bytes_ := count * element_bits(dtype) // 8) > LOCAL_MEMORY:
        raise value_error(
            f"a register tensor of {count} elements has {bytes_} bytes; a thread has {LOCAL_MEMORY} of its own, and {REGISTERS_PER_THREAD} registers",
            "allocate a thread's part of the tile, as partition_fragment_C() of a tiled MMA or make_fragment_like() of a partition does",
        )
    type_ = cute.ptr_type(dtype.mlir_type, "rmem", RMEM_ALIGNMENT)
    pointer = Pointer(cute.alloc_rmem(max(count, 1), type_), dtype, AddressSpace.rmem, RMEM_ALIGNMENT)
    return TracedTensor(pointer, layout, extents=extents_of(layout, pointer))


def make_fragment(
    layout_or_shape: Layout | ComposedLayout | Shape, dtype: type[D], *, loc: object = None, ip: object = None
) -> TracedTensor[D]:
    """Return a tensor in the registers of a thread: the older name of `make_rmem_tensor`.

    Args:
        layout_or_shape: a layout or shape, static, else TypeError is raised.
        dtype: the element type.
    """
    return make_rmem_tensor(layout_or_shape, dtype)


def _type_like(src: object, dtype: object, what: str) -> Any:
    element = dtype if dtype is not None else getattr(src, "element_type", None)
    if element is None:
        raise type_error(f"{what} of a layout needs the element type", f"cute.{what}(layout, Float32)")
    return element


def _layout_of(src: object) -> Any:
    """Return the layout of a tensor, swizzled if it is a thread's slice of a swizzled one, or the layout itself."""
    if isinstance(src, TracedTensor):
        return src._layout
    return src.layout if isinstance(src, Tensor) else src


@overload
def make_rmem_tensor_like(
    src: Tensor[E_co], dtype: None = None, *, loc: object = None, ip: object = None
) -> TracedTensor[E_co]: ...
@overload
def make_rmem_tensor_like(
    src: TensorSSA, dtype: None = None, *, loc: object = None, ip: object = None
) -> TracedTensor: ...
@overload
def make_rmem_tensor_like(
    src: Tensor[Any] | TensorSSA | Layout | ComposedLayout, dtype: type[D], *, loc: object = None, ip: object = None
) -> TracedTensor[D]: ...
def make_rmem_tensor_like(
    src: object, dtype: object = None, *, loc: object = None, ip: object = None
) -> TracedTensor[Any]:
    """Return a register tensor of the shape of another, compact, with strides in the same order.

    Args:
        src: a tensor, a `TensorSSA` or a layout.
        dtype: the element type; by default that of `src`. A layout has none, and needs it.
    """
    element = _type_like(src, dtype, "make_rmem_tensor_like")
    if isinstance(src, TensorSSA):
        return make_rmem_tensor(src.shape, element)
    layout = _layout_of(src)
    return make_rmem_tensor(make_layout_like(layout), element)


@overload
def make_fragment_like(
    src: Tensor[E_co], dtype: None = None, *, loc: object = None, ip: object = None
) -> TracedTensor[E_co]: ...
@overload
def make_fragment_like(
    src: Tensor[Any] | Layout | ComposedLayout, dtype: type[D], *, loc: object = None, ip: object = None
) -> TracedTensor[D]: ...
@overload
def make_fragment_like(
    src: Layout | ComposedLayout, dtype: None = None, *, loc: object = None, ip: object = None
) -> Layout: ...
def make_fragment_like(src: object, dtype: object = None, *, loc: object = None, ip: object = None) -> Any:
    """Return a register tensor for what a thread holds of a tensor: mode 0 compact, the others in the order of their
    strides.

    Args:
        src: a tensor or a layout.
        dtype: the element type; by default that of `src`. For a layout without it, the result is the fragment's layout.
    """
    if isinstance(src, (Layout, ComposedLayout)) and dtype is None:
        return make_fragment_layout(src)
    element = _type_like(src, dtype, "make_fragment_like")
    layout = _layout_of(src)
    return make_rmem_tensor(make_fragment_layout(layout), element)


def recast_tensor(
    src: Tensor[Any], dtype: type[D], swizzle_: object = None, *, loc: object = None, ip: object = None
) -> TracedTensor[D]:
    """Return the same memory as elements of another type; the mode with stride 1 gets longer or shorter.

    Args:
        src: a tensor in memory or in registers.
        dtype: the element type of the result.
        swizzle_: the swizzle of the result; None for none.
    """
    if not isinstance(src, TracedTensor):
        raise type_error(f"recast_tensor takes a tensor in memory, got {type(src).__name__}")
    old = element_bits(src.element_type)
    new = element_bits(dtype)
    iterator = src._iterator.recast(dtype, swizzle_)
    return TracedTensor(iterator, recast_layout(new, old, src._layout), True if src._promised and new >= old else None)
