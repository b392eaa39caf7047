"""The backward kernel of attention for Hopper, head_dim up to 128: warp-specialised, with TMA and WGMMA, dK, dV and dQ
in one pass.

A CTA has 128 keys of a KV head, 64 for each consumer warpgroup, whose dK and dV stay in registers. Tiles of Q and dO
stream past, those of all query heads that share the KV head. A step computes S^T = K Q^T and dP^T = V dO^T; P^T and
dS^T; dV += P^T dO and dK += dS^T Q, with P^T and dS^T in registers; and dQ^T = K^T dS^T of the step before, with the dS
of both warpgroups in smem. Two producer warps add dQ^T to f32 accumulators in gmem (`sm90_dq.py`), in a fixed order if
results are to be deterministic (`sm90_scheduler.py`).

The kernel is persistent: a CTA takes one KV tile after the other, and loads the next while it stores dK and dV, or,
with two stages of K and V, while it computes the last queries.

With varlen or `seqused_k`, tiles have rows of other sequences, or rows that do not exist; they are cleared, since 0 *
NaN is NaN.

    kernel        smem, pipelines, roles
    produce       loads Q, dO, LSE and delta, and K and V of each KV tile
    consume       the KV tiles of a consumer warpgroup
    prologue      waits for K and V
    step          one query tile
    hidden_step   a query tile that only the other warpgroup's keys are seen by
    tail          last dQ, stores of dV and dK
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ....parts.kv_producer import gmem_view
from ....parts.rematerialize import rematerialized
from ....parts.tma_operand import TmaOperand
from ....parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles
from ..score_mod import NO_SCORE_MOD, ScoreMod
from .sm90_config import DS_STAGES, LOADED_AHEAD, REGISTERS, TILE_N, WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_dq import DqAdder, DqConverter, DqWriter, dq_empty
from .sm90_mma import BackwardMma
from .sm90_scheduler import BackwardTileScheduler, KvTileBroadcast
from .sm90_softmax import SharedDs
from .sm90_tiles import BackwardTiles, ResultRows, round_to_operand

if TYPE_CHECKING:
    from ..args import AttentionTensors, BackwardScalars
    from .sm90_config import BackwardSchedule, Sm90AttentionBackwardConfig
    from .sm90_scheduler import DqCounters, Span, Work

_BOTH = {"consumer": 4 * WARPGROUPS}
_ROLES = WarpRoles(
    WarpgroupRole("producer", REGISTERS[0], warps=("load", "add dQ", "add dQ", "convert dQ")),
    WarpgroupRole("consumer", REGISTERS[1], WARPGROUPS),
    barriers=(
        # dS of a warpgroup is in a stage
        RoleBarrier("dS", _BOTH, WARPGROUPS * DS_STAGES),
        # all GEMMs are complete
        RoleBarrier("done", _BOTH),
        RoleBarrier("cleared", _BOTH),
        # dQ of a step is in smem; dQ of a warpgroup has been read from there
        RoleBarrier("dQ full", {**_BOTH, "add dQ": 1}, DS_STAGES),
        RoleBarrier("dQ empty", {"consumer": 4, "add dQ": 1}, WARPGROUPS * DS_STAGES),
        # a gradient of a warpgroup is in smem
        RoleBarrier("results", {"consumer": 4}, WARPGROUPS),
    ),
)


def _ds_barrier(group: Int32, other: int, stage: Int32 | int) -> pipeline.NamedBarrier:
    """Return the barrier of a warpgroup's dS, or of the `other`'s (1).

    Each stage has its own: a warpgroup may be done with the next step before the other waits for this one, and would
    take its place there."""
    return _ROLES.barrier("dS", (arch.make_warp_uniform(group) ^ other) + stage * WARPGROUPS)


class Smem(NamedTuple):
    """Tiles in smem: K and V (row, element, stage), Q and dO (row, element, stage), dS (query, key, stage), dQ as it lies in
    registers (number, stage), LSE and delta (row, which, stage)."""

    k: cute.Tensor
    v: cute.Tensor
    q: cute.Tensor
    do: cute.Tensor
    ds: cute.Tensor
    dq: cute.Tensor
    lse_delta: cute.Tensor


class Operands(NamedTuple):
    """TMA operands of a launch."""

    k: TmaOperand
    v: TmaOperand
    q: TmaOperand
    do: TmaOperand
    dk: TmaOperand
    dv: TmaOperand


class Pipes(NamedTuple):
    """Pipelines and their consumers. `q_state` is the stage of Q that dK and dQ of the step before read."""

    pipe_k: pipeline.PipelineTmaAsync
    pipe_v: pipeline.PipelineTmaAsync
    pipe_q: pipeline.PipelineTmaAsync
    q: pipeline.PipelineConsumer
    do: pipeline.PipelineConsumer
    q_state: pipeline.PipelineState


class Consumer(NamedTuple):
    """What a consumer warpgroup computes a KV tile with."""

    group: Int32
    mma: BackwardMma
    scores: SharedDs
    dq: DqWriter


class Sm90BackwardKernel(BackwardTiles):
    """The kernel for one config and kind of problem. `masks` are (right, left, softcap); `head_dim` is padded."""

    resident_rows = TILE_N
    roles = _ROLES

    def __init__(
        self,
        dtype: Any,
        head_dim: int,
        config: Sm90AttentionBackwardConfig,
        masks: tuple[bool, bool, bool],
        deterministic: bool,
        varlen: bool = False,
        has_seqused_k: bool = False,
        staggers_heads: bool = False,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, config, masks, varlen, has_seqused_k, score_mod)
        self.head_dim = head_dim
        self.deterministic = deterministic
        self.staggers_heads: bool = staggers_heads
        self.loaded_ahead: int = LOADED_AHEAD[head_dim]
        self.splits_dq_by_elements: bool = head_dim == WARPGROUPS * WARPGROUP_ROWS
        self.dq_columns: int = config.tile_m if self.splits_dq_by_elements else config.tile_m // WARPGROUPS
        """Columns of a warpgroup's dQ^T."""

    # --- layouts and launch ---

    def smem_layouts(self) -> tuple[cute.ComposedLayout, cute.ComposedLayout, cute.ComposedLayout]:
        """Return the layouts of K and V, of Q and dO, and of dS."""
        config = self.config
        row_major = LayoutEnum.ROW_MAJOR
        shape = (WARPGROUP_ROWS, config.tile_m, self.head_dim)
        return (
            sm90.make_smem_layout_a(row_major, (TILE_N, config.tile_m, self.head_dim), self.dtype, config.kv_stages),
            sm90.make_smem_layout_b(row_major, shape, self.dtype, config.q_stages),
            sm90.make_smem_layout_b(row_major, (WARPGROUP_ROWS, config.tile_m, TILE_N), self.dtype, DS_STAGES),
        )

    @cute.jit
    def __call__(
        self,
        kv: tuple[cute.Tensor, cute.Tensor],
        q_do: tuple[cute.Tensor, cute.Tensor],
        gradients: tuple[cute.Tensor, cute.Tensor],
        dq: cute.Tensor,
        lse_delta: cute.Tensor,
        dq_acc: cute.Tensor,
        counters: DqCounters,
        tensors: AttentionTensors,
        max_seqlen_k: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
        stream: Int64,
    ):
        """Launch the kernel for (K, V), (Q, dO) and (dK, dV).

        `dq` is None if no dQ is converted beside the GEMMs; `lse_delta` is (2, batch, heads, rows); `counters` are
        `DqCounters`."""
        kv_layout, q_layout, _ = self.smem_layouts()
        results = self.result_layout(self.head_dim)
        head_dim = self.head_dim
        tile_m = self.config.tile_m
        operands = Operands(
            *(TmaOperand.load(gmem_view(x), kv_layout, (TILE_N, head_dim)) for x in kv),
            *(TmaOperand.load(gmem_view(x), q_layout, (tile_m, head_dim)) for x in q_do),
            *(TmaOperand.store(gmem_view(x), results, (WARPGROUP_ROWS, head_dim)) for x in gradients),
        )
        batch, _, heads, _ = kv[0].shape
        if const_expr(self.varlen):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        tiles = cute.ceil_div(max_seqlen_k, TILE_N)
        # threads store the last rows of a varlen sequence
        plain = tuple(gmem_view(x) for x in gradients) if const_expr(self.varlen) else (None, None)
        self.kernel(operands, plain, dq, lse_delta, dq_acc, counters, tensors, tiles, scalars, schedule).launch(
            grid=(min(tiles * heads * batch, schedule.num_ctas), 1, 1),
            block=(self.roles.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self,
        operands: Operands,
        plain: Any,
        dq: cute.Tensor,
        lse_delta: cute.Tensor,
        dq_acc: cute.Tensor,
        counters: DqCounters,
        tensors: AttentionTensors,
        tiles: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
    ):
        config = self.config
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for operand in operands:
                cpasync.prefetch_descriptor(operand.atom)
        allocator = utils.SmemAllocator()
        smem = self.allocate(allocator)
        pipe_k, pipe_v = (self.pipe(config.kv_stages, x.stage_bytes()) for x in (operands.k, operands.v))
        values = 4 * config.tile_m  # bytes of LSE or delta
        pipe_q, pipe_do = (self.pipe(config.q_stages, x.stage_bytes() + values) for x in (operands.q, operands.do))
        broadcast = KvTileBroadcast.create(allocator, WARPGROUPS * (WARPGROUP // 32 + 1) + (dq is not None))
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        scheduler = BackwardTileScheduler(self, operands.q.tensor, operands.k.tensor, tensors, tiles, scalars, schedule)
        producers, (_, _, consumer_q, consumer_do) = zip(
            *(pipe.make_participants() for pipe in (pipe_k, pipe_v, pipe_q, pipe_do)), strict=True
        )
        roles = self.roles
        if roles.is_up_to(warp, "producer"):
            roles.set_registers("producer")
            if roles.has(warp, "load"):
                self.produce(operands, lse_delta, smem, producers, scheduler, broadcast, counters.next_tile)
            if roles.has(warp, "add dQ"):
                adder = DqAdder(self, scheduler, smem.dq, dq_acc, counters.additions)
                adder.run(warp - roles.first("add dQ"), broadcast)
            if const_expr(dq is not None):
                if roles.has(warp, "convert dQ"):
                    DqConverter(self, scheduler, dq_acc, counters.additions, dq).run(broadcast)
        else:
            roles.set_registers("consumer")
            q_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.q_stages)
            pipes = Pipes(pipe_k, pipe_v, pipe_q, consumer_q, consumer_do, q_state)
            self.consume(pipes, operands, plain, smem, scheduler, broadcast, tensors.alibi_slopes)
            for n in range_constexpr(DS_STAGES):  # all dQ has been read
                dq_empty(roles, roles.index(warp, "consumer"), n).arrive_and_wait()

    def allocate(self, allocator: utils.SmemAllocator) -> Smem:
        """Allocate the tiles in smem."""
        make = lambda x: allocator.allocate_tensor(self.dtype, x.outer, 1024, x.inner)
        kv_layout, q_layout, ds_layout = self.smem_layouts()
        k, v = (make(kv_layout) for _ in range(2))
        q = make(q_layout)
        do = make(q_layout)
        ds = make(ds_layout)
        dq_layout = cute.make_layout((WARPGROUPS * WARPGROUP_ROWS * self.dq_columns, DS_STAGES))
        dq = allocator.allocate_tensor(Float32, dq_layout, 128)
        values_layout = cute.make_layout((self.config.tile_m, 2, self.config.q_stages))
        return Smem(k, v, q, do, ds, dq, allocator.allocate_tensor(Float32, values_layout, 128))

    @cute.jit
    def produce(
        self,
        operands: Operands,
        lse_delta: cute.Tensor,
        smem: Smem,
        producers: Any,
        scheduler: BackwardTileScheduler,
        broadcast: KvTileBroadcast,
        next_tile: cute.Tensor,
    ):
        """Take KV tiles, broadcast them, and load what they need, as one warp."""
        producers_kv = producers[:2]
        producers_q = producers[2:]
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        tiles = scheduler.taken(next_tile)
        for number in tiles:
            work = scheduler.work(number)
            span = scheduler.span(work)
            steps = scheduler.steps(span)
            sources = self.streamed_tiles((operands.q, operands.do), (smem.q, smem.do), work)
            for i in range(max(steps, 1)):
                if i < steps:
                    self.load_streamed(i, sources, producers_q, lse_delta, smem.lse_delta, scheduler, work, span)
                if i == 0:  # there is room for the first Q before there is for K
                    for operand, to, producer in zip((operands.k, operands.v), (smem.k, smem.v), producers_kv):
                        stage = producer.acquire_and_advance()
                        self.load_resident(operand, to[None, None, stage.index], work, stage.barrier)
                    broadcast.send(state, number, work)
                    state.advance()
        broadcast.send(state, tiles.number, ())

    @cute.jit
    def consume(
        self,
        pipes: Pipes,
        operands: Operands,
        plain: Any,
        smem: Smem,
        scheduler: BackwardTileScheduler,
        broadcast: KvTileBroadcast,
        alibi_slopes: Any,
    ):
        """Compute all KV tiles of the CTA, as one consumer warpgroup."""
        scalars = scheduler.scalars
        group_size = scheduler.group_size
        stages = smem
        for _ in broadcast.received():
            kv_stage = self.kv_state(broadcast).index
            smem = stages._replace(k=stages.k[None, None, kv_stage], v=stages.v[None, None, kv_stage])
            # what is computed from the thread is not kept in registers from one KV tile to the next
            own_thread = rematerialized(arch.thread_idx()[0])
            group = arch.make_warp_uniform(own_thread // WARPGROUP) - 1
            thread = own_thread % WARPGROUP
            mma = BackwardMma(self, thread, smem)
            scores = SharedDs(self, mma, thread, group, smem, scalars)
            consumer = Consumer(group, mma, scores, DqWriter(self, mma, smem, group, thread))
            work = broadcast.work()
            span = scheduler.span(work)
            steps = scheduler.steps(span)
            key = work.tile * TILE_N + group * WARPGROUP_ROWS
            keys = work.seqlen_k - key
            first = scheduler.edge(key, work, span)
            edge = first
            group_index = Int32(0)
            self.prologue(consumer, pipes, smem, work, self.kv_state(broadcast))
            visible = self.visible_tiles(first, span) * group_size if const_expr(self.masks_right) else steps
            for i in range(visible):
                edge, group_index = self.step(
                    i, consumer, pipes, smem, scheduler, broadcast, alibi_slopes, edge, group_index, keys
                )
            if const_expr(self.masks_right):
                for i in range(visible, steps):
                    self.hidden_step(i, consumer, pipes)
            self.tail(consumer, pipes, operands, plain, smem, scheduler, broadcast)

    def kv_state(self, broadcast: KvTileBroadcast) -> pipeline.PipelineState:
        """Return the pipeline state of K and V of the KV tile that was waited for."""
        return broadcast.state(self.config.kv_stages)

    @cute.jit
    def visible_tiles(self, first: Int32, span: Span):
        """Return how many query tiles, from the last on, see keys of a warpgroup; the last always counts, since both
        clear it."""
        tile_m = self.config.tile_m
        return min(span.count, max(Int32(1), (2 * tile_m - 1 - first) // tile_m))

    @cute.jit
    def prologue(self, consumer: Consumer, pipes: Pipes, smem: Smem, work: Work, kv_state: pipeline.PipelineState):
        """Wait for K and V of a KV tile."""
        consumer.mma.acc_dk.fill(0.0)
        consumer.mma.acc_dv.fill(0.0)
        # dQ of a step is computed in the next one; before the first there is no dS
        consumer.scores.clear_ds(Int32(1))
        arch.fence_proxy("async.shared", space="cta")
        pipes.pipe_k.consumer_wait(kv_state)
        pipes.pipe_v.consumer_wait(kv_state)
        if const_expr(self.lengths_vary):
            rows = work.seqlen_k - work.tile * TILE_N
            if rows < TILE_N:
                self.clear_tiles((smem.k, smem.v), rows)
        consumer.mma.load_operands(consumer.group)
        # after that: where no query sees these keys, the other warpgroup overwrites V as soon as this one arrives
        _ds_barrier(consumer.group, 0, 1).arrive()

    @cute.jit
    def step(
        self,
        i: Int32,
        consumer: Consumer,
        pipes: Pipes,
        smem: Smem,
        scheduler: BackwardTileScheduler,
        broadcast: KvTileBroadcast,
        alibi_slopes: Any,
        edge: Int32,
        group_index: Int32,
        keys: Int32,
    ):
        """Compute S, P, dP, dS, dV and dK of a query tile, and dQ of the one before; returns `edge` and `group_index`
        of the next step."""
        mma = consumer.mma
        scores = consumer.scores
        group = consumer.group
        scalars = scheduler.scalars
        q_stage = pipes.q.wait_and_advance()
        operands = mma.warpgroup_operands(arch.make_warp_uniform(group))
        ds_stage = rematerialized(i) & 1
        if const_expr(self.varlen):
            if i < scheduler.group_size:
                tiles = (smem.q[None, None, q_stage.index], smem.do[None, None, pipes.do.wait().index])
                self.clear_last_queries(tiles, scheduler, broadcast)
        warpgroup.fence()
        mma.issue_s(operands, q_stage.index)
        lse = scores.lse(q_stage.index, 0)
        _ds_barrier(group, 1, 1 - ds_stage).arrive_and_wait()
        mma.issue_dq(operands, 1 - ds_stage)
        warpgroup.wait_group(1)  # S, and dK of the step before
        if i > 0:
            pipes.pipe_q.consumer_release(pipes.q_state)
            pipes.q_state.advance()
        if const_expr(self.has_softcap):
            scores.softcap()
        if const_expr(self.score_mod):  # registers are few
            work = broadcast.work()
            keys = work.seqlen_k - work.tile * TILE_N - group * WARPGROUP_ROWS
        if keys < WARPGROUP_ROWS or self.is_masked(edge, scalars):
            self.mask(mma.acc_s, edge, keys, scalars)
        coordinates = None
        if const_expr(self.score_mod):
            work = broadcast.work()
            key = work.tile * TILE_N + group * WARPGROUP_ROWS
            coordinates = self.coordinates(edge, key, i, alibi_slopes, scheduler, work)
        scores.exp2(q_stage.index, 0, coordinates, lse)
        lse = scores.lse(q_stage.index, 1)
        do_stage = pipes.do.wait_and_advance()
        edge, group_index = scheduler.next_edge(edge, group_index)
        warpgroup.wait_group(0)
        if i > 0:
            consumer.dq.write(i - 1)
        warpgroup.fence()
        mma.issue_dp(operands, do_stage.index)
        scores.exp2(q_stage.index, 1, coordinates, lse)
        scores.convert_p()
        warpgroup.fence()
        mma.issue_dv(do_stage.index)
        delta = scores.delta(do_stage.index)
        warpgroup.wait_group(1)
        scores.ds(mma.acc_s, mma.acc_dp, do_stage.index, delta)
        round_to_operand(mma.acc_dp, mma.ds, range(self.config.tile_m // 16))
        scores.write_ds(ds_stage)
        warpgroup.fence()
        mma.issue_dk(q_stage.index)
        arch.fence_proxy("async.shared", space="cta")
        _ds_barrier(group, 0, ds_stage).arrive()
        warpgroup.wait_group(1)
        do_stage.release()
        return edge, group_index

    @cute.jit
    def hidden_step(self, i: Int32, consumer: Consumer, pipes: Pipes):
        """Take part in a step whose queries only see keys of the other warpgroup: this one's dS is 0."""
        mma = consumer.mma
        pipes.q.wait_and_advance()
        _ds_barrier(consumer.group, 1, 1 - i % 2).arrive_and_wait()
        warpgroup.fence()
        mma.issue_dq(mma.warpgroup_operands(arch.make_warp_uniform(consumer.group)), 1 - i % 2)
        pipes.do.wait_and_advance().release()
        warpgroup.wait_group(0)
        if i > 0:
            pipes.pipe_q.consumer_release(pipes.q_state)
            pipes.q_state.advance()
            consumer.dq.write(i - 1)
        consumer.scores.clear_ds(i % 2)
        arch.fence_proxy("async.shared", space="cta")
        _ds_barrier(consumer.group, 0, i % 2).arrive()

    @cute.jit
    def tail(
        self,
        consumer: Consumer,
        pipes: Pipes,
        operands: Operands,
        plain: Any,
        smem: Smem,
        scheduler: BackwardTileScheduler,
        broadcast: KvTileBroadcast,
    ):
        """Compute the last dQ, and store dV and dK through the smem of V."""
        mma = consumer.mma
        # read again, not kept in registers that the loop needs
        work = broadcast.work()
        state = broadcast.state()
        kv_state = self.kv_state(broadcast)
        steps = scheduler.steps(scheduler.span(work))
        _ds_barrier(consumer.group, 1, 1 - steps % 2).arrive_and_wait()
        warpgroup.fence()
        mma.issue_dq(mma.warpgroup_operands(arch.make_warp_uniform(consumer.group)), 1 - steps % 2)
        broadcast.release(state)
        # the other warpgroup has announced its last dS, and so is done with V, where dV is stored while the next K is
        # loaded
        pipes.pipe_v.consumer_wait(kv_state)
        self.store_kv_gradient(mma.acc_dv, Float32(1.0), smem.v, operands.dv, plain[1], consumer.group, work)
        warpgroup.wait_group(0)
        if steps > 0:
            pipes.pipe_q.consumer_release(pipes.q_state)
            pipes.q_state.advance()
        # both warpgroups read dS
        self.roles.barrier("done").arrive_and_wait()
        pipes.pipe_k.consumer_release(kv_state)
        if steps > 0:
            consumer.dq.write(steps - 1)
        self.store_kv_gradient(mma.acc_dk, scheduler.scalars.scale, smem.v, operands.dk, plain[0], consumer.group, work)
        if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
            arch.cp_async_bulk_wait_group(0, read=True)
        pipes.pipe_v.consumer_release(kv_state)

    @cute.jit
    def clear_last_queries(self, tiles: Any, scheduler: BackwardTileScheduler, broadcast: Any):
        """Zero the rows after a varlen sequence in the last tiles of Q and dO that see keys."""
        rows = scheduler.last_tile_queries(broadcast.work())
        if rows < self.config.tile_m:
            self.clear_tiles(tiles, rows)

    def clear_tiles(self, tiles: Any, rows: Any) -> None:
        """Zero rows of tiles, with both warpgroups together."""
        thread = rematerialized(arch.thread_idx()[0]) - WARPGROUP
        self.clear(tiles, rows, thread, WARPGROUPS * WARPGROUP)

    def store_kv_gradient(
        self,
        acc: cute.Tensor,
        scale: Float32 | float,
        smem: cute.Tensor,
        target: TmaOperand,
        plain: Any,
        group: Int32,
        work: Work,
    ) -> None:
        """Store a warpgroup's dK or dV."""
        rows = ResultRows(work.first_k, work.tile * WARPGROUPS + group, work.rows_k, work.head, work.layer)
        barrier = self.roles.barrier("results", group)
        self.store_gradient(acc, scale, smem, target, plain, rows, group, barrier, True, self.head_dim)
