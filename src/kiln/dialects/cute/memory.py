"""Pointers, memrefs, loads, stores and allocations: `cute` operations about memory."""

import functools
import re
from collections.abc import Sequence
from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...mlir import context, ir
from ..declaration import PURE, Access, Alias, Operand, Operands, OptionalAttr, Result, attributes
from ..definition import I32, I64, Emit, Integer, int_type, one_of
from .types import Cute, Memref, Ptr, info

__all__ = [
    "REDUCTION_BUFFER",
    "AllocRmem",
    "AllocSmem",
    "Bounds",
    "CastMemref",
    "CastPtr",
    "DynamicSmem",
    "IntToPtr",
    "Iter",
    "Leaf",
    "Load",
    "PtrAdd",
    "PtrToInt",
    "Store",
    "Through",
    "Undef",
    "View",
    "access_through",
    "alloc_rmem",
    "alloc_smem",
    "bounds",
    "cast_memref",
    "cast_ptr",
    "dynamic_smem",
    "int_to_ptr",
    "iter_",
    "leaf",
    "load",
    "load_before",
    "loads_before",
    "name_allocation",
    "ptr_add",
    "ptr_to_int",
    "store",
    "stores_before",
    "through",
    "undef",
    "view",
]


class _Reads(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Read)


class _Writes(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Write)


class _Allocates(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: list[ir.MemoryEffect]) -> None:
        effects.append(ir.MemoryEffect.Allocate)


@functools.lru_cache(maxsize=256)
def _i64(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64, context()), value)


@functools.lru_cache(maxsize=64)
def _alignment(bytes_: int) -> "dict[str, ir.Attribute] | None":
    return {"alignment": _i64(bytes_)} if bytes_ else None


@functools.lru_cache(maxsize=1024)
def _segments(*sizes: int) -> ir.Attribute:
    return ir.DenseI32ArrayAttr.get(list(sizes), context())


# --- pointers and memrefs --------------------------------------------------------------------------------------------


class IntToPtr(Cute.Operation, name="int_to_ptr", traits=PURE, alias=Alias("address", "integer")):
    """Return the pointer with an address."""

    address: Operand[I64]
    result: Result[Ptr]


def int_to_ptr(address: ir.Value, type_: ir.Type, emit: Emit = emit_value) -> ir.Value:
    """Return the pointer of type `type_` with an i64 address."""
    return emit("cute.int_to_ptr", type_, (address,))


class PtrToInt(Cute.Operation, name="ptr_to_int", traits=PURE, alias=Alias("pointer", "integer")):
    """Return the address of a pointer."""

    pointer: Operand[Ptr]
    result: Result[I64]


def ptr_to_int(pointer: ir.Value, emit: Emit = emit_value) -> ir.Value:
    """Return the address as an i64."""
    return emit("cute.ptr_to_int", int_type(64), (pointer,))


class PtrAdd(Cute.Operation, name="ptr_add", traits=PURE, alias=Alias("pointer", "offset")):
    """Return the pointer `offset` elements on; the result type has the same element type and space.

    Elements of less than 8 bits are packed; an offset must then move by whole bytes.
    """

    pointer: Operand[Ptr]
    offset: Operand[Integer]
    result: Result[Ptr]
    OFTEN = True

    def check(self) -> str:
        return _moved(self.pointer.type, self.result.type)


@functools.lru_cache(maxsize=1024)
def _moved(source: ir.Type, result: ir.Type) -> str:
    before = info(source)
    after = info(result)
    if (before.element, before.space) != (after.element, after.space):
        return f"moves a pointer of type {source}, and makes one of type {result}: element and space stay the same"
    return ""


def ptr_add(pointer: ir.Value, offset: ir.Value, type_: ir.Type, emit: Emit = emit_value) -> ir.Value:
    """Return the pointer `offset` elements on; `type_` says what alignment is left."""
    return emit("cute.ptr_add", type_, (pointer, offset))


class CastPtr(Cute.Operation, name="cast_ptr", traits=PURE, alias="pointer"):
    """Return the same address as a pointer to another element type, of another alignment or space."""

    pointer: Operand[Ptr]
    result: Result[Ptr]


def cast_ptr(pointer: ir.Value, type_: ir.Type, emit: Emit = emit_value) -> ir.Value:
    """Return the same address under another pointer type."""
    return emit("cute.cast_ptr", type_, (pointer,))


class View(Cute.Operation, name="view", traits=PURE, alias="pointer"):
    """Return a memref: a pointer with the layout of the result type.

    `narrow` and `wide` are the dynamic leaves of 32 and of 64 bits, each in the order of the layout.
    """

    pointer: Operand[Ptr]
    narrow: Operands[I32]
    wide: Operands[I64]
    result: Result[Memref]

    def check(self) -> str:
        widths = info(self.result.type).leaves
        expected = [widths.count(32), widths.count(64)]
        leaves = [len(self.narrow), len(self.wide)]
        if leaves != expected:
            return f"has {leaves} leaves of 32 and 64 bits: the layout of {self.result.type} has {expected}"
        return ""


def view(pointer: ir.Value, type_: ir.Type, leaves: Sequence[ir.Value] = ()) -> ir.Value:
    """Return a memref of type `type_`; `leaves` are its dynamic leaves in the order of the layout, of the widths it
    states."""
    widths = info(type_).leaves
    if len(widths) != len(leaves):
        raise ValueError(f"{type_} has {len(widths)} dynamic leaves, {len(leaves)} were given")
    narrow = [leaf for leaf, width in zip(leaves, widths, strict=True) if width == 32]
    wide = [leaf for leaf, width in zip(leaves, widths, strict=True) if width == 64]
    segments = {"operandSegmentSizes": _segments(1, len(narrow), len(wide))}
    return emit_value("cute.view", type_, (pointer, *narrow, *wide), segments)


class Iter(Cute.Operation, name="iter", traits=PURE, alias="memref"):
    """Return the pointer of a memref."""

    memref: Operand[Memref]
    result: Result[Ptr]


def iter_(memref: ir.Value, type_: ir.Type, emit: Emit = emit_value) -> ir.Value:
    """Return the pointer of a memref, as `type_`."""
    return emit("cute.iter", type_, (memref,))


class Leaf(Cute.Operation, name="leaf", traits=PURE, alias=None):
    """Return dynamic leaf number `index` of a memref's layout, counted from the left."""

    memref: Operand[Memref]
    result: Result[Integer]
    index: ir.IntegerAttr

    def check(self) -> str:
        which = self.index
        widths = info(self.memref.type).leaves
        if not 0 <= which < len(widths):
            return f"asks for leaf {which} of a layout with {len(widths)}"
        if self.result.type != int_type(widths[which]):
            return f"gives leaf {which} as {self.result.type}: it has {widths[which]} bits"
        return ""


def leaf(memref: ir.Value, index_: int, width: int) -> ir.Value:
    """Return dynamic leaf number `index_`, an integer of `width` bits."""
    return emit_value("cute.leaf", int_type(width), (memref,), attributes(index=index_))


class CastMemref(Cute.Operation, name="cast_memref", traits=PURE, alias="memref"):
    """Return the same memref under a type of another alignment or layout, with the same dynamic leaves."""

    memref: Operand[Memref]
    result: Result[Memref]

    def check(self) -> str:
        before = info(self.memref.type)
        after = info(self.result.type)
        if before.leaves != after.leaves:
            return (
                f"has leaves of {list(before.leaves)} bits and gives leaves of {list(after.leaves)}: they stay the same"
            )
        return ""


def cast_memref(memref: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the same memref under another type with the same dynamic leaves."""
    return emit_value("cute.cast_memref", type_, (memref,))


# --- accesses and allocations -----------------------------------------------------------------------------------------


class Load(Cute.Operation, name="load", reads=Access("source", value="result"), traits=[_Reads], alias=None):
    """Load the element `offset` elements past the pointer, or, for a vector type, as many contiguous elements.

    `offset` counts elements in memory, whatever the layout. Boolean elements take a byte each; elements of 2 and 4
    bits are packed, lowest bits first, and a vector of them starts and ends on a byte; other elements take whole
    bytes. `alignment` (bytes) promises more than the element's own alignment.
    """

    source: Operand[Ptr | Memref]
    offset: Operand[Integer]
    result: Result[Any]
    alignment: OptionalAttr[ir.IntegerAttr]
    OFTEN = True

    @property
    def memory(self) -> ir.Value:
        """The pointer or memref that is accessed, as `Store.memory` is."""
        return self.source

    @property
    def value(self) -> ir.Value:
        """The value that is loaded, as `Store.value` is the one that is stored."""
        return self.result

    def check(self) -> str:
        return _accessed(self.source.type, self.result.type)


@functools.lru_cache(maxsize=1024)
def _accessed(memory: ir.Type, value: ir.Type) -> str:
    element = value.element_type if isinstance(value, ir.VectorType) else value
    if element != info(memory).element:
        return f"accesses {value} in memory of type {memory}: an element, or a vector of them"
    return ""


def load(source: ir.Value, offset: ir.Value, type_: ir.Type, alignment: int = 0) -> ir.Value:
    """Return an element or a vector of elements; `alignment` in bytes where more than the element's is known."""
    return emit_value("cute.load", type_, (source, offset), _alignment(alignment))


def load_before(store: "Store", point: ir.Operation) -> ir.Value:
    """Load the element that a store would overwrite, before the operation `point`."""
    attrs = dict(store.attributes.items())
    types = (store.value.type,)
    operands = (store.target, store.offset)
    return ir.Operation.create(
        "cute.load", types, operands, attrs, None, 0, store.location, ir.InsertionPoint(point)
    ).result


def loads_before(load: Load, offsets: Sequence[ir.Value], type_: ir.Type, alignment: int) -> list[ir.Value]:
    """Load parts of what an operation loads before it, each of type `type_` and at its own offset."""
    point = ir.InsertionPoint(load.operation)
    location = load.location
    source = load.source
    return [
        ir.Operation.create(
            "cute.load", (type_,), (source, offset), _alignment(alignment), None, 0, location, point
        ).result
        for offset in offsets
    ]


class Store(Cute.Operation, name="store", writes=Access("target", value="value"), traits=[_Writes]):
    """Store an element, or a vector of contiguous elements, `offset` elements past the pointer. Otherwise as `load`."""

    value: Operand[Any]
    target: Operand[Ptr | Memref]
    offset: Operand[Integer]
    alignment: OptionalAttr[ir.IntegerAttr]
    OFTEN = True

    @property
    def memory(self) -> ir.Value:
        """The pointer or memref that is accessed."""
        return self.target

    def check(self) -> str:
        return _accessed(self.target.type, self.value.type)


def store(value: ir.Value, target: ir.Value, offset: ir.Value, alignment: int = 0) -> ir.Operation:
    """Write an element or a vector of elements."""
    return emit("cute.store", (), (value, target, offset), _alignment(alignment))


def stores_before(store: Store, offsets: Sequence[ir.Value], values: Sequence[ir.Value], alignment: int) -> None:
    """Store parts of what an operation stores before it, each at its own offset."""
    point = ir.InsertionPoint(store.operation)
    location = store.location
    target = store.target
    attrs = _alignment(alignment)
    for value, offset in zip(values, offsets, strict=True):
        ir.Operation.create("cute.store", (), (value, target, offset), attrs, None, 0, location, point)


def access_through(op: ir.Operation, number: int) -> "Load | Store | None":
    """Return the load or store whose memory operand `number` of an operation is; None if it is none of those."""
    if not number:
        return Load.of(op)
    return Store.of(op) if number == 1 else None


class Bounds(Cute.Operation, name="bounds", stays="the sanitizer is told"):
    """Tell the sanitizer the coordinates of the next access. Only in programs that are traced for the sanitizer.

    `pointer` points into the tensor. `numbers` are the lowest coordinates of all modes, then the highest, then the
    extents of the tensor. `write`: whether the access writes.
    """

    pointer: Operand[Ptr]
    numbers: Operands[I64]
    write: one_of(0, 1)

    def check(self) -> str:
        count = len(self.numbers)
        return f"has {count} numbers: three for each mode" if count % 3 else ""


def bounds(pointer: ir.Value, numbers: Sequence[ir.Value], write: bool) -> ir.Operation:
    """Add the `bounds` of the next access: lowest coordinates, highest coordinates, extents."""
    return emit("cute.bounds", (), (pointer, *numbers), attributes(write=int(write)))


class Through(Cute.Operation, name="through", stays="the sanitizer is told", alias="pointer"):
    """Return the same address, and tell the sanitizer through which swizzle accesses to it see shared memory.

    Only in programs that are traced for the sanitizer. `swizzle` is its bits, base and shift, counted in bytes, as
    text (`"3,4,3"`), empty for a plain layout. It permutes addresses relative to `pointer` or, with `absolute`,
    addresses themselves. `swizzle_name` is the swizzle as the program spells it.
    """

    pointer: Operand[Ptr]
    swizzle: ir.StringAttr
    absolute: one_of(0, 1)
    swizzle_name: ir.StringAttr
    result: Result[Ptr]

    def check(self) -> str:
        swizzle = self.swizzle
        if swizzle and not re.fullmatch(r"\d+,\d+,-?\d+", swizzle):
            return f"has the swizzle {swizzle!r}: bits, base and shift are three numbers"
        return ""


def through(pointer: ir.Value, swizzle: Sequence[int], absolute: bool, name: str) -> ir.Value:
    """Return the pointer with the swizzle through which its accesses see shared memory."""
    attrs = attributes(swizzle=",".join(map(str, swizzle)), absolute=int(absolute), swizzle_name=name)
    return emit_value("cute.through", pointer.type, (pointer,), attrs)


class AllocRmem(Cute.Operation, name="alloc_rmem", traits=[_Allocates], alias=None, varies="thread"):
    """Allocate memory of one thread for `count` elements of the result's element type, undefined at first.

    One piece of memory per operation and call of the function: executed again, it gives the same memory.
    """

    result: Result[Ptr]
    count: ir.IntegerAttr

    def check(self) -> str:
        return "" if self.count >= 0 else f"is of {self.count} elements"


def alloc_rmem(count: int, type_: ir.Type) -> ir.Value:
    """Allocate per-thread memory for `count` elements; `type_` is the pointer type of the result."""
    return emit_value("cute.alloc_rmem", type_, (), {"count": _i64(count)})


class AllocSmem(Cute.Operation, name="alloc_smem", traits=[_Allocates], alias=None, varies="cta"):
    """Allocate `bytes` bytes of shared memory aligned to `alignment`, undefined at first. Kernels only.

    One piece of memory per operation and block: all threads get the same address.
    """

    result: Result[Ptr]
    bytes: ir.IntegerAttr
    alignment: ir.IntegerAttr

    def check(self) -> str:
        size = self.bytes
        alignment = self.alignment
        if size < 0 or alignment < 1 or alignment & (alignment - 1):
            return f"is of {size} bytes aligned to {alignment}: an alignment is a power of two"
        return _in_shared_memory(self)


def alloc_smem(bytes_: int, alignment: int, type_: ir.Type) -> ir.Value:
    """Allocate shared memory; `type_` is the pointer type of the result."""
    return emit_value("cute.alloc_smem", type_, (), {"bytes": _i64(bytes_), "alignment": _i64(alignment)})


REDUCTION_BUFFER = "reduce_in_block's buffer"
"""The name of the shared memory of a reduction over a CTA."""


def name_allocation(pointer: ir.Value, name: str) -> None:
    """Name shared memory in reports: without a name it has that of the variable that the user's line assigns."""
    op = pointer.owner.operation
    op.location = ir.Location.name(name, op.location)


class DynamicSmem(Cute.Operation, name="dynamic_smem", traits=PURE, alias=None, varies="cta"):
    """Return the start of dynamic shared memory, whose size the launch sets; aligned to 1024. Kernels only."""

    result: Result[Ptr]

    def check(self) -> str:
        return _in_shared_memory(self)


def _in_shared_memory(op: AllocSmem | DynamicSmem) -> str:
    space = info(op.result.type).space
    return "" if space == "smem" else f"gives a pointer to {space}: it is to smem"


def dynamic_smem(type_: ir.Type) -> ir.Value:
    """Return the start of the block's dynamic shared memory."""
    return emit_value("cute.dynamic_smem", type_)


class Undef(Cute.Operation, name="undef", traits=PURE, alias=None, varies=""):
    """Return an undefined value of any type."""

    result: Result[Any]


def undef(type_: ir.Type) -> ir.Value:
    """Return an undefined value."""
    return emit_value("cute.undef", type_)
