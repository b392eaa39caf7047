"""The two GEMMs of Hopper attention, S = Q K^T and O += P V, as one consumer warpgroup issues them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..... import Float32, Int32, cute
from ....parts.rematerialize import rematerialized_operand
from ....parts.wgmma import issue_wgmma, load_a_operand
from .sm90_config import WARPGROUP_M

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel


class AttentionMma:
    """Fragments and WGMMAs of a consumer warpgroup. Q is in smem or registers, P in registers. GEMMs are issued here
    and waited for elsewhere.

    Partitions have CuTe's names: tSrQ is what the tiled MMA of S has of Q, in registers or as descriptors of smem."""

    def __init__(
        self, kernel: Sm90ForwardKernel, thread: Int32 | int, sQ: cute.Tensor, sK: cute.Tensor, sV: cute.Tensor
    ) -> None:
        tile_n = kernel.config.tile_n
        self.rematerialize_q: bool = kernel.rematerialize_q
        self.mma_qk: cute.TiledMma = kernel.mma_qk()
        self.mma_pv: cute.TiledMma = kernel.mma_pv()
        qk, pv = (mma.get_slice(thread) for mma in (self.mma_qk, self.mma_pv))
        if kernel.config.q_in_regs:
            self.tSrQ = self.mma_qk.make_fragment_A(qk.partition_shape_A((WARPGROUP_M, kernel.head_dim)))
            self.thread = thread
            self.sQ = sQ
        else:
            self.tSrQ: cute.Tensor = self.mma_qk.make_fragment_A(qk.partition_A(sQ))
        self.tSrK: cute.Tensor = self.mma_qk.make_fragment_B(qk.partition_B(sK))
        self.tOrV: cute.Tensor = self.mma_pv.make_fragment_B(pv.partition_B(sV))
        self.tSrS: cute.Tensor[Float32] = cute.make_rmem_tensor(
            self.mma_qk.partition_shape_C((WARPGROUP_M, tile_n)), Float32
        )
        self.tOrO: cute.Tensor = cute.make_rmem_tensor(
            self.mma_pv.partition_shape_C((WARPGROUP_M, kernel.head_dim_v)), Float32
        )
        values, k = ((4, 2, 2), 32) if kernel.is_fp8 else ((2, 2, 2), 16)
        self.tOrP: cute.Tensor = cute.make_rmem_tensor((values, 1, tile_n // k), kernel.dtype)

    def load_q(self) -> None:
        """Load Q into registers."""
        load_a_operand(self.mma_qk, self.thread, self.sQ, self.tSrQ)

    def issue_qk(self, stage: Int32 | int) -> None:
        """Issue S = Q K^T."""
        q = rematerialized_operand(self.tSrQ) if self.rematerialize_q else self.tSrQ
        issue_wgmma(self.mma_qk, self.tSrS, q, self.tSrK, stage)

    def issue_pv(self, stage: Int32 | int) -> None:
        """Issue O += P V."""
        issue_wgmma(self.mma_pv, self.tOrO, self.tOrP, self.tOrV, stage, True)
