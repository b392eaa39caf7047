"""Products of warp groups: descriptors, and instructions whose registers are those that LLVM gives to a thread's memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ....dialects import cute
from ....dialects.definition import constant
from ....dialects.nvgpu.wgmma import FIRST, REGISTERS, SWIZZLES, WITH_NEXT
from ....hardware import mma_shapes
from ....mlir import ir
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers, Types
from ...lowering.memory import private_address
from ..device_builder import DeviceBuilder, f32, shared_address

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()

_LETTERS = {"f32": "f", "i32": "r"}
_SUMS = {"i32": "s32"}


@HANDLERS.expands("cute_nvgpu.matrix_descriptor")
def _matrix_descriptor(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, mma_shapes.WARP_GROUP_MMA)
    leading, stride = (op.attributes[name].value >> 4 for name in ("leading", "stride"))
    address = b.binary("shrui", shared_address(b, op.operands[0]), b.i32(4))
    low = b.binary("ori", b.binary("andi", address, b.i32(0x3FFF)), b.i32(leading << 16))
    high = (stride | SWIZZLES[op.attributes["swizzle"].value] << 30) << 32
    return [b.binary("ori", b.value("arith.extui", int_type(64), (low,)), b.i64(high))]


# --- registers -------------------------------------------------------------------------------------------------------


class _Registers:
    """Elements of a thread's memory as registers of 32 bits: f32 and i32 as they are, smaller ones together in an i32."""

    def __init__(self, x: Expander, b: DeviceBuilder, pointer: ir.Value, element: ir.Type, count: int) -> None:
        self._x, self._b = x, b
        self.type = f32() if isinstance(element, (ir.F32Type, ir.FloatTF32Type)) else int_type(32)
        self.count = count
        self._places = [private_address(x, pointer, int_type(32), number) for number in range(count)]

    def read(self) -> list[ir.Value]:
        return [self._x.registers.read(self._b, self.type, place, 4) for place in self._places]

    def write(self, values: list[ir.Value]) -> None:
        for value, place in zip(values, self._places, strict=True):
            self._x.registers.write(self._b, value, place, 4)


@HANDLERS.expands("cute_nvgpu.hold_registers")
def _hold_registers(x: Expander, op: ir.Operation, operands: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    element = cute.info(operands[0]).element
    held = _Registers(x, b, op.operands[0], element, op.attributes["count"].value * cute.element_bits(element) // 32)
    letter, types = _LETTERS[str(held.type)], [held.type] * held.count
    if REGISTERS in op.attributes:
        held.write(b.asm(*_copies(op.attributes[REGISTERS].value, letter, held.count), [], types))
    else:
        held.write(b.asm("", _tied(letter * held.count), held.read(), types))
    return []


@functools.lru_cache(maxsize=64)
def _copies(name: str, letter: str, count: int) -> tuple[str, str]:
    """Code that copies registers with a name, and its constraints."""
    return " ".join(f"mov.b32 ${n}, {name}{n};" for n in range(count)), ",".join([f"={letter}"] * count)


@functools.lru_cache(maxsize=256)
def _tied(letters: str) -> str:
    """Constraints of registers that go in and come out."""
    return ",".join([f"={letter}" for letter in letters] + [str(n) for n in range(len(letters))])


# --- products --------------------------------------------------------------------------------------------------------


@HANDLERS.expands("cute_nvgpu.wgmma")
def _wgmma(x: Expander, op: ir.Operation, operands: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, mma_shapes.WARP_GROUP_MMA)
    d, a, second, accumulate = op.operands
    n, k = (op.attributes[name].value for name in "nk")
    left, right, a_major, b_major = (op.attributes[name].value for name in ("a_type", "b_type", "a_major", "b_major"))
    element = cute.info(operands[0]).element
    given = [a]
    if in_registers := cute.is_ptr(operands[1]):
        words = _Registers(x, b, a, cute.info(operands[1]).element, 4)
        given = [_as_word(b, value) for value in words.read()]
    always = constant(accumulate)
    flag = [] if always is not None else [b.value("arith.extui", int_type(32), (accumulate,))]
    name = str(element)
    named = (op.attributes[REGISTERS].value, op.attributes[FIRST].value) if REGISTERS in op.attributes else None
    x.products.append((
        named or (d, element),
        (n, k, _SUMS.get(name, name), left, right, a_major, b_major, in_registers, None if always is None else bool(always)),
        n // 2 * cute.element_bits(element) // 32,
        [*given, second, *flag],
    ))  # fmt: skip
    if WITH_NEXT not in op.attributes:
        _issue(x, b)
    return []


def _issue(x: Expander, b: DeviceBuilder) -> None:
    """Products that follow each other as one piece of code; the sums of each are the same as those of another, or apart from them."""
    x.module.multiplies = True
    values: list[ir.Value] = []
    found: dict[tuple[ir.Value, int], tuple[int, _Registers]] = {}
    """Sums without names, by pointer and count: the first register, and their memory."""
    for sums, form, count, _ in x.products:
        if isinstance(sums[0], str) or (sums[0], count) in found:
            continue
        registers = _Registers(x, b, sums[0], sums[1], count)
        found[sums[0], count] = len(values), registers
        # what is not added to need not be kept until then
        values += registers.read() if form[-1] is not False else [b.value("llvm.mlir.undef", registers.type)] * count
    types = [registers.type for _, registers in found.values() for _ in range(registers.count)]
    codes: list[str] = []
    constraints = [_tied("".join(_LETTERS[str(type_)] for type_ in types))]
    for sums, form, count, given in x.products:
        name, start = sums if isinstance(sums[0], str) else ("$", found[sums[0], count][0])
        code, letters = _wgmma_text(*form, name, start, count, len(types) + len(values))
        codes.append(code)
        constraints.append(letters)
        values += given
    x.products.clear()
    made = b.asm(" ".join(codes), ",".join(filter(None, constraints)), values, types)
    for start, registers in found.values():
        registers.write(made[start : start + registers.count])


def _as_word(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    return value if value.type == int_type(32) else b.value("llvm.bitcast", int_type(32), (value,))


@functools.lru_cache(maxsize=1024)
def _wgmma_text(
    n: int, k: int, sums: str, left: str, right: str, a_major: str, b_major: str, in_registers: bool, always: bool | None, name: str,
    start: int, count: int, place: int,
) -> tuple[str, str]:  # fmt: skip
    """The instruction, and the constraints of what it is given besides its sums: these are `count` registers from `start` on, the others begin at `place`."""
    registers = ", ".join(f"{name}{i}" for i in range(start, start + count))
    if in_registers:
        first, letters = "{" + ", ".join(f"${place + i}" for i in range(4)) + "}", ["r"] * 4
    else:
        first, letters = f"${place}", ["l"]
    place += len(letters)
    flag = int(always) if always is not None else f"${place + 1}"
    majors = ""
    if mma_shapes.BITS[left] == 16:
        transposed = [int(major == "mn") for major in ((b_major,) if in_registers else (a_major, b_major))]
        majors = "".join(f", {number}" for number in transposed)
    scales = "" if sums == "s32" else ", 1, 1"
    code = (
        f"{{ .reg .pred p; setp.ne.b32 p, {flag}, 0; wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{left}.{right} "
        f"{{{registers}}}, {first}, ${place}, p{scales}{majors}; }}"
    )
    return code, ",".join([*letters, "l", *(["r"] if always is None else [])])


@HANDLERS.expands("cute_nvgpu.wgmma_fence", "cute_nvgpu.wgmma_commit")
def _order(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, mma_shapes.WARP_GROUP_MMA)
    kind = {"cute_nvgpu.wgmma_fence": "fence", "cute_nvgpu.wgmma_commit": "commit_group"}[op.name]
    b.asm(f"wgmma.{kind}.sync.aligned;", "")
    return []


@HANDLERS.expands("cute_nvgpu.wgmma_wait")
def _wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, mma_shapes.WARP_GROUP_MMA)
    b.asm(f"wgmma.wait_group.sync.aligned {op.attributes['count'].value};", "")
    return []
