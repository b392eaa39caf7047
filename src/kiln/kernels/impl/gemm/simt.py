"""Products in f32 as IEEE rounds it: each thread multiplies by itself, without tensor cores.

A thread has sums at 4 x 4 neighbours, repeated over the tile. Tiles of A and B lie in shared memory with M and N contiguous,
so that four neighbours are one access; operands whose K is contiguous are transposed by the copies that bring them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, cute
from ....cute.nvgpu import MmaUniversalOp
from .operand_copies import OperandCopy
from .sm80_config import SIMT_VECTOR, SIMT_WARP
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

_LANES = 8
"""Threads that copy along K together: 32 bytes of memory, and with rows a vector longer than the tile all banks."""


class SimtFragments:
    """One operand (`side` 0: A; 1: B) of a thread: what it takes of a step in K, and of the next."""

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, side: int, config: Sm80GemmConfig) -> None:
        self.side = side
        self.shape = (config.tile_shape_mnk[side], config.tile_shape_mnk[2], config.stages)

    def ring_layout(self) -> Any:
        """The ring of tiles (rows, K, stages), rows contiguous."""
        rows, depth, stages = self.shape
        row = rows + SIMT_VECTOR
        return cute.make_layout((rows, depth, stages), stride=(1, row, row * depth))

    def ring_bytes(self) -> int:
        """Shared memory of the ring."""
        rows, depth, stages = self.shape
        return 4 * (rows + SIMT_VECTOR) * depth * stages

    def start(self, mma: Any, ring: Any, thread: Any) -> int:
        """Make room for two steps; how many steps in K a tile has."""
        part = mma.get_slice(thread)
        self.source = part.partition_B(ring) if self.side else part.partition_A(ring)  # (1, M or N, K, stage)
        self.held = cute.make_rmem_tensor((1, cute.size(self.source, mode=[1]), 2), Float32)
        return self.shape[1]

    def load(self, step: int, stage: Any) -> None:
        """Load what a step in K takes of a buffer."""
        cute.autovec_copy(self.source[None, None, step, stage], self.held[None, None, step % 2])

    def taken(self, step: int) -> list[Any]:
        """What is multiplied in a step."""
        return [self.held[None, None, step % 2]]


class SimtGemmKernel(MultistageGemmKernel):
    """The kernel for operands of some kinds."""

    @cute.kernel
    def kernel(
        self, a: cute.Tensor, b: cute.Tensor, d: Any, factors: Any, extras: Any, divisors: Any, alpha: Float32, beta: Float32,
    ):  # fmt: skip
        self.compute(a, b, d, factors, extras, divisors, alpha, beta)

    def blocks_together(self) -> int:
        """Two hide each other's waits; sums are half of what a thread may then have in registers."""
        m, n, _ = self.config.tile_shape_mnk
        return 2 if self.config.threads <= 256 and m * n // self.config.threads <= 64 else 1

    def smem_bytes(self) -> int:
        return self.config.simt_smem_bytes()

    def fragments(self, side: int) -> SimtFragments:
        return SimtFragments(side, self.config)

    def mma(self, fragments: Any, half: bool) -> Any:
        """Warps of 8 x 4 threads, and for each four neighbours in M and in N."""
        (lanes_m, lanes_n), (warps_m, warps_n) = SIMT_WARP, self.config.warp_layout_mn
        threads_m, threads_n = lanes_m * warps_m, lanes_n * warps_n
        atoms = cute.make_layout(
            ((lanes_m, warps_m), (lanes_n, warps_n), 1), stride=((lanes_n, 32), (1, 32 * warps_m), 0)
        )
        vector = SIMT_VECTOR
        order_m = cute.make_layout((threads_m, vector), stride=(vector, 1))
        order_n = cute.make_layout((threads_n, vector), stride=(vector, 1))
        return cute.make_tiled_mma(MmaUniversalOp(Float32), atoms, (order_m, order_n, None))

    def feed(self, operand: Operand, rows: int) -> OperandCopy:
        depth, threads = self.config.tile_shape_mnk[2], self.config.threads
        if operand.k_major:
            return OperandCopy(operand, 1, rows, depth, threads, min(_LANES, depth))
        return OperandCopy(operand, operand.width, rows, depth, threads, min(rows // operand.width, threads))
