"""The dQ kernel for Hopper, head_dim over 128.

A CTA has 128 queries of a head, 64 for each consumer warpgroup, whose dQ stays in registers. KV tiles stream past. A
step computes S = Q K^T and dP = dO V^T, P and dS, and dQ += dS K of the step before, with dS in registers, so that
GEMMs and softmax overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from .....utils.schedulers import clamp_offset, sequence_range
from ....dispatch import devices
from ....parts.attention_mask import accumulator_column, accumulator_row, mask_row
from ....parts.kv_producer import gmem_view
from ....parts.online_softmax import softcap_tanh
from ....parts.rematerialize import rematerialized
from .preprocess import permuted_row
from .sm90_config import REGISTERS, WARPGROUP, WARPGROUP_ROWS, WARPGROUPS
from .sm90_hd256_config import DQ_TILE_M
from .sm90_hd256_mma import GradientMma, ScoreMma
from .sm90_scheduler import varlen_first_tile
from .sm90_tiles import ResultRows, ScoreCoordinates, TmaTiles, round_to_operand

if TYPE_CHECKING:
    from ..score_mod import ScoreMod
    from .sm90_hd256_config import Sm90AttentionBackwardHd256Config

_CLEARED, _DONE, _RESULTS = 1, 2, 3
"""Named barriers: tiles are cleared; all GEMMs are complete; a gradient of a warpgroup is in smem."""


class Smem(NamedTuple):
    """Tiles in smem: Q and dO (row, element), K and V (row, element, stage)."""

    q: Any
    do: Any
    k: Any
    v: Any


class Work(NamedTuple):
    """A query tile of a head; `layer` is the batch index of the arrays, 0 with varlen."""

    tile: Any
    head: Any
    batch: Any
    layer: Any
    first_q: Any
    seqlen_q: Any
    first_k: Any
    seqlen_k: Any
    """Keys that exist."""
    first_value: Any
    """Where LSE and delta of the sequence begin."""


class DqMma:
    """S = Q K^T, dP = dO V^T, and dQ += dS K with dS in registers, of a warpgroup."""

    def __init__(self, kernel: Sm90Hd256DqKernel, thread: Any, smem: Smem, group: Any) -> None:
        tile_n, dtype = kernel.config.tile_n, kernel.dtype
        rows = lambda x: cute.local_tile(x, (WARPGROUP_ROWS, cute.size(x, mode=[1])), (group, 0))
        self.s = ScoreMma(dtype, thread, rows(smem.q), tile_n, kernel.config.q_dims_in_regs)
        self.dp = ScoreMma(dtype, thread, rows(smem.do), tile_n, 0)
        self.k, self.v = (self.s.b_operand(thread, x) for x in (smem.k, smem.v))
        self.acc_s, self.acc_dp = (self.s.accumulator(tile_n) for _ in range(2))
        self.dq = GradientMma(dtype, thread, smem.k, tile_n)


class Sm90Hd256DqKernel(TmaTiles):
    """The kernel for one config and kind of problem. `masks` are (right, left, softcap); `head_dims` are padded."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm90AttentionBackwardHd256Config,
        masks: tuple[bool, bool, bool], varlen: bool, has_seqused_k: bool, score_mod: ScoreMod,
    ) -> None:  # fmt: skip
        self.dtype, self.config, self.score_mod = dtype, config, score_mod
        self.head_dims = head_dims
        self.masks_right, self.masks_left, self.has_softcap = masks
        self.varlen, self.lengths_vary = varlen, varlen or has_seqused_k

    def smem_layouts(self) -> list[Any]:
        """Return the layouts of Q, dO, K and V."""
        config, row_major, dims = self.config, LayoutEnum.ROW_MAJOR, self.head_dims
        q_do = [sm90.make_smem_layout_a(row_major, (DQ_TILE_M, config.tile_n, n), self.dtype, 1) for n in dims]
        kv = [
            sm90.make_smem_layout_b(row_major, (WARPGROUP_ROWS, config.tile_n, n), self.dtype, stages)
            for n, stages in zip(dims, (config.k_stages, config.v_stages))
        ]
        return q_do + kv

    @cute.jit
    def __call__(
        self, q_do: Any, kv: Any, dq: cute.Tensor, lse_delta: cute.Tensor, tensors: Any, max_seqlen_q: Int32,
        scalars: Any, schedule: Any, stream: Int64,
    ):  # fmt: skip
        """Launch the kernel for (Q, dO), (K, V) and dQ."""
        layouts, dims = self.smem_layouts(), self.head_dims
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        operands = [
            *(self.tma(load, x, tile, DQ_TILE_M, n) for x, tile, n in zip(q_do, layouts[:2], dims)),
            *(self.tma(load, x, tile, self.config.tile_n, n) for x, tile, n in zip(kv, layouts[2:], dims)),
            self.tma(store, dq, self.result_layout(dims[0]), WARPGROUP_ROWS, dims[0]),
        ]
        batch, _, heads, _ = q_do[0].shape
        if const_expr(self.varlen):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        tiles = cute.ceil_div(max_seqlen_q, DQ_TILE_M)
        plain = gmem_view(dq) if const_expr(self.varlen) else None
        self.kernel(*operands, plain, lse_delta, tensors, tiles, scalars, schedule).launch(
            grid=(tiles * heads * batch, 1, 1),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    def allocate(self) -> Smem:
        """Allocate the tiles in smem."""
        allocator = utils.SmemAllocator()
        q, do, k, v = (allocator.allocate_tensor(self.dtype, x.outer, 1024, x.inner) for x in self.smem_layouts())
        return Smem(q[None, None, 0], do[None, None, 0], k, v)

    @cute.jit
    def work(self, q: Any, k: Any, tensors: Any, tiles: Int32, head_group: Int32):
        """Return the query tile of a CTA: those of some heads side by side, the longest first."""
        heads, layers = q.shape[2], q.shape[3]
        number, group = Int32(arch.block_idx()[0]), head_group * (heads // k.shape[2])
        if const_expr(tensors.cu_seqlens_q is not None):
            layers = tensors.cu_seqlens_q.shape[0] - 1
        first, rest = number // (tiles * group) * group, number % (tiles * group)
        group_heads = min(group, heads * layers - first)
        head, tile = first + rest % group_heads, rest // group_heads
        if const_expr(self.masks_right and not self.masks_left):
            tile = tiles - 1 - tile
        batch = head // heads
        layer, first_q, first_k, first_value = batch, Int32(0), Int32(0), Int32(0)
        seqlen_q, seqlen_k = Int32(q.shape[0]), Int32(k.shape[0])
        if const_expr(tensors.cu_seqlens_q is not None):
            first_q, seqlen_q = sequence_range(tensors.cu_seqlens_q, batch, seqlen_q)
            first_k, seqlen_k = sequence_range(tensors.cu_seqlens_k, batch, seqlen_k)
            first_value = varlen_first_tile(first_q, batch, Int32(self.config.tile_m)) * self.config.tile_m
            layer = Int32(0)
        if const_expr(tensors.seqused_k is not None):
            seqlen_k = clamp_offset(tensors.seqused_k[batch], seqlen_k)
        return Work(tile, head % heads, batch, layer, first_q, seqlen_q, first_k, seqlen_k, first_value)

    @cute.jit
    def span(self, work: Any, scalars: Any):
        """Return the first KV tile that a query tile sees, and how many: a query at position p sees keys p -
        window_left to p + window_right."""
        tile_n, offset = self.config.tile_n, work.seqlen_k - work.seqlen_q
        begin = work.tile * DQ_TILE_M
        first, end = Int32(0), work.seqlen_k
        if const_expr(self.masks_left):
            first = max(Int32(0), begin + offset - scalars.window_left) // tile_n
        if const_expr(self.masks_right):
            last = min(begin + DQ_TILE_M, work.seqlen_q) - 1
            end = min(end, last + offset + scalars.window_right + 1)
        return first, max(cute.ceil_div(max(end, Int32(0)), tile_n) - first, Int32(0))

    @cute.kernel
    def kernel(
        self, q: Any, do: Any, k: Any, v: Any, dq: Any, plain: Any, lse_delta: cute.Tensor, tensors: Any, tiles: Int32,
        scalars: Any, schedule: Any,
    ):  # fmt: skip
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for operand in (k, v, q, do, dq):
                cpasync.prefetch_descriptor(operand.atom)
        smem = self.allocate()
        pipe_q = self.pipe(1, 2 * DQ_TILE_M * sum(self.head_dims))
        pipe_k, pipe_v = (
            self.pipe(stages, 2 * self.config.tile_n * n)
            for stages, n in zip((self.config.k_stages, self.config.v_stages), self.head_dims)
        )
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        work = self.work(q.tensor, k.tensor, tensors, tiles, schedule.head_group)
        first, steps = self.span(work, scalars)
        producer_q, consumer_q = pipe_q.make_participants()
        producer_k, consumer_k = pipe_k.make_participants()
        producer_v, consumer_v = pipe_v.make_participants()
        if work.tile * DQ_TILE_M < work.seqlen_q:  # otherwise the tile is after the end of a shorter sequence
            if warp < WARPGROUP // 32:
                arch.setmaxregister_decrease(REGISTERS[0])
                if warp == 0:
                    self.produce((q, do, k, v), smem, (producer_q, producer_k, producer_v), work, first, steps)
            else:
                arch.setmaxregister_increase(REGISTERS[1])
                group = warp // (WARPGROUP // 32) - 1
                consumers = (consumer_q, consumer_k, consumer_v)
                acc_dq = self.consume(
                    group, smem, pipe_k, consumers, lse_delta, tensors.alibi_slopes, work, first, steps, scalars
                )
                # both warpgroups read Q, whose smem dQ is stored through
                pipeline.NamedBarrier(_DONE, WARPGROUPS * WARPGROUP).arrive_and_wait()
                number = work.tile * WARPGROUPS + group
                rows = ResultRows(work.first_q, number, work.seqlen_q, work.head, work.layer)
                barrier = pipeline.NamedBarrier(_RESULTS, WARPGROUPS * WARPGROUP)
                self.store_gradient(
                    acc_dq, scalars.scale, smem.q, dq, plain, rows, group, barrier, False, self.head_dims[0]
                )
        if const_expr(devices.current().overlaps):  # kernels after this one need what the one before writes
            arch.griddepcontrol_wait()

    @cute.jit
    def produce(self, operands: Any, smem: Any, producers: Any, work: Any, first: Int32, steps: Int32):
        """Load Q and dO, then KV tiles from the last to the first, as one warp."""
        q, do, k, v = operands
        producer_q, producer_k, producer_v = producers
        head_k, tile_n = work.head // (q.tensor.shape[2] // k.tensor.shape[2]), self.config.tile_n
        stage = producer_q.acquire_and_advance()
        for operand, to, n in zip((q, do), (smem.q, smem.do), self.head_dims):
            target, tiles = self.tiles(operand, to, work.first_q, DQ_TILE_M, n)
            source = tiles[None, work.tile, work.head, work.layer]
            cute.copy(operand.atom, source, target, tma_bar_ptr=stage.barrier)
        smem_k, tiles_k = self.tiles(k, smem.k, work.first_k, tile_n, self.head_dims[0])
        smem_v, tiles_v = self.tiles(v, smem.v, work.first_k, tile_n, self.head_dims[1])
        for i in range(steps):
            tile = first + steps - 1 - i
            for producer, atom, tiles, to in (
                (producer_k, k.atom, tiles_k, smem_k),
                (producer_v, v.atom, tiles_v, smem_v),
            ):
                stage = producer.acquire_and_advance()
                source = tiles[None, tile, head_k, work.layer]
                cute.copy(atom, source, to[None, stage.index], tma_bar_ptr=stage.barrier)

    @cute.jit
    def consume(
        self, group: Int32, smem: Any, pipe_k: Any, consumers: Any, lse_delta: cute.Tensor, alibi_slopes: Any,
        work: Any, first: Int32, steps: Int32, scalars: Any,
    ):  # fmt: skip
        """Compute dQ of 64 queries, as one consumer warpgroup; returns the accumulator."""
        tile_n = self.config.tile_n
        consumer_q, consumer_k, consumer_v = consumers
        steps = arch.make_warp_uniform(steps)  # otherwise ptxas has a few more instructions in the loop
        thread = arch.thread_idx()[0] % WARPGROUP
        consumer_q.wait_and_advance()
        mma = DqMma(self, thread, smem, group)
        query = work.tile * DQ_TILE_M + group * WARPGROUP_ROWS
        values = self.row_values(lse_delta, work, query, thread)
        # of the first query: its position relative to a KV tile's first key; the last tile comes first
        key = (first + steps - 1) * tile_n
        position = query + work.seqlen_k - work.seqlen_q - key
        keys = work.seqlen_k - key
        slope = Float32(0.0)
        if const_expr(alibi_slopes is not None):
            slope = alibi_slopes[min(work.batch, alibi_slopes.shape[0] - 1), work.head]
        k_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.k_stages)
        for i in range(steps):
            k_stage = consumer_k.wait_and_advance()
            v_stage = consumer_v.wait_and_advance()
            if const_expr(self.lengths_vary):
                if keys < tile_n:
                    tiles = (smem.k[None, None, k_stage.index], smem.v[None, None, v_stage.index])
                    self.clear(tiles, keys, arch.thread_idx()[0] - WARPGROUP, WARPGROUPS * WARPGROUP, _CLEARED)
            warpgroup.fence()
            mma.s.issue(mma.acc_s, mma.k, k_stage.index)
            mma.dq.issue(k_state.index)  # of the step before
            mma.dp.issue(mma.acc_dp, mma.v, v_stage.index)
            warpgroup.wait_group(2)
            if const_expr(self.has_softcap):
                for n in range_constexpr(cute.size(mma.acc_s)):
                    mma.acc_s[n] = softcap_tanh(mma.acc_s[n], scalars.softcap_scale)
            if keys < tile_n or self.is_masked(position, scalars):
                self.mask(mma.acc_s, position, keys, scalars)
            place = ScoreCoordinates(work.batch, work.head, query, key - i * tile_n, position, slope)
            self.exp2(mma.acc_s, values, place, scalars)
            warpgroup.wait_group(1)
            if i > 0:
                pipe_k.consumer_release(k_state)
                k_state.advance()
            warpgroup.wait_group(0)
            v_stage.release()
            self.ds(mma, values)
            position, keys = position + tile_n, keys + tile_n
        if steps > 0:
            warpgroup.fence()
            mma.dq.issue(k_state.index)
            warpgroup.wait_group(0)
            pipe_k.consumer_release(k_state)
        return mma.dq.acc

    @cute.jit
    def row_values(self, lse_delta: cute.Tensor, work: Any, query: Int32, thread: Int32):
        """Return LSE and delta of both rows of a thread; LSE is inf for rows that do not exist."""
        values = cute.make_rmem_tensor((2, 2), Float32)
        for half in range_constexpr(2):
            row = accumulator_row(query, thread, half)
            place = work.first_value + permuted_row(min(row, work.seqlen_q - 1))
            lse, delta = (lse_delta[which, work.layer, work.head, place] for which in range(2))
            # no branch: ptxas keeps no WGMMA descriptor in uniform registers across one
            values[0, half] = lse if row < work.seqlen_q else Float32(float("inf"))
            values[1, half] = delta
        return values

    @cute.jit
    def is_masked(self, position: Int32, scalars: Any):
        """Return whether some query of a warpgroup does not see some key of a KV tile."""
        masked = Boolean(False)
        if const_expr(self.masks_right):
            masked = position + scalars.window_right < self.config.tile_n - 1
        if const_expr(self.masks_left):
            masked = masked | (position + (WARPGROUP_ROWS - 1) - scalars.window_left > 0)
        return masked

    @cute.jit
    def mask(self, acc_s: cute.Tensor, position: Int32, keys: Int32, scalars: Any):
        """Mask scores: keys outside of the window or the sequence."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        for half in range_constexpr(2):
            column = accumulator_column(thread)
            row = accumulator_row(position, thread, half) - column
            begin, end = None, keys - column
            if const_expr(self.masks_right):
                end = min(end, row + scalars.window_right + 1)
            if const_expr(self.masks_left):
                begin = row - scalars.window_left
            mask_row(acc_s, lambda c, n, half=half: ((c, half, n), 0, 0), self.config.tile_n, begin, end)

    def exp2(self, acc_s: Any, values: Any, place: ScoreCoordinates, scalars: Any) -> None:
        """P = exp2(S * scale_log2 - LSE) times the derivative of the score modification, in place of S.

        `place.distance` is the position of the first query relative to the first key.
        """
        score_mod = self.score_mod
        query, key = place.query, place.key
        distance: Any = None
        if score_mod:
            thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
            row, column = accumulator_row(0, thread, 0), accumulator_column(thread)
            query, key, distance = query + row, key + column, Float32(column - place.distance - row)
        for n in range(self.config.tile_n // 8):
            for half in range(2):
                for c in range(2):
                    at = ((c, half, n), 0, 0)
                    score, derivative = acc_s[at], None
                    of_cap = arch.fmax(1.0 - score * score, 0.0) if self.has_softcap else None
                    if score_mod:
                        offset = float(8 * n + c - 8 * half)
                        changed = score_mod.alibi(score * scalars.score_scale, place.slope, distance + offset)
                        coordinates = (place.batch, place.head, query + 8 * half, key + 8 * n + c)
                        score, derivative = score_mod.apply_visible(score, changed, coordinates)
                    p = arch.exp2(cute.math.fma(score, scalars.scale_log2, -values[0, half]))
                    for factor in (of_cap, derivative):
                        p = p if factor is None else p * factor
                    acc_s[at] = p

    def ds(self, mma: DqMma, values: Any) -> None:
        """dS = P (dP - delta), as an operand."""
        for k in range(self.config.tile_n // 16):
            for n in range(2 * k, 2 * k + 2):
                for half in range(2):
                    for c in range(2):
                        at = ((c, half, n), 0, 0)
                        mma.acc_dp[at] = mma.acc_s[at] * (mma.acc_dp[at] - values[1, half])
            round_to_operand(mma.acc_dp, mma.dq.a, [k])
