"""The five GEMMs of a backward step on Hopper, as one consumer warpgroup issues them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, cute
from ....parts.wgmma import MN_MAJOR, issue_wgmma, load_a_operand, make_wgmma
from .sm90_config import DS_STAGES, TILE_N, WARPGROUP_ROWS
from .sm90_tiles import transposed

if TYPE_CHECKING:
    from ..... import Int32
    from .sm90 import Sm90BackwardKernel, Smem

_ROWS = WARPGROUP_ROWS


class WarpgroupOperands(NamedTuple):
    """Operands in smem that differ between warpgroups: K and V as A operands, and K^T and dS of dQ^T = K^T dS^T."""

    k: cute.Tensor
    v: cute.Tensor
    k_transposed: cute.Tensor
    ds: cute.Tensor


class BackwardMma:
    """S^T = K Q^T, dP^T = V dO^T, dV += P^T dO, dK += dS^T Q and dQ^T = K^T dS^T.

    P^T and dS^T are A operands in registers; for dQ^T, the dS of both warpgroups is in smem. GEMMs are issued here and
    waited for elsewhere."""

    __kiln_immutable__ = True

    def __init__(self, kernel: Sm90BackwardKernel, thread: Any, smem: Smem) -> None:
        head_dim = kernel.head_dim
        tile_m = kernel.config.tile_m
        self.kernel = kernel
        self.thread = thread
        self.smem = smem
        self.mma_s: cute.TiledMma = make_wgmma(kernel.dtype, tile_m)
        self.mma_s_regs: cute.TiledMma = make_wgmma(kernel.dtype, tile_m, a_in_regs=True)
        self.mma_dkv: cute.TiledMma = make_wgmma(kernel.dtype, head_dim, b=MN_MAJOR, a_in_regs=True)
        self.mma_dq: cute.TiledMma = make_wgmma(kernel.dtype, kernel.dq_columns, a=MN_MAJOR)
        self.operands_in_regs: list[cute.Tensor] = [
            cute.make_rmem_tensor(((2, 2, 2), 1, head_dim // 16), kernel.dtype)
            for _ in range(kernel.config.operands_in_regs)
        ]
        s, dkv = (x.get_slice(thread) for x in (self.mma_s, self.mma_dkv))
        self.q: cute.Tensor = self.mma_s.make_fragment_B(s.partition_B(smem.q))
        self.do: cute.Tensor = self.mma_s.make_fragment_B(s.partition_B(smem.do))
        self.q_transposed: cute.Tensor = self.mma_dkv.make_fragment_B(dkv.partition_B(transposed(smem.q)))
        self.do_transposed: cute.Tensor = self.mma_dkv.make_fragment_B(dkv.partition_B(transposed(smem.do)))

        def accumulator(mma: cute.TiledMma, columns: int) -> cute.Tensor:
            return cute.make_rmem_tensor(mma.partition_shape_C((_ROWS, columns)), Float32)

        self.acc_s: cute.Tensor = accumulator(self.mma_s, tile_m)
        self.acc_dp: cute.Tensor = accumulator(self.mma_s, tile_m)
        self.acc_dk: cute.Tensor = accumulator(self.mma_dkv, head_dim)
        self.acc_dv: cute.Tensor = accumulator(self.mma_dkv, head_dim)
        self.acc_dq: cute.Tensor = accumulator(self.mma_dq, kernel.dq_columns)
        self.p: cute.Tensor = cute.make_rmem_tensor(((2, 2, 2), 1, tile_m // 16), kernel.dtype)
        self.ds: cute.Tensor = cute.make_rmem_tensor(((2, 2, 2), 1, tile_m // 16), kernel.dtype)

    def warpgroup_operands(self, group: Int32) -> WarpgroupOperands:
        """Return the operands of a warpgroup. In a loop, make them from a number that exists there only: fewer
        registers are kept."""
        kernel = self.kernel
        smem = self.smem
        s, dq = (x.get_slice(self.thread) for x in (self.mma_s, self.mma_dq))
        rows = (cute.local_tile(x, (_ROWS, kernel.head_dim), (group, 0)) for x in (smem.k, smem.v))
        k, v = (self.mma_s.make_fragment_A(s.partition_A(x)) for x in rows)
        # of dQ^T a warpgroup has half of the elements, or half of the queries
        k_transposed = transposed(smem.k)
        ds = smem.ds
        if kernel.splits_dq_by_elements:
            k_transposed = cute.local_tile(k_transposed, (_ROWS, TILE_N), (group, 0))
        else:
            ds = cute.local_tile(ds, (kernel.dq_columns, TILE_N, DS_STAGES), (group, 0, 0))
        k_transposed = self.mma_dq.make_fragment_A(dq.partition_A(k_transposed))
        return WarpgroupOperands(k, v, k_transposed, self.mma_dq.make_fragment_B(dq.partition_B(ds)))

    def load_operands(self, group: Int32) -> None:
        """Load the warpgroup's V, or V and K, into registers, if the config says so: less smem traffic for S and dP."""
        for x, operand in zip((self.smem.v, self.smem.k), self.operands_in_regs, strict=False):
            tile = cute.local_tile(x, (_ROWS, self.kernel.head_dim), (group, 0))
            load_a_operand(self.mma_s_regs, self.thread, tile, operand)

    def issue_s(self, operands: WarpgroupOperands, stage: Int32) -> None:
        """Issue S^T = K Q^T."""
        if len(self.operands_in_regs) > 1:
            issue_wgmma(self.mma_s_regs, self.acc_s, self.operands_in_regs[1], self.q, stage)
        else:
            issue_wgmma(self.mma_s, self.acc_s, operands.k, self.q, stage)

    def issue_dp(self, operands: WarpgroupOperands, stage: Int32) -> None:
        """Issue dP^T = V dO^T."""
        if self.operands_in_regs:
            issue_wgmma(self.mma_s_regs, self.acc_dp, self.operands_in_regs[0], self.do, stage)
        else:
            issue_wgmma(self.mma_s, self.acc_dp, operands.v, self.do, stage)

    def issue_dv(self, stage: Int32) -> None:
        """Issue dV += P^T dO."""
        issue_wgmma(self.mma_dkv, self.acc_dv, self.p, self.do_transposed, stage, True)

    def issue_dk(self, stage: Int32) -> None:
        """Issue dK += dS^T Q."""
        issue_wgmma(self.mma_dkv, self.acc_dk, self.ds, self.q_transposed, stage, True)

    def issue_dq(self, operands: WarpgroupOperands, ds_stage: Int32 | int) -> None:
        """Issue dQ^T = K^T dS^T."""
        issue_wgmma(self.mma_dq, self.acc_dq, operands.k_transposed, operands.ds, ds_stage)
