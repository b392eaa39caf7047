"""The kernel of `flash_attention`: softmax(Q K^T) V on the tensor cores every GPU since sm_80 has (`mma.sync`).

A block of threads has a tile of queries, each warp some rows of it. Keys and values stream past in blocks, the last first,
through two buffers each, filled by `cp.async` one block ahead. Scores and probabilities never leave registers: the
accumulator of Q K^T is, converted, the left operand of P V. Rows are normalized once, at the end. Powers are relative to a
reference of each row, which is raised, and what was summed before scaled down, only when a score exceeds it by much.

Where there are few queries, a tile has those of all heads that share keys, and keys are cut into parts, each for a block of
threads of its own; what these find is put together by `attention_parts`.

While the tensor cores work on an `mma.sync`, a warp scheduler issues nothing else, on Hopper too: what counts is how many
instructions there are besides. Registers hold so much of the tile that few are left: addresses are shared and derived where
they are used.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from ... import cute, pipeline, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Boolean, Constexpr, Float32, Int32, Int64
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp, cpasync, warp
from .. import devices
from ..common.smem import swizzled
from .parts import PartsSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from .functions import AttentionTiling

_NOTHING = 1e30
"""Minus the maximum of no scores: finite, so that differences of maxima are numbers."""
_SLACK = 8.0
"""So far, in powers of two, a score may exceed what counts as a row's maximum: its probability is still a good f16."""
_LN_2 = 0.6931471805599453
_VALUES = 8
"""Elements of 16 bits that are copied at once."""


class Forward:
    """The kernel for some element type, head dimensions and masks.

    The rows of a tile are queries, of each `share` heads which share their keys in succession. `parts`: keys are cut into
    parts; outputs are then those of the parts (see `attention_parts`).
    """

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], tiling: AttentionTiling, masks: tuple[bool, bool, bool],
        share: int = 1, parts: bool = False,
    ) -> None:  # fmt: skip
        self.dtype = dtype
        self.dim, self.dim_v = head_dims
        self.padded, self.padded_v = (-(-d // 32) * 32 for d in head_dims)
        self.tiling = tiling
        self.right, self.left, self.capped = masks
        self.share = share
        self.parts = parts

    # --- how the work is cut ---

    def mma(self) -> Any:
        """The tiled MMA: warps over the queries, 16 columns at a time, so that four matrices of B are loaded at once."""
        warps = self.tiling.warps
        op = warp.MmaF16BF16Op(self.dtype, Float32, (16, 8, 16))
        return cute.make_tiled_mma(op, (warps, 1, 1), (16 * warps, 16, 16))

    def row_copy(self, padded: int, asynchronous: bool) -> Any:
        """How the threads copy rows between global and shared memory."""
        op: Any = CopyUniversalOp()
        if asynchronous:
            op = cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, self.dtype, num_bits_per_copy=_VALUES * self.dtype.width)
        lanes = (64 if padded % 64 == 0 else 32) // _VALUES
        threads = cute.make_layout((self.tiling.threads // lanes, lanes), stride=(lanes, 1))
        return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, _VALUES)))

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, found: Any, lse: Any, starts_q: Any,
        starts_k: Any, used: Any, longest: Int32, scale: Float32, cap: Float32, left: Int32, right: Int32, group: Int32,
        splits: Int32, stream: Int64,
    ):  # fmt: skip
        """Launch it; `found` is memory for what is found of `splits` parts of the keys."""
        q, k, v, out = (self.aligned(x) for x in (q, k, v, out))
        batches = q.shape[0]
        if const_expr(starts_q is not None):
            batches = starts_q.shape[0] - 1
        tiles = cute.ceil_div(longest * self.share, self.tiling.block_q)
        results, logarithms = out, lse
        if const_expr(self.parts):
            results, logarithms = found, None
        self.kernel(
            q, k, v, results, logarithms, starts_q, starts_k, used, tiles, scale, cap, left, right, group, splits
        ).launch(
            grid=(tiles * group, cute.ceil_div(q.shape[2] // self.share, group), batches * splits),
            block=(self.tiling.threads, 1, 1),
            min_blocks_per_mp=self.tiling.blocks_per_sm,
            stream=stream,
        )
        if const_expr(self.parts):
            PartsSum(self.dtype, self.dim_v)(found, out, lse, starts_q, stream)

    def aligned(self, x: Any) -> Any:
        """(batch, row, head, element) with strides known to be multiples of what is copied at once, elements static."""
        stride = tuple(cute.assume(s, divby=_VALUES) if not isinstance(s, int) else s for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=stride))

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: Any, starts_q: Any, starts_k: Any,
        used: Any, tiles: Int32, scale: Float32, cap: Float32, left: Int32, right: Int32, group: Int32, splits: Int32,
    ):  # fmt: skip
        number, of_heads, layer = arch.block_idx()
        if const_expr(self.parts and devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        batch, part = self.layer(layer, splits)
        tile, head = self.place(number, of_heads, tiles, group)
        head_k = head // (q.shape[2] // (self.share * k.shape[2]))
        q_rows, queries = self.sequence(q, starts_q, batch, head, self.share)
        k_rows, keys = self.sequence(k, starts_k, batch, head_k)
        v_rows, _ = self.sequence(v, starts_k, batch, head_k)
        if const_expr(used is not None):
            keys = self.within(used[batch], keys)
        if tile * self.tiling.block_q < queries * self.share and head * self.share < q.shape[2]:
            memory, result = self.one_tile(
                q_rows, k_rows, v_rows, queries, keys, tile, scale, cap, left, right, part, splits
            )
            # Where results go is found out again, not kept in registers that the loop needs.
            tile, head = self.place(_only_here(number), of_heads, tiles, group)
            if const_expr(self.parts):
                batch, part = self.layer(_only_here(layer), splits)
                found, _ = self.sequence(out[part, None, None, None, None], starts_q, batch, head, self.share)
                self.finish_part(result, found, tile, queries)
            else:
                out_rows, _ = self.sequence(out, starts_q, batch, head, self.share)
                lse_rows = None
                if const_expr(lse is not None):
                    lse_rows = self.logarithms(lse, starts_q, batch, head)
                self.finish(memory, result, out_rows, lse_rows, tile, queries)

    def layer(self, number: Any, splits: Any) -> tuple[Any, Any]:
        """The sequence and the part of its keys of a block of threads."""
        return (number // splits, number % splits) if self.parts else (number, Int32(0))

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
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, queries: Int32, keys: Int32, tile: Int32, scale: Float32,
        cap: Float32, left: Int32, right: Int32, part: Int32, splits: Int32,
    ):  # fmt: skip
        """The outputs of a tile of queries of one sequence and head, their references and sums; and memory to stage them."""
        thread = arch.thread_idx()[0]
        block_q, block_k = self.tiling.block_q, self.tiling.block_k
        mma = self.mma()

        # A query at position p sees the keys from p - left to p + right, both included.
        offset = self.offset(tile, keys - queries)
        end = keys
        whole_end = keys
        if const_expr(self.right):
            end = min(keys, self.position(offset, tile, block_q - 1) + right + 1)
            whole_end = min(keys, self.position(offset, tile, 0) + right + 1)
        begin = Int32(0)
        whole_begin = Int32(0)
        if const_expr(self.left):
            begin = max(Int32(0), self.position(offset, tile, 0) - left)
            whole_begin = max(Int32(0), self.position(offset, tile, block_q - 1) - left)
        last = cute.ceil_div(max(end, Int32(0)), block_k) - 1
        first = begin // block_k
        steps = max(last - first + 1, Int32(0))
        if const_expr(self.parts):
            each = cute.ceil_div(steps, splits)
            last = last - part * each
            steps = max(min(steps - part * each, each), Int32(0))

        # Shared memory: the tile of Q, two buffers of K, two of V; O later where Q was.
        memory = utils.SmemAllocator()
        q_layout = swizzled(self.dtype, (block_q, self.padded), 1)
        k_layout = swizzled(self.dtype, (block_k, self.padded, 2), 1)
        v_layout = swizzled(self.dtype, (block_k, self.padded_v, 2), 1)
        o_layout = swizzled(self.dtype, (block_q, self.padded_v), 1)
        q_bytes = max(cute.cosize(q_layout), cute.cosize(o_layout)) * self.dtype.width // 8
        q_place = cute.recast_ptr(memory.allocate(q_bytes, 1024), dtype=self.dtype)
        q_tile, o_tile = cute.make_tensor(q_place, q_layout), cute.make_tensor(q_place, o_layout)
        k_ring = memory.allocate_tensor(self.dtype, k_layout, 1024)
        v_ring = memory.allocate_tensor(self.dtype, v_layout, 1024)

        # What this thread copies.
        copy_q = self.row_copy(self.padded, True).get_slice(thread)
        copy_v = self.row_copy(self.padded_v, True).get_slice(thread)
        if const_expr(self.share == 1):
            self.fetch(copy_q, q, q_tile, self.dim, tile, queries)
        else:
            self.fetch_shared(copy_q, q, q_tile, tile, queries * self.share)

        out_acc = cute.make_rmem_tensor(mma.partition_shape_C((block_q, self.padded_v)), Float32)
        out_acc.fill(0.0)
        scores = cute.make_rmem_tensor(mma.partition_shape_C((block_q, block_k)), Float32)
        rows = 2 * self.tiling.m_tiles
        lowered, sums = (cute.make_rmem_tensor((rows,), Float32) for _ in range(2))
        lowered.fill(_NOTHING)
        sums.fill(0.0)
        probabilities = cute.make_rmem_tensor((8, self.tiling.m_tiles, block_k // 16), self.dtype)

        products = _Products(self, mma, thread, q_tile, k_ring, v_ring, scores, out_acc, probabilities)
        softmax = _Softmax(self, scores, lowered, sums, probabilities, out_acc, scale, cap)

        producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=2).make_participants()
        if steps > 0:
            self.fetch(copy_q, k, k_ring[None, None, 0], self.dim, last, keys)
            self.fetch(copy_v, v, v_ring[None, None, 0], self.dim_v, last, keys)
        producer.commit()
        for i in range(steps):
            block = last - i
            filled = consumer.wait_and_advance()
            reading = filled.index
            if i + 1 < steps:  # the other one, as a function of this: a number of its own would be one more in a loop
                self.fetch(copy_q, k, k_ring[None, None, 1 - reading], self.dim, block - 1)
                self.fetch(copy_v, v, v_ring[None, None, 1 - reading], self.dim_v, block - 1)
            producer.commit()
            products.scores(reading)
            if const_expr(self.capped):
                softmax.cap_scores()
            if (block + 1) * block_k > whole_end or block * block_k < whole_begin:
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
        return tile * self.tiling.block_q + behind if self.share == 1 else behind

    def position(self, offset: Any, tile: Any, row: Any) -> Any:
        """The key that the query of a row of a tile is aligned with."""
        return offset + row if self.share == 1 else offset + (tile * self.tiling.block_q + row) // self.share

    @cute.jit
    def fetch(self, copy: Any, source: cute.Tensor, target: cute.Tensor, dim: int, block: Any, rows: Any = None):
        """Begin to copy a block of rows. `rows`: how many there are, where the block may go beyond; zeros are put there."""
        extent, padded = (cute.size(target, mode=[i]) for i in range(2))
        first = copy.partition_S(cute.local_tile(source, (extent, padded), (0, 0)))
        to = copy.partition_D(target)
        # What all threads share is added to the address of a thread. The distance of its rows is a value that only exists here:
        # otherwise each row has a pointer of its own in registers, all through the loop.
        start = first.iterator + Int64(block) * (source.stride[0] * extent)
        distance = arch.make_warp_uniform(Int32(first.stride[1] // _VALUES))
        places = copy.partition_S(cute.make_identity_tensor((extent, padded)))
        columns = cute.size(to, mode=[2])
        for i in range_constexpr(cute.size(to, mode=[1])):
            row = cute.make_tensor(
                start + cute.assume(Int64(distance) * (_VALUES * i), divby=_VALUES),
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
                cute.copy(copy, _piece(source, tile * extent + place, column), to[None, i, j], pred=inside)

    @cute.jit
    def mask(
        self, scores: cute.Tensor, block: Int32, offset: Int32, tile: Int32, keys: Int32, left: Int32, right: Int32
    ):
        """Hide the keys that a query does not see."""
        block_k = self.tiling.block_k
        part = self.mma().get_slice(_only_here(arch.thread_idx()[0]))
        places = part.partition_C(cute.make_identity_tensor((self.tiling.block_q, block_k)))
        start = block * block_k
        for m in range_constexpr(self.tiling.m_tiles):
            for half in range_constexpr(2):
                row, column = places[(0, half), m, 0]
                # relative to the first column of this thread
                end = keys - start - column
                if const_expr(self.right):
                    end = min(end, self.position(offset, tile, row) + right + 1 - start - column)
                begin = Int32(0)
                if const_expr(self.left):
                    begin = self.position(offset, tile, row) - left - start - column
                for n in range_constexpr(block_k // 8):
                    for c in range_constexpr(2):
                        seen = end > 8 * n + c
                        if const_expr(self.left):
                            seen = seen & (begin <= 8 * n + c)
                        value = scores[(c, half), m, n]
                        scores[(c, half), m, n] = value if seen else Float32(-float("inf"))

    @cute.jit
    def finish(self, memory: cute.Tensor, result: Any, out: cute.Tensor, lse: Any, tile: Int32, queries: Int32):
        """Divide by the sums, and write the outputs by way of shared memory, in whole rows."""
        block_q, m_tiles = self.tiling.block_q, self.tiling.m_tiles
        out_acc, lowered, sums = result
        thread = _only_here(arch.thread_idx()[0])
        mma = self.mma()
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((block_q, self.padded_v)))
        for m in range_constexpr(m_tiles):
            for half in range_constexpr(2):
                number = 2 * m + half
                total = sums[number]
                total = total + arch.shuffle_sync_bfly(total, offset=1)
                total = total + arch.shuffle_sync_bfly(total, offset=2)
                inverse = Float32(0.0)
                if total != 0.0:
                    inverse = arch.rcp_approx(total)
                for n in range_constexpr(self.padded_v // 8):
                    for c in range_constexpr(2):
                        out_acc[(c, half), m, n] = out_acc[(c, half), m, n] * inverse
                if const_expr(lse is not None):
                    row, column = places[(0, half), m, 0]
                    row = row + tile * block_q
                    if column == 0 and row < queries * self.share:
                        value = Float32(-float("inf"))
                        if total != 0.0:
                            value = (cute.math.log2(total) - lowered[number]) * _LN_2
                        lse[row] = value
        rounded = cute.make_rmem_tensor(out_acc.shape, self.dtype)
        rounded.store(out_acc.load().to(self.dtype))
        # All have read the queries and what else was there.
        arch.sync_threads()
        store = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=32)
        writer = cute.make_tiled_copy_C(store, mma).get_slice(thread)
        cute.copy(store, writer.retile(rounded), writer.partition_D(memory))
        arch.sync_threads()
        copy = self.row_copy(self.padded_v, False).get_slice(thread)
        from_ = copy.partition_S(memory)
        coords = copy.partition_S(cute.make_identity_tensor((block_q, self.padded_v)))
        held = cute.make_fragment_like(from_)
        cute.copy(copy, from_, held)
        inside = cute.make_rmem_tensor((1, *held.shape[1:]), Boolean)
        for i in range_constexpr(cute.size(held, mode=[1])):
            for j in range_constexpr(cute.size(held, mode=[2])):
                row, column = coords[0, i, j]
                there = tile * block_q + row < queries * self.share
                if const_expr(self.dim_v != self.padded_v):
                    there = there & (column < self.dim_v)
                inside[0, i, j] = there
                if const_expr(self.share > 1):
                    place = _piece(out, tile * block_q + row, column)
                    cute.copy(copy, held[None, i, j], place, pred=inside[None, i, j])
        if const_expr(self.share == 1):
            to = copy.partition_D(cute.local_tile(out, (block_q, self.padded_v), (tile, 0)))
            cute.copy(copy, held, to, pred=inside)

    @cute.jit
    def finish_part(self, result: Any, found: cute.Tensor, tile: Int32, queries: Int32):
        """Write what a part of the keys gives: outputs, divided by the sums, and the binary logarithm after them."""
        out_acc, lowered, sums = result
        part = self.mma().get_slice(_only_here(arch.thread_idx()[0]))
        places = part.partition_C(cute.make_identity_tensor((self.tiling.block_q, self.padded_v)))
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=64)
        pair = cute.make_rmem_tensor((2,), Float32)
        for m in range_constexpr(self.tiling.m_tiles):
            for half in range_constexpr(2):
                number = 2 * m + half
                total = sums[number]
                total = total + arch.shuffle_sync_bfly(total, offset=1)
                total = total + arch.shuffle_sync_bfly(total, offset=2)
                inverse, logarithm = Float32(0.0), Float32(-float("inf"))
                if total != 0.0:
                    inverse = arch.rcp_approx(total)
                    logarithm = cute.math.log2(total) - lowered[number]
                row, column = places[(0, half), m, 0]
                row = row + tile * self.tiling.block_q
                if row < queries * self.share:
                    target = found[row, None]
                    for n in range_constexpr(self.dim_v // 8):
                        for c in range_constexpr(2):
                            pair[c] = out_acc[(c, half), m, n] * inverse
                        place = (target.iterator + (column + 8 * n)).with_alignment(8)
                        cute.copy(store, pair, cute.make_tensor(place, cute.make_layout((2,))))
                    if column == 0:
                        target[self.dim_v] = logarithm


def _piece(rows: Any, row: Any, column: Any) -> Any:
    """What is copied at once of a row."""
    start = cute.domain_offset((row, column), rows).iterator
    return cute.make_tensor(start.with_alignment(2 * _VALUES), cute.make_layout((_VALUES,)))


def _only_here(value: Any) -> Any:
    """A number as a value that exists from here on only.

    What is computed from the number itself would be kept from its first to its last use, in registers that the loop needs.
    """
    return arch.shuffle_sync_bfly(value, offset=0)


class _Products:
    """The two products of a step.

    Four matrices, 16 rows by 16 columns, are loaded at once. For Q and V a lane names row `lane % 16`, columns from
    `lane / 16 * 8`: their addresses differ by what is the same in all lanes, so that few are kept. For K, whose rows are the
    columns of the product, it is the other way round.
    """

    def __init__(
        self, of: Forward, mma: Any, thread: Any, q_tile: Any, k_ring: Any, v_ring: Any, scores: Any, out_acc: Any,
        probabilities: Any,
    ) -> None:  # fmt: skip
        self.mma, self.m_tiles = mma, of.tiling.m_tiles
        self.acc_scores, self.acc_out, self.probabilities = scores, out_acc, probabilities
        block_q, block_k, warps = of.tiling.block_q, of.tiling.block_k, of.tiling.warps
        depth, depth_v = of.padded // 16, of.padded_v // 16
        self.q_frag = cute.make_rmem_tensor((8, self.m_tiles, depth), of.dtype)
        self.k_frag = cute.make_rmem_tensor((4, 2, block_k // 16, depth), of.dtype)
        self.v_frag = cute.make_rmem_tensor((4, 2, depth_v, block_k // 16), of.dtype)
        self.rows = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), of.dtype)
        self.columns = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), of.dtype)
        lane = thread % 32
        first = arch.make_warp_uniform(thread // 32)
        down, across = (lane % 16, lane // 16), (lane % 8 + lane // 16 * 8, lane // 8 % 2)
        self.q_from = _Matrices(q_tile, down, (block_q, of.padded), first, warps).of(0)
        self.k_ring = _Matrices(k_ring, across, (block_k, of.padded))
        self.v_ring = _Matrices(v_ring, down, (block_k, of.padded_v))

    def scores(self, buffer: Any) -> None:
        """S = Q K^T."""
        k_from = self.k_ring.of(buffer)
        pairs, depth = cute.size(self.k_frag, mode=[2]), cute.size(self.k_frag, mode=[3])

        def load(k: int, n: int) -> None:
            if n == 0:
                for m in range(self.m_tiles):
                    cute.copy(self.rows, self.q_from(m, k), self.q_frag[None, m, k])
            target = cute.make_tensor(self.k_frag[None, None, n, k].iterator, cute.make_layout((8,)))
            cute.copy(self.rows, k_from(n, k), target)

        def multiply(k: int, n: int) -> None:
            for half in range(2):
                for m in range(self.m_tiles):
                    acc = self.acc_scores[None, m, 2 * n + half]
                    if k == 0:
                        acc.fill(0.0)
                    cute.mma_atom_call(self.mma, acc, self.q_frag[None, m, k], self.k_frag[None, half, n, k], acc)

        _one_ahead(depth, pairs, load, multiply)

    def outputs(self, buffer: Any) -> None:
        """O = O + P V."""
        v_from = self.v_ring.of(buffer)
        pairs, depth = cute.size(self.v_frag, mode=[2]), cute.size(self.v_frag, mode=[3])

        def load(k: int, n: int) -> None:
            target = cute.make_tensor(self.v_frag[None, None, n, k].iterator, cute.make_layout((8,)))
            cute.copy(self.columns, v_from(k, n), target)

        def multiply(k: int, n: int) -> None:
            for half in range(2):
                for m in range(self.m_tiles):
                    acc = self.acc_out[None, m, 2 * n + half]
                    cute.mma_atom_call(
                        self.mma, acc, self.probabilities[None, m, k], self.v_frag[None, half, n, k], acc
                    )

        _one_ahead(depth, pairs, load, multiply)


def _one_ahead(depth: int, pairs: int, load: Callable[[int, int], None], multiply: Callable[[int, int], None]) -> None:
    """Load matrices one place ahead of their multiplications."""
    places = [(k, n) for k in range(depth) for n in range(pairs)]
    load(*places[0])
    for place, following in zip(places, [*places[1:], None], strict=True):
        if following is not None:
            load(*following)
        multiply(*place)


class _Matrices:
    """A swizzled tile in shared memory, or a ring of them, as matrices of 16 rows and 16 columns that lanes name the rows of.

    `place`: which of the 16 rows a lane names, and which half of the 16 columns. `repeat` x 16 rows are from one matrix to the
    next, the first begins at row `first` x 16.
    """

    def __init__(self, tile: Any, place: Any, shape: tuple[int, int], first: Any = 0, repeat: int = 1) -> None:
        self.dtype = tile.element_type
        self.row = math.gcd(shape[1], 64)  # elements of a row of shared memory
        self.rows, self.size, self.repeat = shape[0], shape[0] * shape[1], repeat
        self.start = tile.iterator + first * (16 * self.row)
        self.offset = tile.layout.inner(place[0] * self.row + place[1] * 8)

    def of(self, buffer: Any) -> Callable[[int, int], Any]:
        """The row a lane names of a matrix (rows, columns) of one of the tiles.

        Buffers begin at multiples of the swizzle's period, where the offset of a column, being swizzled, is an exclusive or
        with the address: one address is kept for all columns.
        """
        address = (self.start + buffer * self.size + self.offset)._address()
        bits = self.dtype.width // 8
        columns = [
            cute.make_ptr(self.dtype, address ^ (16 * bits * c), cute.AddressSpace.smem, assumed_align=16)
            for c in range(self.row // 16)
        ]

        def matrix(rows: int, number: int) -> Any:
            turn, column = divmod(number, len(columns))
            start = (rows * 16 * self.repeat + turn * self.rows) * self.row
            return cute.make_tensor(columns[column] + start, cute.make_layout((8,)))

        return matrix


class _Softmax:
    """What turns scores into probabilities."""

    def __init__(
        self, of: Forward, scores: Any, lowered: Any, sums: Any, probabilities: Any, out_acc: Any, scale: Any,
        cap: Any,
    ) -> None:  # fmt: skip
        self.of = of
        self.acc, self.lowered, self.sums = scores, lowered, sums
        self.probabilities, self.out_acc, self.scale, self.cap = probabilities, out_acc, scale, cap
        self.pairs = of.tiling.block_k // 8
        self.rows = [(half, m) for m in range(of.tiling.m_tiles) for half in range(2)]

    def cap_scores(self) -> None:
        """Scores s to tanh(s times the factor of the cap); the scale of the softmax has the rest of it."""
        for n in range(self.pairs):
            for half, m in self.rows:
                for c in range(2):
                    power = arch.exp2(self.acc[(c, half), m, n] * self.cap)
                    self.acc[(c, half), m, n] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)

    def maxima(self) -> list[Any]:
        """The largest score of each row that this thread has."""
        found = [arch.fmax(self.acc[(0, half), m, 0], self.acc[(1, half), m, 0]) for half, m in self.rows]
        for n in range(1, self.pairs):
            for c in range(2):
                for number, (half, m) in enumerate(self.rows):
                    found[number] = arch.fmax(found[number], self.acc[(c, half), m, n])
        return found

    def exceeded(self, found: list[Any]) -> Any:
        """Whether a score of this thread is too far above what its row is compared with."""
        over = [cute.math.fma(x, self.scale, self.lowered[n]) > _SLACK for n, x in enumerate(found)]
        return functools.reduce(lambda a, b: a | b, over)

    def raise_reference(self, found: list[Any]) -> None:
        """Compare rows with their maxima from now on, and scale what was summed so far accordingly."""
        for number, (half, m) in enumerate(self.rows):
            highest = found[number]
            for distance in (1, 2):  # a row is in four threads
                highest = arch.fmax(highest, arch.shuffle_sync_bfly(highest, offset=distance))
            before = self.lowered[number]
            now = arch.fmin(before, -(highest * self.scale))
            factor = arch.exp2(now - before)
            self.lowered[number] = now
            self.sums[number] = self.sums[number] * factor
            for n in range(self.of.padded_v // 8):
                for c in range(2):
                    self.out_acc[(c, half), m, n] = self.out_acc[(c, half), m, n] * factor

    def make_probabilities(self) -> None:
        """The powers of the scores, in the type of the values, and their sums."""
        for n in range(self.pairs):
            for number, (half, m) in enumerate(self.rows):
                for c in range(2):
                    power = cute.math.fma(self.acc[(c, half), m, n], self.scale, self.lowered[number])
                    self.acc[(c, half), m, n] = arch.exp2(power)
                self.sums[number] = self.sums[number] + (self.acc[(0, half), m, n] + self.acc[(1, half), m, n])
            for m in range(self.of.tiling.m_tiles):
                target = cute.make_tensor(
                    self.probabilities[None, m, n // 2].iterator + 4 * (n % 2), cute.make_layout(4)
                )
                target.store(self.acc[None, m, n].load().to(self.of.dtype).reshape((4,)))


forward = functools.lru_cache(maxsize=1024)(Forward)
