"""GEMM in f32 as IEEE rounds it, without tensor cores.

A thread has accumulators at 4 x 4 neighbours, repeated over the tile. Tiles of A and B lie in shared memory with M and
N contiguous, so that four neighbours are one access; the copies in transpose operands whose K is contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import MmaUniversalOp
from .operand_copies import OperandCopy
from .sm80_config import SIMT_VECTOR, SIMT_WARP
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .... import Int32
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

_K_LANES = 8
"""Threads that copy along K together: 32 bytes of gmem, and no bank conflicts in smem, whose rows are padded."""


class SimtGemmKernel(MultistageGemmKernel):
    """The f32 kernel for operands of some layouts."""

    def min_ctas_per_sm(self) -> int:
        """Two CTAs hide each other's latency, if accumulators are at most half of a thread's registers then."""
        m, n, _ = self.config.tile_shape_mnk
        return 2 if self.config.threads <= 256 and m * n // self.config.threads <= 64 else 1

    def fragments(self, side: int) -> SimtFragments:
        return SimtFragments(side, self.config)

    def mma(self, fragments: tuple[SimtFragments, SimtFragments], half: bool) -> cute.TiledMma:
        """Return the tiled MMA: warps of 8 x 4 threads, with four neighbours in M and in N each."""
        lanes_m, lanes_n = SIMT_WARP
        warps_m, warps_n = self.config.warp_layout_mn
        threads_m = lanes_m * warps_m
        threads_n = lanes_n * warps_n
        vector = SIMT_VECTOR
        atoms = cute.make_layout(
            ((lanes_m, warps_m), (lanes_n, warps_n), 1), stride=((lanes_n, 32), (1, 32 * warps_m), 0)
        )
        order_m = cute.make_layout((threads_m, vector), stride=(vector, 1))
        order_n = cute.make_layout((threads_n, vector), stride=(vector, 1))
        return cute.make_tiled_mma(MmaUniversalOp(Float32), atoms, (order_m, order_n, None))

    def operand_copy(self, operand: Operand, rows: int) -> OperandCopy:
        if not operand.k_major:
            return super().operand_copy(operand, rows)
        tile_k = self.config.tile_shape_mnk[2]
        return OperandCopy(operand, 1, rows, tile_k, self.config.threads, min(_K_LANES, tile_k))


class SimtFragments:
    """Fragments of A (`side` 0) or B (1) of a thread: of a step in K, and of the next."""

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, side: int, config: Sm80GemmConfig) -> None:
        self.side = side
        self.shape: tuple[int, int, int] = (config.tile_shape_mnk[side], config.tile_shape_mnk[2], config.stages)

    def stage_layout(self) -> cute.Layout:
        """Return the smem layout (rows, K, stages), rows contiguous."""
        rows, tile_k, stages = self.shape
        row = rows + SIMT_VECTOR
        return cute.make_layout((rows, tile_k, stages), stride=(1, row, row * tile_k))

    def stage_bytes(self) -> int:
        """Return the shared memory of all stages."""
        rows, tile_k, stages = self.shape
        return 4 * (rows + SIMT_VECTOR) * tile_k * stages

    def start(self, mma: cute.TiledMma, stages: cute.Tensor, thread: Int32) -> int:
        """Allocate the fragments of two steps, and return how many steps a K tile has."""
        part = mma.get_slice(thread)
        self.source: Any = part.partition_B(stages) if self.side else part.partition_A(stages)  # (1, M or N, K, stage)
        self.fragment: cute.Tensor = cute.make_rmem_tensor((1, cute.size(self.source, mode=[1]), 2), Float32)
        return self.shape[1]

    def load(self, step: int, stage: Int32 | int) -> None:
        """Load the fragments of a step from a stage."""
        cute.autovec_copy(self.source[None, None, step, stage], self.fragment[None, None, step % 2])

    def taken(self, step: int) -> list[cute.Tensor]:
        """Return the operands of a step."""
        return [self.fragment[None, None, step % 2]]
