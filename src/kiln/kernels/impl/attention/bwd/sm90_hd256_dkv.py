"""The dK/dV kernel for Hopper, head_dim over 128.

A CTA has 64 keys of a KV head. One consumer warpgroup has dV in registers, the other dK: there are not enough registers
for both in one. Tiles of Q and dO stream past, as in `sm90.py`. The first warpgroup computes S^T = K Q^T, P^T and dV +=
P^T dO, the second dP^T = V dO^T, dS^T and dK += dS^T Q. All that the second needs of the first is P in the input type,
which has the same layout in both's registers. So each has two GEMMs in a step, with the A operand in smem once and in
registers once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import warpgroup
from ....dispatch import devices
from ....parts.kv_source import VECTOR
from ....parts.rematerialize import rematerialized
from ....parts.warp_roles import RoleBarrier
from .sm90_config import WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_hd256 import Cta, GradientMma, ScoreMma, Sm90Hd256Kernel, Smem
from .sm90_hd256_config import DKV_TILE_N, P_STAGES
from .sm90_softmax import TransposedScores
from .sm90_tiles import ResultRows, round_to_operand

if TYPE_CHECKING:
    from ..... import utils
    from ....parts.tma_operand import TmaOperand
    from ..args import AttentionTensors, BackwardScalars
    from .sm90_config import BackwardSchedule
    from .sm90_scheduler import BackwardTileScheduler

_BOTH = {"consumer": 4 * WARPGROUPS}


class WarpgroupMma:
    """The two GEMMs of a warpgroup: scores S or dP of its keys (A times B), and the gradient dV or dK."""

    def __init__(
        self, kernel: Sm90Hd256DkDvKernel, thread: Any, a: cute.Tensor, b: cute.Tensor, gradient_b: cute.Tensor
    ) -> None:
        tile_m = kernel.config.tile_m
        self.scores: ScoreMma = ScoreMma(kernel.dtype, thread, a, tile_m, kernel.config.kv_dims_in_regs)
        self.b: cute.Tensor = self.scores.b_operand(thread, b)
        self.acc_s: cute.Tensor = self.scores.accumulator(tile_m)
        self.gradient: GradientMma = GradientMma(kernel.dtype, thread, gradient_b, tile_m)
        self.p: cute.Tensor = self.gradient.a

    def issue_scores(self, stage: Int32) -> None:
        """Issue S^T = K Q^T, or dP^T = V dO^T."""
        self.scores.issue(self.acc_s, self.b, stage)


class SentScores(TransposedScores):
    """P^T of one warpgroup, sent through smem to the other, which makes dS^T of it."""

    def __init__(
        self, kernel: Sm90Hd256DkDvKernel, mma: WarpgroupMma, thread: Any, smem: Smem, scalars: BackwardScalars
    ) -> None:
        super().__init__(kernel, mma, thread, smem.lse_delta, scalars)
        self.start: cute.Pointer = smem.p[None, 0].iterator + thread * VECTOR
        self.size: int = WARPGROUP_ROWS * kernel.config.tile_m

    def _vectors(self, x: cute.Tensor, step: Int32 | int) -> list[tuple[cute.Tensor, cute.Tensor]]:
        """Return what a thread holds of a fragment, 16 bytes at a time, and where that lies in smem."""
        start = self.start + step % P_STAGES * self.size
        vector = cute.make_layout(VECTOR)
        return [
            (
                cute.make_tensor(x.iterator + VECTOR * n, vector),
                cute.make_tensor((start + n * (VECTOR * WARPGROUP)).with_alignment(16), vector),
            )
            for n in range(self.blocks)
        ]

    def send(self, step: Int32 | int) -> None:
        """Send P, or P times the derivative of the score modification."""
        p = self.mma.p
        if self.has_derivative:
            p = cute.make_rmem_tensor(p.shape, self.kernel.dtype)
            round_to_operand(self.mma.acc_s, p, range(self.blocks))
        self._barrier("P read", step).arrive_and_wait()
        for source, target in self._vectors(p, step):
            cute.autovec_copy(source, target)
        self._barrier("P sent", step).arrive()

    def receive(self, step: Int32 | int) -> cute.Tensor:
        """Return P as it lies in registers."""
        p = cute.make_rmem_tensor(self.mma.acc_s.shape, self.kernel.dtype)
        self._barrier("P sent", step).arrive_and_wait()
        for target, source in self._vectors(p, step):
            cute.autovec_copy(source, target)
        self._barrier("P read", step).arrive()
        return p

    def _barrier(self, name: str, step: Int32 | int) -> pipeline.NamedBarrier:
        """Return a barrier of both warpgroups for the stage of P of a step."""
        return self.kernel.roles.barrier(name, step % P_STAGES)


class Sm90Hd256DkDvKernel(Sm90Hd256Kernel):
    """The kernel for one config and kind of problem."""

    resident_rows = DKV_TILE_N
    roles = Sm90Hd256Kernel.make_roles(
        RoleBarrier("P sent", _BOTH, P_STAGES),
        RoleBarrier("P read", _BOTH, P_STAGES),
        RoleBarrier("cleared", _BOTH),
        RoleBarrier("done", _BOTH),  # all GEMMs are complete
        RoleBarrier("results", {"consumer": 4}, WARPGROUPS),  # a gradient is in smem
    )

    @property
    def stages(self) -> tuple[int, int]:
        return self.config.q_stages, self.config.q_stages

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
        # the dQ kernel needs nothing from here, and starts where CTAs are done
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        self.run(operands, plain, lse_delta, tensors, tiles, scalars, schedule)

    def allocate(self, allocator: utils.SmemAllocator) -> Smem:
        smem = super().allocate(allocator)
        tile_m = self.config.tile_m
        p = allocator.allocate_tensor(self.dtype, cute.make_layout((WARPGROUP_ROWS * tile_m, P_STAGES)), 128)
        values_layout = cute.make_layout((tile_m, 2, self.config.q_stages))
        return smem._replace(p=p, lse_delta=allocator.allocate_tensor(Float32, values_layout, 128))

    @cute.jit
    def consume(self, warp: Int32, cta: Cta):
        """Compute and store dV as the first consumer warpgroup, dK as the second."""
        smem = cta.smem
        work = cta.work
        scalars = cta.scheduler.scalars
        k, v = smem.resident
        q, do = smem.streamed
        thread = arch.thread_idx()[0] % WARPGROUP
        cta.pipe.make_consumer().wait_and_advance()
        if const_expr(self.lengths_vary):
            rows = work.seqlen_k - work.tile * DKV_TILE_N
            if rows < DKV_TILE_N:
                self.clear((k, v), rows, arch.thread_idx()[0] - WARPGROUP, WARPGROUPS * WARPGROUP)
        if warp < 2 * WARPGROUP // 32:
            mma = WarpgroupMma(self, thread, k, q, do)
            self.compute_dv(mma, SentScores(self, mma, thread, smem, scalars), cta)
            self.finish(mma, Float32(1.0), v, cta, 1)
        else:
            mma_dk = WarpgroupMma(self, thread, v, do, q)
            self.compute_dk(mma_dk, SentScores(self, mma_dk, thread, smem, scalars), cta)
            self.finish(mma_dk, scalars.scale, k, cta, 0)

    def finish(self, mma: WarpgroupMma, scale: Float32 | float, smem: cute.Tensor, cta: Cta, which: int) -> None:
        """Store dK (0) or dV (1), when both warpgroups have read the smem that it goes through."""
        self.roles.barrier("done").arrive_and_wait()
        work = cta.work
        own_barrier = self.roles.barrier("results", which)
        rows = ResultRows(work.first_k, work.tile, work.rows_k, work.head, work.layer)
        self.store_gradient(
            mma.gradient.acc,
            scale,
            smem,
            cta.results[which],
            cta.plain[which],
            rows,
            Int32(0),
            own_barrier,
            False,
            self.head_dims[which],
        )

    @cute.jit
    def clear_last_queries(self, tile: cute.Tensor, scheduler: BackwardTileScheduler):
        """Zero the rows after a varlen sequence in the last tile of Q or dO that sees keys: one warpgroup does Q, the
        other dO."""
        rows = scheduler.last_tile_queries(scheduler.work(Int32(arch.block_idx()[0])))
        if rows < self.config.tile_m:
            thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
            self.clear((tile,), rows, thread, WARPGROUP)

    @cute.jit
    def compute_dv(self, mma: WarpgroupMma, scores: SentScores, cta: Cta):
        """Compute S, P and dV, as one warpgroup."""
        config = self.config
        scheduler = cta.scheduler
        work = cta.work
        span = cta.span
        scalars = scheduler.scalars
        steps = scheduler.steps(span)
        consumer_q = cta.pipes[0].make_consumer()
        pipe_do = cta.pipes[1]
        key = work.tile * DKV_TILE_N
        group_index = Int32(0)
        edge = scheduler.edge(key, work, span)
        keys = work.seqlen_k - key
        # A constant would share a register with the zeros that P begins with, which is no uniform one, and ptxas would
        # copy from it.
        zero = arch.make_warp_uniform(Int32(0))
        do_state = pipeline.PipelineState(config.q_stages, 0, zero, zero)
        for i in range(steps):
            q_stage = consumer_q.wait_and_advance()
            if const_expr(self.varlen):
                if i < scheduler.group_size:
                    self.clear_last_queries(cta.smem.streamed[0][None, None, q_stage.index], scheduler)
            pipe_do.consumer_wait(do_state)
            warpgroup.fence()
            mma.issue_scores(q_stage.index)
            mma.gradient.issue(do_state.index)
            warpgroup.wait_group(1)  # S; dV of the step before overlaps with what follows
            if const_expr(self.has_softcap):
                scores.softcap()
            if keys < DKV_TILE_N or self.is_masked(edge, scalars):
                self.mask(mma.acc_s, edge, keys, scalars)
            coordinates = None
            if const_expr(self.score_mod):
                own_work = scheduler.work(Int32(arch.block_idx()[0]))
                coordinates = self.coordinates(edge, key, i, cta.alibi_slopes, scheduler, own_work)
            if const_expr(scores.has_derivative):  # P is converted where that of the step before is
                warpgroup.wait_group(0)
            for upper in range_constexpr(2):
                scores.exp2(q_stage.index, upper, coordinates)
            q_stage.release()
            warpgroup.wait_group(0)
            if i > 0:
                pipe_do.consumer_release(do_state)
                do_state.advance()
            scores.convert_p()
            scores.send(i)
            edge, group_index = scheduler.next_edge(edge, group_index)
        for n in range_constexpr(P_STAGES):  # all P has been read
            self.roles.barrier("P read", (steps + n) % P_STAGES).arrive_and_wait()
        self.last_gradient(mma, pipe_do, do_state, steps)

    @cute.jit
    def compute_dk(self, mma: WarpgroupMma, scores: SentScores, cta: Cta):
        """Compute dP, dS and dK, as the other warpgroup."""
        scheduler = cta.scheduler
        pipe_q = cta.pipes[0]
        consumer_do = cta.pipes[1].make_consumer()
        steps = scheduler.steps(cta.span)
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.q_stages)
        for n in range_constexpr(P_STAGES):
            self.roles.barrier("P read", Int32(n) % P_STAGES).arrive()
        for i in range(steps):
            do_stage = consumer_do.wait_and_advance()
            if const_expr(self.varlen):
                if i < scheduler.group_size:
                    self.clear_last_queries(cta.smem.streamed[1][None, None, do_stage.index], scheduler)
            pipe_q.consumer_wait(q_state)
            warpgroup.fence()
            mma.issue_scores(do_stage.index)
            mma.gradient.issue(q_state.index)
            warpgroup.wait_group(1)  # dP; dK of the step before overlaps with what follows
            p = scores.receive(i)
            scores.ds(p, mma.acc_s, do_stage.index)
            do_stage.release()
            warpgroup.wait_group(0)
            if i > 0:
                pipe_q.consumer_release(q_state)
                q_state.advance()
            round_to_operand(mma.acc_s, mma.p, range(scores.blocks))
        self.last_gradient(mma, pipe_q, q_state, steps)

    @cute.jit
    def last_gradient(
        self, mma: WarpgroupMma, pipe: pipeline.PipelineTmaAsync, state: pipeline.PipelineState, steps: Int32
    ):
        """Compute what the last step adds to a gradient."""
        if steps > 0:
            pipe.consumer_wait(state)
            warpgroup.fence()
            mma.gradient.issue(state.index)
            warpgroup.wait_group(0)
            pipe.consumer_release(state)
