"""Tensor cores of a warpgroup: asynchronous products whose operands the hardware reads from shared memory.

A warpgroup is four warps, the first of which has a number that is a multiple of four. All its threads execute these
operations
together.
"""

from typing import Any

from ...base_dsl.trace import emit, emit_value
from ...hardware import mma_shapes
from ...mlir import ir
from ..cute import info
from ..declaration import PURE, Operand, OptionalAttr, Result
from ..definition import I1, I64, Pointer, attributes, int_type, one_of
from .dialect import CuteNvgpu, wrong_space

Major = one_of("k", "mn")
SWIZZLES = {"none": 0, "128b": 1, "64b": 2, "32b": 3}
"""How operands lie in shared memory, and the numbers descriptors have for it."""
_ACCUMULATORS = {"f32": "f32", "f16": "f16", "i32": "s32"}


class MatrixDescriptor(CuteNvgpu.Operation, name="matrix_descriptor", traits=PURE):
    """The descriptor of an operand in shared memory: an i64.

    Bits 0 to 13 are the address in 16 bytes, 16 to 29 `leading` and 32 to 45 `stride` (bytes from one block of the canonical layout to the next, in 16 bytes),
    62 and 63 the number of `swizzle`. Adding to it moves the operand by so many times 16 bytes.
    """

    pointer: Operand[Pointer]
    result: Result[I64]
    leading: ir.IntegerAttr
    stride: ir.IntegerAttr
    swizzle: one_of(*SWIZZLES)

    def check(self) -> str:
        for name, size in (("leading", self.leading), ("stride", self.stride)):
            if size % 16 or not 0 <= size < 1 << 18:
                return f"has {name}={size}: a multiple of 16 below {1 << 18}"
        return wrong_space(self.pointer, "operand", "smem")


def matrix_descriptor(pointer: ir.Value, leading: int, stride: int, swizzle: str) -> ir.Value:
    """Return the descriptor of an operand; `leading` and `stride` are bytes."""
    attrs = attributes(leading=leading, stride=stride, swizzle=swizzle)
    return emit_value("cute_nvgpu.matrix_descriptor", int_type(64), (pointer,), attrs)


class Wgmma(CuteNvgpu.Operation, name="wgmma"):
    """D = A B + D of a warpgroup, or D = A B if `accumulate` is false, later: A is 64 x `k`, B `k` x `n`, D 64 x `n`.

    `d` points to a thread's `n` / 2 elements of D in registers, one after the other: f32, f16 or i32, as PTX's `wgmma` spreads them. `a` is
    a descriptor (`matrix_descriptor`), or points to a thread's `k` / 2 elements of A in registers; `b` is a descriptor. From here until a `wgmma_wait` that covers its group nobody touches
    the registers, nor writes the shared memory it reads. `a_major` and `b_major`: along which mode an operand in shared memory is contiguous ("mn": 16-bit elements
    only). `hardware/mma_shapes.py` lists which shapes and types go together.
    """

    d: Operand[Pointer]
    a: Operand[Any]
    b: Operand[I64]
    accumulate: Operand[I1]
    n: ir.IntegerAttr
    k: ir.IntegerAttr
    a_type: ir.StringAttr
    b_type: ir.StringAttr
    a_major: Major
    b_major: Major
    with_next: OptionalAttr[ir.BoolAttr]
    registers: OptionalAttr[ir.StringAttr]
    first_register: OptionalAttr[ir.IntegerAttr]

    def check(self) -> str:
        element, shape = str(info(self.d.type).element), (64, self.n, self.k)
        a_type, b_type = self.a_type, self.b_type
        if element not in _ACCUMULATORS:
            return f"has an accumulator of {element}: {', '.join(_ACCUMULATORS)}"
        if rule := mma_shapes.refusal("wgmma", shape, a_type, b_type, _ACCUMULATORS[element]):
            return rule
        in_registers = str(self.a.type) != "i64"
        for what, element, major in (("A", a_type, self.a_major), ("B", b_type, self.b_major)):
            if major == "mn" and mma_shapes.BITS[element] != 16:
                return f"has {what} of {element} contiguous along {'MN'[what == 'B']}: only 16-bit elements are"
        if in_registers and self.a_major == "mn":
            return "has A in registers contiguous along M: in registers it is along K"
        return wrong_space(self.d, "accumulator", "rmem") or (wrong_space(self.a, "A", "rmem") if in_registers else "")


def wgmma(
    d: ir.Value, a: ir.Value, b: ir.Value, accumulate: ir.Value, *, n: int, k: int, a_type: str, b_type: str, a_major: str = "k",
    b_major: str = "k",
) -> None:  # fmt: skip
    """Multiply later; types have the names they have in PTX."""
    attrs = attributes(n=n, k=k, a_type=a_type, b_type=b_type, a_major=a_major, b_major=b_major)
    emit("cute_nvgpu.wgmma", (), (d, a, b, accumulate), attrs)


class WgmmaFence(CuteNvgpu.Operation, name="wgmma_fence"):
    """Products after it see what was done to registers before it. Between products that add to the same D none is needed."""


def wgmma_fence() -> None:
    """Order registers before products."""
    emit("cute_nvgpu.wgmma_fence")


class WgmmaCommit(CuteNvgpu.Operation, name="wgmma_commit"):
    """The warpgroup's products since the last one become a group."""


def wgmma_commit() -> None:
    """Make a group of products."""
    emit("cute_nvgpu.wgmma_commit")


class WgmmaWait(CuteNvgpu.Operation, name="wgmma_wait"):
    """Wait until at most `count` of the warpgroup's latest groups are not complete."""

    count: ir.IntegerAttr

    def check(self) -> str:
        count = self.count
        return "" if 0 <= count <= 7 else f"leaves {count} groups: 0 to 7"


def wgmma_wait(count: int) -> None:
    """Wait for all groups but the latest `count`."""
    emit("cute_nvgpu.wgmma_wait", (), (), attributes(count=count))


class HoldRegisters(CuteNvgpu.Operation, name="hold_registers"):
    """What `count` elements in registers are is computed before it, and what is computed of them is computed after it.

    The NVIDIA target makes it before `wgmma_fence` and after `wgmma_wait`, which order registers: LLVM knows only values, and would move
    what computes or uses them across.
    """

    pointer: Operand[Pointer]
    count: ir.IntegerAttr
    registers: OptionalAttr[ir.StringAttr]

    def check(self) -> str:
        return wrong_space(self.pointer, "elements", "rmem")


def hold_registers(pointer: ir.Value, count: int, name: str, point: ir.InsertionPoint, location: ir.Location) -> None:
    """Keep computations of registers where they are. Those with a name are copied."""
    attrs = attributes(count=count, registers=name or None)
    ir.Operation.create("cute_nvgpu.hold_registers", (), (pointer,), attrs, None, 0, location, point)
