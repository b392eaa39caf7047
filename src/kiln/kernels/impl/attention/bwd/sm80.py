"""The backward kernels of attention with `mma.sync`, for every GPU since sm_80: one for dK and dV, one for dQ.

    dK, dV      S^T = K Q^T, dP^T = V dO^T; dV += P^T dO, dK += dS^T Q, over the queries
    dQ          S = Q K^T, dP = dO V^T; dQ += dS K, over the keys

with P = exp(S - LSE) and dS = P (dP - delta). Both are one kernel: a CTA has a tile of two arrays of its own
(resident), X and Y; tiles of two others, U and W, stream past; S = X U^T and dP = Y W^T become P and dS in registers,
the A operands of dS U and P W. Each gradient is summed by one CTA in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....utils.schedulers import clamp_offset
from .....utils.tiles import swizzled
from ....parts.attention_mask import mask_row
from ....parts.kv_source import load_rows, sequence_rows
from ....parts.rematerialize import rematerialized
from ..fwd.query_tile import QueryTile
from ..score_mod import NO_SCORE_MOD, ScoreMod
from .sm80_mma import BackwardMma, BackwardSoftmax

if TYPE_CHECKING:
    from ..args import AttentionTensors, BackwardScalars
    from .sm80_config import Sm80AttentionBackwardConfig


class Visible(NamedTuple):
    """Which streamed rows the rows of a tile see: `row + shift - before` to `row + shift + after`, below `end`. The
    tile's rows below `rows` exist."""

    shift: Int32
    before: Int32 | int
    after: Int32 | int
    end: Int32
    rows: Int32


class Work(NamedTuple):
    """A tile: its number, head and sequence; `first_head` and `heads` are the streamed arrays' heads that it goes
    through."""

    tile: Int32
    head: Int32
    batch: Int32
    first_head: Int32
    heads: Int32


class StreamedTiles(NamedTuple):
    """The streamed tiles that a tile sees; rows [unmasked_begin, unmasked_end) are seen by all of its rows."""

    first: Int32
    count: Int32 | int
    unmasked_begin: Int32
    unmasked_end: Int32 | int


class Sm80BackwardKernel(QueryTile):
    """The kernel of dQ, or of dK and dV, for one config and kind of problem. `masks` are (right, left, softcap).

    `computes_ds_u` says whether dS U, dQ or dK, is computed, and `computes_p_w` whether P W, dV, is.
    """

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm80AttentionBackwardConfig,
        masks: tuple[bool, bool, bool],
        computes_dq: bool,
        computes_ds_u: bool,
        computes_p_w: bool,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, head_dims, config)
        masks_right = masks[0]
        masks_left = masks[1]
        self.has_softcap: bool = masks[2]
        self.score_mod = score_mod
        self.computes_dq = computes_dq
        self.computes_ds_u = computes_ds_u
        self.computes_p_w = computes_p_w
        # in the order of the streamed rows
        self.masks_before: bool = masks_left if computes_dq else masks_right
        self.masks_after: bool = masks_right if computes_dq else masks_left

    @cute.jit
    def __call__(
        self,
        resident: Any,
        streamed: Any,
        gradients: Any,
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        max_seqlen: Int32,
        scalars: BackwardScalars,
        stream: Int64,
    ):
        """Launch the kernel for (X, Y), (U, W) and the gradients (dS U, P W), of which one may be None."""
        resident, streamed = (tuple(self.aligned(x) for x in pair) for pair in (resident, streamed))
        gradients = tuple(None if x is None else self.aligned(x) for x in gradients)
        batch = resident[0].shape[0]
        if const_expr(tensors.cu_seqlens_q is not None):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        self.kernel(resident, streamed, gradients, lse_delta, tensors, scalars).launch(
            grid=(cute.ceil_div(max_seqlen, self.config.tile_m), resident[0].shape[2], batch),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        resident: tuple[cute.Tensor, cute.Tensor],
        streamed: tuple[cute.Tensor, cute.Tensor],
        gradients: tuple[cute.Tensor | None, cute.Tensor | None],
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        scalars: BackwardScalars,
    ):
        tile, head, batch = arch.block_idx()
        cu_seqlens = (tensors.cu_seqlens_q, tensors.cu_seqlens_k)
        resident_cu_seqlens, streamed_cu_seqlens = cu_seqlens if self.computes_dq else cu_seqlens[::-1]
        x_rows, x_length = sequence_rows(resident[0], resident_cu_seqlens, batch, head)
        y_rows, _ = sequence_rows(resident[1], resident_cu_seqlens, batch, head)
        _, u_length = sequence_rows(streamed[0], streamed_cu_seqlens, batch, Int32(0))
        if tile * self.config.tile_m < x_length:
            seqlen_q, seqlen_k = (x_length, u_length) if self.computes_dq else (u_length, x_length)
            if const_expr(tensors.seqused_k is not None):
                seqlen_k = clamp_offset(tensors.seqused_k[batch], seqlen_k)
            offset = seqlen_k - seqlen_q
            left = scalars.window_left
            right = scalars.window_right
            heads = resident[0].shape[2]
            streamed_heads = streamed[0].shape[2]
            # a query head has one KV head; a KV head has as many query heads as share it
            if const_expr(self.computes_dq):
                visible = Visible(offset, left, right, seqlen_k, seqlen_q)
                work = Work(tile, head, batch, head // (heads // streamed_heads), Int32(1))
            else:
                visible = Visible(-offset, right, left, seqlen_q, seqlen_k)
                group_size = streamed_heads // heads
                work = Work(tile, head, batch, head * group_size, group_size)
            smem, accumulators = self.compute(
                (x_rows, y_rows), streamed, streamed_cu_seqlens, lse_delta, tensors, work, visible, scalars
            )
            arch.sync_threads()
            scales = (scalars.scale, Float32(1.0))
            for n in range_constexpr(2):
                if const_expr(gradients[n] is not None):
                    rows, length = sequence_rows(gradients[n], resident_cu_seqlens, batch, head)
                    head_dim = (self.dim, self.dim_v)[n]
                    self.store(accumulators[n], scales[n], smem[n], rows, head_dim, tile, length)

    # --- a tile ---

    @cute.jit
    def compute(
        self,
        resident: tuple[cute.Tensor, cute.Tensor],
        streamed: tuple[cute.Tensor, cute.Tensor],
        cu_seqlens: Any,
        lse_delta: cute.Tensor,
        tensors: AttentionTensors,
        work: Work,
        visible: Visible,
        scalars: BackwardScalars,
    ):
        """Compute the gradients of a tile; returns smem to store them through, and the accumulators of dS U and P W (or
        None)."""
        thread = arch.thread_idx()[0]
        config = self.config
        tiles = self.streamed_tiles(work, visible)
        allocator = utils.SmemAllocator()
        padded = (self.padded, self.padded_v)
        dims = (self.dim, self.dim_v)
        make = lambda *shape: allocator.allocate_tensor(self.dtype, swizzled(self.dtype, shape, 1), 1024)
        smem_resident = [make(config.tile_m, n) for n in padded]
        smem_streamed = [make(config.tile_n, n, 2) for n in padded]
        copies = [self.row_copy(n, True).get_slice(thread) for n in padded]
        for n in range_constexpr(2):
            load_rows(copies[n], resident[n], smem_resident[n], dims[n], work.tile, Int32(visible.rows))
        mma = BackwardMma(self, thread, smem_resident, smem_streamed)
        softmax = BackwardSoftmax(self, mma, scalars)
        if const_expr(self.computes_dq):
            values = self.row_values(lse_delta, tensors.cu_seqlens_q, work.batch, work.head)
            softmax.load_rows(values, work.tile * config.tile_m, visible.rows)
        producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=2).make_participants()
        source = (copies, streamed, cu_seqlens, smem_streamed)
        steps = tiles.count * work.heads
        if tiles.count > 0:
            self.load_streamed(source, work.batch, work.first_head, tiles.first, Int32(0), visible.end)
        producer.commit()
        for i in range(steps):
            stage = consumer.wait_and_advance().index
            if i + 1 < steps:
                head = work.first_head + (i + 1) // tiles.count
                tile = tiles.first + (i + 1) % tiles.count
                self.load_streamed(source, work.batch, head, tile, 1 - stage, visible.end)
            producer.commit()
            tile = tiles.first + i % tiles.count
            if const_expr(not self.computes_dq):
                q_head = work.first_head + i // tiles.count
                values = self.row_values(lse_delta, tensors.cu_seqlens_q, work.batch, q_head)
                softmax.load_columns(values, tile * config.tile_n, visible.end)
            mma.compute_s(stage)
            mma.compute_dp(stage)
            if const_expr(self.has_softcap):
                softmax.softcap()
            if const_expr(self.score_mod):
                q_head = work.head if const_expr(self.computes_dq) else work.first_head + i // tiles.count
                self.modify(softmax, work, tile, q_head, tensors.alibi_slopes, visible)
            if (tile + 1) * config.tile_n > tiles.unmasked_end or tile * config.tile_n < tiles.unmasked_begin:
                self.mask(mma.acc_s, softmax.derivative, work.tile, tile, visible)
            softmax.exp2()
            mma.accumulate(stage)
        producer.tail()
        return smem_resident, (mma.acc_ds_u, mma.acc_p_w)

    @cute.jit
    def visible_range(self, row: Int32, visible: Visible):
        """Return the first streamed row that a row sees, and the one after the last."""
        begin = Int32(0)
        end = Int32(visible.end)
        if const_expr(self.masks_before):
            begin = row + visible.shift - visible.before
        if const_expr(self.masks_after):
            end = min(end, row + visible.shift + visible.after + 1)
        return begin, end

    @cute.jit
    def streamed_tiles(self, work: Work, visible: Visible):
        """Return the streamed tiles that a tile sees."""
        tile_m = self.config.tile_m
        tile_n = self.config.tile_n
        begin = work.tile * tile_m
        low = self.visible_range(begin, visible)
        high = self.visible_range(min(begin + tile_m, Int32(visible.rows)) - 1, visible)
        first = max(low[0], Int32(0)) // tile_n
        count = max(cute.ceil_div(max(high[1], Int32(0)), tile_n) - first, Int32(0))
        if begin >= visible.rows:
            count = Int32(0)
        unmasked_end = low[1] if begin + tile_m <= visible.rows else Int32(0)
        return StreamedTiles(first, count, max(high[0], Int32(0)), unmasked_end)

    @cute.jit
    def row_values(self, lse_delta: cute.Tensor, cu_seqlens_q: Any, batch: Int32, head: Int32):
        """Return LSE and delta (2, row) of a head of a sequence."""
        if const_expr(cu_seqlens_q is None):
            return lse_delta[None, batch, head, None]
        first = clamp_offset(cu_seqlens_q[batch], lse_delta.shape[3])
        return cute.domain_offset((0, first), lse_delta[None, 0, head, None])

    @cute.jit
    def load_streamed(self, source: Any, batch: Int32, head: Int32, tile: Int32, stage: Int32, end: Int32):
        """Issue the copies of tiles of U and W, with zeros from `end` on: what is there may be NaN."""
        copies, streamed, cu_seqlens, smem = source
        dims = (self.dim, self.dim_v)
        for n in range_constexpr(2):
            rows, _ = sequence_rows(streamed[n], cu_seqlens, batch, head)
            load_rows(copies[n], rows, smem[n][None, None, stage], dims[n], tile, Int32(end))

    @cute.jit
    def modify(self, softmax: Any, work: Any, tile: Int32, q_head: Int32, alibi_slopes: cute.Tensor, visible: Any):
        """Apply ALiBi and the user's function to S, and keep the function's derivative."""
        acc_s = softmax.mma.acc_s
        slope = Float32(0.0)
        coords = self.score_coords()
        if const_expr(alibi_slopes is not None):
            slope = alibi_slopes[min(work.batch, alibi_slopes.shape[0] - 1), q_head]
        for half in range_constexpr(2):
            row, column = coords[(0, half), 0, 0]
            row = work.tile * self.config.tile_m + row
            column = tile * self.config.tile_n + column
            distance = Float32(row + visible.shift - column)
            for n in range_constexpr(self.config.tile_n // 8):
                for c in range_constexpr(2):
                    at = ((c, half), 0, n)
                    other = column + 8 * n + c
                    score = acc_s[at] * softmax.scalars.score_scale
                    score = self.score_mod.alibi(score, slope, distance - (8.0 * n + c))
                    query, key = (row, other) if const_expr(self.computes_dq) else (other, row)
                    acc_s[at], derivative = self.score_mod.apply(score, (work.batch, q_head, query, key))
                    if const_expr(derivative is not None):
                        if const_expr(self.has_softcap):
                            derivative = softmax.derivative[at] * derivative
                        softmax.derivative[at] = derivative

    @cute.jit
    def mask(
        self, acc_s: cute.Tensor, derivative: cute.Tensor | None, resident_tile: Int32, tile: Int32, visible: Visible
    ):
        """Mask the scores of rows that do not see each other. The user's function may give NaN there, so its derivative
        becomes 0."""
        coords = self.score_coords()
        first_row = resident_tile * self.config.tile_m
        first_column = tile * self.config.tile_n
        for half in range_constexpr(2):
            row, column = coords[(0, half), 0, 0]
            row = first_row + row
            begin, end = self.visible_range(row, visible)
            if row >= visible.rows:
                end = Int32(0)
            begin = begin - first_column - column
            end = end - first_column - column
            mask_row(
                acc_s,
                lambda c, n, half=half: ((c, half), 0, n),
                self.config.tile_n,
                begin if const_expr(self.masks_before) else None,
                end,
                derivative if const_expr(self.score_mod.function is not None) else None,
            )

    @cute.jit
    def store(
        self,
        acc: cute.Tensor,
        scale: Float32,
        smem: cute.Tensor,
        out: cute.Tensor,
        head_dim: int,
        tile: Int32,
        length: Int32,
    ):
        """Store a gradient, times `scale`, through smem in whole rows."""
        thread = rematerialized(arch.thread_idx()[0])
        rounded = cute.make_rmem_tensor(acc.shape, self.dtype)
        rounded.store((acc.load() * scale).to(self.dtype))
        self.write_accumulator(rounded, smem, thread)
        arch.sync_threads()
        self.store_rows(smem, out, head_dim, tile, length, thread)
