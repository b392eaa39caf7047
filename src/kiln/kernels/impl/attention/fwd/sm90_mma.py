"""The two GEMMs of Hopper attention, S = Q K^T and O += P V, as one consumer warpgroup issues them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, cute
from ....parts.rematerialize import rematerialized_operand
from ....parts.wgmma import issue_wgmma, load_a_operand
from .sm90_config import WARPGROUP_M

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel


class AttentionMma:
    """Fragments and WGMMAs of a consumer warpgroup. Q is in smem or registers, P in registers. GEMMs are issued here
    and waited for elsewhere."""

    def __init__(self, kernel: Sm90ForwardKernel, thread: Any, smem_q: Any, smem_k: Any, smem_v: Any) -> None:
        tile_n = kernel.config.tile_n
        self.rematerialize_q: Any | bool = kernel.rematerialize_q
        self.mma_qk: cute.TiledMma = kernel.mma_qk()
        self.mma_pv: cute.TiledMma = kernel.mma_pv()
        qk, pv = (mma.get_slice(thread) for mma in (self.mma_qk, self.mma_pv))
        if kernel.config.q_in_regs:
            self.q = self.mma_qk.make_fragment_A(qk.partition_shape_A((WARPGROUP_M, kernel.head_dim)))
            self.thread = thread
            self.smem_q = smem_q
        else:
            self.q: Any = self.mma_qk.make_fragment_A(qk.partition_A(smem_q))
        self.k: Any = self.mma_qk.make_fragment_B(qk.partition_B(smem_k))
        self.v: Any = self.mma_pv.make_fragment_B(pv.partition_B(smem_v))
        self.acc_s: cute.Tensor[Float32] = cute.make_rmem_tensor(
            self.mma_qk.partition_shape_C((WARPGROUP_M, tile_n)), Float32
        )
        self.acc_o: cute.Tensor = cute.make_rmem_tensor(
            self.mma_pv.partition_shape_C((WARPGROUP_M, kernel.head_dim_v)), Float32
        )
        values, k = ((4, 2, 2), 32) if kernel.is_fp8 else ((2, 2, 2), 16)
        self.p: cute.Tensor = cute.make_rmem_tensor((values, 1, tile_n // k), kernel.dtype)

    def load_q(self) -> None:
        """Load Q into registers."""
        load_a_operand(self.mma_qk, self.thread, self.smem_q, self.q)

    def issue_qk(self, stage: Any) -> None:
        """Issue S = Q K^T."""
        q = rematerialized_operand(self.q) if self.rematerialize_q else self.q
        issue_wgmma(self.mma_qk, self.acc_s, q, self.k, stage)

    def issue_pv(self, stage: Any) -> None:
        """Issue O += P V."""
        issue_wgmma(self.mma_pv, self.acc_o, self.p, self.v, stage, True)
