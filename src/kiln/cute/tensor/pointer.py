"""Pointers: the address of elements, their memory space, and the known alignment."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...base_dsl import sanitizing
from ...base_dsl import trace as tracing
from ...base_dsl.bindings import context, ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.numeric.operators import integer_constant
from ...base_dsl.source_context import stored_expression, user_span
from ...base_dsl.typing import Int32, Int64, Integer, Numeric, NumericMeta, Uint32, common_type
from ..deferred_dialects import cute
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import pretty_str
from ..layout.layout import Layout, crd2idx_apart
from ..layout.leaf import get_divisibility, is_dynamic_leaf, is_zero, leaf_add
from ..layout.modes import slice_
from ..layout.offset_width import leaf_width
from ..layout.swizzle import Swizzle, downcast_swizzle, upcast_swizzle
from .extents import watched
from .iterator import AddressSpace, TensorIterator
from .leaf_values import leaf_value
from .printing import Formatted

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Number

__all__ = ["AddressSpace", "Pointer", "recast_ptr"]


_FAR = (AddressSpace.gmem, AddressSpace.generic)
# a name of a class of names takes longer to look up
_SMEM = AddressSpace.smem
_TMEM = AddressSpace.tmem
_TMEM_COLUMN = 4
"""The bytes of a column of tensor memory."""
_TMEM_BYTE_AT = 30
"""The bit of an address of tensor memory where the byte of the column stands."""


@functools.cache
def element_bits(dtype: Any) -> int:
    """Return the bits of an element in memory: a Boolean takes a byte, 2 and 4 bits are packed, others take bytes."""
    width: int = dtype.width
    return width if width in (2, 4) else max(8, (width + 7) // 8 * 8)


@functools.cache
def natural_alignment(dtype: object) -> int:
    """Return the bytes the address of an element is always a multiple of: its size, at most 16."""
    size = min(16, max(1, element_bits(dtype) // 8))
    return 1 << (size.bit_length() - 1)


def alignment_after(alignment: int, offset: object, dtype: object) -> int:
    """Return the alignment that is left `offset` elements further on."""
    step = get_divisibility(offset) * element_bits(dtype) // 8
    if step == 0:
        return alignment if get_divisibility(offset) == 0 else 1
    return min(alignment, step & -step)


def _whole_bytes(offset: object, dtype: object) -> bool:
    """Return whether `offset` elements are known to be whole bytes."""
    return get_divisibility(offset) * element_bits(dtype) % 8 == 0


def index_value(offset: Any) -> ir.Value:
    """Return an offset (int or dynamic) as an IR value of 32 bits, or 64 where it needs them."""
    if isinstance(offset, int):
        return integer_constant(Int32 if -(1 << 31) <= offset < 1 << 31 else Int64, offset)
    kind = type(offset)
    if kind is tuple:
        raise _no_offset(offset)
    if kind.width > 32:
        return (offset if kind is Int64 else Int64(offset)).ir_value()
    return (offset if kind is Int32 else Int32(offset)).ir_value()


def _no_offset(offset: object) -> Exception:
    return type_error(
        f"a tensor with a pointer has a layout that gives coordinates: {pretty_str(offset)}",
        "a pointer is moved by a number: the strides of its layout are integers",
    )


class Pointer(TensorIterator):
    """The address of elements of a type, inside a function being traced. Immutable.

    `p + n` is n elements on; `n` may be dynamic. A pointer may carry a swizzle, which is applied to the address (in
    bytes) of every access. `p.load()` and `p.store(x)` access the element it points to, `p[n]` that of `p + n`.
    """

    __slots__ = ("_alignment", "_apart", "_base", "_dtype", "_inside", "_memspace", "_offset", "_readonly", "_swizzle")
    _traced: Any
    """The class of pointers that are made from it in a trace."""

    def __init__(
        self,
        value: ir.Value,
        dtype: Any,
        memspace: AddressSpace = AddressSpace.generic,
        alignment: int = 0,
        *,
        offset: Any = 0,
        swizzle: Swizzle | None = None,
        readonly: bool = False,
    ) -> None:
        self._base = value  # of the type `_base_type`; `offset` elements are still to be added
        self._offset = offset
        self._inside: Any = 0
        """The elements still to be added before the swizzle, only known at run time; see `_period`."""
        self._apart = True
        """Whether the base and what is inside the swizzle are kept apart where that is possible."""
        self._dtype = dtype
        self._memspace = memspace
        self._alignment = alignment or natural_alignment(dtype)
        """The known divisor of `base + offset`."""
        self._swizzle = swizzle
        self._readonly = readonly
        tracing.hold(self)

    def _copy(self, **changes: object) -> Pointer:
        copied = object.__new__(self._traced)  # also of an address from Python: inside a trace it is a plain pointer
        # name by name: every slice is a copy, and a loop over the names takes three times as long
        copied._base = self._base
        copied._offset = self._offset
        copied._inside = self._inside
        copied._dtype = self._dtype
        copied._memspace = self._memspace
        copied._alignment = self._alignment
        copied._swizzle = self._swizzle
        copied._readonly = self._readonly
        copied._apart = self._apart
        for name, value in changes.items():
            setattr(copied, name, value)
        tracing.hold(copied)
        return copied

    @property
    def dtype(self) -> type[Number]:
        """The numeric type of the elements."""
        return self._dtype

    if TYPE_CHECKING:

        @property
        def value_type(self) -> type[Number]:
            """The numeric type of the elements."""
            ...

        @property
        def element_type(self) -> type[Number]:
            """The numeric type of the elements."""
            ...
    else:
        value_type = element_type = dtype

    @property
    def memspace(self) -> AddressSpace:
        """The memory it points into."""
        return self._memspace

    @property
    def alignment(self) -> int:
        """Bytes the address is known to be a multiple of."""
        return self._alignment

    max_alignment = alignment

    @property
    def swizzle(self) -> Swizzle | None:
        """The swizzle of the addresses, or None."""
        return self._swizzle

    @property
    def type(self) -> ir.Type:
        """Its IR type; the type's `swizzle_type` is the swizzle of its addresses, in bytes (S<0,4,3>: none)."""
        type_ = cute.ptr_type(self._dtype.mlir_type, self._memspace.name, self._alignment)
        shaped = type(type_)(type_)  # types of the IR are shared
        shaped.swizzle_type = self._swizzle if self._swizzle is not None else Swizzle(0, 4, 3)
        return shaped

    def __str__(self) -> str:
        parts = [type_name(self._dtype), self._memspace.name]
        if self._alignment != natural_alignment(self._dtype):
            parts.append(f"align<{self._alignment}>")
        if self._swizzle is not None:
            parts.append(str(self._swizzle))
        return f"ptr<{', '.join(parts)}>"

    __repr__ = __str__

    def __add__(self, offset: object) -> Pointer:
        if isinstance(offset, int):
            if offset == 0:
                return self
            alignment = alignment_after(self._alignment, offset, self._dtype)
            return self._copy(_offset=leaf_add(self._offset, int(offset)), _alignment=alignment)
        if not is_dynamic_leaf(offset):
            return NotImplemented
        return self._plus(offset)

    def _plus(self, offset: object, by_thread: bool = False) -> Pointer:
        """Return the pointer moved by a dynamic number of elements; `by_thread`: it differs from thread to thread."""
        period = self._period()
        if period and (by_thread or get_divisibility(offset) % period):
            after = alignment_after(self._alignment, offset, self._dtype)
            return self._copy(_inside=leaf_add(self._inside, offset), _alignment=after)
        if not _whole_bytes(offset, self._dtype):  # packed elements: only an access can split the byte
            after = alignment_after(self._alignment, offset, self._dtype)
            return self._copy(_offset=leaf_add(self._offset, offset), _alignment=after)
        # The constant part stays last, where the code generators fold it into the access.
        if period:
            base_alignment = cute.info(self._base.type).alignment
        else:
            base_alignment = alignment_after(self._alignment, self._offset, self._dtype)
        after = alignment_after(base_alignment, offset, self._dtype)
        type_ = cute.ptr_type(self._dtype.mlir_type, self._memspace.name, after)
        moved = cute.ptr_add(self._base, index_value(offset), type_)
        return self._copy(_base=moved, _alignment=alignment_after(self._alignment, offset, self._dtype))

    __radd__ = __add__

    def _period(self) -> int:
        """Return the elements after which the swizzle repeats, if the base is aligned to it; 0 without.

        Then only what is added to the base is swizzled, `_inside` and the constant offset, and whole periods are added
        to the base: what a loop adds, a pipeline stage, leaves the swizzled part the same in every iteration.
        """
        swizzle = self._swizzle
        if swizzle is None or not self._apart or self._memspace is not _SMEM:
            return 0
        bits = element_bits(self._dtype)
        if bits < 8 or bits > 8 << swizzle.num_base:
            return 0
        return 0 if cute.info(self._base.type).alignment % swizzle.period else swizzle.period * 8 // bits

    def _swizzled(self, offset: object, period: int) -> Any:
        """Return where the element `offset` elements on lies, in elements from the base."""
        assert self._swizzle is not None
        swizzle = upcast_swizzle(self._swizzle, element_bits(self._dtype) // 8)
        static_part = leaf_add(self._offset, offset) if isinstance(offset, int) else self._offset
        inside = self._inside if isinstance(offset, int) else leaf_add(self._inside, offset)
        return leaf_add(swizzle(leaf_add(inside, static_part % period)), static_part - static_part % period)

    def _unswizzled_base(self, offset: object, alignment: int) -> Pointer:
        """Return the pointer without swizzle so many elements past the base."""
        base = Pointer(self._base, self._dtype, self._memspace, alignment, readonly=self._readonly)
        return (base + offset).with_alignment(alignment)

    def __sub__(self, offset: object) -> Pointer:
        if isinstance(offset, int) or is_dynamic_leaf(offset):
            return self + (-offset)
        return NotImplemented

    def align(self, min_align: int, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the first address from here on that is a multiple of `min_align` bytes."""
        if min_align < 1 or min_align & (min_align - 1):
            raise type_error(f"align({min_align}): an alignment is a power of two")
        if min_align <= self._alignment:
            return self
        rounded = (self._address() + (min_align - 1)) & -min_align
        return _at_byte(rounded, self._dtype, self._memspace, min_align, self._swizzle)

    def with_alignment(self, alignment: int) -> Pointer:
        """Return the same address, taken to be a multiple of `alignment` bytes."""
        return self._copy(_alignment=alignment)

    @property
    def value(self) -> ir.Value:
        """The IR value, of type `type`."""
        return self.ir_value()

    def ir_value(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the IR value of the address, of type `type`."""
        if not is_zero(self._inside):
            return cute.ptr_add(self._base, index_value(leaf_add(self._inside, self._offset)), self.type)
        if not is_zero(self._offset):
            if not _whole_bytes(self._offset, self._dtype):
                raise type_error(
                    f"a pointer to {self._dtype.__name__} may stand in the middle of a byte here",
                    "packed elements are passed on, stored and joined by whole bytes only: slice at even indices, "
                    "or say so with cute.assume",
                )
            return cute.ptr_add(self._base, index_value(self._offset), self.type)
        type_ = self.type
        return self._base if self._base.type == type_ else cute.cast_ptr(self._base, type_)

    def toint(self, *, loc: object = None, ip: object = None) -> Int32 | Int64:
        """Return the address: 32 bits in shared and tensor memory, else 64.

        In tensor memory it is `lane << 16 | column`, with the byte of the column in the two highest bits.
        """
        if self._memspace is _TMEM:
            address, byte = self.tmem_address()
            return address if isinstance(byte, int) and byte == 0 else address | Int32(byte) << _TMEM_BYTE_AT
        address = self._address()
        if self._memspace in (AddressSpace.smem, AddressSpace.dsmem):
            return Int32._make(Int32(address).ir_value(), False, self._alignment)
        return address

    def tmem_address(self) -> tuple[Int32, Any]:
        """Return the address `lane << 16 | column` in tensor memory, and the byte of the column, an int if it is known.

        The IR has byte addresses, `lane << 18 | column << 2 | byte`: a sum of offsets never loses a carry.
        """
        bits = self._offset * element_bits(self._dtype) if isinstance(self._offset, int) else None
        if bits is None or cute.info(self._base.type).alignment % _TMEM_COLUMN:
            whole = Int32(self._address())
            return _unsigned_shift(whole, 2), whole & (_TMEM_COLUMN - 1)
        columns, inside = divmod(bits, 8 * _TMEM_COLUMN)
        base = _unsigned_shift(Int32(Int64._make(cute.ptr_to_int(self._base), True)), 2)
        return base + columns if columns else base, inside // 8

    def _address(self) -> Any:
        """Return the address, 64 bits in every memory; of tensor memory in bytes."""
        return Int64._make(cute.ptr_to_int(self.ir_value()), True, self._alignment)

    def to_llvm_ptr(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the address as `!llvm.ptr`."""
        space = _LLVM_SPACES.get(self._memspace, 0)
        type_ = ir.Type.parse(f"!llvm.ptr<{space}>" if space else "!llvm.ptr", context())
        value = self.ir_value()
        if self._memspace is AddressSpace.dsmem:
            return tracing.emit_value("llvm.inttoptr", type_, (cute.ptr_to_int(value),))
        if self._memspace is _TMEM:
            value = cute.int_to_ptr(Int64(Uint32(self.toint())).ir_value(), value.type)
        return tracing.emit_value("builtin.unrealized_conversion_cast", type_, (value,))

    @property
    def llvm_ptr(self) -> ir.Value:
        """The address as `!llvm.ptr`."""
        return self.to_llvm_ptr()

    def raw_ptr(self, *, loc: object = None, ip: object = None) -> Any:
        """Return the same address as a `cutlass.Pointer`, which is indexed and accesses vectors."""
        from .raw_pointer import raw_pointer

        return raw_pointer(self)

    def load(self, *, loc: object = None, ip: object = None) -> Number:
        """Return the element it points to."""
        return self.element(0)

    def store(self, value: object, *, loc: object = None, ip: object = None) -> None:
        """Write the element it points to."""
        self.set_element(0, value)

    def __getitem__(self, offset: int | Integer) -> Number:
        """Return the element `offset` elements on; `offset` may be dynamic."""
        return self.element(self._offset_of_element(offset))

    def __setitem__(self, offset: int | Integer, value: object) -> None:
        """Write the element `offset` elements on."""
        self.set_element(self._offset_of_element(offset), value)

    __iter__ = None
    """A pointer knows no end."""

    def _offset_of_element(self, offset: object) -> object:
        if not self.in_memory:
            raise type_error(
                f"{self} points to tensor memory, whose elements are not accessed one by one", self.instead
            )
        if isinstance(offset, bool) or not (isinstance(offset, int) or is_dynamic_leaf(offset)):
            raise type_error(f"the element {offset!r} of {self}", "pointer[i] with a number; tensors have coordinates")
        return offset

    holds = "elements in tensor memory"
    instead = "copy it with an operation of the tensor cores"

    @property
    def in_memory(self) -> bool:
        """Whether loads and stores reach it; tensor memory they do not."""
        return self._memspace is not _TMEM

    @property
    def far(self) -> bool:
        """Whether offsets may exceed 32 bits: on a GPU, only in global memory."""
        return self._memspace in _FAR

    @property
    def number_format(self) -> str:
        """The conversion by which `printf` shows an element: "f" or "d"."""
        return "f" if self._dtype.is_float else "d"

    def moved(self, offset: object) -> Pointer:
        pointer = self.__add__(offset)
        if pointer is NotImplemented:
            raise _no_offset(offset)
        return pointer

    def sliced(self, layout: Any, coord: Any, offsets: object, by_thread: bool) -> tuple[Pointer, Any]:
        """Return the pointer and the layout of a slice.

        Whole periods of a swizzle move the pointer, unless they are a thread's own: a pointer that all threads share
        is kept in a uniform register.
        """
        if isinstance(layout, ComposedLayout):
            moved, rest = (0, layout._slice(coord)) if by_thread else layout._slice_and_move(coord)
            return self + moved, rest
        if period := self._period():
            moved, inside = crd2idx_apart(coord, layout, 0 if by_thread else period)
            pointer = self + moved
            pointer = pointer + inside if isinstance(inside, int) else pointer._plus(inside, by_thread)
            return pointer, slice_(layout, coord)
        return super().sliced(layout, coord, offsets, by_thread)

    def viewed(self, layout: object) -> Pointer:
        if self._memspace is not _SMEM or not sanitizing.kinds():
            return self
        self._note_view(layout)
        if self._swizzle is not None:
            return self  # what it is seen through, an access says
        swizzle = layout.inner if isinstance(layout, ComposedLayout) and isinstance(layout.inner, Swizzle) else None
        if swizzle is None and not isinstance(layout, Layout):
            return self
        return self._copy(_base=seen_through(self.ir_value(), swizzle, element_bits(self._dtype)), _offset=0)

    def _note_view(self, layout: Any) -> None:
        """Record in the module what lies in shared memory, for the sanitizer: a view that nobody uses."""
        if self._swizzle is None or not self._period() or not isinstance(layout, Layout) or not layout.is_static():
            self.packed(layout, [leaf_value(leaf) for leaf in layout._leaves()])
            return
        swizzle = upcast_swizzle(self._swizzle, element_bits(self._dtype) // 8)
        cute.view(self._base_value(), self._memref_type(ComposedLayout(swizzle, 0, layout)), [])

    def element(self, offset: object) -> Any:
        base, index = _accessed(self, offset)
        dtype = self._dtype
        return dtype._make(cute.load(base, index, dtype.mlir_type))

    def set_element(self, offset: object, value: object) -> None:
        """Write the element; the value is of the element type, or a Python number."""
        require_writable(self)
        base, index = _accessed(self, offset)
        cute.store(element_value(value, self._dtype), base, index)

    def recast(self, dtype: object, swizzle: Swizzle | None) -> Pointer:
        return recast_ptr(self, self._swizzle if swizzle is None else swizzle, dtype)

    def tensor_type(self, layout: object) -> ir.Type:
        return cute.memref_type(self._dtype.mlir_type, self._memspace.name, self._alignment, str(layout))

    def _memref_type(self, layout: object) -> ir.Type:
        """Return the type of the memref that crosses a region."""
        alignment = cute.info(self._base_type()).alignment
        return cute.memref_type(self._dtype.mlir_type, self._memspace.name, alignment, str(layout))

    def packed(self, layout: object, leaves: list[ir.Value]) -> list[ir.Value]:
        """Return one memref of the address and the leaves, so that the module says which layout lies where."""
        return [cute.view(self._base_value(), self._memref_type(layout), leaves), *self._inside_values()]

    def unpacked(self, layout: Any, values: Sequence[object]) -> tuple[Pointer, list[ir.Value]]:
        memref, *inside = values
        leaves = [cute.leaf(memref, i, leaf_width(leaf)) for i, leaf in enumerate(layout._leaves())]
        return self.__new_from_mlir_values__([cute.iter_(memref, self._base_type()), *inside]), leaves

    @tracing.taking_apart
    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self._base_value(), *self._inside_values()]

    def _base_type(self) -> ir.Type:
        """Return the type of what crosses a region: the address or, kept apart from what is swizzled, the base."""
        if self._swizzle is None or not self._period():
            return self.type
        return cute.ptr_type(self._dtype.mlir_type, self._memspace.name, self._swizzle.period)

    def _base_value(self) -> ir.Value:
        if not self._period():
            return self.ir_value()
        type_ = self._base_type()
        return self._base if self._base.type == type_ else cute.cast_ptr(self._base, type_)

    def _inside_values(self) -> list[ir.Value]:
        """Return what is swizzled, if it is kept apart."""
        return [Int32(leaf_add(self._inside, self._offset)).ir_value()] if self._period() else []

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Pointer:
        inside: Any = 0
        if len(values) > 1:
            inside = Int32._make(values[1], True, max(1, self._alignment * 8 // element_bits(self._dtype)))
        return self._copy(_base=values[0], _offset=0, _inside=inside)

    def __get_mlir_types__(self) -> list[ir.Type]:
        return [self.type]

    def __kiln_static_key__(self) -> Any:
        return (self._dtype, self._memspace, self._swizzle)

    def __kiln_join__(self, other: Pointer) -> tuple[Pointer, Pointer] | None:
        if self.__kiln_static_key__() != other.__kiln_static_key__():
            return None
        common = min(self._alignment, other._alignment)
        changes = {"_alignment": common, "_readonly": self._readonly or other._readonly}
        if bool(self._period()) != bool(other._period()):
            changes["_apart"] = False
        return self._copy(**changes), other._copy(**changes)

    def __kiln_coerce__(self, like: Pointer) -> Pointer | None:
        if self.__kiln_static_key__() != like.__kiln_static_key__() or self._alignment < like._alignment:
            return None
        if like._period() and not self._period():
            return None
        return self._copy(_alignment=like._alignment, _apart=bool(like._period()))

    def __kiln_print__(self) -> list[Any]:
        space = self._memspace.name
        bits = type_name(self._dtype)
        address = Int64(Uint32(self.toint())) if self._memspace is _TMEM else self._address()
        return ["raw_ptr(0x", Formatted(address, "016x"), f": {bits}, {space}, align<{self._alignment}>)"]


def _unsigned_shift(value: Int32, by: int) -> Int32:
    type_ = Int32.mlir_type
    shifted = tracing.emit_value("arith.shrui", type_, (value.ir_value(), tracing.constant(type_, by)))
    return Int32._make(shifted, True)


def _tmem_bytes(address: object, alignment: int) -> Any:
    """Return an address of tensor memory, `byte << 30 | lane << 16 | column`, in bytes."""
    if isinstance(address, int):
        return (address << 2 | address >> _TMEM_BYTE_AT & (_TMEM_COLUMN - 1)) & 0xFFFFFFFF
    word = Int32(address)
    columns = Uint32(word << 2)
    return Int64(columns if alignment % _TMEM_COLUMN == 0 else columns | Uint32(_unsigned_shift(word, _TMEM_BYTE_AT)))


Pointer._traced = Pointer


def type_name(dtype: Any) -> str:
    """Return an element type as pointers print it: `f32`, `i8`."""
    return dtype._mlir_name


def pointer_from_address(
    address: object, dtype: object, memspace: AddressSpace, alignment: int = 0, swizzle: Swizzle | None = None
) -> Pointer:
    """Return the pointer with an address that is known when the program runs."""
    alignment = alignment or natural_alignment(dtype)
    if memspace is _TMEM:
        address = _tmem_bytes(address, alignment)
    return _at_byte(address, dtype, memspace, alignment, swizzle)


def _at_byte(address: object, dtype: Any, memspace: AddressSpace, alignment: int, swizzle: Swizzle | None) -> Pointer:
    type_ = cute.ptr_type(dtype.mlir_type, memspace.name, alignment)
    wide = Int64(address) if not isinstance(address, Integer) or type(address).width != 64 else address
    return Pointer(cute.int_to_ptr(wide.ir_value(), type_), dtype, memspace, alignment, swizzle=swizzle)


def recast_ptr(
    ptr: Pointer, swizzle_: Swizzle | None = None, dtype: object = None, *, loc: object = None, ip: object = None
) -> Pointer:
    """Return the same address as a pointer to another element type, or with another swizzle.

    Args:
        ptr: a pointer, such as `tensor.iterator`.
        swizzle_: the swizzle of the result; None for none, whatever `ptr` has.
        dtype: the element type of the result; by default that of `ptr`.
    """
    if not isinstance(ptr, Pointer):
        raise type_error(f"recast_ptr takes a pointer, got {type(ptr).__name__}", "a tensor's is .iterator")
    dtype = ptr.dtype if dtype is None else dtype
    if not isinstance(dtype, NumericMeta):
        raise type_error(f"recast_ptr takes a numeric type such as Float32, got {dtype!r}")
    if dtype is ptr.dtype:
        return ptr._copy(_swizzle=swizzle_)
    type_ = cute.ptr_type(dtype.mlir_type, ptr.memspace.name, ptr.alignment)
    address = cute.cast_ptr(ptr.ir_value(), type_)
    return Pointer(address, dtype, ptr.memspace, ptr.alignment, swizzle=swizzle_, readonly=ptr._readonly)


def address_at(pointer: Pointer, offset: object) -> ir.Value:
    """Return the address `offset` elements past a pointer, its swizzle applied, as an IR value."""
    if pointer.swizzle is not None and (period := pointer._period()):
        base = pointer._unswizzled_base(pointer._swizzled(offset, period), alignment_at(pointer, offset))
        return seen_through(base.ir_value(), pointer.swizzle)
    moved = pointer + offset
    if pointer.swizzle is None:
        return moved.ir_value()
    swizzled = pointer.swizzle(moved._address())
    moved = pointer_from_address(swizzled, pointer.dtype, pointer.memspace, alignment_at(pointer, offset))
    return seen_through(moved.ir_value(), pointer.swizzle)


def pointer_to(
    dtype: Any, value: object, space: AddressSpace, alignment: int | None = None, swizzle: Swizzle | None = None
) -> Pointer:
    """Return a pointer to an address, in a trace: an integer, an LLVM pointer or another pointer."""
    if isinstance(value, Pointer):
        alignment = alignment or max(value.alignment, natural_alignment(dtype))
        type_ = cute.ptr_type(dtype.mlir_type, space.name, alignment)
        pointer = Pointer(cute.cast_ptr(value.ir_value(), type_), dtype, space, alignment, readonly=value._readonly)
    elif hasattr(value, "type") and not isinstance(value, Numeric):
        pointer = _from_llvm_pointer(dtype, value, space, alignment)
    else:
        pointer = pointer_from_address(value, dtype, space, alignment or 0)
    return pointer if swizzle is None else recast_ptr(pointer, swizzle)


_LLVM_SPACES = {AddressSpace.gmem: 1, AddressSpace.smem: 3, AddressSpace.dsmem: 7, AddressSpace.tmem: 6}


def space_of_llvm_pointer(type_: ir.Type) -> AddressSpace:
    """Return the memory that values of a type `!llvm.ptr<N>` point into."""
    spellings = {f"!llvm.ptr<{number}>": space for space, number in _LLVM_SPACES.items()}
    return spellings.get(str(type_), AddressSpace.generic)


def _from_llvm_pointer(dtype: Any, value: Any, memspace: AddressSpace, alignment: int | None) -> Pointer:
    alignment = alignment or natural_alignment(dtype)
    type_ = cute.ptr_type(dtype.mlir_type, memspace.name, alignment)
    if not str(value.type).startswith("!llvm.ptr"):
        return pointer_from_address(value, dtype, memspace, alignment)
    if memspace is AddressSpace.dsmem:
        integer = tracing.emit_value("llvm.ptrtoint", Int64.mlir_type, (value,))
        return pointer_from_address(Int64._make(integer), dtype, memspace, alignment)
    address = tracing.emit_value("builtin.unrealized_conversion_cast", type_, (value,))
    if memspace is _TMEM:
        return pointer_from_address(Int32(Int64._make(cute.ptr_to_int(address))), dtype, memspace, alignment)
    return Pointer(address, dtype, memspace, alignment)


def _is_computed(pointer: ir.Value) -> bool:
    """Return whether a pointer was made from an integer."""
    while cute.IntToPtr.making(pointer) is None:
        moved = cute.PtrAdd.making(pointer) or cute.CastPtr.making(pointer)
        if moved is None:
            return False
        pointer = moved.pointer
    return True


def seen_through(pointer: ir.Value, swizzle: Swizzle | None, layout_bits: int = 0) -> ir.Value:
    """Return a pointer, and tell the sanitizer through which swizzle its accesses see shared memory.

    It is a swizzle of addresses or, with `layout_bits`, that of a layout of elements of so many bits, or none. A program
    that computes addresses as integers may have swizzled them itself: then nothing is known.
    """
    if not (watched() and cute.info(pointer.type).space == "smem") or (swizzle is None and _is_computed(pointer)):
        return pointer
    name = "" if swizzle is None else str(swizzle)
    if swizzle is not None and layout_bits:
        wider = layout_bits // 8
        swizzle = downcast_swizzle(swizzle, wider) if wider else upcast_swizzle(swizzle, 8 // layout_bits)
    numbers = [] if swizzle is None else [swizzle.num_bits, swizzle.num_base, swizzle.num_shift]
    return cute.through(pointer, numbers, not layout_bits, name)


def _accessed(pointer: Pointer, offset: object) -> tuple[ir.Value, ir.Value]:
    """Return the base and the offset in elements of an access, the swizzle applied."""
    if pointer._memspace is _TMEM:
        pointer.refuse("a load or store")
    if pointer._swizzle is not None:
        if period := pointer._period():
            return seen_through(pointer._base, pointer._swizzle), index_value(pointer._swizzled(offset, period))
        address = (pointer + offset)._address()
        swizzled = pointer._swizzle(address)
        moved = pointer_from_address(swizzled, pointer._dtype, pointer._memspace)
        return seen_through(moved._base, pointer._swizzle), index_value(0)
    if not isinstance(offset, int) and not is_zero(pointer._offset):
        pointer = pointer + offset
        offset = 0
    return pointer._base, index_value(leaf_add(pointer._offset, offset))


def alignment_at(pointer: Pointer, offset: Any) -> int:
    """Return the bytes the address `offset` elements past a pointer is a multiple of; a swizzle keeps its low bits."""
    alignment = alignment_after(pointer._alignment, offset, pointer._dtype)
    return alignment if pointer._swizzle is None else min(alignment, 1 << pointer._swizzle.num_base)


def is_moved_at_run_time(pointer: Pointer, offset: object) -> bool:
    """Return whether the address `offset` elements past a pointer lies a dynamic number of elements past its memory."""
    return any(map(is_dynamic_leaf, (offset, pointer._offset))) or cute.PtrAdd.making(pointer._base) is not None


def load_vector(pointer: Pointer, offset: object, count: int) -> ir.Value:
    """Return `count` contiguous elements, as a vector."""
    base, index = _accessed(pointer, offset)
    dtype = pointer._dtype
    return cute.load(base, index, dtype.vector_type(count), alignment_at(pointer, offset))


def store_vector(pointer: Pointer, offset: object, value: ir.Value) -> None:
    """Write a vector of contiguous elements."""
    base, index = _accessed(pointer, offset)
    cute.store(value, base, index, alignment_at(pointer, offset))


def require_writable(pointer: Pointer) -> None:
    """Raise an error for writes where the caller's array is read-only."""
    if pointer._readonly:
        raise type_error(
            "the program writes to a tensor whose array is read-only",
            "pass a writable array: a copy, or one with flags.writeable set",
        )


def conversion(name: str) -> str:
    """Return how the expression that the user's statement stores is converted."""
    stored = stored_expression(user_span()) or "x"
    return f"convert it: {stored if stored.isidentifier() else f'({stored})'}.to({name})"


def _fits(kind: NumericMeta, dtype: NumericMeta) -> bool:
    """Return whether an element may be set to numbers of a type, which are converted."""
    if kind.is_float and dtype.is_float:
        return kind.width < dtype.width and common_type(kind, dtype) is dtype
    return kind.is_integer and dtype.is_integer and kind.width <= dtype.width


def element_value(value: Any, dtype: Any) -> ir.Value:
    """Return a value to be stored as an IR value. Python numbers convert, and numbers to integers at least as wide or to
    floats that have all their values; others must have the element type."""
    kind = type(value)
    if kind is dtype:
        return value.ir_value()
    if dtype._initializes or (isinstance(kind, NumericMeta) and _fits(kind, dtype)):
        return dtype(value).ir_value()
    if isinstance(kind, NumericMeta):
        raise type_error(
            f"a value of type {kind.__name__} is stored in a tensor of {dtype.__name__}", conversion(dtype.__name__)
        )
    if isinstance(value, (bool, int, float)) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
        return dtype(value).ir_value()
    if isinstance(value, ir.Value):
        return dtype(value).ir_value()
    raise type_error(
        f"an element of type {dtype.__name__} is set to {kind.__name__}",
        "an element is a number; whole tensors are written with .store(...) or t[None] = ...",
    )


def from_ir(value: ir.Value) -> Pointer:
    """Return an address of the `cute` dialect as a pointer; a signless integer is taken as signed."""
    parts = cute.info(value.type)
    return Pointer(value, NumericMeta.from_mlir_type(parts.element), AddressSpace[parts.space], parts.alignment)
