"""Registers of WGMMA: they are held where code may touch them, and WGMMAs that follow each other are marked.

`async_registers.py` finds where arrays of registers are to be held (`cute_nvgpu.hold_registers`),
`named_accumulators.py` which accumulators become registers with names. Accesses to vectors of the other arrays become
accesses to single registers: else LLVM would keep the whole array as one vector, and take it apart and put it together
for every WGMMA.

WGMMAs that follow each other are marked (`with_next`): they become one piece of inline PTX, whose registers everyone
from here to ptxas handles once instead of once for each.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

from ....analysis import pointers
from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....dialects import cute, nvgpu
from ....dialects.definition import constant
from ....dialects.nvgpu.wgmma import MatrixDescriptor, Wgmma, WgmmaCommit, WgmmaFence, WgmmaWait
from ....mlir import ir
from ...lowering.builder import constant_value, symbol
from ...lowering.vector_parts import joined, make_before, part_of_vector, vector_of
from ..device_builder import DeviceBuilder
from . import async_registers, named_accumulators
from .async_registers import Instructions, RegisterArray, Use
from .named_accumulators import Accesses, place_of

_TILES = 16
"""The most operands in shared memory of a run: their addresses, computed before the first WGMMA, must fit the uniform
registers."""


def order_registers(module: ir.Module, kernels: Container[str] = ()) -> None:
    """Hold registers around fences and waits of WGMMA, and mark runs.

    Accumulators of `kernels` may have names: other functions are inlined, more than once perhaps.
    """
    functions: dict[ir.Operation, list[Wgmma]] = {}
    for op in Wgmma.all_in(module.operation):
        functions.setdefault(_function(op.operation), []).append(op)
    for function, wgmmas in functions.items():
        _Function(function, wgmmas).run(symbol(function) in kernels)
        _mark_runs(wgmmas)


def _function(op: ir.Operation) -> ir.Operation:
    while op.name != "func.func":
        op = op.parent.operation  # pyright: ignore[reportOptionalMemberAccess]
    return op


class _Function:
    """A function with WGMMAs."""

    def __init__(self, function: ir.Operation, wgmmas: list[Wgmma]) -> None:
        self._function = function
        self._entry = function.regions[0].blocks[0]
        self._wgmmas = wgmmas
        self._constants: dict[tuple[ir.Type, int], ir.Value] = {}
        self._arrays: list[RegisterArray] = []
        self._writers: dict[ir.Operation, list[RegisterArray]] = {}
        """The arrays that a WGMMA accumulates in, or that an operation writes."""
        self._a: dict[ir.Operation, list[RegisterArray]] = {}
        """The arrays that are operand A of a WGMMA."""
        for alloc in self._allocations():
            self._enter(alloc)
        for op in wgmmas:
            if op.operation not in self._writers:
                raise report_at(
                    op.location,
                    DSLNotImplemented,
                    "the accumulator of this WGMMA is not in registers known here",
                    hint="make it with cute.make_rmem_tensor (or make_fragment_C) in the kernel that multiplies",
                )

    def run(self, may_name: bool) -> None:
        """Insert what holds registers, and make accesses those of registers."""
        instructions = Instructions(
            Wgmma.OPERATION_NAME,
            WgmmaFence.OPERATION_NAME,
            WgmmaCommit.OPERATION_NAME,
            WgmmaWait.OPERATION_NAME,
            self._use,
            lambda op: WgmmaWait(op).count,
        )
        held = async_registers.holds(instructions, self._function, self._writers)
        named = self._name() if may_name else {}
        for array in self._arrays:
            if array.alloc.operation.block != self._entry:  # what holds them may be outside
                array.alloc.operation.move_before(self._entry.operations[0])
        copied = self._named_accesses.keys() & named.keys()
        for (op, is_before), arrays in held.items():
            point = ir.InsertionPoint(op) if is_before else ir.InsertionPoint.after(op)
            for array in sorted(set(arrays) - copied, key=self._arrays.index):  # the same code each time
                alloc = array.alloc
                nvgpu.wgmma.hold_registers(alloc.result, alloc.count, named.get(array, ""), point, op.location)
        for array in self._arrays:
            if array in copied:
                for op, registers in self._named_accesses[array].items():
                    named_accumulators.copy_registers(op, named[array], registers)
            else:
                for access in array.accesses:
                    self._split(access)

    def _use(self, operation: ir.Operation) -> Use:
        """Return what a WGMMA does to registers."""
        op = Wgmma(operation)
        arrays = self._writers[operation]
        accumulator = _Accumulator.of(op)
        overwrites = constant(op.accumulate) == 0 and all(
            accumulator.first == 0 and accumulator.count == array.bits for array in arrays
        )
        reads: async_registers.Reads = {} if overwrites else {accumulator: arrays}
        return Use(accumulator, reads | {array: [array] for array in self._a.get(operation, ())})

    # -- arrays ------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _named_accesses(self) -> dict[RegisterArray, Accesses]:
        """Arrays that a kernel clears or scales, with the registers of their accesses: those that may have names."""
        a = set(itertools.chain(*self._a.values()))
        accesses = {array: named_accumulators.accesses_by_register(array) for array in self._arrays if array not in a}
        return {array: by_operation for array, by_operation in accesses.items() if by_operation is not None}

    def _name(self) -> dict[RegisterArray, str]:
        """Give names to the registers of accumulators, declare them, and make stores what is done to them."""
        places = {op.operation: _Accumulator.of(op) for op in self._wgmmas}
        updates = named_accumulators.updates(self._named_accesses)
        arrays = {array.alloc.operation: array for array in self._arrays}
        other = {
            array
            for op, written in self._writers.items()
            if (places[op].first if op.name == Wgmma.OPERATION_NAME else updates.get(op)) is None
            for array in written
        }
        named: dict[RegisterArray, str] = {}
        for op in self._wgmmas:
            memory, first, _ = places[op.operation]
            array = arrays.get(memory)
            if array is None or first is None or array in other:
                continue
            if array not in named:
                named[array] = name = f"kiln_acc_{len(named)}_"
                b = DeviceBuilder(ir.InsertionPoint.at_block_begin(self._entry), array.alloc.location)
                b.asm(f".reg .b32 {name}<{array.bits // 32}>;", "")
            op.registers = named[array]
            op.first_register = first // 32
        stores = {op: update for op, update in updates.items() if self._writers[op][0] in named}
        for run in named_accumulators.runs(self._function, self._writers, stores):
            (array,) = self._writers[run[0]]
            named_accumulators.update_registers(run[0], named[array], [updates[op] for op in run])
            for op in run:
                del self._named_accesses[array][op]
                named_accumulators.erase_with_operands(op)
        for array, loads in self._named_accesses.items():
            unread = [op for op in loads if array in named and not list(op.results[0].uses)]
            for op in unread:
                del loads[op]
                op.erase()
        return named

    def _allocations(self) -> Iterable[cute.AllocRmem]:
        """Return the allocations of WGMMA registers; all of the function if pointers cannot be traced to them."""
        allocations: dict[ir.Operation, cute.AllocRmem] = {}
        for op in self._wgmmas:
            for pointer in (op.d, op.a):
                if not cute.is_ptr(pointer.type):
                    continue
                alloc = cute.AllocRmem.making(pointers.root(pointer))
                if alloc is None:
                    return cute.AllocRmem.all_in(self._function)
                allocations[alloc.operation] = alloc
        return allocations.values()

    def _enter(self, alloc: cute.AllocRmem) -> None:
        array = RegisterArray(alloc, [])
        is_used = False
        writers: list[ir.Operation] = []
        for op, number in pointers.uses(alloc.result, carried=True):
            load = cute.Load.of(op)
            store = cute.Store.of(op)
            if op.name == Wgmma.OPERATION_NAME:
                is_used = True
                if number == 0:
                    writers.append(op)
                else:
                    self._a.setdefault(op, []).append(array)
            elif load:
                array.accesses.append(load)
            else:  # a store, or who knows what
                writers.append(op)
                if store:
                    array.accesses.append(store)
        if is_used:
            self._arrays.append(array)
            for op in writers:
                self._writers.setdefault(op, []).append(array)

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _split(self, access: cute.Load | cute.Store) -> None:
        """Make of an access to a vector accesses to its registers."""
        value = access.value
        offset = access.offset
        op = access.operation
        type_ = value.type
        first = constant_value(offset)
        if not isinstance(type_, ir.VectorType) or len(type_.shape) != 1 or first is None:
            return
        count = type_.shape[0]
        bits = cute.element_bits(cute.info(access.memory.type).element)
        each = max(1, 32 // bits)
        if bits < 8 or count % each or first % each or count == each:
            return
        offsets = [self._constant(offset.type, first + n) for n in range(0, count, each)]
        alignment = each * bits // 8
        if isinstance(access, cute.Store):
            values = [part_of_vector(op, value, n, each) for n in range(0, count, each)]
            cute.stores_before(access, offsets, values, alignment)
        else:
            part = type_.element_type if each == 1 else vector_of(type_.element_type, each)
            value.replace_all_uses_with(joined(op, type_, cute.loads_before(access, offsets, part, alignment)))
        op.erase()

    def _constant(self, type_: ir.Type, number: int) -> ir.Value:
        constant_ = self._constants.get((type_, number))
        if constant_ is None:
            first = self._entry.operations[0].operation
            constant_ = make_before(first, "arith.constant", type_, (), {"value": ir.IntegerAttr.get(type_, number)})
            self._constants[type_, number] = constant_
        return constant_


# --- runs of WGMMAs --------------------------------------------------------------------------------------------------


def _mark_runs(wgmmas: Iterable[Wgmma]) -> None:
    """Mark each WGMMA that the next one follows with nothing but addresses computed between them.

    The accumulators of a run are the same or do not overlap, and a run is not too long.
    """
    for block in {op.operation.block: None for op in wgmmas}:
        before: Wgmma | None = None
        run: dict[_Accumulator, ir.Value] = {}
        tiles = 0
        for view in block.operations:
            name = view.operation.name
            if op := Wgmma.of(view.operation):
                accumulator = _Accumulator.of(op)
                own = 1 if cute.is_ptr(op.a.type) else 2
                tiles += own
                fits = tiles <= _TILES and all(accumulator == x or accumulator.is_apart_from(x) for x in run)
                if before is not None and fits:
                    before.with_next = True
                else:
                    run.clear()
                    tiles = own
                op.d = run.setdefault(accumulator, op.d)  # registers are found by their pointer
                before = op
            elif (
                not name.startswith("arith.")
                and name not in pointers.WITHIN
                and not MatrixDescriptor.of(view.operation)
            ):
                before = None


class _Accumulator(NamedTuple):
    """Where the accumulator of a WGMMA lies: an allocation, or the pointer where that is not known, and bits."""

    memory: Any
    first: int | None
    count: int

    def is_apart_from(self, other: _Accumulator) -> bool:
        """Return whether the two have no register in common, for sure."""
        if self.first is None or other.first is None:
            return False
        return (
            self.memory != other.memory
            or self.first + self.count <= other.first
            or other.first + other.count <= self.first
        )

    @staticmethod
    def of(op: Wgmma) -> _Accumulator:
        count: int = op.n // 2 * cute.element_bits(cute.info(op.d.type).element)
        return _Accumulator(*place_of(op.d), count)
