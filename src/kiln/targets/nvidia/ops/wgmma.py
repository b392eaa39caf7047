"""WGMMA: matrix descriptors, and instructions on the registers of register arrays."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ....dialects import cute, nvgpu
from ....dialects.definition import constant
from ....dialects.nvgpu.wgmma import SWIZZLES
from ....hardware import features, mma_shapes
from ....mlir import ir
from ....ptx import mma
from ....ptx.form import Form
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ...lowering.memory import private_address
from ..device_builder import DeviceBuilder, f32, shared_address
from ..expand import Expander

HANDLERS = Handlers()

_LETTERS = {"f32": "f", "i32": "r"}
_ACCUMULATORS = {"i32": "s32"}
"""Accumulator types that PTX spells differently."""


@HANDLERS.expands(nvgpu.wgmma.MatrixDescriptor)
def _matrix_descriptor(x: Expander, op: nvgpu.wgmma.MatrixDescriptor, b: DeviceBuilder) -> ir.Value:
    x.require(op, features.WARPGROUP_MMA)
    leading = op.leading >> 4
    stride = op.stride >> 4
    address = b.binary("shrui", shared_address(b, op.pointer), 4)
    low = b.binary("ori", b.binary("andi", address, 0x3FFF), leading << 16)
    high = (stride | SWIZZLES[op.swizzle] << 30) << 32
    return b.binary("ori", b.value("arith.extui", int_type(64), (low,)), high)


# --- registers -------------------------------------------------------------------------------------------------------


class _Registers:
    """A register array as 32-bit registers: f32 and i32 as they are, smaller elements packed in an i32."""

    def __init__(self, x: Expander, b: DeviceBuilder, pointer: ir.Value, element: ir.Type, count: int) -> None:
        self._x = x
        self._b = b
        self.type = f32() if isinstance(element, (ir.F32Type, ir.FloatTF32Type)) else int_type(32)
        self.count = count
        self._places = [private_address(x, pointer, int_type(32), number) for number in range(count)]

    def read(self) -> list[ir.Value]:
        return [self._x.registers.read(self._b, self.type, place, 4) for place in self._places]

    def write(self, values: list[ir.Value]) -> None:
        for value, place in zip(values, self._places, strict=True):
            self._x.registers.write(self._b, value, place, 4)


@HANDLERS.expands(nvgpu.wgmma.HoldRegisters, types=True)
def _hold_registers(x: Expander, op: nvgpu.wgmma.HoldRegisters, b: DeviceBuilder) -> None:
    element = cute.info(op.types.pointer).element
    held = _Registers(x, b, op.pointer, element, op.count * cute.element_bits(element) // 32)
    letter = _LETTERS[str(held.type)]
    types = [held.type] * held.count
    if op.registers:
        held.write(b.asm(*_copies(op.registers, letter, held.count), [], types))
    else:
        held.write(b.asm("", _tied(letter * held.count), held.read(), types))


@functools.lru_cache(maxsize=64)
def _copies(name: str, letter: str, count: int) -> tuple[str, str]:
    """Return code that copies named registers, and its constraints."""
    return " ".join(f"mov.b32 ${n}, {name}{n};" for n in range(count)), ",".join([f"={letter}"] * count)


@functools.lru_cache(maxsize=256)
def _tied(letters: str) -> str:
    """Return the constraints of registers that are both inputs and outputs."""
    return ",".join([f"={letter}" for letter in letters] + [str(n) for n in range(len(letters))])


# --- WGMMA --------------------------------------------------------------------------------------------------------


class PendingWgmma(NamedTuple):
    """A WGMMA that is emitted in one piece of inline PTX with the next one."""

    accumulator: Accumulator
    form: _Form
    operands: list[ir.Value]
    """A, B, and the flag whether to accumulate, if that is not known."""


class Accumulator(NamedTuple):
    """The accumulator of a WGMMA: `count` registers of `type`, in a register array or with a name."""

    count: int
    type: ir.Type
    pointer: ir.Value | None = None
    name: str = ""
    first: int = 0


class _Form(NamedTuple):
    """An instruction without its registers."""

    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    a_major: str
    b_major: str
    a_in_registers: bool
    accumulates: bool | None
    """None where a register says so."""

    @property
    def ptx(self) -> Form:
        """The form in PTX."""
        if mma_shapes.BITS[self.a_type] == 16:
            return mma.WGMMA_RMEM if self.a_in_registers else mma.WGMMA
        if self.d_type == "s32":
            return mma.WGMMA_BYTES_RMEM if self.a_in_registers else mma.WGMMA_BYTES
        return mma.WGMMA_K_MAJOR_RMEM if self.a_in_registers else mma.WGMMA_K_MAJOR


@HANDLERS.expands(nvgpu.wgmma.Wgmma, types=True)
def _wgmma(x: Expander, op: nvgpu.wgmma.Wgmma, b: DeviceBuilder) -> None:
    x.require(op, features.WARPGROUP_MMA)
    element = cute.info(op.types.d).element
    operands = [op.a]
    if a_in_registers := cute.is_ptr(op.types.a):
        words = _Registers(x, b, op.a, cute.info(op.types.a).element, 4)
        operands = [_as_word(b, value) for value in words.read()]
    constant_flag = constant(op.accumulate)
    flag = [] if constant_flag is not None else [b.value("arith.extui", int_type(32), (op.accumulate,))]
    d_type = _ACCUMULATORS.get(str(element), str(element))
    count = op.n // 2 * cute.element_bits(element) // 32
    if op.registers:
        accumulator = Accumulator(count, element, name=op.registers, first=op.first_register)
    else:
        accumulator = Accumulator(count, element, op.d)
    accumulates = None if constant_flag is None else bool(constant_flag)
    form = _Form(op.n, op.k, d_type, op.a_type, op.b_type, op.a_major, op.b_major, a_in_registers, accumulates)
    x.pending.append(PendingWgmma(accumulator, form, [*operands, op.b, *flag]))
    if not op.with_next:
        _issue(x, b)


def _issue(x: Expander, b: DeviceBuilder) -> None:
    """Emit consecutive WGMMAs as one piece of inline PTX; their accumulators are equal or disjoint."""
    values: list[ir.Value] = []
    memory: dict[tuple[ir.Value, int], tuple[int, _Registers]] = {}
    """The first register of accumulators without names, and their memory, by pointer and count."""
    for accumulator, form, _ in x.pending:
        key = accumulator.pointer, accumulator.count
        if accumulator.pointer is None or key in memory:
            continue
        registers = _Registers(x, b, accumulator.pointer, accumulator.type, accumulator.count)
        memory[accumulator.pointer, accumulator.count] = len(values), registers
        if form.accumulates is False:  # what the registers held need not be kept until then
            values += [b.value("llvm.mlir.undef", registers.type)] * accumulator.count
        else:
            values += registers.read()
    types = [registers.type for _, registers in memory.values() for _ in range(registers.count)]
    codes: list[str] = []
    constraints = [_tied("".join(_LETTERS[str(type_)] for type_ in types))]
    for accumulator, form, operands in x.pending:
        name = accumulator.name
        first = accumulator.first
        count = accumulator.count
        if accumulator.pointer is not None:
            name = "$"
            first = memory[accumulator.pointer, count][0]
        registers = tuple(f"{name}{i}" for i in range(first, first + count))
        code, letters = _wgmma_text(form, registers, len(types) + len(values))
        codes.append(code)
        constraints.append(letters)
        values += operands
    x.pending.clear()
    results = b.asm(" ".join(codes), ",".join(filter(None, constraints)), values, types)
    for start, registers in memory.values():
        registers.write(results[start : start + registers.count])


def _as_word(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    return value if value.type == int_type(32) else b.value("llvm.bitcast", int_type(32), (value,))


@functools.lru_cache(maxsize=1024)
def _wgmma_text(form: _Form, registers: tuple[str, ...], place: int) -> tuple[str, str]:
    """Return an instruction and the constraints of its operands, which are numbered from `place` on."""
    letters = ["r"] * 4 if form.a_in_registers else ["l"]
    a = [f"${place + number}" for number in range(len(letters))]
    place += len(letters)
    flag = int(form.accumulates) if form.accumulates is not None else f"${place + 1}"
    operands = {
        "d": registers,
        "a": a if form.a_in_registers else a[0],
        "b": f"${place}",
        "accumulate": "p",
        "scale_a": "1",
        "scale_b": "1",
        "a_major": int(form.a_major == "mn"),
        "b_major": int(form.b_major == "mn"),
    }
    code = f"{{ .reg .pred p; setp.ne.b32 p, {flag}, 0; {form.ptx.text(form._asdict() | operands)}; }}"
    return code, ",".join([*letters, "l", *(["r"] if form.accumulates is None else [])])
