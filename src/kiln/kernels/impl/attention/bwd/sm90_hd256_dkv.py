"""The dK/dV kernel for Hopper, head_dim over 128.

A CTA has 64 keys of a KV head. One consumer warpgroup has dV in registers, the other dK: there are not enough registers
for both in one. Tiles of Q and dO stream past, as in `sm90.py`. The first warpgroup computes S^T = K Q^T, P^T and dV +=
P^T dO, the second dP^T = V dO^T, dS^T and dK += dS^T Q. All that the second needs of the first is P in the input type,
which has the same layout in both's registers. So each has two GEMMs in a step, with the A operand in smem once and in
registers once.

dQ has a kernel of its own (`sm90_hd256_dq.py`): seven GEMMs instead of five, but no accumulation in gmem, which would
take 64 KiB of f32 for 64 queries through smem, as long as the two GEMMs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ....dispatch import devices
from ....parts.kv_producer import gmem_view
from ....parts.kv_source import VECTOR
from ....parts.rematerialize import rematerialized
from .sm90_config import REGISTERS, WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_hd256_config import DKV_TILE_N, P_STAGES
from .sm90_hd256_mma import GradientMma, ScoreMma
from .sm90_scheduler import KvTileScheduler
from .sm90_softmax import TransposedScores
from .sm90_tiles import KvTiles, ResultRows, round_to_operand

if TYPE_CHECKING:
    from ..score_mod import ScoreMod
    from .sm90_hd256_config import Sm90AttentionBackwardHd256Config

_P_SENT, _P_READ, _CLEARED, _DONE, _RESULTS = 1, 3, 5, 6, 7
"""Named barriers: P is in smem, and has been read (two stages each); tiles are cleared; all GEMMs are complete; a
gradient is in smem."""


class Smem(NamedTuple):
    """Tiles in smem: K and V (row, element), Q and dO (row, element, stage), P as it lies in registers (number, stage),
    LSE and delta (row, which, stage)."""

    k: Any
    v: Any
    q: Any
    do: Any
    p: Any
    lse_delta: Any


class WarpgroupMma:
    """The two GEMMs of a warpgroup: scores S or dP of its keys (A times B), and the gradient dV or dK."""

    def __init__(self, kernel: Sm90Hd256DkDvKernel, thread: Any, a: Any, b: Any, gradient_b: Any) -> None:
        tile_m = kernel.config.tile_m
        self.scores = ScoreMma(kernel.dtype, thread, a, tile_m, kernel.config.kv_dims_in_regs)
        self.b = self.scores.b_operand(thread, b)
        self.acc_s = self.scores.accumulator(tile_m)
        self.gradient = GradientMma(kernel.dtype, thread, gradient_b, tile_m)
        self.p = self.gradient.a

    def issue_scores(self, stage: Any) -> None:
        """Issue S^T = K Q^T, or dP^T = V dO^T."""
        self.scores.issue(self.acc_s, self.b, stage)


class SentScores(TransposedScores):
    """P^T of one warpgroup, sent through smem to the other, which makes dS^T of it."""

    def __init__(self, kernel: Sm90Hd256DkDvKernel, mma: WarpgroupMma, thread: Any, smem: Smem, scalars: Any) -> None:
        super().__init__(kernel, mma, thread, smem.lse_delta, scalars)
        self.start = smem.p[None, 0].iterator + thread * VECTOR
        self.size = WARPGROUP_ROWS * kernel.config.tile_m

    def _vectors(self, x: Any, step: Any) -> list[tuple[Any, Any]]:
        """Return what a thread holds of a fragment, 16 bytes at a time, and where that lies in smem."""
        start, vector = self.start + step % P_STAGES * self.size, cute.make_layout(VECTOR)
        return [
            (
                cute.make_tensor(x.iterator + VECTOR * n, vector),
                cute.make_tensor((start + n * (VECTOR * WARPGROUP)).with_alignment(16), vector),
            )
            for n in range(self.blocks)
        ]

    def send(self, step: Any) -> None:
        """Send P, or P times the derivative of the score modification."""
        p = self.mma.p
        if self.has_derivative:
            p = cute.make_rmem_tensor(p.shape, self.kernel.dtype)
            round_to_operand(self.mma.acc_s, p, range(self.blocks))
        barrier(_P_READ, step).arrive_and_wait()
        for source, target in self._vectors(p, step):
            cute.autovec_copy(source, target)
        barrier(_P_SENT, step).arrive()

    def receive(self, step: Any) -> Any:
        """Return P as it lies in registers."""
        p = cute.make_rmem_tensor(self.mma.acc_s.shape, self.kernel.dtype)
        barrier(_P_SENT, step).arrive_and_wait()
        for target, source in self._vectors(p, step):
            cute.autovec_copy(source, target)
        barrier(_P_READ, step).arrive()
        return p


def barrier(first: int, step: Any) -> Any:
    """Return a barrier of both warpgroups for a stage of P."""
    return pipeline.NamedBarrier(first + step % P_STAGES, WARPGROUPS * WARPGROUP)


class Sm90Hd256DkDvKernel(KvTiles):
    """The kernel for one config and kind of problem. `masks` are (right, left, softcap); `head_dims` are padded."""

    tile_n = DKV_TILE_N

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm90AttentionBackwardHd256Config,
        masks: tuple[bool, bool, bool], varlen: bool, has_seqused_k: bool, score_mod: ScoreMod,
    ) -> None:  # fmt: skip
        self.dtype, self.config, self.score_mod = dtype, config, score_mod
        self.head_dims = head_dims
        self.masks_right, self.masks_left, self.has_softcap = masks
        self.varlen, self.lengths_vary = varlen, varlen or has_seqused_k

    def smem_layouts(self) -> list[Any]:
        """Return the layouts of K, V, Q and dO."""
        config, row_major = self.config, LayoutEnum.ROW_MAJOR
        make = ((sm90.make_smem_layout_a, 1), (sm90.make_smem_layout_b, config.q_stages))
        return [
            make_layout(row_major, (DKV_TILE_N, config.tile_m, n), self.dtype, stages)
            for make_layout, stages in make
            for n in self.head_dims
        ]

    @cute.jit
    def __call__(
        self, kv: Any, q_do: Any, gradients: Any, lse_delta: cute.Tensor, tensors: Any, max_seqlen_k: Int32,
        scalars: Any, schedule: Any, stream: Int64,
    ):  # fmt: skip
        """Launch the kernel for (K, V), (Q, dO) and (dK, dV)."""
        layouts, dims = self.smem_layouts(), self.head_dims
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        operands = [
            *(self.tma(load, x, tile, DKV_TILE_N, n) for x, tile, n in zip(kv, layouts[:2], dims)),
            *(self.tma(load, x, tile, self.config.tile_m, n) for x, tile, n in zip(q_do, layouts[2:], dims)),
            *(self.tma(store, x, self.result_layout(n), WARPGROUP_ROWS, n) for x, n in zip(gradients, dims)),
        ]
        batch, _, heads, _ = kv[0].shape
        if const_expr(self.varlen):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        tiles = cute.ceil_div(max_seqlen_k, DKV_TILE_N)
        # threads store the last rows of a varlen sequence
        plain = tuple(gmem_view(x) for x in gradients) if const_expr(self.varlen) else (None, None)
        self.kernel(*operands, plain, lse_delta, tensors, tiles, scalars, schedule).launch(
            grid=(tiles * heads * batch, 1, 1), block=(self.config.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    def allocate(self) -> Smem:
        """Allocate the tiles in smem."""
        allocator, config = utils.SmemAllocator(), self.config
        k, v, q, do = (allocator.allocate_tensor(self.dtype, x.outer, 1024, x.inner) for x in self.smem_layouts())
        p_layout = cute.make_layout((WARPGROUP_ROWS * config.tile_m, P_STAGES))
        p = allocator.allocate_tensor(self.dtype, p_layout, 128)
        values_layout = cute.make_layout((config.tile_m, 2, config.q_stages))
        lse_delta = allocator.allocate_tensor(Float32, values_layout, 128)
        return Smem(k[None, None, 0], v[None, None, 0], q, do, p, lse_delta)

    @cute.kernel
    def kernel(
        self, k: Any, v: Any, q: Any, do: Any, dk: Any, dv: Any, plain: Any, lse_delta: cute.Tensor, tensors: Any,
        tiles: Int32, scalars: Any, schedule: Any,
    ):  # fmt: skip
        config = self.config
        # the dQ kernel needs nothing from here, and starts where CTAs are done
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for operand in (k, v, q, do, dk, dv):
                cpasync.prefetch_descriptor(operand.atom)
        smem = self.allocate()
        pipe_kv = self.pipe(1, 2 * DKV_TILE_N * sum(self.head_dims))
        pipe_q, pipe_do = (self.pipe(config.q_stages, config.tile_m * (2 * n + 4)) for n in self.head_dims)
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        scheduler = KvTileScheduler(self, q.tensor, k.tensor, tensors, tiles, scalars, schedule)
        work = scheduler.work(Int32(arch.block_idx()[0]))
        span = scheduler.span(work)
        steps = span.count * scheduler.group_size
        producer_kv, consumer_kv = pipe_kv.make_participants()
        producer_q, consumer_q = pipe_q.make_participants()
        producer_do, consumer_do = pipe_do.make_participants()
        if work.tile * DKV_TILE_N < work.rows_k:  # otherwise the tile is after the end of a shorter sequence
            if warp < WARPGROUP // 32:
                arch.setmaxregister_decrease(REGISTERS[0])
                if warp == 0:
                    producers = (producer_kv, producer_q, producer_do)
                    self.produce((k, v, q, do), lse_delta, smem, producers, scheduler, work, span, steps)
            else:
                arch.setmaxregister_increase(REGISTERS[1])
                thread = arch.thread_idx()[0] % WARPGROUP
                consumer_kv.wait_and_advance()
                if const_expr(self.lengths_vary):
                    rows = work.seqlen_k - work.tile * DKV_TILE_N
                    if rows < DKV_TILE_N:
                        own_thread = arch.thread_idx()[0] - WARPGROUP
                        self.clear((smem.k, smem.v), rows, own_thread, WARPGROUPS * WARPGROUP, _CLEARED)
                result_rows = ResultRows(work.first_k, work.tile, work.rows_k, work.head, work.layer)
                if warp < 2 * WARPGROUP // 32:
                    mma = WarpgroupMma(self, thread, smem.k, smem.q, smem.do)
                    scores = SentScores(self, mma, thread, smem, scalars)
                    self.compute_dv(
                        mma, scores, pipe_do, consumer_q, smem, scheduler, work, span, steps, tensors.alibi_slopes
                    )
                    self.finish(mma, Float32(1.0), smem.v, dv, plain[1], result_rows, 0)
                else:
                    mma_dk = WarpgroupMma(self, thread, smem.v, smem.do, smem.q)
                    scores_dk = SentScores(self, mma_dk, thread, smem, scalars)
                    self.compute_dk(mma_dk, scores_dk, pipe_q, consumer_do, smem, scheduler, steps)
                    self.finish(mma_dk, scalars.scale, smem.k, dk, plain[0], result_rows, 1)

    def finish(self, mma: Any, scale: Any, smem: Any, target: Any, plain: Any, rows: Any, which: int) -> None:
        """Store dV (0) or dK (1), when both warpgroups have read the smem that it goes through."""
        pipeline.NamedBarrier(_DONE, WARPGROUPS * WARPGROUP).arrive_and_wait()
        own_barrier, head_dim = pipeline.NamedBarrier(_RESULTS + which, WARPGROUP), self.head_dims[1 - which]
        self.store_gradient(mma.gradient.acc, scale, smem, target, plain, rows, Int32(0), own_barrier, False, head_dim)

    @cute.jit
    def produce(
        self,
        operands: Any,
        lse_delta: cute.Tensor,
        smem: Any,
        producers: Any,
        scheduler: Any,
        work: Any,
        span: Any,
        steps: Int32,
    ):
        """Load K and V, then Q, dO, LSE and delta of each step, as one warp."""
        k, v, q, do = operands
        producer_kv, producer_q, producer_do = producers
        tile_m, layer = self.config.tile_m, work.layer
        stage = producer_kv.acquire_and_advance()
        for operand, to, n in zip((k, v), (smem.k, smem.v), self.head_dims):
            target, tiles = self.tiles(operand, to, work.first_k, DKV_TILE_N, n)
            source = tiles[None, work.tile, work.head, layer]
            cute.copy(operand.atom, source, target, tma_bar_ptr=stage.barrier)
        smem_q, tiles_q = self.tiles(q, smem.q, work.first_q, tile_m, self.head_dims[0])
        smem_do, tiles_do = self.tiles(do, smem.do, work.first_q, tile_m, self.head_dims[1])
        bulk = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
        for i in range(steps):
            head, tile = scheduler.step(i, span)
            head = work.head * scheduler.group_size + head
            values = cute.local_tile(lse_delta[None, layer, head, None], (1, tile_m), (None, work.first_q_tile + tile))
            for which, (producer, atom, tiles, to) in enumerate(
                ((producer_q, q.atom, tiles_q, smem_q), (producer_do, do.atom, tiles_do, smem_do))
            ):
                stage = producer.acquire_and_advance()
                cute.copy(atom, tiles[None, tile, head, layer], to[None, stage.index], tma_bar_ptr=stage.barrier)
                self.load_row_values(bulk, values, which, smem.lse_delta, stage)

    @cute.jit
    def clear_last_queries(self, tile: cute.Tensor, scheduler: Any):
        """Zero the rows after a varlen sequence in the last tile of Q or dO that sees keys: one warpgroup does Q, the
        other dO."""
        work = scheduler.work(Int32(arch.block_idx()[0]))
        span = scheduler.span(work)
        rows = work.seqlen_q - (span.first + span.count - 1) * self.config.tile_m
        if rows < self.config.tile_m:
            thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
            self.clear((tile,), rows, thread, WARPGROUP, _CLEARED)

    @cute.jit
    def compute_dv(
        self, mma: Any, scores: Any, pipe_do: Any, consumer_q: Any, smem: Any, scheduler: Any, work: Any, span: Any,
        steps: Int32, alibi_slopes: Any,
    ):  # fmt: skip
        """Compute S, P and dV, as one warpgroup."""
        config, scalars, group_size = self.config, scheduler.scalars, scheduler.group_size
        # which query of the last tile is the first that sees the first key, and how many keys exist
        key = work.tile * DKV_TILE_N
        offset = work.seqlen_k - work.seqlen_q
        edge = key - offset - scalars.window_right - (span.first + span.count - 1) * config.tile_m
        keys, group_index = work.seqlen_k - key, Int32(0)
        # A constant would share a register with the zeros that P begins with, which is no uniform one, and ptxas would
        # copy from it.
        zero = arch.make_warp_uniform(Int32(0))
        do_state = pipeline.PipelineState(config.q_stages, 0, zero, zero)
        for i in range(steps):
            q_stage = consumer_q.wait_and_advance()
            if const_expr(self.varlen):
                if i < group_size:
                    self.clear_last_queries(smem.q[None, None, q_stage.index], scheduler)
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
                coordinates = self.coordinates(edge, key, i, alibi_slopes, scheduler, own_work)
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
            if const_expr(self.masks_right or self.masks_left or self.score_mod):
                # after the heads of the GQA group comes the query tile before
                group_index = group_index + 1
                if group_index == group_size:
                    group_index = Int32(0)
                    edge = edge + config.tile_m
        for n in range_constexpr(P_STAGES):  # all P has been read
            barrier(_P_READ, steps + n).arrive_and_wait()
        self.last_gradient(mma, pipe_do, do_state, steps)

    @cute.jit
    def compute_dk(self, mma: Any, scores: Any, pipe_q: Any, consumer_do: Any, smem: Any, scheduler: Any, steps: Int32):
        """Compute dP, dS and dK, as the other warpgroup."""
        q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.q_stages)
        for n in range_constexpr(P_STAGES):
            barrier(_P_READ, Int32(n)).arrive()
        for i in range(steps):
            do_stage = consumer_do.wait_and_advance()
            if const_expr(self.varlen):
                if i < scheduler.group_size:
                    self.clear_last_queries(smem.do[None, None, do_stage.index], scheduler)
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
    def last_gradient(self, mma: Any, pipe: Any, state: Any, steps: Int32):
        """Compute what the last step adds to a gradient."""
        if steps > 0:
            pipe.consumer_wait(state)
            warpgroup.fence()
            mma.gradient.issue(state.index)
            warpgroup.wait_group(0)
            pipe.consumer_release(state)
