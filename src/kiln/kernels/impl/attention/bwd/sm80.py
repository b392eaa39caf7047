"""The kernel of gradients of attention on the tensor cores every GPU since sm_80 has (`mma.sync`): two passes, nothing is shared.

With weights P = exp(S - logarithms) and what they are worth, dS = P (dP - sums), where dP = dO V^T:

    of keys     S^T = K Q^T, dP^T = V dO^T, and what queries add: dV = P^T dO, dK = dS^T Q
    of queries  S = Q K^T, dP = dO V^T, and what keys add: dQ = dS K

Both are the same: a block of threads has a tile of two arrays of its own, X and Y; blocks of rows of two others, U and W, stream past;
A = X U^T and B = Y W^T become dS and P in registers, which are the left operands of dS U and P W. Each gradient is summed by one block of
threads in a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from ....parts.smem_layouts import swizzled
from ..fwd.query_tile import only_here
from ..fwd.sm80 import Forward
from .score_mod import NOTHING, Change
from .sm80_mainloop import Products, Weights

if TYPE_CHECKING:
    from .sm80_config import Sm80AttentionBackwardConfig

KEYS, QUERIES = "keys", "queries"
"""Whose gradients a pass gives."""


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two), of the cap and of gradients of scores; keys seen before and after a query's own; the factor
    that makes scores what functions are given."""

    scale: Any
    cap: Any
    factor: Any
    left: Any
    right: Any
    natural: Any


class Ends(NamedTuple):
    """Which rows of the other side the rows of a tile see: those from `row + shift - before` on, to `row + shift + after`, less than
    `end`. Rows of the tile up to `own` exist."""

    shift: Any
    before: Any
    after: Any
    end: Any
    own: Any


class Pass(Forward):
    """The kernel for some tiles and masks, of the gradients of `side`: that by way of scores, that by way of weights, or both."""

    config: Any  # a Sm80AttentionBackwardConfig

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm80AttentionBackwardConfig, masks: tuple[bool, bool, bool], side: str,
        of_scores: bool, of_weights: bool, change: Change = NOTHING,
    ) -> None:  # fmt: skip
        super().__init__(dtype, head_dims, cast("Any", config), masks)
        self.change = change
        self.side, self.of_scores, self.of_weights = side, of_scores, of_weights
        # in the order of rows of the other side
        self.hides_before, self.hides_after = (self.left, self.right) if side == QUERIES else (self.right, self.left)

    @cute.jit
    def __call__(
        self, own: Any, other: Any, to: Any, found: cute.Tensor, lengths: Any, slopes: Any, longest: Int32, numbers: Any,
        stream: Int64,
    ):  # fmt: skip
        """Launch it: X and Y, U and W, the gradients (one may be None), what is known of queries, `Lengths`, slopes of heads (or None),
        rows of the longest sequence, and `Numbers`."""
        own, other = (tuple(self.aligned(x) for x in pair) for pair in (own, other))
        to = tuple(None if x is None else self.aligned(x) for x in to)
        batches = own[0].shape[0]
        if const_expr(lengths.starts_q is not None):
            batches = lengths.starts_q.shape[0] - 1
        tiles = cute.ceil_div(longest, self.config.tile_m)
        self.kernel(own, other, to, found, lengths, slopes, numbers).launch(
            grid=(tiles, own[0].shape[2], batches),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    # --- the kernel ---

    @cute.kernel
    def kernel(self, own: Any, other: Any, to: Any, found: cute.Tensor, lengths: Any, slopes: Any, numbers: Any):
        tile, head, batch = arch.block_idx()
        starts_q, starts_k, used = lengths.starts_q, lengths.starts_k, lengths.used
        own_starts, other_starts = (starts_q, starts_k) if self.side == QUERIES else (starts_k, starts_q)
        x_rows, x_length = self.sequence(own[0], own_starts, batch, head)
        y_rows, _ = self.sequence(own[1], own_starts, batch, head)
        _, u_length = self.sequence(other[0], other_starts, batch, Int32(0))
        if tile * self.config.tile_m < x_length:
            queries, keys = (x_length, u_length) if self.side == QUERIES else (u_length, x_length)
            if const_expr(used is not None):
                keys = self.within(used[batch], keys)
            behind = keys - queries
            if const_expr(self.side == QUERIES):
                ends = Ends(behind, numbers.left, numbers.right, keys, queries)
            else:
                ends = Ends(-behind, numbers.right, numbers.left, queries, keys)
            heads = own[0].shape[2], other[0].shape[2]
            ratio = heads[0] // heads[1] if self.side == QUERIES else heads[1] // heads[0]
            place = (tile, head, batch, ratio)
            tiles, sums = self.one_tile(
                (x_rows, y_rows), other, other_starts, found, starts_q, slopes, place, ends, numbers
            )
            factors = (numbers.factor, Float32(1.0))
            arch.sync_threads()
            for n in range_constexpr(2):
                if const_expr(to[n] is not None):
                    rows, length = self.sequence(to[n], own_starts, batch, head)
                    self.write(sums[n], factors[n], tiles[n], rows, (self.dim, self.dim_v)[n], tile, length)

    @cute.jit
    def one_tile(
        self, own: Any, other: Any, other_starts: Any, found: cute.Tensor, starts_q: Any, slopes: Any, place: Any,
        ends: Any, numbers: Any,
    ):  # fmt: skip
        """What the other side adds to a tile: sums by way of scores and of weights (or None), and shared memory to stage them."""
        tile, head, batch, ratio = place
        thread = arch.thread_idx()[0]
        block, step = self.config.tile_m, self.config.tile_n
        # a head of queries has one of keys, one of keys as many of queries as share it
        share = ratio if const_expr(self.side == KEYS) else Int32(1)
        first_head = head * ratio if const_expr(self.side == KEYS) else head // ratio

        # Which blocks of the other side are seen, and how many of them by each row.
        low, high = self.seen(tile * block, ends), self.seen(min(tile * block + block, Int32(ends.own)) - 1, ends)
        first = max(low[0], Int32(0)) // step
        count = max(cute.ceil_div(max(high[1], Int32(0)), step) - first, Int32(0))
        if tile * block >= ends.own:
            count = Int32(0)
        whole = (max(high[0], Int32(0)), low[1] if tile * block + block <= ends.own else Int32(0))

        memory = utils.SmemAllocator()
        padded = (self.padded, self.padded_v)
        tiles = [memory.allocate_tensor(self.dtype, swizzled(self.dtype, (block, n), 1), 1024) for n in padded]
        rings = [memory.allocate_tensor(self.dtype, swizzled(self.dtype, (step, n, 2), 1), 1024) for n in padded]
        copies = [self.row_copy(n, True).get_slice(thread) for n in padded]
        dims = (self.dim, self.dim_v)
        for n in range_constexpr(2):
            self.fetch(copies[n], own[n], tiles[n], dims[n], tile, Int32(ends.own))

        mma = self.mma()
        products = Products(self, mma, thread, tiles, rings)
        weights = Weights(self, products, numbers)
        if const_expr(self.side == QUERIES):
            weights.take_rows(self.known(found, starts_q, batch, head), tile * block, ends.own)
        producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=2).make_participants()
        if count > 0:
            self.fetch_both(copies, other, other_starts, batch, first_head, first, rings, Int32(0), ends.end)
        producer.commit()
        for i in range(count * share):
            filled = consumer.wait_and_advance()
            buffer = filled.index
            if i + 1 < count * share:
                following, at = first_head + (i + 1) // count, first + (i + 1) % count
                self.fetch_both(copies, other, other_starts, batch, following, at, rings, 1 - buffer, ends.end)
            producer.commit()
            at = first + i % count
            if const_expr(self.side == KEYS):
                weights.take_columns(self.known(found, starts_q, batch, first_head + i // count), at * step, ends.end)
            products.scores(buffer)
            products.gradients(buffer)
            if const_expr(self.capped):
                weights.cap_scores()
            if const_expr(self.change):
                of_queries = head if const_expr(self.side == QUERIES) else first_head + i // count
                self.change_scores(weights, (tile * block, at * step), slopes, (batch, of_queries), ends)
            if (at + 1) * step > whole[1] or at * step < whole[0]:
                self.hide(products.acc_scores, weights.slopes, tile * block, at * step, ends)
            weights.make()
            products.add(buffer)
        producer.tail()
        return tiles, (products.sum_scores, products.sum_weights)

    @cute.jit
    def seen(self, row: Int32, ends: Any):
        """The first row of the other side that a row sees, and the one after the last."""
        begin, end = Int32(0), Int32(ends.end)
        if const_expr(self.hides_before):
            begin = row + ends.shift - ends.before
        if const_expr(self.hides_after):
            end = min(end, row + ends.shift + ends.after + 1)
        return begin, end

    @cute.jit
    def known(self, found: cute.Tensor, starts_q: Any, batch: Int32, head: Int32):
        """The logarithms and sums (2, row) of the queries of one head of a sequence."""
        if const_expr(starts_q is None):
            return found[None, batch, head, None]
        first = self.within(starts_q[batch], found.shape[3])
        return cute.domain_offset((0, first), found[None, 0, head, None])

    @cute.jit
    def fetch_both(
        self, copies: Any, other: Any, starts: Any, batch: Int32, head: Int32, block: Int32, rings: Any, buffer: Int32,
        end: Any,
    ):  # fmt: skip
        """Begin to copy a block of rows of U and of W, zeros from `end` on: what is there may be no number."""
        dims = (self.dim, self.dim_v)
        for n in range_constexpr(2):
            rows, _ = self.sequence(other[n], starts, batch, head)
            self.fetch(copies[n], rows, rings[n][None, None, buffer], dims[n], block, Int32(end))

    @cute.jit
    def change_scores(self, weights: Any, first: Any, slopes: Any, place: Any, ends: Any):
        """What distances and a function do to scores of rows and columns from the first on, of a sequence and a head; slopes of that."""
        thread = only_here(arch.thread_idx()[0])
        places = (
            self.mma()
            .get_slice(thread)
            .partition_C(cute.make_identity_tensor((self.config.tile_m, self.config.tile_n)))
        )
        batch, head = place
        scores, slope = weights.products.acc_scores, Float32(0.0)
        if const_expr(slopes is not None):
            slope = slopes[min(batch, slopes.shape[0] - 1), head]
        for half in range_constexpr(2):
            row, column = places[(0, half), 0, 0]
            row, column = first[0] + row, first[1] + column
            distance = Float32(row + ends.shift - column)
            for n in range_constexpr(self.config.tile_n // 8):
                for c in range_constexpr(2):
                    at, other = ((c, half), 0, n), column + (8 * n + c)
                    natural = scores[at] * weights.numbers.natural
                    natural = self.change.lowered(natural, slope, distance - (8.0 * n + c))
                    query, key = (row, other) if const_expr(self.side == QUERIES) else (other, row)
                    scores[at], changes = self.change.applied(natural, (batch, head, query, key))
                    if const_expr(changes is not None):
                        weights.slopes[at] = weights.slopes[at] * changes if const_expr(self.capped) else changes

    @cute.jit
    def hide(self, scores: cute.Tensor, slopes: Any, first_row: Int32, first_column: Int32, ends: Any):
        """Give scores of rows that do not see each other the weight 0, and slopes 0: functions may give what is no number there."""
        thread = only_here(arch.thread_idx()[0])
        places = (
            self.mma()
            .get_slice(thread)
            .partition_C(cute.make_identity_tensor((self.config.tile_m, self.config.tile_n)))
        )
        for half in range_constexpr(2):
            row, column = places[(0, half), 0, 0]
            row = first_row + row
            begin, end = self.seen(row, ends)
            if row >= ends.own:
                end = Int32(0)
            # relative to the first column of this thread
            begin, end = begin - first_column - column, end - first_column - column
            for n in range_constexpr(self.config.tile_n // 8):
                for c in range_constexpr(2):
                    there = end > 8 * n + c
                    if const_expr(self.hides_before):
                        there = there & (begin <= 8 * n + c)
                    value = scores[(c, half), 0, n]
                    scores[(c, half), 0, n] = value if there else Float32(-float("inf"))
                    if const_expr(self.change.function is not None):
                        slope = slopes[(c, half), 0, n]
                        slopes[(c, half), 0, n] = slope if there else Float32(0.0)

    @cute.jit
    def write(
        self,
        sums: cute.Tensor,
        factor: Float32,
        memory: cute.Tensor,
        out: cute.Tensor,
        dim: int,
        tile: Int32,
        length: Any,
    ):
        """Write sums, times a factor, by way of shared memory, in whole rows."""
        block, padded = self.config.tile_m, cute.size(memory, mode=[1])
        thread = only_here(arch.thread_idx()[0])
        rounded = cute.make_rmem_tensor(sums.shape, self.dtype)
        rounded.store((sums.load() * factor).to(self.dtype))
        store = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=32)
        writer = cute.make_tiled_copy_C(store, self.mma()).get_slice(thread)
        cute.copy(store, writer.retile(rounded), writer.partition_D(memory))
        arch.sync_threads()
        copy = self.row_copy(padded, False).get_slice(thread)
        from_ = copy.partition_S(memory)
        coords = copy.partition_S(cute.make_identity_tensor((block, padded)))
        held = cute.make_fragment_like(from_)
        cute.copy(copy, from_, held)
        inside = cute.make_rmem_tensor((1, *held.shape[1:]), Boolean)
        for i in range_constexpr(cute.size(held, mode=[1])):
            for j in range_constexpr(cute.size(held, mode=[2])):
                row, column = coords[0, i, j]
                inside[0, i, j] = (tile * block + row < length) & (column < dim)
        cute.copy(copy, held, copy.partition_D(cute.local_tile(out, (block, padded), (tile, 0))), pred=inside)
