"""The forward kernel of attention for Hopper: warp-specialised, with TMA loads and WGMMA (FlashAttention-3).

A CTA computes query tiles; one warpgroup is the producer, and each consumer warpgroup has 64 query rows. For each KV
tile a consumer issues S = Q K^T of this tile and O += P V of the tile before; while the tensor cores work on the
latter, it computes the online softmax of the former. KV tiles come from the last that is visible to the first, so that
masked tiles are the first few (and, with a window, the last few).

    kernel        smem, pipelines, roles
    consume       the query tiles of a consumer warpgroup
    prologue      first KV tile: S, mask, softmax
    main_loop     the other KV tiles (`kv_step`)
    tail          last P V, and KV tiles that only other warpgroups see
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Int32, Int64, const_expr, cute, pipeline, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from .....utils.tiles.online_softmax import nonzero_scale
from ....parts.kv_producer import KvProducer, gmem_view
from ....parts.kv_source import VECTOR, vector_at
from ....parts.tma_operand import TmaOperand, tma_pipe
from ....parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles
from ....parts.wgmma import K_MAJOR, MN_MAJOR, make_wgmma
from ..score_mod import NO_SCORE_MOD, ScoreMod
from .sm90_config import WARPGROUP_M, padded_head_dim
from .sm90_epilogue import Outputs, Sm90Epilogue
from .sm90_mma import AttentionMma
from .sm90_scheduler import KvSpan, QueryTileScheduler, ReceivedTiles, Work
from .sm90_softmax import ScoreRows, ScoreTile, Sm90Softmax

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..args import AttentionScalars, AttentionTensors
    from .sm90_config import Sm90AttentionConfig

WARPGROUP = 128
"""Threads of a warpgroup."""
_MAX_UNIFORM_Q_PARTS = 8
"""K blocks of Q in smem whose descriptors fit into uniform registers all through the main loop."""


class Smem(NamedTuple):
    """Tiles in smem: Q (row, element, warpgroup), K (row, element, stage), V (element, row, stage), O (row, element,
    warpgroup)."""

    q: Any
    k: Any
    v: Any
    o: Any


class PingpongTurns:
    """Lets warpgroups issue GEMMs in turns: while the tensor cores work for one, others compute their softmax."""

    __kiln_immutable__ = True

    def __init__(self, roles: WarpRoles, warpgroups: int, group: Int32 | int) -> None:
        self.this_turn: pipeline.NamedBarrier = roles.barrier("turn", group)
        self.next_turn: pipeline.NamedBarrier = roles.barrier("turn", (group + 1) % warpgroups)

    def wait(self) -> None:
        """Wait for this warpgroup's turn."""
        self.this_turn.arrive_and_wait()

    def pass_on(self) -> None:
        """Give the turn to the next warpgroup."""
        self.next_turn.arrive()


class Consumer(NamedTuple):
    """The fragments, the softmax and the pipelines of a consumer warpgroup."""

    warpgroup: Int32
    """The number of the warpgroup among the consumers."""
    smem_v: cute.Tensor
    mma: AttentionMma
    softmax: Sm90Softmax
    scores: ScoreTile
    turns: PingpongTurns | None
    q: pipeline.PipelineConsumer
    k: pipeline.PipelineConsumer
    v: pipeline.PipelineConsumer
    pipe_v: pipeline.PipelineTmaAsync
    """The pipeline that `v` consumes. A stage of V is waited for in one step and released in the next, by `v_state`."""
    v_state: pipeline.PipelineState
    """The stage of V that the current P V reads, one behind `v`."""


class KvLoop(NamedTuple):
    """What the steps of the main loop share: the KV tiles and the query rows of a query tile."""

    span: KvSpan
    rows: ScoreRows
    rows_of: Callable[[], ScoreRows]
    """Returns `rows`, read again from smem where registers are few."""
    q_stage: Any
    """The stage of Q, to release."""


class Sm90ForwardKernel:
    """The kernel for one config and kind of problem.

    `masks` says whether keys right of a window (causal), keys left of it, and softcap are compiled in. With
    `separate_o`, O has smem of its own; otherwise it replaces Q. `group_size` query heads are packed into a tile. 8-bit
    V comes transposed, as `TransposeV` writes it: (batch or 1, element, head, key)."""

    def __init__(
        self,
        dtype: type[cute.Numeric],
        head_dims: tuple[int, int],
        config: Sm90AttentionConfig,
        masks: tuple[bool, bool, bool],
        separate_o: bool,
        group_size: int = 1,
        varlen: bool = False,
        has_seqused_k: bool = False,
        page_size: int = 0,
        out_dtype: type[cute.Numeric] | None = None,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        self.dtype = dtype
        self.config = config
        self.separate_o = separate_o
        self.is_fp8: bool = dtype.width == 8
        self.out_dtype: type[cute.Numeric] = dtype if out_dtype is None else out_dtype
        # in smem; TMA fills what arrays do not have with zeros
        self.head_dim: int = padded_head_dim(head_dims[0], dtype.width)
        self.head_dim_v: int = padded_head_dim(head_dims[1], dtype.width)
        self.masks_right: bool = masks[0]
        self.masks_left: bool = masks[1]
        self.has_softcap: bool = masks[2]
        self.group_size = group_size
        self.varlen = varlen
        self.score_mod = score_mod
        self.lengths_vary: bool = varlen or has_seqused_k or page_size > 0
        # rows of a TMA load: a KV tile, or the part of it that is in one page; transposed V is not paged
        self.page_size = page_size
        self.box_k: int = math.gcd(page_size, config.tile_n)
        self.box_v: int = config.tile_n if self.is_fp8 else self.box_k
        self.separate_v_producer: bool = self.box_v < config.tile_n
        """Many small loads: one producer warp for Q and K, another for V."""
        self.q_release = "after main loop"
        """When the next Q may be loaded. With the last S of short (causal) tiles it is earlier, and takes instructions
        in each step."""
        if not separate_o:
            self.q_release = "after store"
        elif config.q_in_regs:
            self.q_release = "after load"
        elif self.masks_right:
            self.q_release: str = "after last S"
        self.single_loop: bool = self.masks_left or (
            self.masks_right and (self.head_dim_v > 128 or score_mod.function is not None)
        )
        """Whether masked and unmasked KV tiles share one loop, with a branch around the mask: less code to compile.
        Causal kernels with head_dim up to 128 are 2.2 % faster with two loops, those of fp8 with head_dim 256 3 % slower,
        although the one loop loads a spilled register again and again."""
        self.rereads_work = self.single_loop and self.is_fp8
        """Whether what masks depend on is read again from smem for each masked tile: otherwise registers spill."""
        self.rematerialize_q = not config.q_in_regs and self.head_dim * dtype.width // 256 > _MAX_UNIFORM_Q_PARTS
        """Whether Q's descriptors are computed in each step, not kept in uniform registers."""
        self.pingpong: bool = config.pingpong and config.consumer_warpgroups > 1
        self.roles: WarpRoles = self._roles()

    def _roles(self) -> WarpRoles:
        config = self.config
        warpgroups = config.consumer_warpgroups
        registers = config.registers
        if self.page_size and warpgroups == 2:  # page lookups take some
            registers = (40, 232)
        barriers = [RoleBarrier("epilogue", {"consumer": 4}, warpgroups)]
        if warpgroups > 1:
            barriers.append(RoleBarrier("turn", {"consumer": 8}, warpgroups))
        # after consumer warpgroups have cleared rows of V
        barriers.append(RoleBarrier("cleared", {"consumer": 4 * warpgroups}))
        return WarpRoles(
            WarpgroupRole("producer", registers[0], warps=("load", "load V")),
            WarpgroupRole("consumer", registers[1], warpgroups),
            barriers=tuple(barriers),
        )

    # --- layouts and launch ---

    @property
    def row_shape(self) -> Any:
        """The rows of a warpgroup: queries, or (packed heads, queries)."""
        return WARPGROUP_M if self.group_size == 1 else (self.group_size, WARPGROUP_M // self.group_size)

    def row_coord(self, number: Int32) -> Any:
        """Return a coordinate in the row mode."""
        return number if self.group_size == 1 else (0, number)

    def query_and_head(self, row: Int32 | int, head: Int32 | int) -> tuple[Any, Any]:
        """Return the query and the head of a row of a tile."""
        if self.group_size == 1:
            return row, head
        return row // self.group_size, head * self.group_size + row % self.group_size

    def mma_qk(self) -> cute.TiledMma:
        """Return the tiled MMA of S = Q K^T."""
        return make_wgmma(self.dtype, self.config.tile_n, a_in_regs=self.config.q_in_regs)

    def mma_pv(self) -> cute.TiledMma:
        """Return the tiled MMA of O += P V, with P in registers."""
        return make_wgmma(self.dtype, self.head_dim_v, b=K_MAJOR if self.is_fp8 else MN_MAJOR, a_in_regs=True)

    def smem_layouts(self, rows: int) -> Smem:
        """Return the layouts of Q, of K and V with `rows` keys, and of O."""
        config = self.config
        row_major = LayoutEnum.ROW_MAJOR
        v_major = row_major if self.is_fp8 else LayoutEnum.COL_MAJOR
        return Smem(
            sm90.make_smem_layout_a(
                row_major, (WARPGROUP_M, rows, self.head_dim), self.dtype, config.consumer_warpgroups
            ),
            sm90.make_smem_layout_b(row_major, (WARPGROUP_M, rows, self.head_dim), self.dtype, config.kv_stages),
            sm90.make_smem_layout_b(v_major, (WARPGROUP_M, self.head_dim_v, rows), self.dtype, config.kv_stages),
            sm90.make_smem_layout_epi(
                self.out_dtype, row_major, (WARPGROUP_M, self.head_dim_v), config.consumer_warpgroups
            ),
        )

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor | None,
        tensors: AttentionTensors,
        scalars: AttentionScalars,
        num_ctas: Int32,
        stream: Int64,
    ):
        """Launch the kernel for `AttentionTensors` and `AttentionScalars`."""
        layouts = self.smem_layouts(self.config.tile_n)
        box_k = self.smem_layouts(self.box_k).k
        box_v = self.smem_layouts(self.box_v).v
        dims = (self.head_dim, self.head_dim_v)
        gmem_q, gmem_o = (gmem_view(x, False, self.group_size) for x in (q, out))
        tma_q = TmaOperand.load(gmem_q, layouts.q, (self.row_shape, dims[0]))
        tma_k = TmaOperand.load(gmem_view(k), layouts.k, (self.box_k, dims[0]), box=box_k)
        tma_v = TmaOperand.load(gmem_view(v, not self.is_fp8), layouts.v, (dims[1], self.box_v), box=box_v)
        tma_o = TmaOperand.store(gmem_o, layouts.o, (self.row_shape, dims[1]))
        seqlen_q = q.shape[1]
        seqlen_k = k.shape[1]
        if const_expr(self.page_size > 0):
            seqlen_k = tensors.page_table.shape[1] * self.page_size
        self.kernel(tma_q, tma_k, tma_v, tma_o, out, seqlen_q, seqlen_k, lse, tensors, scalars).launch(
            grid=(num_ctas, 1, 1), block=(self.roles.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self,
        q: TmaOperand,
        k: TmaOperand,
        v: TmaOperand,
        o: TmaOperand,
        out: cute.Tensor,
        seqlen_q: Int32,
        seqlen_k: Int32,
        lse: cute.Tensor | None,
        tensors: AttentionTensors,
        scalars: AttentionScalars,
    ):
        config = self.config
        roles = self.roles
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for operand in (q, k, v, o):
                cpasync.prefetch_descriptor(operand.atom)
        allocator = utils.SmemAllocator()
        smem = self.allocate(allocator, q, k, v, o)
        consumer_warps = roles.warps("consumer")
        pipe_q = tma_pipe(1, consumer_warps, config.consumer_warpgroups * q.stage_bytes())
        pipe_k = tma_pipe(config.kv_stages, consumer_warps, k.stage_bytes())
        pipe_v = tma_pipe(config.kv_stages, consumer_warps, v.stage_bytes())
        receivers = consumer_warps + self.separate_v_producer
        broadcast = pipeline.WorkBroadcast.create(allocator, len(Work._fields), receivers)
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        batch = q.tensor.shape[3]
        if const_expr(self.varlen):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        scheduler = QueryTileScheduler(self, seqlen_q, seqlen_k, q.tensor.shape[2], batch, tensors, scalars)
        producer_q, consumer_q = pipe_q.make_participants()
        producer_k, consumer_k = pipe_k.make_participants()
        producer_v, consumer_v = pipe_v.make_participants()
        sender, receiver = broadcast.pipe.make_participants()
        if roles.is_up_to(warp, "producer"):
            roles.set_registers("producer")
            producer = KvProducer(self, scheduler, broadcast, q, k, v, smem, tensors.page_table)
            if roles.has(warp, "load"):
                own_v = None if self.separate_v_producer else producer_v
                producer.run(sender, (producer_q, producer_k, own_v), tensors.tile_counter)
            if const_expr(self.separate_v_producer):
                if roles.has(warp, "load V"):
                    producer.run_v(broadcast.pipe.make_consumer(), producer_v)
        else:
            roles.set_registers("consumer")
            group = roles.index(warp, "consumer")
            mma = AttentionMma(self, arch.thread_idx()[0] % WARPGROUP, smem.q[None, None, group], smem.k, smem.v)
            descaled = tensors.q_descale is not None
            softmax = Sm90Softmax(self, mma, scalars.scale_log2, descaled and not (self.has_softcap or self.score_mod))
            scores = ScoreTile(self, mma.tSrS, scalars, tensors.alibi_slopes, descaled)
            epilogue = Sm90Epilogue(self, mma, softmax, group, smem.o, Outputs(o, out, lse), tensors)
            v_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.kv_stages)
            consumer = Consumer(
                group,
                smem.v,
                mma,
                softmax,
                scores,
                PingpongTurns(roles, config.consumer_warpgroups, group) if self.pingpong else None,
                consumer_q,
                consumer_k,
                consumer_v,
                pipe_v,
                v_state,
            )
            self.consume(consumer, epilogue, scheduler, broadcast, receiver)

    def allocate(
        self, allocator: utils.SmemAllocator, q: TmaOperand, k: TmaOperand, v: TmaOperand, o: TmaOperand
    ) -> Smem:
        """Allocate the tiles in smem."""
        smem_q, smem_k, smem_v = (x.allocate(allocator) for x in (q, k, v))
        if self.separate_o:
            smem_o = o.allocate(allocator)
        else:
            smem_o = cute.make_tensor(smem_q.iterator, o.smem_layout.outer)
        return Smem(smem_q, smem_k, smem_v, smem_o)

    @cute.jit
    def consume(
        self,
        consumer: Consumer,
        epilogue: Sm90Epilogue,
        scheduler: QueryTileScheduler,
        broadcast: pipeline.WorkBroadcast,
        receiver: pipeline.PipelineConsumer,
    ):
        """Compute all query tiles of the CTA, as one consumer warpgroup. `receiver` gets the producer's `broadcast` of
        query tiles, and `scheduler` tells which KV tiles they see."""
        config = self.config
        group = consumer.warpgroup
        if const_expr(self.pingpong) and group == config.consumer_warpgroups - 1:
            PingpongTurns(self.roles, config.consumer_warpgroups, group).pass_on()
        tiles = scheduler.received(broadcast, receiver)
        for work in tiles:
            span = scheduler.span(work, group if config.skips_hidden_tiles else None)
            rows = self.score_rows(work, group)
            consumer.softmax.reset()
            self.descale(consumer, scheduler, work)
            if const_expr(config.skips_hidden_tiles and self.masks_right):
                last = scheduler.span(work).last
                self.skip_tiles(consumer, last - span.last, work.seqlen_k - last * config.tile_n, True)
            q_stage = consumer.q.wait_and_advance()
            rows_of = lambda index=tiles.stage.index, rows=rows: (
                self.score_rows(scheduler.read(broadcast, index), group) if self.rereads_work else rows
            )
            loop = KvLoop(span, rows, rows_of, q_stage)
            self.prologue(consumer, loop, work)
            self.main_loop(consumer, loop)
            self.tail(consumer, scheduler, tiles)
            # work is read again, not kept in registers that the main loop needs
            epilogue.finish(tiles.read_again())
            if const_expr(self.q_release == "after store"):
                epilogue.wait_for_store()
                q_stage.release()
        epilogue.wait_for_store()
        if const_expr(self.pingpong) and group == 0:
            PingpongTurns(self.roles, config.consumer_warpgroups, group).wait()

    def score_rows(self, work: Any, group: Int32) -> ScoreRows:
        """Return the rows of a warpgroup's scores."""
        first = work.tile * self.config.tile_m + group * WARPGROUP_M
        return ScoreRows(first, work.head, work.batch, work.seqlen_q, work.seqlen_k)

    @cute.jit
    def descale(self, consumer: Consumer, scheduler: QueryTileScheduler, work: Work):
        """Load the scale factors of fp8 Q and K for a query tile."""
        q_descale = scheduler.tensors.q_descale
        k_descale = scheduler.tensors.k_descale
        if const_expr(q_descale is not None):
            head_k = work.head // (scheduler.heads // q_descale.shape[1])
            descale = q_descale[work.batch, head_k] * k_descale[work.batch, head_k]
            consumer.softmax.tile_scale[0] = nonzero_scale(scheduler.scalars.scale_log2 * descale)
            consumer.scores.qk_descale[0] = descale

    @cute.jit
    def prologue(self, consumer: Consumer, loop: KvLoop, work: Work):
        """Compute S and P of the last KV tile, which is always masked."""
        last = loop.span.last
        if const_expr(self.config.q_in_regs):
            consumer.mma.load_q()
            if const_expr(self.q_release == "after load"):
                loop.q_stage.release()
        k_stage = consumer.k.wait_and_advance()
        warpgroup.fence()
        consumer.mma.issue_qk(k_stage.index)
        warpgroup.wait_group(0)
        k_stage.release()
        self.release_q(loop, loop.span.count - 1)
        consumer.scores.modify(last, loop.rows)
        consumer.scores.mask(last, lambda: loop.rows, True)
        consumer.softmax.exp2(False)
        consumer.softmax.convert_p()
        v_stage = consumer.v.wait_and_advance()
        self.clear_v(consumer, v_stage.index, work.seqlen_k - last * self.config.tile_n)

    @cute.jit
    def main_loop(self, consumer: Consumer, loop: KvLoop):
        """Go through the KV tiles before the last one, backwards."""
        last, count, masked, unmasked = loop.span
        if const_expr(self.single_loop):
            first = last - count + 1
            masked_from = last - masked
            for i in range(1 - last, 1 - first):
                kv_tile = -i
                is_masked = Boolean(False)
                if const_expr(self.masks_right):
                    is_masked = kv_tile >= masked_from
                if const_expr(self.masks_left):
                    is_masked = is_masked | (kv_tile < masked_from - unmasked)
                self.kv_step(consumer, loop, kv_tile, kv_tile - first, is_masked)
        else:
            if const_expr(self.masks_right):
                for i in range(1, 1 + masked):
                    self.kv_step(consumer, loop, last - i, count - 1 - i, True)
            for i in range(1 + masked, 1 + masked + unmasked):
                self.kv_step(consumer, loop, last - i, count - 1 - i, False)
        if const_expr(self.q_release == "after main loop"):
            loop.q_stage.release()

    def kv_step(
        self, consumer: Consumer, loop: KvLoop, kv_tile: Int32 | int, remaining: Int32, is_masked: Boolean | bool
    ) -> None:
        """Compute S and P of a KV tile, and beside them O += P V of the tile of the step before. `remaining` steps
        follow."""
        mma = consumer.mma
        softmax = consumer.softmax
        scores = consumer.scores
        lazy = self.config.lazy_rescale
        k_stage = consumer.k.wait_and_advance()
        if consumer.turns is not None:
            consumer.turns.wait()
        warpgroup.fence()
        mma.issue_qk(k_stage.index)
        mma.issue_pv(consumer.v_state.index)
        if consumer.turns is not None:
            consumer.turns.pass_on()
        warpgroup.wait_group(1)
        k_stage.release()
        self.release_q(loop, remaining)
        scores.modify(kv_tile, loop.rows)
        scores.mask(kv_tile, loop.rows_of, is_masked)
        softmax.exp2(lazy)
        # This tile's V is for the next step. Waiting for it here is a loop in SASS that ptxas moves no softmax across;
        # without it, most of the softmax would be scheduled after the wait for P V.
        consumer.v.wait_and_advance()
        warpgroup.wait_group(0)
        consumer.pipe_v.consumer_release(consumer.v_state)
        consumer.v_state.advance()
        softmax.rescale_o(lazy)
        softmax.convert_p()

    @cute.jit
    def tail(self, consumer: Consumer, scheduler: QueryTileScheduler, tiles: ReceivedTiles):
        """Compute the last O += P V, and skip KV tiles that only other warpgroups see."""
        warpgroup.fence()
        consumer.mma.issue_pv(consumer.v_state.index)
        warpgroup.wait_group(0)
        consumer.pipe_v.consumer_release(consumer.v_state)
        consumer.v_state.advance()
        if const_expr(self.config.skips_hidden_tiles):
            work = tiles.read_again()
            tile_span = scheduler.span(work)
            own_span = scheduler.span(work, consumer.warpgroup)
            skipped = tile_span.count - tile_span.last + own_span.last - own_span.count
            self.skip_tiles(consumer, skipped, Int32(0), False)

    @cute.jit
    def skip_tiles(self, consumer: Consumer, count: Int32 | int, rows: Int32, clears: bool):
        """Release KV tiles that this warpgroup does not see; it still helps to clear V, of which the first one has
        `rows` rows."""
        # ptxas must see that all threads of a warp agree, to keep WGMMA descriptors in uniform registers
        for i in range(arch.make_warp_uniform(count) if const_expr(self.rematerialize_q) else count):
            consumer.k.wait_and_advance().release()
            v_stage = consumer.v.wait_and_advance()
            if const_expr(clears):
                self.clear_v(consumer, v_stage.index, rows + i * self.config.tile_n)
            consumer.pipe_v.consumer_release(consumer.v_state)
            consumer.v_state.advance()

    @cute.jit
    def release_q(self, loop: KvLoop, remaining: Int32):
        """Release Q after the last S, if `q_release` says so."""
        if const_expr(self.q_release == "after last S"):
            if remaining == 0:
                loop.q_stage.release()

    @cute.jit
    def clear_v(self, consumer: Consumer, stage: Int32, rows: Int32):
        """Zero the rows of a V tile that do not exist: their P is 0, but they may be NaN. All consumer warpgroups do
        that together."""
        if const_expr(self.lengths_vary and not self.is_fp8):
            smem_v = consumer.smem_v[None, None, stage]
            config = self.config
            vectors = self.head_dim_v // VECTOR
            threads = config.consumer_warpgroups * WARPGROUP
            if rows < config.tile_n:
                zeros = cute.make_rmem_tensor((VECTOR,), self.dtype)
                zeros.fill(0.0)
                first = consumer.warpgroup * WARPGROUP + arch.thread_idx()[0] % WARPGROUP
                for i in range(max(rows, 0) * vectors + first, config.tile_n * vectors, threads):
                    cute.autovec_copy(zeros, vector_at(smem_v, (i % vectors * VECTOR, i // vectors)))
                arch.fence_proxy("async.shared", space="cta")
                self.roles.barrier("cleared").arrive_and_wait()
