"""Pointers, tensors and their memory: operations of `cute` that all targets expand alike.

Values of type `!cute.ptr` and `!cute.memref` are retyped in place (a pointer; a pointer and the dynamic leaves), so
they cross regions, blocks and functions as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from ...dialects import cute
from ...dialects.nvgpu.tma import TensorMap
from ...mlir import context, ir
from .arithmetic import element_of
from .builder import Builder, constant_value, int_type, like, parsed_type, struct_type
from .expansion import Expander, Handlers

HANDLERS = Handlers()


# --- types -----------------------------------------------------------------------------------------------------------


def lowered_type(type_: ir.Type, pointer_in: Callable[[str], ir.Type]) -> ir.Type:
    """Return the LLVM type of a `cute` type, given the pointer type of each memory space; other types are unchanged."""
    if cute.is_ptr(type_):
        return pointer_in(cute.info(type_).space)
    if cute.is_memref(type_):
        info = cute.info(type_)
        pointer = pointer_in(info.space)
        return struct_type([pointer, *map(int_type, info.leaves)]) if info.leaves else pointer
    return pointer_in("generic") if isinstance(type_, TensorMap) else type_


@functools.lru_cache(maxsize=4096)
def carrier_type(type_: ir.Type) -> ir.Type:
    """Return the LLVM type that holds a value of a lowered type: narrow floats are integers of their width."""
    element = element_of(type_)
    if isinstance(element, ir.FloatTF32Type):
        return like(type_, ir.F32Type.get(context()))  # `expand_narrow_floats` has made such values f32
    if isinstance(element, ir.FloatType) and element.width < 16:
        return like(type_, int_type(element.width))
    if isinstance(element, ir.IndexType):
        return like(type_, int_type(64))
    return type_


def to_carrier(b: Builder, value: ir.Value) -> ir.Value:
    """Return a value as its `carrier_type`."""
    want = carrier_type(value.type)
    if want == value.type:
        return value
    cast = "arith.index_cast" if isinstance(element_of(value.type), ir.IndexType) else "arith.bitcast"
    return b.value(cast, want, (value,))


def from_carrier(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the inverse of `to_carrier`."""
    if value.type == type_:
        return value
    cast = "arith.index_cast" if isinstance(element_of(type_), ir.IndexType) else "arith.bitcast"
    return b.value(cast, type_, (value,))


@functools.lru_cache(maxsize=1024)
def _stored_type(element: ir.Type) -> ir.Type:
    """Return the LLVM type of an element in memory."""
    carrier = carrier_type(element)
    if isinstance(carrier, ir.IntegerType) and cute.element_bits(element) != carrier.width:
        return int_type(cute.element_bits(element))
    return carrier


# --- pointers and tensors --------------------------------------------------------------------------------------------


@HANDLERS.expands(cute.IntToPtr)
def int_to_ptr(x: Expander, op: cute.IntToPtr, b: Builder) -> ir.Value:
    return b.value("llvm.inttoptr", x.lowered(op.result.type), (op.address,))


@HANDLERS.expands(cute.PtrToInt)
def ptr_to_int(_x: Expander, op: cute.PtrToInt, b: Builder) -> ir.Value:
    return b.value("llvm.ptrtoint", int_type(64), (op.pointer,))


@HANDLERS.expands(cute.CastPtr)
def _cast_ptr(x: Expander, op: cute.CastPtr, b: Builder) -> ir.Value:
    return x.cast_pointer(b, op.pointer, x.lowered(op.result.type))


@HANDLERS.expands(cute.CastMemref, types=True)
def _cast_memref(x: Expander, op: cute.CastMemref, b: Builder) -> ir.Value:
    value = op.memref
    want = x.lowered(op.result.type)
    if value.type == want:
        return value
    leaves = cute.info(op.types.memref).leaves
    pointer = x.cast_pointer(b, pointer_of(x, b, value, op.types.memref), x.pointer_in(cute.info(op.result.type).space))
    return _tensor(b, want, pointer, [b.extract(value, int_type(w), n + 1) for n, w in enumerate(leaves)])


def _step_type(bits: int) -> ir.Type:
    """Return a type of an element's size."""
    return int_type(bits) if bits in (8, 16, 32, 64) else parsed_type(f"!llvm.array<{bits // 8} x i8>")


def element_address(b: Builder, pointer: ir.Value, element: ir.Type, offset: ir.Value) -> ir.Value:
    """Return the address of the byte in which the element `offset` elements on begins."""
    bits = cute.element_bits(element)
    if bits >= 8:
        return b.gep(pointer, _step_type(bits), constant_value(offset, offset))
    return b.byte_gep(pointer, b.binary("shrsi", offset, b.const(offset.type, {4: 1, 2: 2}[bits])))


class _Access(NamedTuple):
    """Properties of an access, by the types of memory and value."""

    element: ir.Type
    step: ir.Type | None
    """A type of the size of an element of a register tensor; None for other memory, and for packed elements."""
    is_packed: bool
    """Whether it is one element that shares a byte with others."""
    stored: ir.Type
    """The LLVM type of the value in memory."""
    alignment: int
    """The alignment of an element in bytes."""
    has_leaves: bool
    """Whether the memory is a tensor with dynamic leaves."""


@functools.lru_cache(maxsize=4096)
def _access(memory: ir.Type, type_: ir.Type) -> _Access:
    info = cute.info(memory)
    bits = cute.element_bits(info.element)
    return _Access(
        info.element,
        _step_type(bits) if info.space == "rmem" and bits >= 8 else None,
        bits < 8 and not isinstance(type_, ir.VectorType),
        like(type_, _stored_type(info.element)),
        cute.element_bytes(info.element),
        cute.is_memref(memory) and bool(info.leaves),
    )


def _address(x: Expander, b: Builder, memory: ir.Value, type_: ir.Type, offset: ir.Value, access: _Access) -> ir.Value:
    """Return the address of an element of a lowered value that had type `type_`."""
    pointer = pointer_of(x, b, memory, type_) if access.has_leaves else memory
    if x.places is not None and access.step is not None:
        number = constant_value(offset)
        if number is not None:
            return private_address(x, pointer, access.step, number)
    return element_address(b, pointer, access.element, offset)


def private_address(x: Expander, pointer: ir.Value, step: ir.Type, number: int) -> ir.Value:
    """Return the address of an element of a register tensor; it is made once, where the pointer is."""
    assert x.places is not None
    address = x.places.get((pointer, step, number))
    if address is None:
        owner = pointer.owner
        if isinstance(owner, ir.Block):
            b = x.builder(ir.InsertionPoint.at_block_begin(owner), ir.Location.unknown(context()))
        else:
            b = x.builder(ir.InsertionPoint.after(owner.operation), owner.operation.location)
        address = x.places[pointer, step, number] = b.gep(pointer, step, number)
    return address


@HANDLERS.expands(cute.PtrAdd, types=True)
def _ptr_add(_x: Expander, op: cute.PtrAdd, b: Builder) -> ir.Value:
    return element_address(b, op.pointer, cute.info(op.types.pointer).element, op.offset)


def _tensor(b: Builder, type_: ir.Type, pointer: ir.Value, leaves: list[ir.Value]) -> ir.Value:
    """Return a tensor made of a pointer and dynamic leaves."""
    if not leaves:
        return pointer
    struct_ = b.insert(b.value("llvm.mlir.undef", type_), pointer, 0)
    for number, leaf in enumerate(leaves):
        struct_ = b.insert(struct_, leaf, number + 1)
    return struct_


@HANDLERS.expands(cute.View)
def view(x: Expander, op: cute.View, b: Builder) -> ir.Value:
    widths = cute.info(op.result.type).leaves
    narrow, wide = (iter(op.narrow), iter(op.wide)) if widths else (iter(()), iter(()))
    leaves = [next(narrow if width == 32 else wide) for width in widths]
    return _tensor(b, x.lowered(op.result.type), op.pointer, leaves)


def pointer_of(x: Expander, b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the pointer in a lowered value that had type `type_`."""
    if cute.is_memref(type_) and cute.info(type_).leaves:
        return b.extract(value, x.pointer_in(cute.info(type_).space), 0)
    return value


@HANDLERS.expands(cute.Iter, types=True)
def _iter(x: Expander, op: cute.Iter, b: Builder) -> ir.Value:
    return x.cast_pointer(b, pointer_of(x, b, op.memref, op.types.memref), x.lowered(op.result.type))


@HANDLERS.expands(cute.Leaf)
def _leaf(_x: Expander, op: cute.Leaf, b: Builder) -> ir.Value:
    return b.extract(op.memref, op.result.type, op.index + 1)


# --- accesses --------------------------------------------------------------------------------------------------------


def alignment_of(op: cute.Load | cute.Store, element: ir.Type) -> int:
    """Return the alignment that an access promises, else that of an element."""
    return op.alignment or cute.element_bytes(element)


def _bit_position(b: Builder, offset: ir.Value, element: ir.Type) -> ir.Value:
    """Return where a packed element starts in its byte, as an i8."""
    bits = cute.element_bits(element)
    low = b.value("arith.trunci", int_type(8), (offset,))
    return b.binary("muli", b.binary("andi", low, b.const(int_type(8), 8 // bits - 1)), b.const(int_type(8), bits))


@HANDLERS.expands(cute.Load, types=True)
def _load(x: Expander, op: cute.Load, b: Builder) -> ir.Value:
    memory = op.types.source
    type_ = op.result.type
    access = _access(memory, type_)
    element = access.element
    stored = access.stored
    offset = op.offset
    if access.step is not None and not isinstance(type_, ir.VectorType) and constant_value(offset) is None:
        offset = x.register_offset(b, pointer_of(x, b, op.source, memory), offset, access.alignment)
    address = _address(x, b, op.source, memory, offset, access)
    address = x.accessed(op, b, address, memory, type_, write=False)
    if access.is_packed:
        byte = b.load(int_type(8), address, 1)
        value = b.value("arith.trunci", stored, (b.binary("shrui", byte, _bit_position(b, op.offset, element)),))
        return from_carrier(b, value, type_)
    value = x.load(b, stored, address, op.alignment or access.alignment)
    if stored == type_:
        return value
    carrier = carrier_type(type_)
    if value.type != carrier:  # a byte per boolean, a byte per 6-bit float
        if str(element) == "i1":
            value = b.compare("ne", value, b.const(value.type, 0))
        else:
            value = b.value("arith.trunci", carrier, (value,))
    return from_carrier(b, value, type_)


@HANDLERS.expands(cute.Store, types=True)
def _store(x: Expander, op: cute.Store, b: Builder) -> None:
    value = op.value
    type_ = op.types.value
    memory = op.types.target
    access = _access(memory, type_)
    element = access.element
    stored = access.stored
    address = _address(x, b, op.target, memory, op.offset, access)
    if stored != type_:
        value = to_carrier(b, value)
    if access.is_packed:
        address = x.accessed(op, b, address, memory, type_, write=True)
        position = _bit_position(b, op.offset, element)
        byte = b.load(int_type(8), address, 1)
        mask = b.binary("shli", b.const(int_type(8), (1 << cute.element_bits(element)) - 1), position)
        kept = b.binary("andi", byte, b.binary("xori", mask, b.const(int_type(8), 255)))
        new = b.binary("shli", b.value("arith.extui", int_type(8), (value,)), position)
        b.store(b.binary("ori", kept, new), address, 1)
        return
    if stored != type_ and value.type != stored:
        value = b.value("arith.extui", stored, (value,))
    address = x.accessed(op, b, address, memory, type_, write=True, value=value)
    x.store(b, value, address, op.alignment or access.alignment)


def private_bytes(op: cute.AllocRmem) -> int:
    """Return the bytes that an allocation takes."""
    return (cute.element_bits(cute.info(op.result.type).element) * op.count + 7) // 8


@HANDLERS.expands(cute.AllocRmem)
def alloc_rmem(x: Expander, op: cute.AllocRmem, _b: Builder) -> ir.Value:
    # at the function's entry: in a loop it would take new stack every time, and LLVM keeps only such memory in registers
    size = private_bytes(op)
    alignment = cute.info(op.result.type).alignment
    address = x.at_entry(op.location).alloca(int_type(8), max(size, 1), max(alignment, 1))
    x.allocated(op.result, address)
    return address


@HANDLERS.expands(cute.Bounds)
def _bounds(_x: Expander, _op: cute.Bounds, _b: Builder) -> None:
    pass  # for instrumented builds


@HANDLERS.expands(cute.Through)
def _through(_x: Expander, op: cute.Through, _b: Builder) -> ir.Value:
    return op.pointer  # the same


@HANDLERS.expands(cute.Undef)
def _undef(x: Expander, op: cute.Undef, b: Builder) -> ir.Value:
    # zero, not undef: what depends on it by mistake is at least the same every time
    type_ = x.lowered(op.result.type)
    return from_carrier(b, b.value("llvm.mlir.zero", carrier_type(type_)), type_)
