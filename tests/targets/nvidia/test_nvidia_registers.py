"""Reads and writes of registers that are left out: random programs with branches and loops compute the same (on this machine)."""

from __future__ import annotations

import ctypes
import random

import pytest

from kiln.mlir import context, ir
from kiln.targets.host import jit
from kiln.targets.host.lower import lower_library
from kiln.targets.lowering.builder import function, int_type, ptr_type
from kiln.targets.nvidia.device_builder import DeviceBuilder
from kiln.targets.nvidia.registers import Registers

REGISTERS = 4


class Program:
    """Statements in a row: ("read", register), ("write", register, name, name), ("if", statements, statements), ("for", statements).

    A read makes a value, which is known from there on where it was made; a write sums two of them.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 1
        self.statements = self._block(list(range(1)), 3)

    def _block(self, known: list[int], depth: int) -> list[tuple]:
        made: list[tuple] = []
        for _ in range(self._random.randint(2, 7)):
            kind = self._random.choice(["read", "write", "write", "if", "for"] if depth else ["read", "write"])
            register = self._random.randrange(REGISTERS)
            if kind == "read":
                made.append(("read", register, self._names))
                known = [*known, self._names]
                self._names += 1
            elif kind == "write":
                made.append(("write", register, *self._random.choices(known, k=2)))
            elif kind == "if":
                made.append(("if", self._random.randrange(8), *(self._block(known, depth - 1) for _ in range(2))))
            else:
                made.append(("for", self._block(known, depth - 1)))
        return made


def run(statements: list[tuple], flags: int, memory: list[int], values: dict[int, int]) -> None:
    """What a program does."""
    for kind, *rest in statements:
        if kind == "read":
            values[rest[1]] = memory[rest[0]]
        elif kind == "write":
            memory[rest[0]] = (values[rest[1]] + 3 * values[rest[2]] + rest[0] + 1) % (1 << 32)
        elif kind == "if":
            run(rest[1] if flags >> rest[0] & 1 else rest[2], flags, memory, dict(values))
        else:
            for _ in range(2):
                run(rest[0], flags, memory, dict(values))


class Emitter:
    """Writes a program as code, by `Registers`."""

    def __init__(self, flags: ir.Value, array: ir.Value) -> None:
        self._flags, self._array = flags, array
        self._registers = Registers()
        self._registers._arrays.add(array)

    def address(self, b: DeviceBuilder, register: int) -> ir.Value:
        if register % 2:  # by way of another pointer
            return b.gep(b.gep(self._array, int_type(16), 2), int_type(32), register - 1)
        return b.gep(self._array, int_type(32), register)

    def block(self, point: ir.InsertionPoint, statements: list[tuple], values: dict[int, ir.Value]) -> None:
        i32 = int_type(32)
        for kind, *rest in statements:
            b = DeviceBuilder(point, ir.Location.unknown())
            if kind == "read":
                values[rest[1]] = self._registers.read(b, i32, self.address(b, rest[0]), 4)
            elif kind == "write":
                twice = b.binary("muli", values[rest[2]], b.i32(3))
                made = b.binary("addi", b.binary("addi", values[rest[1]], twice), b.i32(rest[0] + 1))
                self._registers.write(b, made, self.address(b, rest[0]), 4)
            elif kind == "if":
                bit = b.binary("andi", b.binary("shrui", self._flags, b.i32(rest[0])), b.i32(1))
                for branch, body in zip(b.if_else(b.compare("ne", bit, b.i32(0))), rest[1:], strict=True):
                    self.block(branch.point, body, dict(values))
            else:
                inner, _ = b.for_(b.i32(0), b.i32(2), b.i32(1))
                self.block(inner.point, rest[0], dict(values))

    def end(self, b: DeviceBuilder, out: ir.Value) -> None:
        for register in range(REGISTERS):
            value = self._registers.read(b, int_type(32), self.address(b, register), 4)
            b.store(value, b.gep(out, int_type(32), register), 4)
        self._registers.end()


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    statements = Program(seed).statements
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        entry = function(module, "f", [int_type(32), ptr_type()], []).regions[0].blocks[0]
        b = DeviceBuilder(ir.InsertionPoint(entry), ir.Location.unknown())
        array = b.alloca(int_type(8), 4 * REGISTERS, 4)
        start = b.i32(5)
        back = b.op("func.return")
        emitter = Emitter(entry.arguments[0], array)
        point = ir.InsertionPoint(back)
        first = [("write", register, 0, 0) for register in range(REGISTERS)]
        emitter.block(point, [*first, *statements], {0: start})
        emitter.end(DeviceBuilder(point, ir.Location.unknown()), entry.arguments[1])
        module.operation.verify()
        text = lower_library(module, "registers", ("f",))
    library = jit.Library(jit.emit_object(jit.optimize(text, 1), 1), ("f",))
    call = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p)(library.addresses["f"])
    for flags in range(0, 256, 15):
        out = (ctypes.c_uint32 * REGISTERS)()
        call(flags, ctypes.addressof(out))
        memory = [0] * REGISTERS
        run([*first, *statements], flags, memory, {0: 5})
        assert list(out) == memory
