"""`cutlass.Array`: elements in memory that are indexed as C indexes them, the last mode contiguous.

    tile = cutlass.Array(cutlass.Float32, (64, 64), space=cutlass.AddressSpace.smem)
    tile[i, j] = x
    v = tile[i * 64 : 4]          # four elements from i * 64 on: the second number of a slice is a count
    row = tile[i, :]              # a view

A kernel or jit function whose parameter is annotated `Array` takes what a `cute.Tensor` parameter takes. Arrays are
views: copies of an `Array` see the same memory. The sanitizer checks every index against the extents.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import runtime_error, type_error
from ...base_dsl.typing import Boolean, Int64, NumericMeta
from ...base_dsl.user_op import extract_mlir_values, new_from_mlir_values
from ..deferred_dialects import cute
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, product
from ..layout.layout import make_layout
from ..layout.leaf import is_one
from . import raw_pointer
from .extents import watched
from .pointer import AddressSpace, Pointer, element_bits, natural_alignment
from .printing import printf
from .raw_pointer import RawPointer, address_space, as_raw_pointer
from .tensor import Tensor, TracedTensor, make_tensor
from .tensor_ssa import TensorSSA

_LARGE = 1024
"""Bytes of an array in shared memory from which on it is aligned as TMA and MMA operands with any swizzle are."""
_BOX = 128
"""The alignment of TMA boxes. A program that asks for it may unswizzle by offsets in the array, which counts on a swizzle
atom of 1024 bytes at its start."""


class Array:
    """Elements in memory, the last mode contiguous. Immutable; the elements are not.

    `Array(dtype, shape, space=AddressSpace.smem)` allocates shared memory of the CTA, `Array(dtype, shape)` memory of
    the thread; `Array(pointer, dtype=, shape=)` is a view.
    """

    __kiln_immutable__ = True
    __slots__ = ("_pointer", "_room", "_shape", "_strides")

    _pointer: RawPointer
    _shape: tuple[Any, ...] | None
    """The extents; None of a view without any, which is indexed by one number."""
    _strides: tuple[Any, ...]
    _room: tuple[Any, Any] | None
    """The index of the first element in what was allocated, and the elements of that, if accesses are checked."""

    def __init__(
        self,
        base: object = None,
        shape: object = None,
        *,
        dtype: object = None,
        space: object = None,
        addrspace: object = None,
        alignment: int | None = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        tracing.require("cutlass.Array()")
        base = dtype if base is None else base
        space = addrspace if space is None else space
        if isinstance(base, NumericMeta):
            where = address_space(AddressSpace.rmem if space is None else space)
            self._allocate(base, _extents(shape), where, alignment)
        else:
            self._view(base, dtype, shape, space)

    def _allocate(self, dtype: Any, shape: tuple[int, ...], space: AddressSpace, alignment: int | None) -> None:
        if not all(isinstance(s, int) and s > 0 for s in shape):
            raise type_error(f"an Array of shape {shape} is allocated", "extents are Python integers of at least 1")
        count = product(shape)
        size = (count * element_bits(dtype) + 7) // 8
        own = natural_alignment(dtype)
        if alignment is not None and (alignment < 1 or alignment & (alignment - 1)):
            raise type_error(f"alignment is {alignment}", "a power of two, in bytes")
        if space is AddressSpace.smem:
            if tracing.require("cutlass.Array()").function.kind != "kernel":
                raise runtime_error("an Array in shared memory is allocated outside a kernel")
            if size >= _LARGE and (alignment is None or alignment >= _BOX):
                alignment = max(alignment or 0, _LARGE)
            alignment = max(alignment or 16, own)
            address = cute.alloc_smem(size, alignment, cute.ptr_type(dtype.mlir_type, "smem", alignment))
        elif space is AddressSpace.rmem:
            alignment = max(alignment or 16, own)
            address = cute.alloc_rmem(count, cute.ptr_type(dtype.mlir_type, "rmem", alignment))
        else:
            raise type_error(f"an Array is allocated in {space}", "smem, or no space: memory of the thread")
        self._set(
            raw_pointer.raw_pointer(Pointer(address, dtype, space, alignment)), shape, _row_major(shape), (0, count)
        )

    def _view(self, base: object, dtype: object, shape: object, space: object) -> None:
        if isinstance(base, Array) and shape is None:
            source = base if dtype in (None, base.dtype) else Array(base.data_ptr(), dtype=dtype)
            self._set(source._pointer, source._shape, source._strides, source._room)
        elif isinstance(base, TracedTensor):
            self._of_tensor(base, dtype)
        else:
            pointer = as_raw_pointer(base, dtype, space)
            extents = None if shape is None else _extents(shape)
            self._set(pointer, extents, (1,) if extents is None else _row_major(extents), None)

    def _of_tensor(self, tensor: TracedTensor, dtype: Any) -> None:
        if not tensor.in_memory or isinstance(tensor.layout, ComposedLayout):
            raise type_error(f"an Array is a view of memory without a swizzled layout, got {tensor}")
        shape = flatten_to_tuple(tensor.shape)
        strides = flatten_to_tuple(tensor.stride)
        pointer = as_raw_pointer(tensor._iterator)
        if dtype not in (None, pointer.dtype):
            if element_bits(dtype) != element_bits(pointer.dtype):
                raise type_error(f"a tensor of {pointer.dtype.__name__} is viewed as {dtype.__name__}", "of one width")
            pointer = as_raw_pointer(pointer, dtype)
        self._set(pointer, shape, strides, None)

    def _set(
        self,
        pointer: RawPointer,
        shape: tuple[object, ...] | None,
        strides: tuple[object, ...],
        room: tuple[object, object] | None,
    ) -> None:
        put = object.__setattr__
        put(self, "_pointer", pointer)
        put(self, "_shape", shape)
        put(self, "_strides", strides)
        put(self, "_room", room if watched() else None)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an Array cannot be changed; its elements can")

    @property
    def dtype(self) -> Any:
        """The numeric type of the elements."""
        return self._pointer.dtype

    element_type = dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents; of a view without any, ()."""
        return self._shape or ()

    @property
    def strides(self) -> tuple[Any, ...]:
        """The elements from one to the next in each mode."""
        return self._strides

    stride = strides

    @property
    def space(self) -> AddressSpace:
        """The memory the elements lie in."""
        return self._pointer.memspace

    memspace = space

    @property
    def align(self) -> int:
        """The bytes the address is known to be a multiple of."""
        return self._pointer.alignment

    alignment = align

    def __str__(self) -> str:
        shape = "x".join("?" if not isinstance(s, int) else str(s) for s in self.shape)
        return f"array<{shape}, {self._pointer}>"

    __repr__ = __str__

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise type_error("an Array cannot be iterated over", "loop over indices: for i in range(a.shape[0])")

    def ir_value(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the address as `!llvm.ptr`."""
        return self._pointer.to_llvm_ptr()

    @property
    def value(self) -> ir.Value:
        """The address as `!llvm.ptr`."""
        return self.ir_value()

    @property
    def llvm_ptr(self) -> ir.Value:
        """The address as `!llvm.ptr`."""
        return self.ir_value()

    def tensor(self) -> Tensor:
        """Return the elements as a tensor of CuTe."""
        shape = self.shape or (1,)
        return make_tensor(self._pointer, make_layout(shape, stride=self._strides))

    @property
    def iterator(self) -> RawPointer:
        """The pointer to the first element, as a tensor has it."""
        return self._pointer

    # --- where elements lie ------------------------------------------------------------------------------------------

    def data_ptr(self, idx: object = 0, *, loc: object = None, ip: object = None) -> RawPointer:
        """Return the pointer to an element: a number counts in memory, a tuple is a coordinate."""
        idx = self._offset(idx) if isinstance(idx, tuple) else idx
        return self._pointer if isinstance(idx, int) and idx == 0 else self._pointer + idx

    def get_ptr(self, *, loc: object = None, ip: object = None) -> RawPointer:
        """Return the pointer to the first element."""
        return self._pointer

    def toint(self, dtype: object = None, *, loc: object = None, ip: object = None) -> Any:
        """Return the address of the first element."""
        return self._pointer.toint(dtype)

    def tospace(self, space: object, *, loc: object = None, ip: object = None) -> Array:
        """Return the elements by addresses of another memory: `AddressSpace.generic`, or back (`cvta`)."""
        return self.at(self._pointer.tospace(space))

    def subview(self, idx: object = 0, *, loc: object = None, ip: object = None) -> Array:
        """Return the elements from an index on: a number counts elements in memory, a tuple is a coordinate."""
        offset = self._offset(idx) if isinstance(idx, tuple) else idx
        view = object.__new__(Array)
        room = None if self._room is None else (_plus(self._room[0], offset), self._room[1])
        view._set(self._pointer + offset, None, (1,), room)
        return view

    def at(self, pointer: RawPointer) -> Array:
        """Return the view of the same shape at another address."""
        view = object.__new__(Array)
        view._set(pointer, self._shape, self._strides, self._room)
        return view

    def _offset(self, coord: tuple[object, ...]) -> Any:
        if self._shape is None or len(coord) != len(self._shape):
            raise type_error(f"{self} is indexed by {len(coord)} numbers", "one for each mode")
        offset: Any = 0
        for c, d in zip(coord, self._strides, strict=True):
            offset = _plus(offset, _times(c, d))
        return offset

    # --- elements ----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: object) -> Any:
        pointer, count = self._at(index, write=False)
        if isinstance(pointer, Array):
            return pointer
        return raw_pointer.load(pointer, count, None, "")

    def __setitem__(self, index: object, value: object) -> None:
        pointer, count = self._at(index, write=True)
        if isinstance(pointer, Array):
            raise type_error(f"a row of {self} is assigned", "name elements: a[i, start:count] = vector")
        self._put(pointer, value, count, None, "")

    def _put(self, pointer: Pointer, value: object, count: int | None, alignment: int | None, modifiers: str) -> None:
        if count is not None and not isinstance(value, TensorSSA):
            dtype = self.dtype
            value = TensorSSA.from_elements([dtype(value)] * count, dtype)
        if isinstance(value, TensorSSA) and value.numel() != (count or 1):
            raise type_error(f"{value.numel()} elements are stored to {count or 1}", "a[start:count] = vector")
        raw_pointer.store(pointer, value, alignment, modifiers)

    def _at(self, index: object, write: bool) -> tuple[Any, int | None]:
        """Return the pointer to what an index names and the count of a slice; the view that is left, for a row."""
        coord = index if isinstance(index, tuple) else (index,)
        if any(isinstance(c, (bool, Boolean)) for c in coord):
            raise type_error(f"{self} is indexed by a Boolean", "an index is an integer; Int32(condition) is 0 or 1")
        last = coord[-1]
        modes = len(self._shape or (1,))
        if any(map(_is_whole, coord)) or (len(coord) < modes and not isinstance(last, slice)):
            return self._rest(coord), None
        count = None
        if isinstance(last, slice):
            start = last.start
            count = last.stop
            if last.step is not None or not isinstance(count, int) or count < 1:
                raise type_error(
                    f"an Array is sliced by {_slice_text(last)}",
                    "a slice is start:count, and the count a Python integer of at least 1",
                )
            coord = (*coord[:-1], 0 if start is None else start)
        if len(coord) == 1 and (self._shape is None or modes > 1):  # counted in memory
            return self._linear(coord[0], count or 1, write), count
        offset = self._offset(coord)
        if count is not None and count > 1 and not is_one(self._strides[-1]):
            raise type_error(f"{count} elements in a row are accessed in {self}, whose last stride is not 1")
        self._check(coord, count or 1, write)
        return self._pointer + offset, count

    def _rest(self, coord: tuple[object, ...]) -> Array:
        """Return the view that is left of a coordinate whose whole modes are `:`, or left out at the end."""
        if self._shape is None:
            raise type_error(f"{self} has no extents, and is indexed by a whole mode", "Array(pointer, shape=...)")
        coord = (*coord, *[slice(None)] * (len(self._shape) - len(coord)))
        if len(coord) != len(self._shape):
            raise type_error(f"{self} is indexed by {len(coord)} numbers", "at most one for each mode")
        whole = [isinstance(c, slice) for c in coord]
        if any(w and not _is_whole(c) for c, w in zip(coord, whole, strict=True)):
            raise type_error(f"{self} is indexed by whole modes and by a slice", "take the row first: a[i, :]")
        self._check(tuple(0 if w else c for c, w in zip(coord, whole, strict=True)), 1, False)
        view = object.__new__(Array)
        offset = self._offset(tuple(0 if w else c for c, w in zip(coord, whole, strict=True)))
        shape = tuple(s for s, w in zip(self._shape, whole, strict=True) if w)
        strides = tuple(d for d, w in zip(self._strides, whole, strict=True) if w)
        room = None if self._room is None else (_plus(self._room[0], offset), self._room[1])
        view._set(self._pointer + offset, shape, strides, room)
        return view

    def _linear(self, index: object, count: int, write: bool) -> RawPointer:
        """Return the pointer to the element with an index, counted in memory, or with a coordinate."""
        if isinstance(index, tuple):
            if self._room is None:
                self._check(index, count, write)
                return self._pointer + self._offset(index)
            index = self._offset(index)
        if self._room is not None:
            low = _plus(self._room[0], index)
            self._bounds([low], [_plus(low, count - 1)], [self._room[1]], write)
        elif self._shape is not None and len(self._shape) == 1 and watched():
            self._check((index,), count, write)
        return self._pointer + index

    def _check(self, coord: Sequence[object], count: int, write: bool) -> None:
        """Tell the sanitizer the coordinates of the next access, `count` elements along the last mode."""
        if watched() and self._shape is not None:
            last = _plus(coord[-1], count - 1)
            self._bounds(list(coord), [*coord[:-1], last], list(self._shape), write)

    def _bounds(self, low: list[Any], high: list[Any], sizes: list[Any], write: bool) -> None:
        is_static = all(isinstance(x, int) for x in (*low, *high, *sizes))
        if is_static and all(a >= 0 and b < n for a, b, n in zip(low, high, sizes, strict=True)):
            return
        cute.bounds(self._pointer._base, [Int64(x).ir_value() for x in (*low, *high, *sizes)], write)

    def load(
        self,
        idx: object = 0,
        vector_size: int | None = None,
        *,
        alignment: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        is_invariant: bool = False,
        is_invariant_group: bool = False,
        ordering: object = None,
        syncscope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> Any:
        """Return the element with an index, counted in memory, or with a coordinate, or a vector from there on.

        The other operands are those of `Pointer.load`.
        """
        return self._linear(idx, vector_size or 1, write=False).load(
            alignment,
            count=vector_size,
            is_volatile=is_volatile,
            is_invariant=is_invariant,
            ordering=ordering,
            syncscope=syncscope,
        )

    def store(
        self,
        value: object,
        idx: object = 0,
        vector_size: int | None = None,
        *,
        alignment: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        is_invariant_group: bool = False,
        ordering: object = None,
        syncscope: object = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Write an element or a vector from an index on, counted in memory, or from a coordinate on.

        A vector may be given as a tuple of numbers. The other operands are those of `Pointer.store`.
        """
        if isinstance(value, tuple):
            value = TensorSSA.from_elements(value, self.dtype)
        count = value.numel() if isinstance(value, TensorSSA) and vector_size is None else vector_size
        how = raw_pointer.access_order(ordering, syncscope, is_volatile, "release")
        self._put(self._linear(idx, count or 1, write=True), value, count, alignment, how)

    def masked_load(
        self,
        idx: object,
        count: int,
        mask: object,
        default: object = None,
        *,
        alignment: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        loc: object = None,
        ip: object = None,
    ) -> TensorSSA:
        """Return `count` elements from an index on; where the mask does not hold, `default`, and nothing is read."""
        pointer, check = self._masked(idx, alignment, is_volatile, write=False)
        return raw_pointer.masked_load([pointer + i for i in range(count)], mask, default, self.dtype, check)

    def masked_store(
        self,
        idx: object,
        value: object,
        mask: object,
        *,
        alignment: int | None = None,
        is_volatile: bool = False,
        is_nontemporal: bool = False,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Write the elements of a vector from an index on where the mask holds."""
        pointer, check = self._masked(idx, alignment, is_volatile, write=True)
        raw_pointer.masked_store(pointer, value, mask, check)

    def _masked(self, idx: object, alignment: int | None, is_volatile: bool, write: bool) -> tuple[Pointer, Any]:
        """Return the pointer to the first element of a masked access, and what checks the index of another one."""
        if is_volatile:
            raise type_error("a masked access is volatile", "load or store single elements")
        start = self._offset(idx) if isinstance(idx, tuple) else idx
        return raw_pointer.promised(self._pointer + start, alignment), lambda i: self._linear(_plus(start, i), 1, write)

    def print_runtime(self, max_elements: int = 16, *, loc: object = None, ip: object = None) -> None:
        """Print the elements when the program runs, a line for each row, at most `max_elements` of each mode."""
        shape = self.shape or (1,)
        if not all(isinstance(s, int) for s in shape):
            raise type_error(f"print_runtime() of {self}", "the extents are Python integers")
        printf(f"Array[{'x'.join(map(str, shape))}]:")
        for row in itertools.product(*(range(min(s, max_elements)) for s in shape[:-1])):
            columns = range(min(shape[-1], max_elements))
            values = [raw_pointer.load(self._pointer + self._offset((*row, c)), None, None, "") for c in columns]
            dots = ", ..." if shape[-1] > max_elements else ""
            name = ",".join(map(str, row)) or "0"
            printf(f"  {name}:[{', '.join(['{}'] * len(values))}{dots}]", *values)

    # --- values that regions and functions carry ---------------------------------------------------------------------

    def _parts(self) -> tuple[Any, ...]:
        return self._pointer, self._shape, self._strides, self._room

    @tracing.taking_apart
    def __extract_mlir_values__(self) -> list[ir.Value]:
        return extract_mlir_values(self._parts())

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Array:
        rebuilt = object.__new__(Array)
        rebuilt._set(*new_from_mlir_values(self._parts(), values))
        return rebuilt

    def __kiln_static_key__(self) -> Any:
        return (
            self._pointer.__kiln_static_key__(),
            _pattern(self._shape),
            _pattern(self._strides),
            _pattern(self._room),
        )

    def __kiln_join__(self, other: Array) -> tuple[Array, Array] | None:
        pointers = self._pointer.__kiln_join__(other._pointer)
        if pointers is None or _pattern(self._shape) != _pattern(other._shape):
            return None
        if _pattern(self._strides) != _pattern(other._strides):
            return None
        checked = self._room is not None and other._room is not None
        joined: list[Array] = []
        for array, pointer in zip((self, other), pointers, strict=True):
            view = object.__new__(Array)
            room = None if not checked or array._room is None else (Int64(array._room[0]), Int64(array._room[1]))
            view._set(pointer, array._shape, array._strides, room)  # pyright: ignore[reportArgumentType]
            joined.append(view)
        return joined[0], joined[1]

    def __kiln_print__(self) -> list[Any]:
        return self._pointer.__kiln_print__()


def _pattern(numbers: Any) -> Any:
    """Return the static integers of a tuple, and the types of the others."""
    return None if numbers is None else tuple(n if isinstance(n, int) else type(n) for n in numbers)


def _extents(shape: object) -> tuple[Any, ...]:
    if shape is None:
        raise type_error("Array() needs a shape", "Array(dtype, 64), Array(dtype, (64, 64))")
    return tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)


def _row_major(shape: tuple[object, ...]) -> tuple[Any, ...]:
    strides: list[Any] = []
    step: Any = 1
    for s in reversed(shape):
        strides.insert(0, step)
        step = _times(step, s)
    return tuple(strides)


def _plus(a: Any, b: Any) -> Any:
    return b if isinstance(a, int) and a == 0 else a if isinstance(b, int) and b == 0 else a + b


def _times(a: Any, b: Any) -> Any:
    if (isinstance(a, int) and a == 0) or (isinstance(b, int) and b == 0):
        return 0
    if isinstance(b, int) and b == 1:
        return a
    if isinstance(a, int) and a == 1:
        return b
    return a * b


def _is_whole(c: object) -> bool:
    return isinstance(c, slice) and c.start is None and c.stop is None and c.step is None


def _slice_text(s: slice) -> str:
    parts = (s.start, s.stop) if s.step is None else (s.start, s.stop, s.step)
    return ":".join("" if p is None else str(p) for p in parts)


def make_array_view(
    tensor: object, *, dtype: object = None, bounds_check: bool = False, loc: object = None, ip: object = None
) -> Array:
    """Return the elements of a tensor as an `Array`. The sanitizer checks bounds, so `bounds_check` changes nothing."""
    if isinstance(tensor, (TracedTensor, Array)):
        return Array(tensor) if dtype is None else Array(tensor, dtype=dtype)
    raise type_error(f"make_array_view() takes a tensor, got {type(tensor).__name__}")


def as_array(value: object) -> Any:
    """Return a tensor as an Array, as a parameter that is annotated so sees it; other values as they are."""
    return Array(value) if isinstance(value, TracedTensor) else value
