"""WGMMA: asynchronous MMAs of a warpgroup, whose operands the tensor cores read from shared memory.

A warpgroup is four warps, the first of which has a number that is a multiple of four. All its threads execute these
operations together.
"""

from typing import Any

from ...hardware import mma_shapes
from ...hardware.engines import WGMMA
from ...hardware.features import WARPGROUP_MMA
from ...mlir import ir
from ...ptx import mma
from ..cute import info
from ..declaration import PURE, Alias, Build, Operand, OptionalAttr, Result, attributes
from ..definition import I1, I64, Pointer, one_of
from .dialect import CuteNvgpu, wrong_space

Major: Any = one_of("k", "mn")
SWIZZLES = {"none": 0, "128b": 1, "64b": 2, "32b": 3}
"""The swizzles of operands in shared memory, and their numbers in descriptors."""
_ACCUMULATORS = {"f32": "f32", "f16": "f16", "i32": "s32"}


class MatrixDescriptor(
    CuteNvgpu.Operation, name="matrix_descriptor", traits=PURE, alias=Alias("pointer", "descriptor")
):
    """Return the descriptor (i64) of an operand in shared memory.

    Bits 0 to 13 are the address, 16 to 29 `leading` and 32 to 45 `stride` (the distance from one block of the
    canonical layout to the next), all in units of 16 bytes; bits 62 and 63 are the number of `swizzle`. Adding n moves
    the operand by 16 n bytes.
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


matrix_descriptor: Build = MatrixDescriptor.build


class Wgmma(CuteNvgpu.Operation, name="wgmma", reads=("a", "b", "d"), writes="d", engine=WGMMA, converged="warpgroup"):
    """Issue D = A B + D of a warpgroup, or D = A B if `accumulate` is false: A is 64 x `k`, B `k` x `n`, D 64 x `n`.

    `d` points to a thread's `n` / 2 elements of D in registers, one after the other: f32, f16 or i32, distributed as
    PTX's `wgmma` says. `a` is a descriptor (`matrix_descriptor`), or points to a thread's `k` / 2 elements of A in
    registers; `b` is a descriptor. Until a `wgmma_wait` that covers its group, the registers must not be accessed, nor
    the shared memory it reads be written. `a_major` and `b_major` are the contiguous modes of operands in shared
    memory ("mn": 16-bit elements only). `hardware/mma_shapes.py` lists which shapes and types go together.
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
        element = str(info(self.d.type).element)
        shape = (64, self.n, self.k)
        a_type = self.a_type
        b_type = self.b_type
        if element not in _ACCUMULATORS:
            return f"has an accumulator of {element}: {', '.join(_ACCUMULATORS)}"
        if rule := mma_shapes.refusal("wgmma", shape, a_type, b_type, _ACCUMULATORS[element]):
            return rule
        in_registers = str(self.a.type) != "i64"
        for what, element, major in (("A", a_type, self.a_major), ("B", b_type, self.b_major)):
            if major == "mn" and not mma_shapes.takes_mn_major("wgmma", element):
                return f"has {what} of {element} contiguous along {'MN'[what == 'B']}: only 16-bit elements are"
        if in_registers and self.a_major == "mn":
            return "has A in registers contiguous along M: in registers it is along K"
        return wrong_space(self.d, "accumulator", "rmem") or (wrong_space(self.a, "A", "rmem") if in_registers else "")


wgmma: Build = Wgmma.build


class WgmmaFence(
    CuteNvgpu.Operation,
    name="wgmma_fence",
    ptx=mma.WGMMA_FENCE,
    feature=WARPGROUP_MMA,
    orders="accesses",
    converged="warpgroup",
):
    """Order register accesses before later WGMMAs. Between WGMMAs that accumulate into the same D none is needed."""


wgmma_fence: Build = WgmmaFence.build


class WgmmaCommit(
    CuteNvgpu.Operation,
    name="wgmma_commit",
    ptx=mma.WGMMA_COMMIT,
    feature=WARPGROUP_MMA,
    commits=(WGMMA,),
    converged="warpgroup",
):
    """Commit the warpgroup's WGMMAs since the last commit as a group."""


wgmma_commit: Build = WgmmaCommit.build


class WgmmaWait(
    CuteNvgpu.Operation,
    name="wgmma_wait",
    ptx=mma.WGMMA_WAIT,
    feature=WARPGROUP_MMA,
    awaits=(WGMMA,),
    converged="warpgroup",
    waits=True,
):
    """Wait until at most `count` of the warpgroup's latest groups are pending."""

    count: ir.IntegerAttr

    def check(self) -> str:
        count = self.count
        return "" if 0 <= count <= 7 else f"leaves {count} groups: 0 to 7"


wgmma_wait: Build = WgmmaWait.build


class HoldRegisters(CuteNvgpu.Operation, name="hold_registers", stays="computations stay on its side"):
    """Keep computations of `count` elements in registers before it, and computations with them after it.

    The NVIDIA target adds it before `wgmma_fence` and after `wgmma_wait`, which order registers: LLVM sees only
    values, and would move computations across.
    """

    pointer: Operand[Pointer]
    count: ir.IntegerAttr
    registers: OptionalAttr[ir.StringAttr]

    def check(self) -> str:
        return wrong_space(self.pointer, "elements", "rmem")


def hold_registers(pointer: ir.Value, count: int, name: str, point: ir.InsertionPoint, location: ir.Location) -> None:
    """Add a `hold_registers` at `point`; registers with a name are copied."""
    attrs = attributes(count=count, registers=name or None)
    ir.Operation.create("cute_nvgpu.hold_registers", (), (pointer,), attrs, None, 0, location, point)
