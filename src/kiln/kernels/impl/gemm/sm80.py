"""GEMM on the tensor cores of every GPU since sm_80 (`mma.sync`).

Shared memory is swizzled, so that neither the copies in nor the loads out have bank conflicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float16, Float32, Int32, TFloat32, Uint16, cute
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp
from ....utils.tiles import swizzled
from ...parts.fp8 import widened
from .problem import FLOATS8
from .sm80_config import instruction_k
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

_PAIR_BYTES = 0x6420, 0x7531
"""`prmt` selectors of the first, and of the second, bytes of the four pairs in two words."""


class Sm80GemmKernel(MultistageGemmKernel):
    """The kernel for operands of some types; f32 is rounded to TF32."""

    def fragments(self, side: int) -> OperandFragments:
        return OperandFragments(self.b if side else self.a, side, self.config)

    def mma(self, fragments: tuple[OperandFragments, OperandFragments], half: bool) -> cute.TiledMma:
        dtype = Float16 if half else self.a.dtype
        if dtype in (Float16, BFloat16):
            op: Any = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
        elif dtype is Float32:
            op = warp.MmaTF32Op((16, 8, 8))
        elif dtype in FLOATS8:
            op = warp.MmaFP8Op(dtype, Float32, (16, 8, 32), b_dtype=self.b.dtype)
        else:
            op = warp.MmaI8Op(dtype, self.b.dtype, Int32, (16, 8, 32))
        order = (fragments[0].row_order(), fragments[1].row_order(), instruction_k(dtype))
        return cute.make_tiled_mma(op, (*self.config.warp_layout_mn, 1), order)


class OperandFragments:
    """Fragments of A (`side` 0) or B (1) of a thread, from shared memory to the registers of an MMA.

    Where K is contiguous, and for 16-bit elements, `ldmatrix` gives fragments as they are. 8-bit elements whose K is
    not contiguous are read as pairs, 16-bit elements of transposed matrices: a lane gets two neighbours in M or N at
    each of its k, and a byte permutation makes two registers of them. So neighbours belong to the rows g and g + 8 of
    an instruction, or to the columns g of two instructions, which `row_order` tells the tiled MMA. 32-bit elements are
    read one by one, and rounded. 8-bit floats may become f16: a register of four neighbours in K is two registers of an
    instruction of half the K.
    """

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, side: int, config: Sm80GemmConfig) -> None:
        self.operand = operand
        self.side = side
        self.warp_layout_mn: tuple[int, int] = config.warp_layout_mn
        self.shape: tuple[int, int, int] = (config.tile_shape_mnk[side], config.tile_shape_mnk[2], config.stages)
        self.in_pairs: bool = operand.dtype.width == 8 and not operand.k_major

    def row_order(self) -> Any:
        """Return how rows of A, or columns of B, are dealt to the warps: 16 to each at a time."""
        warps = self.warp_layout_mn[self.side]
        if not self.in_pairs:
            return 16 * warps  # four matrices of B are loaded at a time
        shape, stride = ((8, warps, 2), (2, 16, 1)) if self.side else ((8, 2, warps), (2, 1, 16))
        return cute.make_layout(shape, stride=stride)

    def stage_layout(self, dtype: Any = None) -> cute.ComposedLayout:
        """Return the smem layout (rows, K, stages)."""
        dtype = dtype or self.operand.dtype
        rows, *others = self.shape
        rows = rows * self.operand.dtype.width // dtype.width
        return swizzled(dtype, (rows, *others), int(self.operand.k_major), self.in_pairs)

    def stage_bytes(self) -> int:
        """Return the shared memory of all stages."""
        return cute.cosize(self.stage_layout()) * self.operand.dtype.width // 8

    def start(self, mma: cute.TiledMma, stages: cute.Tensor, thread: Int32) -> int:
        """Allocate the fragments of a K tile, and return how many steps of an instruction it has."""
        part = mma.get_slice(thread)
        if self.side:
            self.fragment = mma.make_fragment_B(part.partition_B(stages[None, None, 0]))
        else:
            self.fragment = mma.make_fragment_A(part.partition_A(stages[None, None, 0]))
        steps = cute.size(self.fragment, mode=[2])
        if self.in_pairs:
            self.copy = self._pair_copy().get_slice(thread)
            pairs = cute.make_tensor(cute.recast_ptr(stages.iterator, dtype=Uint16), self.stage_layout(Uint16))
            self.source = self.copy.partition_S(pairs)
            self.registers = cute.make_rmem_tensor((8, cute.size(self.source, mode=[1]), steps), Uint16)
            return steps
        make = cute.make_tiled_copy_B if self.side else cute.make_tiled_copy_A
        self.copy = make(self._atom(), mma).get_slice(thread)
        self.source = self.copy.partition_S(stages)
        self.registers = self.copy.retile(self.fragment)
        return steps

    def load(self, step: int, stage: Int32 | int) -> None:
        """Load the fragments of a step from a stage."""
        cute.copy(self.copy, self.source[None, None, step, stage], self.registers[None, None, step])

    def taken(self, step: int) -> list[cute.Tensor]:
        """Return the MMA operands of a step, one instruction in K after the other."""
        fragment = self.fragment[None, None, step]
        if self.in_pairs:
            fragment = self._unpaired(fragment, step)
        if self.operand.half:
            return [self._half(fragment, number) for number in range(2)]
        if fragment.element_type is not Float32:
            return [fragment]
        rounded = cute.make_rmem_tensor(fragment.shape, TFloat32)  # to nearest; the tensor cores would truncate
        rounded.store(fragment.load().to(TFloat32))
        return [rounded]

    def _atom(self) -> cute.CopyAtom:
        dtype = self.operand.dtype
        bits = self.operand.dtype.width
        if self.operand.k_major:
            op = warp.LdMatrix8x16x8bOp(False, 4) if bits == 8 else warp.LdMatrix8x8x16bOp(False, 4)
            return cute.make_copy_atom(op, dtype)
        if bits == 16:
            return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), dtype)
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits)

    def _pair_copy(self) -> Any:
        """Return the copy that gives lane (t, g) pair g at k = 4 t to 4 t + 3, and at the same k 16 further on."""
        row = 8 * self.warp_layout_mn[self.side]  # from a k to the next
        warps = (0, 8) if self.side else (8, 0)
        layout = cute.make_layout(
            ((4, 8, *self.warp_layout_mn), (2, 2, 2)), stride=((4 * row, 1, *warps), (row, 2 * row, 16 * row))
        )
        atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), Uint16)
        return cute.make_tiled_copy(atom, layout, (row, instruction_k(self.operand.dtype)))

    def _unpaired(self, fragment: Any, step: int) -> Any:
        """Return the MMA operand of pairs."""
        operand = cute.make_rmem_tensor(fragment.shape, self.operand.dtype)
        words = cute.recast_tensor(operand, Int32)  # of A: (2 rows, 2 K), blocks; of B: 2 K, (2 columns, blocks)
        pairs = cute.recast_tensor(self.registers[None, None, step], Int32)  # (2, 2 K), blocks
        for block in range(cute.size(pairs, mode=[1])):
            for half in range(2):
                low = pairs[2 * half, block]
                high = pairs[2 * half + 1, block]
                for byte, selector in enumerate(_PAIR_BYTES):
                    number = half + 2 * (byte + 2 * block) if self.side else byte + 2 * half + 4 * block
                    words[number] = arch.prmt(low, high, selector)
        return operand

    def _half(self, fragment: Any, number: int) -> Any:
        """Return one half of K of a fragment of 8-bit floats, as f16."""
        rows = 1 if self.side else 2  # registers for as many rows 8 apart
        operand = cute.make_rmem_tensor(((2,) * (rows + 1), fragment.shape[1]), Float16)
        words = cute.recast_tensor(operand, Int32)
        bytes_ = cute.recast_tensor(fragment, Int32)
        for block in range(cute.size(fragment, mode=[1])):
            for row in range(rows):
                both = widened(bytes_[row + rows * number + 2 * rows * block], self.operand.dtype)
                for half in range(2):
                    words[row + rows * half + 2 * rows * block] = both[half]
        return operand
