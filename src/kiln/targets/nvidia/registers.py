"""Register promotion during expansion: a block does not load registers it stored, and stores each once.

Accumulators are read and written by each WGMMA, by holds and by the program, register by register. LLVM would remove
most accesses, but only after each was built, converted, printed and parsed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ...analysis import pointers
from ...dialects import cute
from ...dialects.nvgpu.wgmma import HoldRegisters, Wgmma
from ...mlir import ir
from ..lowering.builder import constant_value
from .device_builder import DeviceBuilder

_BYTES = 4
_UNKNOWN: Any = object()


class _Register:
    """A register of such an array."""

    __slots__ = ("address", "block", "is_read", "stores", "value")

    def __init__(self, address: ir.Value) -> None:
        self.address = address
        self.block: Any = None
        """The block in which its value is known."""
        self.value: Any = None
        self.is_read = False
        """Whether there is a read of it."""
        self.stores: list[ir.Operation] = []


class Registers:
    """Register arrays all of whose accesses are to whole registers at known places."""

    def __init__(self) -> None:
        self._arrays: set[ir.Value] = set()
        self._by_place: dict[tuple[ir.Value, int], _Register] = {}
        self._by_address: dict[ir.Value, _Register | None] = {}
        self._builder: DeviceBuilder | None = None
        self._block: ir.Block | None = None
        """Where the last access was."""
        self._pending: dict[_Register, None] = {}
        """Registers whose values that block has not written yet."""
        self._blocks: dict[ir.Block, ir.Block] = {}

    def allocate(self, pointer: ir.Value, address: ir.Value) -> None:
        """Memory at `address` takes the place of a pointer whose uses are not expanded yet."""
        if _is_of_registers(pointer):
            self._arrays.add(address)

    def read(self, b: DeviceBuilder, type_: ir.Type, address: ir.Value, alignment: int) -> ir.Value:
        """Return the value at an address."""
        register = self._register(address)
        if register is None:
            return b.load(type_, address, alignment)
        if b is not self._builder:
            self._enter(b)
        if register.block is self._block:
            if register.value.type == type_:
                return register.value
            if register in self._pending:
                self._write(b, (register,))
        register.is_read = True
        register.block = self._block
        register.value = b.load(type_, register.address, _BYTES)
        return register.value

    def write(self, b: DeviceBuilder, value: ir.Value, address: ir.Value, alignment: int) -> None:
        """Store a value at an address, when it is needed."""
        register = self._register(address)
        if register is None:
            b.store(value, address, alignment)
            return
        if b is not self._builder:
            self._enter(b)
        register.block = self._block
        register.value = value
        self._pending[register] = None

    def end(self) -> None:
        """Store pending values when all is expanded, and remove dead stores."""
        self._leave(None)
        for register in self._by_place.values():
            if not register.is_read:
                for store in register.stores:
                    store.erase()

    def _register(self, address: ir.Value) -> _Register | None:
        """Return what an address leads to; None if to other memory."""
        register = self._by_address.get(address, _UNKNOWN)
        if register is not _UNKNOWN:
            return register
        place = 0
        root = address
        while root not in self._arrays:
            owner = root.owner
            if (
                isinstance(owner, ir.Block)
                or owner.operation.name != "llvm.getelementptr"
                or len(owner.operation.operands) > 1
            ):
                self._by_address[address] = None
                return None
            parts: Any = owner.operation.attributes
            place += parts["rawConstantIndices"][0] * parts["elem_type"].value.width // 8
            root = owner.operation.operands[0]
        new = self._by_address[address] = self._by_place.setdefault((root, place), _Register(address))
        return new

    def _enter(self, b: DeviceBuilder) -> None:
        """Accesses are made by another builder."""
        self._builder = b
        block = b.point.block
        if self._block is None or block != self._block:
            self._leave(block)
            self._block = self._blocks.setdefault(block, block)

    def _leave(self, block: ir.Block | None) -> None:
        """Store the pending values of a block that ends, or that contains the next one."""
        if not self._pending:
            return
        before: Any = self._block
        inside = block
        while inside is not None:
            op = inside.owner.operation
            if op.name == "func.func":
                break
            if op.block == before:
                self._write(DeviceBuilder(ir.InsertionPoint(op), op.location), list(self._pending))
                return
            inside = op.block
        end = before.operations[len(before.operations) - 1]
        self._write(DeviceBuilder(ir.InsertionPoint(end), end.location), list(self._pending))

    def _write(self, b: DeviceBuilder, registers: Iterable[_Register]) -> None:
        for register in registers:
            register.stores.append(b.store(register.value, register.address, _BYTES))
            del self._pending[register]


def _is_of_registers(pointer: ir.Value) -> bool:
    """Return whether a pointer is only used by WGMMAs and accesses to whole registers at known places."""
    todo = [pointer]
    while todo:
        value = todo.pop()
        bits = cute.element_bits(cute.info(value.type).element)
        if bits % 8:
            return False
        for use in value.uses:
            op = use.owner.operation
            number = use.operand_number
            if access := cute.access_through(op, number):
                if _length(access.value.type) * bits != 8 * _BYTES or not _is_whole(access.offset, bits):
                    return False
            elif (move := cute.PtrAdd.of(op)) and not number:
                if not _is_whole(move.offset, bits):
                    return False
                todo.append(move.result)
            elif op.name in pointers.SAME and len(op.operands) == 1 and cute.info(op.results[0].type).space == "rmem":
                todo.append(op.results[0])
            elif not (Wgmma.of(op) or HoldRegisters.of(op)):
                return False
    return True


def _length(type_: ir.Type) -> int:
    return math.prod(type_.shape) if isinstance(type_, ir.VectorType) else 1


def _is_whole(offset: ir.Value, bits: int) -> bool:
    """Return whether so many elements are known to be whole registers."""
    number = constant_value(offset)
    return number is not None and number * bits % (8 * _BYTES) == 0
