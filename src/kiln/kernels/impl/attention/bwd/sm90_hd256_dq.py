"""The dQ kernel for Hopper, head_dim over 128.

A CTA has 128 queries of a head, 64 for each consumer warpgroup, whose dQ stays in registers. KV tiles stream past. A
step computes S = Q K^T and dP = dO V^T, P and dS, and dQ += dS K of the step before, with dS in registers, so that
GEMMs and softmax overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import warpgroup
from ....dispatch import devices
from ....parts.attention_mask import accumulator_row
from ....parts.warp_roles import RoleBarrier
from .preprocess import permuted_row
from .sm90_config import WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_hd256 import GradientMma, ScoreMma, Sm90Hd256Kernel, Smem
from .sm90_hd256_config import DQ_TILE_M
from .sm90_softmax import BackwardScores
from .sm90_tiles import ResultRows, round_to_operand

if TYPE_CHECKING:
    from ....parts.tma_operand import TmaOperand
    from ..args import AttentionTensors, BackwardScalars
    from .sm90_config import BackwardSchedule
    from .sm90_hd256 import Cta
    from .sm90_scheduler import Work
    from .sm90_tiles import ScoreCoordinates

_BOTH = {"consumer": 4 * WARPGROUPS}


class DqMma:
    """S = Q K^T, dP = dO V^T, and dQ += dS K with dS in registers, of a warpgroup."""

    def __init__(self, kernel: Sm90Hd256DqKernel, thread: Any, smem: Smem, group: Int32) -> None:
        tile_n = kernel.config.tile_n
        dtype = kernel.dtype
        k, v = smem.streamed
        q, do = (cute.local_tile(x, (WARPGROUP_ROWS, cute.size(x, mode=[1])), (group, 0)) for x in smem.resident)
        self.s: ScoreMma = ScoreMma(dtype, thread, q, tile_n, kernel.config.q_dims_in_regs)
        self.dp: ScoreMma = ScoreMma(dtype, thread, do, tile_n, 0)
        self.k: cute.Tensor = self.s.b_operand(thread, k)
        self.v: cute.Tensor = self.s.b_operand(thread, v)
        self.acc_s: cute.Tensor = self.s.accumulator(tile_n)
        self.acc_dp: cute.Tensor = self.s.accumulator(tile_n)
        self.dq: GradientMma = GradientMma(dtype, thread, k, tile_n)


class QueryScores(BackwardScores):
    """Turns S into P, and dP into dS. A thread holds two rows, whose LSE and delta are `values` (which, row)."""

    def __init__(self, kernel: Sm90Hd256DqKernel, mma: DqMma, values: cute.Tensor, scalars: BackwardScalars) -> None:
        super().__init__(kernel, mma, scalars)
        self.values = values

    def exp2(self, coordinates: ScoreCoordinates | None) -> None:
        """P = exp2(S * scale_log2 - LSE) times the derivative of the score modification, in place of S."""
        acc_s = self.mma.acc_s
        for n in range(self.kernel.config.tile_n // 8):
            for half in range(2):
                for c in range(2):
                    at = ((c, half, n), 0, 0)
                    score, derivative = self.modified(at, coordinates)
                    p = arch.exp2(cute.math.fma(score, self.scalars.scale_log2, -self.values[0, half]))
                    acc_s[at] = p if derivative is None else p * derivative

    def ds(self) -> None:
        """dS = P (dP - delta), as an operand."""
        mma = self.mma
        for k in range(self.kernel.config.tile_n // 16):
            for n in range(2 * k, 2 * k + 2):
                for half in range(2):
                    for c in range(2):
                        at = ((c, half, n), 0, 0)
                        mma.acc_dp[at] = mma.acc_s[at] * (mma.acc_dp[at] - self.values[1, half])
            round_to_operand(mma.acc_dp, mma.dq.a, [k])


class Sm90Hd256DqKernel(Sm90Hd256Kernel):
    """The kernel for one config and kind of problem."""

    computes_dq = True
    resident_rows = DQ_TILE_M
    roles = Sm90Hd256Kernel.make_roles(
        RoleBarrier("cleared", _BOTH),
        RoleBarrier("done", _BOTH),  # all GEMMs are complete
        RoleBarrier("results", _BOTH),  # dQ is in smem
    )

    @property
    def stages(self) -> tuple[int, int]:
        return self.config.k_stages, self.config.v_stages

    @cute.kernel
    def kernel(
        self,
        operands: tuple[list[TmaOperand], list[TmaOperand], list[TmaOperand]],
        plain: list[cute.Tensor | None],
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        tiles: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
    ):
        self.run(operands, plain, lse_delta, tensors, tiles, scalars, schedule)
        if const_expr(devices.current().overlaps):  # kernels after this one need what the one before writes
            arch.griddepcontrol_wait()

    @cute.jit
    def consume(self, warp: Int32, cta: Cta):
        """Compute and store dQ of 64 queries, as one consumer warpgroup."""
        work = cta.work
        group = warp // (WARPGROUP // 32) - 1
        acc_dq = self.compute_dq(group, cta)
        # both warpgroups read Q, whose smem dQ is stored through
        self.roles.barrier("done").arrive_and_wait()
        rows = ResultRows(work.first_q, work.tile * WARPGROUPS + group, work.seqlen_q, work.head, work.layer)
        barrier = self.roles.barrier("results")
        self.store_gradient(
            acc_dq,
            cta.scheduler.scalars.scale,
            cta.smem.resident[0],
            cta.results[0],
            cta.plain[0],
            rows,
            group,
            barrier,
            False,
            self.head_dims[0],
        )

    @cute.jit
    def compute_dq(self, group: Int32, cta: Cta):
        """Return the dQ accumulator of a warpgroup."""
        tile_n = self.config.tile_n
        scheduler = cta.scheduler
        work = cta.work
        span = cta.span
        scalars = scheduler.scalars
        k, v = cta.smem.streamed
        pipe_k = cta.pipes[0]
        consumer_k, consumer_v = (pipe.make_consumer() for pipe in cta.pipes)
        steps = arch.make_warp_uniform(span.count)  # otherwise ptxas has a few more instructions in the loop
        thread = arch.thread_idx()[0] % WARPGROUP
        cta.pipe.make_consumer().wait_and_advance()
        mma = DqMma(self, thread, cta.smem, group)
        query = work.tile * DQ_TILE_M + group * WARPGROUP_ROWS
        scores = QueryScores(self, mma, self.row_values(cta.lse_delta, work, query, thread), scalars)
        edge = scheduler.edge(query, work, span)
        keys = work.seqlen_k - (span.first + steps - 1) * tile_n
        k_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.k_stages)
        for i in range(steps):
            k_stage = consumer_k.wait_and_advance()
            v_stage = consumer_v.wait_and_advance()
            if const_expr(self.lengths_vary):
                if keys < tile_n:
                    tiles = (k[None, None, k_stage.index], v[None, None, v_stage.index])
                    self.clear(tiles, keys, arch.thread_idx()[0] - WARPGROUP, WARPGROUPS * WARPGROUP)
            warpgroup.fence()
            mma.s.issue(mma.acc_s, mma.k, k_stage.index)
            mma.dq.issue(k_state.index)  # of the step before
            mma.dp.issue(mma.acc_dp, mma.v, v_stage.index)
            warpgroup.wait_group(2)
            if const_expr(self.has_softcap):
                scores.softcap()
            if keys < tile_n or self.is_masked(edge, scalars):
                self.mask(mma.acc_s, edge, keys, scalars)
            coordinates = None
            if const_expr(self.score_mod):
                coordinates = self.coordinates(edge, query, i, cta.alibi_slopes, scheduler, work)
            scores.exp2(coordinates)
            warpgroup.wait_group(1)
            if i > 0:
                pipe_k.consumer_release(k_state)
                k_state.advance()
            warpgroup.wait_group(0)
            v_stage.release()
            scores.ds()
            edge = edge + tile_n
            keys = keys + tile_n
        if steps > 0:
            warpgroup.fence()
            mma.dq.issue(k_state.index)
            warpgroup.wait_group(0)
            pipe_k.consumer_release(k_state)
        return mma.dq.acc

    @cute.jit
    def row_values(self, lse_delta: cute.Tensor, work: Work, query: Int32, thread: Int32):
        """Return LSE and delta of both rows of a thread; LSE is inf for rows that do not exist."""
        values = cute.make_rmem_tensor((2, 2), Float32)
        for half in range_constexpr(2):
            row = accumulator_row(query, thread, half)
            place = work.first_q_tile * self.config.tile_m + permuted_row(min(row, work.seqlen_q - 1))
            lse, delta = (lse_delta[which, work.layer, work.head, place] for which in range(2))
            # no branch: ptxas keeps no WGMMA descriptor in uniform registers across one
            values[0, half] = lse if row < work.seqlen_q else Float32(float("inf"))
            values[1, half] = delta
        return values
