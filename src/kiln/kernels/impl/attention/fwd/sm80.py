"""The kernel of `flash_attention`: softmax(Q K^T) V on the tensor cores every GPU since sm_80 has (`mma.sync`).

A block of threads has a tile of queries, each warp some rows of it. Keys and values stream past in blocks, the last first,
through two buffers each, filled by `cp.async` one block ahead. Scores and probabilities never leave registers: the
accumulator of Q K^T is, converted, the left operand of P V. Rows are normalized once, at the end. Powers are relative to a
reference of each row, which is raised, and what was summed before scaled down, only when a score exceeds it by much.

Where there are few queries, a tile has those of all heads that share keys, and keys are cut into parts, each for a block of
threads of its own; what these find is put together by `parts`.

While the tensor cores work on an `mma.sync`, a warp scheduler issues nothing else, on Hopper too: what counts is how many
instructions there are besides. Registers hold so much of the tile that few are left: addresses are shared and derived where
they are used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Constexpr, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from ....dispatch import devices
from ....parts.smem_layouts import swizzled
from ..paged_kv import PagedKeys, Pages
from .combine import CombineKernel
from .query_tile import VALUES, Tile, only_here, piece
from .sm80_epilogue import Epilogue
from .sm80_fp8_kv import NarrowProducts, widen_queries
from .sm80_mainloop import NOTHING, Products, Softmax, hiding

if TYPE_CHECKING:
    from .sm80_config import Sm80AttentionConfig


class Lengths(NamedTuple):
    """Where sequences start, how many of their keys exist, and which pages have them (sequences, pages): arrays, or None."""

    starts_q: Any
    starts_k: Any
    used: Any
    table: Any = None


class OfHeads(NamedTuple):
    """Slopes of scores (sequence or 1, head), logits of sinks (head), factors of queries, keys and values (sequence, head of keys): arrays,
    or None."""

    slopes: Any = None
    sinks: Any = None
    factors_q: Any = None
    factors_k: Any = None
    factors_v: Any = None


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two) and of the cap, factor that makes scores what functions are given, keys seen before and
    after a query's own, heads that are done side by side, parts of the keys."""

    scale: Any
    cap: Any
    natural: Any
    left: Any
    right: Any
    group: Any
    num_splits: Any


class Forward(Tile):
    """The kernel for some tiles and masks. `parts`: keys are cut into parts; outputs are then those of the parts (see `parts`). `page`: keys
    and values lie in pages of so many rows. `q_dtype`: queries have another type than keys and values. `score`: a function of scores."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm80AttentionConfig, masks: tuple[bool, bool, bool],
        share: int = 1, parts: bool = False, page: int = 0, out_dtype: Any = None, q_dtype: Any = None, score: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(dtype, head_dims, config, share, out_dtype)
        self.q_dtype = q_dtype or dtype
        self.right, self.left, self.capped = masks
        self.parts, self.page, self.score = parts, page, score

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, found: Any, lse: Any, lengths: Any,
        of_heads: Any, longest: Int32, numbers: Any, stream: Int64,
    ):  # fmt: skip
        """Launch it for `Lengths`, `OfHeads` and `Numbers`; `found` is memory for what is found of the parts of the keys."""
        q, k, v, out = (self.aligned(x) for x in (q, k, v, out))
        batches = q.shape[0]
        if const_expr(lengths.starts_q is not None):
            batches = lengths.starts_q.shape[0] - 1
        tiles = cute.ceil_div(longest * self.share, self.config.tile_m)
        results, logarithms = out, lse
        if const_expr(self.parts):
            results, logarithms = found, None
        group, num_splits = numbers.group, numbers.num_splits
        self.kernel(q, k, v, results, logarithms, lengths, of_heads, tiles, numbers).launch(
            grid=(tiles * group, cute.ceil_div(q.shape[2] // self.share, group), batches * num_splits),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=self.config.ctas_per_sm,
            stream=stream,
        )
        if const_expr(self.parts):
            CombineKernel(self.out_dtype, self.outputs)(found, out, lse, lengths.starts_q, stream)

    def aligned(self, x: Any) -> Any:
        """(batch, row, head, element) with strides known to be multiples of what is copied at once; of 8 bits pairs as one element."""
        start, shape, strides = x.iterator, x.shape, x.stride
        if x.element_type.width == 8:
            start, shape = cute.recast_ptr(start, dtype=self.dtype), (*shape[:3], shape[3] // 2)
            strides = tuple(s if isinstance(s, int) else s // 2 for s in strides)
        stride = tuple(cute.assume(s, divby=VALUES) if not isinstance(s, int) else s for s in strides)
        return cute.make_tensor(start, cute.make_layout(shape, stride=stride))

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: Any, lengths: Any, more: Any,
        tiles: Int32, numbers: Any,
    ):  # fmt: skip
        starts_q, starts_k, used, table = lengths
        group, num_splits = numbers.group, numbers.num_splits
        number, of_heads, layer = arch.block_idx()
        if const_expr(self.parts and devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        batch, part = self.layer(layer, num_splits)
        tile, head = self.place(number, of_heads, tiles, group)
        group_k = q.shape[2] // (self.share * k.shape[2])
        head_k = head // group_k
        q_rows, queries = self.sequence(q, starts_q, batch, head, self.share)
        pages = None
        if const_expr(table is not None):
            pages = Pages(table[batch, None], self.page, Int32(k.shape[0]))
            k_rows, v_rows, keys = k[None, None, head_k, None], v[None, None, head_k, None], table.shape[1] * self.page
        else:
            k_rows, keys = self.sequence(k, starts_k, batch, head_k)
            v_rows, _ = self.sequence(v, starts_k, batch, head_k)
        if const_expr(used is not None):
            keys = self.within(used[batch], keys)
        if tile * self.config.tile_m < queries * self.share and head * self.share < q.shape[2]:
            place = (batch, head, more.slopes)
            for factors in (more.factors_q, more.factors_k):
                if const_expr(factors is not None):
                    numbers = self.scaled(numbers, factors[batch, head_k], more)
            if const_expr(more.factors_k is not None):
                numbers = numbers._replace(scale=hiding(numbers.scale))
            memory, result = self.one_tile(q_rows, k_rows, v_rows, pages, queries, keys, tile, part, place, numbers)
            # Where results go is found out again, not kept in registers that the loop needs.
            tile, head = self.place(only_here(number), of_heads, tiles, group)
            if const_expr(self.parts):
                batch, part = self.layer(only_here(layer), num_splits)
                found, _ = self.sequence(out[part, None, None, None, None], starts_q, batch, head, self.share)
                self.epilogue(more, batch, head, group_k).finish_part(result, found, tile, queries, part == 0)
            else:
                out_rows, _ = self.sequence(out, starts_q, batch, head, self.share)
                lse_rows = None
                if const_expr(lse is not None):
                    lse_rows = self.logarithms(lse, starts_q, batch, head)
                self.epilogue(more, batch, head, group_k).finish(memory, result, out_rows, lse_rows, tile, queries)

    def scaled(self, numbers: Any, factor: Any, more: Any) -> Any:
        """The same numbers where queries and keys have a factor: it is multiplied into what scores meet first."""
        changed = self.score is not None or more.slopes is not None
        first = "cap" if self.capped else "natural" if changed else "scale"
        return numbers._replace(**{first: getattr(numbers, first) * factor})

    def epilogue(self, more: Any, batch: Any, head: Any, group_k: Any) -> Epilogue:
        """What writes the outputs of a head, or of those that share keys."""
        factors = more.factors_v
        return Epilogue(self, more.sinks, head, None if factors is None else factors[batch, head // group_k])

    def layer(self, number: Any, num_splits: Any) -> tuple[Any, Any]:
        """The sequence and the part of its keys of a block of threads."""
        return (number // num_splits, number % num_splits) if self.parts else (number, Int32(0))

    def place(self, number: Any, of_heads: Any, tiles: Any, group: Any) -> tuple[Any, Any]:
        """The tile of queries and the head of a block of threads.

        The tiles of `group` heads are done side by side, to find each other's keys in the L2 cache, and the last tiles, which
        see most keys where later ones are hidden, first.
        """
        return tiles - 1 - number // group, of_heads * group + number % group

    @cute.jit
    def sequence(self, x: cute.Tensor, starts: Any, batch: Int32, head: Int32, share: Constexpr = 1):
        """The rows (row, element) of one head, or of `share` heads, of one sequence, and its length."""
        length, first = x.shape[1], Int32(0)
        if const_expr(starts is not None):
            first = self.within(starts[batch], length)
            length, batch = self.within(starts[batch + 1], length) - first, Int32(0)
        if const_expr(share == 1):
            rows = x[batch, None, head, None]
            if const_expr(starts is None):
                return rows, length
            found = cute.domain_offset((first, 0), rows)
            return cute.make_tensor(found.iterator, cute.make_layout((length, x.shape[3]), stride=found.stride)), length
        found = cute.domain_offset((first, head * share, 0), x[batch, None, None, None])
        of_query, of_head, of_element = found.stride
        layout = cute.make_layout(((share, length), x.shape[3]), stride=((of_head, of_query), of_element))
        return cute.make_tensor(found.iterator, layout), length

    @cute.jit
    def within(self, start: Any, rows: Any):
        """Where a sequence starts or ends, or the nearest row: numbers that are wrong must not lead out of arrays."""
        return max(Int32(0), min(start, Int32(rows)))

    @cute.jit
    def logarithms(self, lse: cute.Tensor, starts: Any, batch: Int32, head: Int32):
        """Where the logarithms of a tile's rows go: (row)."""
        if const_expr(starts is None):
            found = lse[batch, None, None]
        else:
            found = cute.domain_offset((0, self.within(starts[batch], lse.shape[1])), lse)
        if const_expr(self.share == 1):
            return found[head, None]
        found = cute.domain_offset((head * self.share, 0), found)
        layout = cute.make_layout(((self.share, found.shape[1]),), stride=(found.stride,))
        return cute.make_tensor(found.iterator, layout)

    @cute.jit
    def one_tile(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, pages: Any, queries: Int32, keys: Int32, tile: Int32,
        part: Int32, place: Any, numbers: Any,
    ):  # fmt: skip
        """The outputs of a tile of queries of one sequence and head, their references and sums; and memory to stage them."""
        scale, cap, _, left, right, _, num_splits = numbers
        thread = arch.thread_idx()[0]
        tile_m, tile_n = self.config.tile_m, self.config.tile_n
        mma = self.mma()

        # A query at position p sees the keys from p - left to p + right, both included.
        offset = self.offset(tile, keys - queries)
        end = keys
        whole_end = keys
        if const_expr(self.right):
            end = min(keys, self.position(offset, tile, tile_m - 1) + right + 1)
            whole_end = min(keys, self.position(offset, tile, 0) + right + 1)
        begin = Int32(0)
        whole_begin = Int32(0)
        if const_expr(self.left):
            begin = max(Int32(0), self.position(offset, tile, 0) - left)
            whole_begin = max(Int32(0), self.position(offset, tile, tile_m - 1) - left)
        last = cute.ceil_div(max(end, Int32(0)), tile_n) - 1
        first = begin // tile_n
        steps = max(last - first + 1, Int32(0))
        if const_expr(self.parts):
            each = cute.ceil_div(steps, num_splits)
            last = last - part * each
            steps = max(min(steps - part * each, each), Int32(0))

        # Shared memory: the tile of Q, two buffers of K, two of V; O later where Q was.
        memory = utils.SmemAllocator()
        q_layout = swizzled(self.dtype, (tile_m, self.columns_q), 1)
        k_layout = swizzled(self.dtype, (tile_n, self.padded, 2), 1)
        v_layout = swizzled(self.dtype, (tile_n, self.padded_v, 2), 1)
        o_layout = swizzled(self.out_dtype, (tile_m, self.columns), 1)
        q_bytes = max(cute.cosize(q_layout), cute.cosize(o_layout)) * self.dtype.width // 8
        q_place = cute.recast_ptr(memory.allocate(q_bytes, 1024), dtype=self.dtype)
        q_tile = cute.make_tensor(q_place, q_layout)
        o_tile = cute.make_tensor(cute.recast_ptr(q_place, dtype=self.out_dtype), o_layout)
        k_ring = memory.allocate_tensor(self.dtype, k_layout, 1024)
        v_ring = memory.allocate_tensor(self.dtype, v_layout, 1024)

        # What this thread copies.
        copy_q = self.row_copy(self.padded, True).get_slice(thread)
        copy_v = self.row_copy(self.padded_v, True).get_slice(thread)
        if const_expr(self.narrow):
            widen_queries(self, q, q_tile, tile, queries * self.share)
        elif const_expr(self.share == 1):
            self.fetch(copy_q, q, q_tile, self.dim, tile, queries)
        else:
            self.fetch_shared(copy_q, q, q_tile, tile, queries * self.share)

        out_acc = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, self.columns)), Float32)
        out_acc.fill(0.0)
        scores = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), Float32)
        rows = 2 * self.config.m_tiles
        lowered, sums = (cute.make_rmem_tensor((rows,), Float32) for _ in range(2))
        lowered.fill(NOTHING)
        sums.fill(0.0)
        probabilities = cute.make_rmem_tensor((8, self.config.m_tiles, tile_n // 16), self.dtype)

        multiplying = NarrowProducts if const_expr(self.narrow) else Products
        products = multiplying(self, mma, thread, q_tile, k_ring, v_ring, scores, out_acc, probabilities)
        softmax = Softmax(self, scores, lowered, sums, probabilities, out_acc, scale, cap)

        producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=2).make_participants()
        if const_expr(self.page > 0):
            paged = PagedKeys(self, pages, thread, k, v, k_ring, v_ring)
        if steps > 0:
            if const_expr(self.page > 0):
                paged.look_up(last)
                paged.fetch(0, last, keys)
                paged.look_up(max(last - 1, Int32(0)))
            else:
                self.fetch(copy_q, k, k_ring[None, None, 0], self.dim, last, keys)
                self.fetch(copy_v, v, v_ring[None, None, 0], self.dim_v, last, keys)
        producer.commit()
        for i in range(steps):
            block = last - i
            filled = consumer.wait_and_advance()
            reading = filled.index
            if i + 1 < steps:  # the other one, as a function of this: a number of its own would be one more in a loop
                if const_expr(self.page > 0):
                    paged.fetch(1 - reading, block - 1)
                    paged.look_up(max(block - 2, Int32(0)))
                else:
                    self.fetch(copy_q, k, k_ring[None, None, 1 - reading], self.dim, block - 1)
                    self.fetch(copy_v, v, v_ring[None, None, 1 - reading], self.dim_v, block - 1)
            producer.commit()
            products.scores(reading)
            if const_expr(self.capped):
                softmax.cap_scores()
            if const_expr(self.score is not None or place[2] is not None):
                self.change(scores, block, offset, tile, queries, keys, place, numbers.natural)
            if (block + 1) * tile_n > whole_end or block * tile_n < whole_begin:
                self.mask(scores, block, offset, tile, keys, left, right)
            found = softmax.maxima()
            if arch.vote_any_sync(softmax.exceeded(found)):
                softmax.raise_reference(found)
            softmax.make_probabilities()
            products.outputs(reading)
        producer.tail()
        return o_tile, (out_acc, lowered, sums)

    def offset(self, tile: Any, behind: Any) -> Any:
        """What `position` needs: where the first query of a tile is, or of all of them where heads share a tile."""
        return tile * self.config.tile_m + behind if self.share == 1 else behind

    def position(self, offset: Any, tile: Any, row: Any) -> Any:
        """The key that the query of a row of a tile is aligned with."""
        return offset + row if self.share == 1 else offset + (tile * self.config.tile_m + row) // self.share

    @cute.jit
    def fetch(self, copy: Any, source: cute.Tensor, target: cute.Tensor, dim: int, block: Any, rows: Any = None):
        """Begin to copy a block of rows. `rows`: how many there are, where the block may go beyond; zeros are put there."""
        extent, padded = (cute.size(target, mode=[i]) for i in range(2))
        first = copy.partition_S(cute.local_tile(source, (extent, padded), (0, 0)))
        to = copy.partition_D(target)
        # What all threads share is added to the address of a thread. The distance of its rows is a value that only exists here:
        # otherwise each row has a pointer of its own in registers, all through the loop.
        start = first.iterator + Int64(block) * (source.stride[0] * extent)
        distance = arch.make_warp_uniform(Int32(first.stride[1] // VALUES))
        places = copy.partition_S(cute.make_identity_tensor((extent, padded)))
        columns = cute.size(to, mode=[2])
        for i in range_constexpr(cute.size(to, mode=[1])):
            row = cute.make_tensor(
                start + cute.assume(Int64(distance) * (VALUES * i), divby=VALUES),
                cute.make_layout((first.shape[0], columns), stride=(first.stride[0], first.stride[2])),
            )
            if const_expr(rows is None and dim == padded):
                cute.copy(copy, row, to[None, i, None])
            else:
                inside = cute.make_rmem_tensor((1, columns), Boolean)
                for j in range_constexpr(columns):
                    place, column = places[0, i, j]
                    there = Boolean(True)
                    if const_expr(rows is not None):
                        there = block * extent + place < rows
                    if const_expr(dim != padded):
                        there = there & (column < dim)
                    inside[0, j] = there
                cute.copy(copy, row, to[None, i, None], pred=inside)

    @cute.jit
    def fetch_shared(self, copy: Any, source: cute.Tensor, target: cute.Tensor, tile: Int32, rows: Int32):
        """Begin to copy a tile of the queries of several heads."""
        extent, padded = (cute.size(target, mode=[i]) for i in range(2))
        to = copy.partition_D(target)
        places = copy.partition_S(cute.make_identity_tensor((extent, padded)))
        for i in range_constexpr(cute.size(to, mode=[1])):
            for j in range_constexpr(cute.size(to, mode=[2])):
                place, column = places[0, i, j]
                inside = cute.make_rmem_tensor((1,), Boolean)
                inside[0] = (tile * extent + place < rows) & (column < self.dim)
                cute.copy(copy, piece(source, tile * extent + place, column), to[None, i, j], pred=inside)

    @cute.jit
    def change(
        self, scores: cute.Tensor, block: Int32, offset: Int32, tile: Int32, queries: Int32, keys: Int32, place: Any,
        natural: Any,
    ):  # fmt: skip
        """Lower scores by their slopes, and let the function change them."""
        batch, first, slopes = place
        part = self.mma().get_slice(only_here(arch.thread_idx()[0]))
        places = part.partition_C(cute.make_identity_tensor((self.config.tile_m, self.config.tile_n)))
        for m in range_constexpr(self.config.m_tiles):
            for half in range_constexpr(2):
                row, column = places[(0, half), m, 0]
                position = self.position(offset, tile, row)
                start = block * self.config.tile_n + column
                head = first
                if const_expr(self.share > 1):
                    head = first * self.share + (tile * self.config.tile_m + row) % self.share
                if const_expr(slopes is not None):
                    # the last rows of the last tile may be of no head
                    slope = slopes[min(batch, slopes.shape[0] - 1), min(head, slopes.shape[1] - 1)]
                for n in range_constexpr(self.config.tile_n // 8):
                    for c in range_constexpr(2):
                        value = scores[(c, half), m, n] * natural
                        if const_expr(slopes is not None):
                            distance = Float32(start + 8 * n + c - position)
                            value = value - slope * arch.fmax(distance, -distance)
                        if const_expr(self.score is not None):
                            value = self.score(value, batch, head, position + queries - keys, start + 8 * n + c)
                        scores[(c, half), m, n] = value

    @cute.jit
    def mask(
        self, scores: cute.Tensor, block: Int32, offset: Int32, tile: Int32, keys: Int32, left: Int32, right: Int32
    ):
        """Hide the keys that a query does not see."""
        tile_n = self.config.tile_n
        part = self.mma().get_slice(only_here(arch.thread_idx()[0]))
        places = part.partition_C(cute.make_identity_tensor((self.config.tile_m, tile_n)))
        start = block * tile_n
        for m in range_constexpr(self.config.m_tiles):
            for half in range_constexpr(2):
                row, column = places[(0, half), m, 0]
                # relative to the first column of this thread
                end = keys - start - column
                if const_expr(self.right):
                    end = min(end, self.position(offset, tile, row) + right + 1 - start - column)
                begin = Int32(0)
                if const_expr(self.left):
                    begin = self.position(offset, tile, row) - left - start - column
                for n in range_constexpr(tile_n // 8):
                    for c in range_constexpr(2):
                        seen = end > 8 * n + c
                        if const_expr(self.left):
                            seen = seen & (begin <= 8 * n + c)
                        value = scores[(c, half), m, n]
                        scores[(c, half), m, n] = value if seen else Float32(-float("inf"))


forward = functools.lru_cache(maxsize=1024)(Forward)
