"""GEMMs of the Hopper backward kernels for head_dim over 128."""

from __future__ import annotations

from typing import Any

from ..... import Float32, cute
from .....cute.nvgpu import warp, warpgroup
from .....utils import sm90
from ....parts.rematerialize import rematerialized_operand
from .sm90_config import WARPGROUP_ROWS
from .sm90_tiles import transposed

_K, _MN = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN


class ScoreMma:
    """A GEMM of 64 rows (row, element) of a tile with the rows of another: S or dP.

    The first `dims_in_regs` elements of the A operand are kept in registers: less smem traffic.
    """

    def __init__(self, dtype: Any, thread: Any, tile: Any, columns: int, dims_in_regs: int) -> None:
        def make(*source: Any) -> Any:
            return sm90.make_trivial_tiled_mma(
                dtype, dtype, _K, _K, Float32, (1, 1, 1), (WARPGROUP_ROWS, columns), *source
            )

        self.mma, self.mma_regs = make(), make(warpgroup.OperandSource.RMEM)
        self.a = self.mma.make_fragment_A(self.mma.get_slice(thread).partition_A(tile))
        self.blocks_in_regs = min(dims_in_regs, cute.size(tile, mode=[1])) // 16
        if self.blocks_in_regs:
            atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), dtype)
            load = cute.make_tiled_copy_A(atom, self.mma_regs)
            loader = load.get_slice(thread)
            first = cute.local_tile(tile, (WARPGROUP_ROWS, 16 * self.blocks_in_regs), (0, 0))
            self.a_regs = cute.make_rmem_tensor(((2, 2, 2), 1, self.blocks_in_regs), dtype)
            cute.copy(load, loader.partition_S(first), loader.retile(self.a_regs))

    def b_operand(self, thread: Any, stages: Any) -> Any:
        """Return stages (row, element, stage) as B operands."""
        return self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(stages))

    def accumulator(self, columns: int) -> Any:
        """Return an accumulator."""
        return cute.make_rmem_tensor(self.mma.partition_shape_C((WARPGROUP_ROWS, columns)), Float32)

    def issue(self, acc: Any, b: Any, stage: Any) -> None:
        """Issue the GEMM."""
        blocks = cute.size(self.a, mode=[2])
        smem_a = rematerialized_operand(self.a) if self.blocks_in_regs < blocks else self.a
        for k in range(blocks):
            mma, a = (self.mma_regs, self.a_regs) if k < self.blocks_in_regs else (self.mma, smem_a)
            mma.set(warpgroup.Field.ACCUMULATE, k > 0)
            cute.gemm(mma, acc, a[None, None, k], b[None, None, k, stage], acc)
        warpgroup.commit_group()


class GradientMma:
    """A GEMM that accumulates a gradient: an A operand of `columns` columns in registers, P or dS, times stages (row,
    element, stage)."""

    def __init__(self, dtype: Any, thread: Any, stages: Any, columns: int) -> None:
        head_dim = cute.size(stages, mode=[1])
        self.mma = sm90.make_trivial_tiled_mma(
            dtype, dtype, _K, _MN, Float32, (1, 1, 1), (WARPGROUP_ROWS, head_dim), warpgroup.OperandSource.RMEM
        )
        self.b = self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(transposed(stages)))
        self.acc = cute.make_rmem_tensor(self.mma.partition_shape_C((WARPGROUP_ROWS, head_dim)), Float32)
        self.a = cute.make_rmem_tensor(((2, 2, 2), 1, columns // 16), dtype)
        self.acc.fill(0.0)
        self.a.fill(0.0)  # what a step computes is multiplied in the next one; before the first there is nothing

    def issue(self, stage: Any) -> None:
        """Issue the GEMM."""
        self.mma.set(warpgroup.Field.ACCUMULATE, True)
        for k in range(cute.size(self.a, mode=[2])):
            cute.gemm(self.mma, self.acc, self.a[None, None, k], self.b[None, None, k, stage], self.acc)
        warpgroup.commit_group()
