"""The forward kernel of attention with `mma.sync`, for every GPU since sm_80 (FlashAttention-2), and for decode on all.

A CTA has a query tile, each warp some rows of it. KV tiles come from the last to the first through two stages, which
`cp.async` fills one tile ahead. S and P never leave registers: the accumulator of Q K^T, converted, is the A operand of
P V. Rows are normalized once, in the epilogue; accumulators are rescaled only when a score exceeds row_max by much.

With few queries, a tile has those of all heads that share a KV head (packed GQA), and the KV sequence is split among
CTAs; a combine kernel merges their partial results.

While the tensor cores work on an `mma.sync`, a warp scheduler issues nothing else, on Hopper too: what counts is how
many other instructions there are. The tile takes most registers: addresses are shared, and computed where they are
used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....utils.schedulers import clamp_offset
from .....utils.tiles import swizzled
from .....utils.tiles.online_softmax import nonzero_scale
from ....dispatch import devices
from ....parts.attention_mask import mask_row
from ....parts.kv_source import DenseKv, PagedKv, PageTable, load_rows, sequence_rows, vector_at
from ....parts.rematerialize import rematerialized
from ..score_mod import NO_SCORE_MOD, RowCoordinates, ScoreMod
from .combine import CombineKernel
from .query_tile import QueryTile
from .sm80_epilogue import Sm80Epilogue
from .sm80_fp8_kv import Fp8KvMma, load_q_as_f16
from .sm80_mma import Sm80Mma
from .sm80_softmax import Sm80Softmax

if TYPE_CHECKING:
    from ..... import Float32
    from ..args import AttentionScalars, AttentionTensors
    from .sm80_config import Sm80AttentionConfig


class Work(NamedTuple):
    """A query tile: number, head (KV head, where GQA is packed), sequence, KV split, and the sequence's lengths."""

    tile: Int32
    head: Int32
    batch: Int32
    split: Int32
    seqlen_q: Int32 | int
    seqlen_k: Any


class KvRange(NamedTuple):
    """The KV tiles of a query tile: the last and how many; keys [unmasked_begin, unmasked_end) are seen by all of its
    queries."""

    last: Int32
    count: Int32 | int
    unmasked_begin: Int32
    unmasked_end: Int32 | int


class Smem(NamedTuple):
    """Tiles in smem: Q, O in its place, two stages of K and V."""

    q: cute.Tensor
    o: cute.Tensor
    k: cute.Tensor
    v: cute.Tensor


class Sm80ForwardKernel(QueryTile):
    """The kernel for one config and kind of problem.

    `masks` are (right, left, softcap). With `split_kv`, outputs are partial results, which `CombineKernel` merges.
    `dtype` is the element type of K and V; Q may have another, `q_dtype`."""

    def __init__(
        self,
        dtype: Any,
        head_dims: tuple[int, int],
        config: Sm80AttentionConfig,
        masks: tuple[bool, bool, bool],
        group_size: int = 1,
        split_kv: bool = False,
        page_size: int = 0,
        out_dtype: type[cute.Numeric] | None = None,
        q_dtype: Any = None,
        score_mod: ScoreMod = NO_SCORE_MOD,
    ) -> None:
        super().__init__(dtype, head_dims, config, group_size, out_dtype)
        self.q_dtype: type[cute.Numeric] = q_dtype or dtype
        self.masks_right: bool = masks[0]
        self.masks_left: bool = masks[1]
        self.has_softcap: bool = masks[2]
        self.split_kv = split_kv
        self.page_size = page_size
        self.score_mod = score_mod

    @cute.jit
    def __call__(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        out: cute.Tensor,
        partial: cute.Tensor | None,
        lse: cute.Tensor | None,
        tensors: AttentionTensors,
        max_seqlen_q: Int32,
        scalars: AttentionScalars,
        num_splits: Int32,
        stream: Int64,
    ):
        """Launch the kernel for `AttentionTensors` and `AttentionScalars`; `partial` is the memory of split-KV's
        partial results."""
        q, k, v, out = (self.aligned(x) for x in (q, k, v, out))
        batch = q.shape[0]
        if const_expr(tensors.cu_seqlens_q is not None):
            batch = tensors.cu_seqlens_q.shape[0] - 1
        tiles = cute.ceil_div(max_seqlen_q * self.group_size, self.config.tile_m)
        results = out
        results_lse = lse
        if const_expr(self.split_kv):
            results = partial
            results_lse = None
        group = scalars.head_group
        self.kernel(q, k, v, results, results_lse, tensors, tiles, scalars, num_splits).launch(
            grid=(tiles * group, cute.ceil_div(q.shape[2] // self.group_size, group), batch * num_splits),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=self.config.ctas_per_sm,
            stream=stream,
        )
        if const_expr(self.split_kv):
            combine = CombineKernel(self.out_dtype, self.head_dim_v)
            combine(partial, out, lse, tensors.cu_seqlens_q, stream)

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor | None,
        tensors: AttentionTensors,
        tiles: Int32,
        scalars: AttentionScalars,
        num_splits: Int32,
    ):
        cu_seqlens_q = tensors.cu_seqlens_q
        group = scalars.head_group
        number, head_block, layer = arch.block_idx()
        if const_expr(self.split_kv and devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        batch, split = self.batch_and_split(layer, num_splits)
        tile, head = self.tile_and_head(number, head_block, tiles, group)
        heads_per_kv_head = q.shape[2] // (self.group_size * k.shape[2])
        head_k = head // heads_per_kv_head
        q_rows, seqlen_q = sequence_rows(q, cu_seqlens_q, batch, head, self.group_size)
        k_rows, v_rows, seqlen_k, pages = self.kv_rows(k, v, tensors, batch, head_k)
        if tile * self.config.tile_m < seqlen_q * self.group_size and head * self.group_size < q.shape[2]:
            scalars = self.descaled(scalars, tensors, batch, head_k)
            work = Work(tile, head, batch, split, seqlen_q, seqlen_k)
            smem_o, softmax = self.attend(
                q_rows, k_rows, v_rows, pages, work, tensors.alibi_slopes, scalars, num_splits
            )
            # where results go is computed again, not kept in registers that the main loop needs
            tile, head = self.tile_and_head(rematerialized(number), head_block, tiles, group)
            if const_expr(self.split_kv):
                batch, split = self.batch_and_split(rematerialized(layer), num_splits)
            v_descale = None
            if const_expr(tensors.v_descale is not None):
                v_descale = tensors.v_descale[batch, head // heads_per_kv_head]
            epilogue = Sm80Epilogue(self, tensors.sinks, head, v_descale)
            if const_expr(self.split_kv):
                rows, _ = sequence_rows(out[split, None, None, None, None], cu_seqlens_q, batch, head, self.group_size)
                epilogue.finish_split(softmax, rows, tile, seqlen_q, split == 0)
            else:
                rows, _ = sequence_rows(out, cu_seqlens_q, batch, head, self.group_size)
                lse_rows = None
                if const_expr(lse is not None):
                    lse_rows = self.lse_rows(lse, cu_seqlens_q, batch, head)
                epilogue.finish(smem_o, softmax, rows, lse_rows, tile, seqlen_q)

    def batch_and_split(self, number: Int32, num_splits: Int32) -> tuple[Int32, Int32]:
        """Return the sequence and the KV split of a CTA."""
        return (number // num_splits, number % num_splits) if self.split_kv else (number, Int32(0))

    def tile_and_head(self, number: Int32, head_block: Int32, tiles: Int32, group: Int32 | int) -> tuple[Int32, Int32]:
        """Return the query tile and the head of a CTA.

        The tiles of `group` heads run side by side, for L2 reuse of their keys, and the last tiles, which see most keys
        under a causal mask, run first."""
        return tiles - 1 - number // group, head_block * group + number % group

    @cute.jit
    def kv_rows(self, k: cute.Tensor, v: cute.Tensor, tensors: AttentionTensors, batch: Int32, head_k: Int32):
        """Return the rows of K and V of a head, how many keys exist, and the sequence's pages."""
        pages = None
        if const_expr(tensors.page_table is not None):
            pages = PageTable(tensors.page_table[batch, None], self.page_size, Int32(k.shape[0]))
            k_rows = k[None, None, head_k, None]
            v_rows = v[None, None, head_k, None]
            seqlen_k = tensors.page_table.shape[1] * self.page_size
        else:
            k_rows, seqlen_k = sequence_rows(k, tensors.cu_seqlens_k, batch, head_k)
            v_rows, _ = sequence_rows(v, tensors.cu_seqlens_k, batch, head_k)
        if const_expr(tensors.seqused_k is not None):
            seqlen_k = clamp_offset(tensors.seqused_k[batch], seqlen_k)
        return k_rows, v_rows, seqlen_k, pages

    @cute.jit
    def descaled(self, scalars: AttentionScalars, tensors: AttentionTensors, batch: Int32, head_k: Int32):
        """Multiply the scale factors of Q and K into the scale that scores meet first."""
        first = "softcap_scale" if self.has_softcap else "score_scale" if self.score_mod else "scale_log2"
        for descale in (tensors.q_descale, tensors.k_descale):
            if const_expr(descale is not None):
                scalars = scalars._replace(**{first: getattr(scalars, first) * descale[batch, head_k]})
        if const_expr(tensors.k_descale is not None):
            scalars = scalars._replace(scale_log2=nonzero_scale(scalars.scale_log2))
        return scalars

    @cute.jit
    def lse_rows(self, lse: cute.Tensor, cu_seqlens_q: Any, batch: Int32, head: Int32):
        """Return where the LSE of a tile's rows goes."""
        if const_expr(cu_seqlens_q is None):
            rows = lse[batch, None, None]
        else:
            rows = cute.domain_offset((0, clamp_offset(cu_seqlens_q[batch], lse.shape[1])), lse)
        if const_expr(self.group_size == 1):
            return rows[head, None]
        rows = cute.domain_offset((head * self.group_size, 0), rows)
        layout = cute.make_layout(((self.group_size, rows.shape[1]),), stride=(rows.stride,))
        return cute.make_tensor(rows.iterator, layout)

    # --- a query tile ---

    @cute.jit
    def attend(
        self,
        q: cute.Tensor,
        k: cute.Tensor,
        v: cute.Tensor,
        pages: Any,
        work: Work,
        alibi_slopes: cute.Tensor | None,
        scalars: AttentionScalars,
        num_splits: Int32,
    ):
        """Compute a query tile; returns smem for O and the softmax, which has the accumulator, row_max and row_sum."""
        thread = arch.thread_idx()[0]
        config = self.config
        offset = self.position_offset(work)
        kv = self.kv_range(work, offset, scalars, num_splits)
        smem = self.allocate()
        self.load_q(q, smem.q, work, thread)
        make_mma = Fp8KvMma if const_expr(self.is_fp8) else Sm80Mma
        mma = make_mma(self, thread, smem.q, smem.k, smem.v)
        softmax = Sm80Softmax(mma, scalars.scale_log2)
        softmax.reset()
        producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=2).make_participants()
        source: Any = DenseKv(self, thread, k, v, smem.k, smem.v)
        if const_expr(self.page_size > 0):
            source = PagedKv(self, pages, thread, k, v, smem.k, smem.v)
        if kv.count > 0:
            source.look_up(kv.last)
            source.load_first(kv.last, work.seqlen_k)
            source.look_up(max(kv.last - 1, Int32(0)))
        producer.commit()
        for i in range(kv.count):
            kv_tile = kv.last - i
            stage = consumer.wait_and_advance().index
            if i + 1 < kv.count:
                # the other stage as a function of this one: a counter of its own would be one more value in the loop
                source.load_next(stage, kv_tile)
                source.look_up(max(kv_tile - 2, Int32(0)))
            producer.commit()
            mma.qk(stage)
            if const_expr(self.has_softcap):
                softmax.softcap(scalars.softcap_scale)
            if const_expr(self.score_mod):
                self.modify(mma.acc_s, kv_tile, offset, work, alibi_slopes, scalars.score_scale)
            if (kv_tile + 1) * config.tile_n > kv.unmasked_end or kv_tile * config.tile_n < kv.unmasked_begin:
                self.mask(mma.acc_s, kv_tile, offset, work, scalars)
            softmax.update()
            mma.pv(stage)
        producer.tail()
        return smem.o, softmax

    def position_offset(self, work: Work) -> Any:
        """Return what `position` adds to a row: the position of the tile's first query, or of the sequence's if GQA is
        packed."""
        behind = work.seqlen_k - work.seqlen_q
        return work.tile * self.config.tile_m + behind if self.group_size == 1 else behind

    def position(self, offset: Int32, tile: Int32, row: Int32 | int) -> Int32:
        """Return the key that the query of a tile's row is aligned with."""
        return offset + row if self.group_size == 1 else offset + (tile * self.config.tile_m + row) // self.group_size

    @cute.jit
    def kv_range(self, work: Work, offset: Int32, scalars: AttentionScalars, num_splits: Int32):
        """Return the KV tiles that a query tile sees. A query at position p sees keys p - window_left to p +
        window_right."""
        tile_m = self.config.tile_m
        tile_n = self.config.tile_n
        tile = work.tile
        end = work.seqlen_k
        unmasked_end = work.seqlen_k
        if const_expr(self.masks_right):
            end = min(work.seqlen_k, self.position(offset, tile, tile_m - 1) + scalars.window_right + 1)
            unmasked_end = min(work.seqlen_k, self.position(offset, tile, 0) + scalars.window_right + 1)
        begin = Int32(0)
        unmasked_begin = Int32(0)
        if const_expr(self.masks_left):
            begin = max(Int32(0), self.position(offset, tile, 0) - scalars.window_left)
            unmasked_begin = max(Int32(0), self.position(offset, tile, tile_m - 1) - scalars.window_left)
        last = cute.ceil_div(max(end, Int32(0)), tile_n) - 1
        count = max(last - begin // tile_n + 1, Int32(0))
        if const_expr(self.split_kv):
            split_count = cute.ceil_div(count, num_splits)
            last = last - work.split * split_count
            count = max(min(count - work.split * split_count, split_count), Int32(0))
        return KvRange(last, count, unmasked_begin, unmasked_end)

    def allocate(self) -> Smem:
        """Allocate the tiles in smem."""
        allocator = utils.SmemAllocator()
        tile_m = self.config.tile_m
        tile_n = self.config.tile_n
        layout_q = swizzled(self.dtype, (tile_m, self.q_columns), 1)
        layout_o = swizzled(self.out_dtype, (tile_m, self.o_columns), 1)
        size = max(cute.cosize(layout_q), cute.cosize(layout_o)) * self.dtype.width // 8
        start = cute.recast_ptr(allocator.allocate(size, 1024), dtype=self.dtype)
        smem_q = cute.make_tensor(start, layout_q)
        smem_o = cute.make_tensor(cute.recast_ptr(start, dtype=self.out_dtype), layout_o)
        smem_k, smem_v = (
            allocator.allocate_tensor(self.dtype, swizzled(self.dtype, (tile_n, padded, 2), 1), 1024)
            for padded in (self.padded, self.padded_v)
        )
        return Smem(smem_q, smem_o, smem_k, smem_v)

    @cute.jit
    def load_q(self, q: cute.Tensor, smem_q: cute.Tensor, work: Work, thread: Int32):
        """Issue the copies of a query tile."""
        rows = work.seqlen_q * self.group_size
        copy = self.row_copy(self.padded, True).get_slice(thread)
        if const_expr(self.is_fp8):
            load_q_as_f16(self, q, smem_q, work.tile, rows)
        elif const_expr(self.group_size == 1):
            load_rows(copy, q, smem_q, self.dim, work.tile, work.seqlen_q)
        else:  # rows of several heads: each vector has an address of its own
            tile_rows, padded = (cute.size(smem_q, mode=[i]) for i in range(2))
            target = copy.partition_D(smem_q)
            coords = copy.partition_S(cute.make_identity_tensor((tile_rows, padded)))
            for i in range_constexpr(cute.size(target, mode=[1])):
                for j in range_constexpr(cute.size(target, mode=[2])):
                    row, column = coords[0, i, j]
                    predicate = cute.make_rmem_tensor((1,), Boolean)
                    predicate[0] = (work.tile * tile_rows + row < rows) & (column < self.dim)
                    source = vector_at(q, (work.tile * tile_rows + row, column))
                    cute.copy(copy, source, target[None, i, j], pred=predicate)

    @cute.jit
    def modify(
        self,
        acc_s: cute.Tensor,
        kv_tile: Int32,
        offset: Int32,
        work: Work,
        alibi_slopes: cute.Tensor,
        score_scale: Float32,
    ):
        """Apply ALiBi and the user's function to the scores of a KV tile."""
        coords = self.score_coords()
        slope = None
        for m in range_constexpr(self.config.m_tiles):
            for half in range_constexpr(2):
                row, column = coords[(0, half), m, 0]
                position = self.position(offset, work.tile, row)
                head = work.head
                if const_expr(self.group_size > 1):
                    head = head * self.group_size + (work.tile * self.config.tile_m + row) % self.group_size
                if const_expr(self.score_mod.has_alibi):
                    # the last rows of the last tile may belong to no head
                    slope = alibi_slopes[
                        min(work.batch, alibi_slopes.shape[0] - 1), min(head, alibi_slopes.shape[1] - 1)
                    ]
                query = position + work.seqlen_q - work.seqlen_k
                first_key = kv_tile * self.config.tile_n + column
                place = RowCoordinates(work.batch, head, query, first_key, position)
                at = lambda c, n, half=half, m=m: ((c, half), m, n)
                self.score_mod.modify_row(acc_s, at, self.config.tile_n, place, score_scale, slope)

    @cute.jit
    def mask(self, acc_s: cute.Tensor, kv_tile: Int32, offset: Int32, work: Work, scalars: AttentionScalars):
        """Mask the scores of a KV tile: keys outside of the window or the sequence."""
        tile_n = self.config.tile_n
        coords = self.score_coords()
        start = kv_tile * tile_n
        for m in range_constexpr(self.config.m_tiles):
            for half in range_constexpr(2):
                row, column = coords[(0, half), m, 0]
                begin = None
                end = work.seqlen_k - start - column
                if const_expr(self.masks_right):
                    position = self.position(offset, work.tile, row)
                    end = min(end, position + scalars.window_right + 1 - start - column)
                if const_expr(self.masks_left):
                    begin = self.position(offset, work.tile, row) - scalars.window_left - start - column
                at = lambda c, n, half=half, m=m: ((c, half), m, n)
                mask_row(acc_s, at, tile_n, begin, end)
