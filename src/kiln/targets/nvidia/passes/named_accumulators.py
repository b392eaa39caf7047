"""Named registers for WGMMA accumulators, which LLVM does not see, so that loops carry no values for them.

Accumulators that only WGMMA writes get names, and so do those that a kernel clears, or scales as vectors: this is done
in the named registers, and reads copy them. (For other writes, copies in both directions would cost registers. For
scaling of single registers, each would be a piece of inline PTX, which LLVM does not move: loops with other computation
in between become slower.)
"""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ....analysis import pointers
from ....dialects import cute
from ....dialects.nvgpu.wgmma import Wgmma, WgmmaWait
from ....mlir import find, ir
from ...lowering.builder import constant_value, int_type
from ...lowering.vector_parts import element_of_vector, joined
from ..device_builder import DeviceBuilder, f32

if TYPE_CHECKING:
    from .async_registers import RegisterArray

_PARTS = ("vector.extract_strided_slice", "vector.extract", "vector.broadcast")
_FOR_STORES = ("arith.mulf", "vector.extract_strided_slice", "vector.shuffle")
_ORDERED = (cute.Load.OPERATION_NAME, cute.Store.OPERATION_NAME, Wgmma.OPERATION_NAME, WgmmaWait.OPERATION_NAME)

Accesses = dict[ir.Operation, range]
"""The registers of each load and store of an array."""


def place_of(pointer: ir.Value) -> tuple[Any, int | None]:
    """Return the allocation of a pointer and its offset in bits; the pointer and None where they are not known."""
    place = pointers.place(pointer)
    alloc = cute.AllocRmem.making(place.root)
    if alloc is None or place.bits is None:
        return pointer, None
    return alloc.operation, place.bits


def accesses_by_register(array: RegisterArray) -> Accesses | None:
    """Return the registers of each access to an array that a kernel only clears or scales.

    None for other arrays, arrays without stores, and arrays whose registers hold several elements.
    """
    stores = [op for op in array.accesses if isinstance(op, cute.Store)]
    if not stores or not all(map(_may_be_done_to_registers, stores)):
        return None
    places: dict[ir.Value, int | None] = {}
    registers = {op.operation: _registers(op, places) for op in array.accesses}
    by_operation = {op: numbers for op, numbers in registers.items() if numbers is not None}
    return by_operation if len(by_operation) == len(registers) else None


def _registers(access: cute.Load | cute.Store, places: dict[ir.Value, int | None]) -> range | None:
    """Return the registers of an access; `places` keeps how far pointers lead into an allocation."""
    memory = access.memory
    type_ = access.value.type
    if memory not in places:
        is_whole = cute.info(memory.type).element in (f32(), int_type(32))
        places[memory] = place_of(memory)[1] if is_whole else None
    bits = places[memory]
    first = constant_value(access.offset)
    if bits is None or bits % 32 or first is None:
        return None
    if isinstance(type_, ir.VectorType) and len(type_.shape) != 1:
        return None
    first += bits // 32
    return range(first, first + (type_.shape[0] if isinstance(type_, ir.VectorType) else 1))


def copy_registers(load: ir.Operation, name: str, registers: range) -> None:
    """Replace a load by copies of named registers at the same place: LLVM keeps the order of inline PTX."""
    value = load.results[0]
    type_: Any = value.type
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    letter = "f" if isinstance(element, ir.F32Type) else "r"
    b = DeviceBuilder(ir.InsertionPoint(load), load.location)
    parts: list[ir.Value] = []
    for first in range(0, len(registers), 4):
        some = registers[first : first + 4]
        code = " ".join(f"mov.b32 ${n}, {name}{number};" for n, number in enumerate(some))
        parts += b.asm(code, ",".join([f"={letter}"] * len(some)), [], [element] * len(some))
    value.replace_all_uses_with(joined(load, type_, parts) if isinstance(type_, ir.VectorType) else parts[0])
    load.erase()


# --- stores ----------------------------------------------------------------------------------------------------------


class Update(NamedTuple):
    """What a store does to registers: it clears them, or multiplies them by elements of a vector from `first` on."""

    registers: range
    scales: ir.Value | None = None
    first: int = 0


def updates(arrays: dict[RegisterArray, Accesses]) -> dict[ir.Operation, Update]:
    """Return the stores that clear or scale registers, and can be done to registers with names."""
    done: dict[ir.Operation, Update] = {}
    accesses: dict[ir.Operation, tuple[RegisterArray, range]] = {}
    blocks: dict[ir.Block, None] = {}
    zeros: dict[ir.Operation, bool] = {}
    for array, of_array in arrays.items():
        for op, registers in of_array.items():
            accesses[op] = array, registers
            by = _maker(store.value) if (store := cute.Store.of(op)) else None
            if by is None:
                continue
            if by.name == "arith.mulf":
                blocks[op.block] = None
                continue
            if by not in zeros:
                zeros[by] = _is_zero(by)
            if zeros[by]:
                done[op] = Update(registers)
    for block in blocks:
        done |= _scalings(block, accesses)
    return done


def _scalings(block: ir.Block, accesses: dict[ir.Operation, tuple[RegisterArray, range]]) -> dict[ir.Operation, Update]:
    """Return the stores of a block of what was read of the same registers, times scales."""
    done: dict[ir.Operation, Update] = {}
    read: dict[ir.Value, list[tuple[RegisterArray, int, int]]] = {}
    """Which registers vectors have been read of: the array, the number, and how often it was written before."""
    written: collections.Counter[tuple[RegisterArray, int]] = collections.Counter()
    for view in block.operations:
        op = view.operation
        name = op.name
        if name == "vector.shuffle" and all(x in read for x in op.operands):
            both = read[op.operands[0]] + read[op.operands[1]]
            mask: Any = op.attributes["mask"]
            read[op.result] = [both[n] for n in mask]
        elif name in _ORDERED[:2] and op in accesses:
            array, registers = accesses[op]
            places = [(array, n, written[array, n]) for n in registers]
            store = cute.Store.of(op)
            if store is None:
                read[op.result] = places
                continue
            value, first = _part(store.value)
            by = _maker(value)
            if by is not None and by.name == "arith.mulf" and by.result == value:
                before, scales = by.operands
                if read.get(before, [])[first : first + len(places)] == places:
                    done[op] = Update(registers, scales, first)
            written.update((array, n) for n in registers)
        elif name == Wgmma.OPERATION_NAME or len(op.regions):
            read.clear()
    return done


def runs(
    function: ir.Operation, writers: dict[ir.Operation, list[RegisterArray]], stores: dict[ir.Operation, Update]
) -> list[list[ir.Operation]]:
    """Return runs of stores to one array in a block that clear, or scale by the same vector, without other accesses
    between."""
    grouped: list[list[ir.Operation]] = []
    before = None
    for op in find(function, _ORDERED):
        if op not in stores:
            before = None
            continue
        here = writers[op], op.block, stores[op].scales
        if here == before:
            grouped[-1].append(op)
        else:
            grouped.append([op])
        before = here
    return grouped


def update_registers(op: ir.Operation, name: str, run: list[Update]) -> None:
    """Emit the updates of a run of stores on named registers, before an operation."""
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    scales = run[0].scales
    if scales is None:
        b.asm(" ".join(f"mov.b32 {name}{n}, 0;" for update in run for n in update.registers), "")
        return
    by_scale: dict[tuple[ir.Value, int], list[int]] = {}
    """Registers, by what they are multiplied by: an element of a vector, or a number."""
    for update in run:
        for n, register in enumerate(update.registers, update.first):
            by_scale.setdefault(_source_of_element(scales, n), []).append(register)
    operands = [element_of_vector(op, *source) for source in by_scale]
    code = [f"mul.f32 {name}{r}, {name}{r}, ${n};" for n, rs in enumerate(by_scale.values()) for r in rs]
    b.asm(" ".join(code), ",".join("f" * len(operands)), operands)


def erase_with_operands(op: ir.Operation) -> None:
    """Erase an operation, and what was computed for it alone."""
    owners = [value.owner for value in op.operands]
    op.erase()
    for owner in owners:
        if not isinstance(owner, ir.Block) and owner.operation.name in _FOR_STORES:
            if not any(list(result.uses) for result in owner.operation.results):
                erase_with_operands(owner.operation)


def _may_be_done_to_registers(store: cute.Store) -> bool:
    """Return whether a store may write zeros, or the previous vector times scales."""
    by = _maker(store.value)
    if by is None or by.name != "arith.mulf":
        return by is not None and by.name == "arith.constant"
    return isinstance(by.result.type, ir.VectorType)


def _maker(value: ir.Value) -> ir.Operation | None:
    """Return the operation that made a value, or the one that it is a part of."""
    while not isinstance(value.owner, ir.Block):
        op = value.owner.operation
        if op.name not in _PARTS:
            return op
        value = op.operands[0]
    return None


def _part(value: ir.Value) -> tuple[ir.Value, int]:
    """Return the vector that another is a part of, and from which element on; the value itself where it is none."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "vector.extract_strided_slice":
        return value, 0
    offsets: Any = op.attributes["offsets"]
    return op.operands[0], offsets[0].value


def _source_of_element(vector: ir.Value, number: int) -> tuple[ir.Value, int]:
    """Return the vector that an element of another was taken from, and which it is; 0 where that is no vector."""
    op = None if isinstance(vector.owner, ir.Block) else vector.owner.operation
    if op is None or op.name not in ("vector.broadcast", "vector.shuffle"):
        return vector, number
    if op.name == "vector.broadcast":
        return op.operands[0], 0
    mask: Any = op.attributes["mask"]
    type_: Any = op.operands[0].type
    second, element = divmod(mask[number], type_.shape[0])
    return op.operands[second], element


def _is_zero(op: ir.Operation) -> bool:
    """Return whether a constant is zeros, none of them negative."""
    value: Any = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr):
        if not value.is_splat:
            return False
        value = value.get_splat_value()
    return value.value == 0 and math.copysign(1.0, value.value) > 0.0
