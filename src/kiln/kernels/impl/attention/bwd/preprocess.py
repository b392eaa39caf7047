"""What gradients need of each query: its logarithm, and the sum of its outputs times their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from .sm90_scheduler import stretch, tile_of

_THREADS = 256
_VALUES = 8
"""Elements of 16 bits that are read at once."""
_EACH = 4
"""Rows of a thread, at most: so much is under way that it does not matter how long it takes."""
_LOG2_E = 1.4426950408889634


def share_of_clearing(block: Any, grid: Any) -> tuple[Any, Any]:
    """The number of the first thread of a block among those of a grid, and how many these are: more than 32 bits may count."""
    number = (Int64(block[2]) * grid[1] + block[1]) * grid[0] + block[0]
    return number * _THREADS, Int64(grid[0]) * grid[1] * grid[2] * _THREADS


class BackwardPreprocess:
    """The kernel: `found` (2, batch, heads, rows) f32 are the logarithms, binary, and the sums.

    The logarithm of a query that sees no key, or does not exist (there may be more rows than queries), is inf: its weights are 0.
    `tile_m`, if it is not 0: of each 16 rows those of a thread of `wgmma`, 0, 1, 8 and 9, then 2, 3, 10 and 11, and so on, lie together, and
    where sequences lie one after another, each begins with a block of so many rows. `sums` (batch, heads, numbers of a head) and `counters`, if given, are filled
    with zeros.
    """

    def __init__(self, dtype: Any, head_dim_v: int, tile_m: int = 0) -> None:
        self.dtype, self.dim, self.tile_m = dtype, head_dim_v, tile_m
        self.lanes = 1 << (head_dim_v // _VALUES - 1).bit_length()
        self.ways = _THREADS // self.lanes
        self.each = min(_EACH, self.lanes)  # numbers of a block's rows are read and written by a thread each
        self.rows = self.ways * self.each

    @cute.jit
    def __call__(
        self,
        dout: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        found: cute.Tensor,
        sums: Any,
        counters: Any,
        starts: Any,
        longest: Int32,
        stream: Int64,
    ):
        """Launch it for outputs (batch, queries, heads, D) and logarithms (batch, heads, queries); where sequences start, if each has
        blocks of its own, and queries of the longest (or None)."""
        rows, batches = found.shape[3], out.shape[0]
        if const_expr(starts is not None):
            rows, batches = cute.ceil_div(longest, self.tile_m) * self.tile_m, starts.shape[0] - 1
        self.kernel(dout, out, lse, found, sums, counters, starts).launch(
            grid=(cute.ceil_div(rows, self.rows) * out.shape[2], 1, batches),
            block=(_THREADS, 1, 1),
            min_blocks_per_mp=4,  # so that there are registers for all loads before the first is used
            stream=stream,
        )

    def aligned(self, x: Any) -> Any:
        """Rows begin at multiples of what is read at once."""
        strides = tuple(s if isinstance(s, int) else cute.assume(s, divby=_VALUES) for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=strides))

    @cute.kernel
    def kernel(
        self, dout: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, found: cute.Tensor, sums: Any, counters: Any,
        starts: Any,
    ):  # fmt: skip
        number, _, batch = arch.block_idx()
        # heads of the same rows side by side: as they mostly lie in memory
        block, head = number // out.shape[2], number % out.shape[2]
        rows = (Int32(0), Int32(out.shape[1]), Int32(0), Int32(found.shape[3]), batch)
        if const_expr(starts is not None):
            first, queries = stretch(starts, batch, Int32(out.shape[1]))
            place = tile_of(first, batch, Int32(self.tile_m)) * self.tile_m
            rows = (first, queries, place, cute.ceil_div(queries, self.tile_m) * self.tile_m, Int32(0))
        if block * self.rows < rows[3]:
            self.one_block(dout, out, lse, found, sums, (block, head), rows)
        if const_expr(counters is not None):
            first, every = share_of_clearing(arch.block_idx(), arch.grid_dim())
            for x in [x for x in counters if x is not None]:
                flat = cute.make_tensor(x.iterator, cute.make_layout(cute.size(x)))
                for place in range(first + arch.thread_idx()[0], Int64(cute.size(x)), every):
                    flat[place] = 0

    @cute.jit
    def one_block(
        self, dout: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, found: cute.Tensor, sums: Any, place: Any, rows: Any
    ):  # fmt: skip
        """What a block of threads has of a sequence, some rows of a head: where the sequence begins, how many queries it has, where what is known of them begins, of how many,
        and the layer of the arrays."""
        block, head = place
        first, queries, first_place, places, batch = rows
        thread = arch.thread_idx()[0]
        lane, way = thread % self.lanes, thread // self.lanes
        begin = block * self.rows
        # a thread reads and writes the numbers of another row than those it adds up: in succession
        own, logarithm = begin + thread, Float32(float("inf"))
        if thread < self.rows and own < queries:
            given = lse[batch, head, first + own]
            if given != -float("inf"):
                logarithm = given * _LOG2_E
        load = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=_VALUES * self.dtype.width)
        held = cute.make_rmem_tensor((_VALUES, 2, self.each), self.dtype)
        column = min(lane * _VALUES, Int32(self.dim - _VALUES))
        for n in range_constexpr(self.each):
            row = min(begin + n * self.ways + way, queries - 1)
            for i, x in enumerate((dout, out)):
                at = (x[batch, first + row, head, None].iterator + column).with_alignment(2 * _VALUES)
                cute.copy(load, cute.make_tensor(at, cute.make_layout((_VALUES,))), held[None, i, n])
        shared = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(self.rows), 16)
        for n in range_constexpr(self.each):
            total = Float32(0.0)
            for i in range_constexpr(_VALUES):
                total = cute.math.fma(held[i, 0, n].to(Float32), held[i, 1, n].to(Float32), total)
            if const_expr(self.dim < self.lanes * _VALUES):
                total = total if lane * _VALUES < self.dim else Float32(0.0)
            for step in range_constexpr(self.lanes.bit_length() - 1):
                total = total + arch.shuffle_sync_bfly(total, offset=1 << step)
            if lane == 0:
                shared[n * self.ways + way] = total
        arch.sync_threads()
        if thread < self.rows and own < places:
            place = own
            if const_expr(self.tile_m > 0):
                place = (own & ~15) | ((own & 6) << 1) | ((own & 8) >> 2) | (own & 1)
            found[0, batch, head, first_place + place] = logarithm
            found[1, batch, head, first_place + place] = shared[thread] if own < queries else Float32(0.0)
        if const_expr(sums is not None):
            self.clear(sums[batch, head, None], sums.shape[2] // found.shape[3], begin, first_place, places)

    @cute.jit
    def clear(self, sums: cute.Tensor, each: Int32, begin: Int32, first_place: Int32, places: Int32):
        """Fill what belongs to the rows of a block of threads, so many numbers each, with zeros."""
        end = min(places, begin + self.rows) * each
        zeros = cute.make_rmem_tensor((4,), Float32)
        zeros.fill(0.0)
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        for place in range(begin * each + 4 * arch.thread_idx()[0], end, 4 * _THREADS):
            at = (sums.iterator + cute.assume(first_place * each + place, divby=4)).with_alignment(16)
            cute.copy(store, zeros, cute.make_tensor(at, cute.make_layout((4,))))


class Sinks(NamedTuple):
    """Logits of one more key for each head, and where their gradients go."""

    given: Any
    gradients: Any


class SinkBackward:
    """The kernel of gradients of sinks (heads), given these and what is known of queries: minus the sum of their weights times sums.

    A block of threads has a head, and adds up in a fixed order. `tile_m`: as for `BackwardPreprocess`.
    """

    def __init__(self, tile_m: int = 0) -> None:
        self.tile_m = tile_m

    @cute.jit
    def __call__(self, found: cute.Tensor, sinks: Any, starts: Any, rows: Int32, stream: Int64):
        """Launch it for `Sinks`; where sequences start (or None), and rows of all of them."""
        self.kernel(found, sinks.given, sinks.gradients, starts, rows).launch(
            grid=(sinks.given.shape[0], 1, 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, found: cute.Tensor, sinks: cute.Tensor, to: cute.Tensor, starts: Any, rows: Int32):
        head, thread = arch.block_idx()[0], arch.thread_idx()[0]
        sink, total = sinks[head] * _LOG2_E, Float32(0.0)
        if const_expr(starts is None):
            for batch in range(found.shape[1]):
                total = total + self.sequence(found, sink, head, batch, Int32(0), Int32(found.shape[3]))
        else:
            for batch in range(starts.shape[0] - 1):
                first, queries = stretch(starts, batch, rows)
                if const_expr(self.tile_m > 0):
                    first = tile_of(first, batch, Int32(self.tile_m)) * self.tile_m
                    queries = cute.ceil_div(queries, self.tile_m) * self.tile_m
                total = total + self.sequence(found, sink, head, Int32(0), first, queries)
        total = arch.warp_reduction_sum(total)
        shared = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(_THREADS // 32), 16)
        if thread % 32 == 0:
            shared[thread // 32] = total
        arch.sync_threads()
        if thread == 0:
            for n in range_constexpr(1, _THREADS // 32):
                total = total + shared[n]
            to[head] = -total

    @cute.jit
    def sequence(self, found: cute.Tensor, sink: Float32, head: Int32, batch: Int32, first: Int32, count: Int32):
        """What a thread has of a sequence."""
        total = Float32(0.0)
        for row in range(first + arch.thread_idx()[0], first + count, _THREADS):
            weight = arch.exp2(sink - found[0, batch, head, row])
            total = cute.math.fma(weight, found[1, batch, head, row], total)
        return total
