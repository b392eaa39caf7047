"""The preprocess kernel of attention's backward pass: LSE in powers of two and delta = rowsum(O * dO) of each query;
and dsinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from .....utils.schedulers import sequence_range
from .....utils.tiles.online_softmax import LOG2_E
from ....parts.kv_source import VECTOR
from .sm90_scheduler import varlen_first_tile

if TYPE_CHECKING:
    from .sm90_scheduler import DqCounters

_THREADS = 256
_MAX_ROWS = 4
"""Rows of a thread, at most: enough loads in flight to hide their latency."""


def permuted_row(row: Int32) -> Int32:
    """Return where a row lies: of each 16 rows those of a WGMMA thread, 0, 1, 8 and 9, then 2, 3, 10 and 11, and so on,
    are adjacent."""
    return (row & ~15) | ((row & 6) << 1) | ((row & 8) >> 2) | (row & 1)


def thread_numbers(block: tuple[Int32, Int32, Int32], grid: tuple[Int32, Int32, Int32]) -> tuple[Int64, Int64]:
    """Return the number of a CTA's first thread in its grid, and the threads of the grid, in 64 bits."""
    number = (Int64(block[2]) * grid[1] + block[1]) * grid[0] + block[0]
    return number * _THREADS, Int64(grid[0]) * grid[1] * grid[2] * _THREADS


class BackwardPreprocess:
    """The kernel: `lse_delta` (2, batch, heads, rows) gets LSE in powers of two, and delta.

    LSE is inf for a query that sees no key, or does not exist (there may be more rows than queries): its P are 0. With
    `tile_m`, rows are permuted (`permuted_row`), and varlen sequences begin with a tile of their own. `counters`, if
    there are any, are filled with zeros."""

    def __init__(self, dtype: Any, head_dim_v: int, tile_m: int = 0) -> None:
        self.dtype = dtype
        self.head_dim = head_dim_v
        self.tile_m = tile_m
        self.lanes: int = 1 << (head_dim_v // VECTOR - 1).bit_length()
        self.ways: int = _THREADS // self.lanes
        self.thread_rows: int = min(_MAX_ROWS, self.lanes)  # each row of a CTA is read and written by a thread
        self.rows: int = self.ways * self.thread_rows

    @cute.jit
    def __call__(
        self,
        do: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        lse_delta: cute.Tensor,
        counters: DqCounters | None,
        cu_seqlens_q: Any,
        max_seqlen_q: Int32,
        stream: Int64,
    ):
        """Launch the kernel for dO and O (batch, queries, heads, D) and LSE (batch, heads, queries)."""
        rows = lse_delta.shape[3]
        batch = out.shape[0]
        if const_expr(cu_seqlens_q is not None):
            rows = cute.ceil_div(max_seqlen_q, self.tile_m) * self.tile_m
            batch = cu_seqlens_q.shape[0] - 1
        self.kernel(do, out, lse, lse_delta, counters, cu_seqlens_q).launch(
            grid=(cute.ceil_div(rows, self.rows) * out.shape[2], 1, batch),
            block=(_THREADS, 1, 1),
            min_blocks_per_mp=4,  # registers for all loads before the first is used
            stream=stream,
        )

    @cute.kernel
    def kernel(
        self,
        do: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        lse_delta: cute.Tensor,
        counters: Any,
        cu_seqlens_q: cute.Tensor | None,
    ):
        number, _, batch = arch.block_idx()
        # heads of the same rows side by side: mostly as they lie in memory
        block = number // out.shape[2]
        head = number % out.shape[2]
        # first query, queries, first row of lse_delta, its rows, batch index
        sequence = (Int32(0), Int32(out.shape[1]), Int32(0), Int32(lse_delta.shape[3]), batch)
        if const_expr(cu_seqlens_q is not None):
            first, seqlen_q = sequence_range(cu_seqlens_q, batch, Int32(out.shape[1]))
            first_row = varlen_first_tile(first, batch, Int32(self.tile_m)) * self.tile_m
            sequence = (first, seqlen_q, first_row, cute.ceil_div(seqlen_q, self.tile_m) * self.tile_m, Int32(0))
        if block * self.rows < sequence[3]:
            self.compute(do, out, lse, lse_delta, block, head, sequence)
        if const_expr(counters is not None):
            first, every = thread_numbers(arch.block_idx(), arch.grid_dim())
            for counter in [c for c in counters if c is not None]:
                flat = cute.make_tensor(counter.iterator, cute.make_layout(cute.size(counter)))
                for i in range(first + arch.thread_idx()[0], Int64(cute.size(counter)), every):
                    flat[i] = 0

    @cute.jit
    def compute(
        self,
        do: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        lse_delta: cute.Tensor,
        block: Int32,
        head: Int32,
        sequence: tuple[Int32, ...],
    ):
        """Compute the rows of a CTA."""
        first, seqlen_q, first_row, rows, batch = sequence
        thread = arch.thread_idx()[0]
        lane = thread % self.lanes
        way = thread // self.lanes
        begin = block * self.rows
        # a thread reads LSE and writes the results of another row than those it adds up: adjacent ones
        thread_row = begin + thread
        row_lse = Float32(float("inf"))
        if thread < self.rows and thread_row < seqlen_q:
            natural = lse[batch, head, first + thread_row]
            if natural != -float("inf"):
                row_lse = natural * LOG2_E
        load = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=VECTOR * self.dtype.width)
        fragment = cute.make_rmem_tensor((VECTOR, 2, self.thread_rows), self.dtype)
        column = min(lane * VECTOR, Int32(self.head_dim - VECTOR))
        for n in range_constexpr(self.thread_rows):
            row = min(begin + n * self.ways + way, seqlen_q - 1)
            for i, x in enumerate((do, out)):
                start = (x[batch, first + row, head, None].iterator + column).with_alignment(2 * VECTOR)
                cute.copy(load, cute.make_tensor(start, cute.make_layout((VECTOR,))), fragment[None, i, n])
        smem = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(self.rows), 16)
        for n in range_constexpr(self.thread_rows):
            delta = Float32(0.0)
            for i in range_constexpr(VECTOR):
                delta = cute.math.fma(fragment[i, 0, n].to(Float32), fragment[i, 1, n].to(Float32), delta)
            if const_expr(self.head_dim < self.lanes * VECTOR):
                delta = delta if lane * VECTOR < self.head_dim else Float32(0.0)
            for step in range_constexpr(self.lanes.bit_length() - 1):
                delta = delta + arch.shuffle_sync_bfly(delta, offset=1 << step)
            if lane == 0:
                smem[n * self.ways + way] = delta
        arch.sync_threads()
        if thread < self.rows and thread_row < rows:
            place = permuted_row(thread_row) if const_expr(self.tile_m > 0) else thread_row
            lse_delta[0, batch, head, first_row + place] = row_lse
            lse_delta[1, batch, head, first_row + place] = smem[thread] if thread_row < seqlen_q else Float32(0.0)


class SinkBackward:
    """The kernel of the sinks' gradients: minus the sum over queries of exp2(sink - LSE) times delta.

    A CTA has a head, and adds up in a fixed order. `tile_m` is that of `BackwardPreprocess`.
    """

    def __init__(self, tile_m: int = 0) -> None:
        self.tile_m = tile_m

    @cute.jit
    def __call__(
        self,
        lse_delta: cute.Tensor,
        sinks: cute.Tensor,
        dsinks: cute.Tensor,
        cu_seqlens_q: Any,
        rows: Int32,
        stream: Int64,
    ):
        """Launch the kernel; `rows` are the queries of all varlen sequences."""
        self.kernel(lse_delta, sinks, dsinks, cu_seqlens_q, rows).launch(
            grid=(sinks.shape[0], 1, 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, lse_delta: cute.Tensor, sinks: cute.Tensor, dsinks: cute.Tensor, cu_seqlens_q: Any, rows: Int32):
        head = arch.block_idx()[0]
        thread = arch.thread_idx()[0]
        sink = sinks[head] * LOG2_E
        total = Float32(0.0)
        if const_expr(cu_seqlens_q is None):
            for batch in range(lse_delta.shape[1]):
                total = total + self.sequence(lse_delta, sink, head, batch, Int32(0), Int32(lse_delta.shape[3]))
        else:
            for batch in range(cu_seqlens_q.shape[0] - 1):
                first, seqlen_q = sequence_range(cu_seqlens_q, batch, rows)
                if const_expr(self.tile_m > 0):
                    first = varlen_first_tile(first, batch, Int32(self.tile_m)) * self.tile_m
                    seqlen_q = cute.ceil_div(seqlen_q, self.tile_m) * self.tile_m
                total = total + self.sequence(lse_delta, sink, head, Int32(0), first, seqlen_q)
        total = arch.warp_reduction_sum(total)
        smem = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(_THREADS // 32), 16)
        if thread % 32 == 0:
            smem[thread // 32] = total
        arch.sync_threads()
        if thread == 0:
            for n in range_constexpr(1, _THREADS // 32):
                total = total + smem[n]
            dsinks[head] = -total

    @cute.jit
    def sequence(self, lse_delta: cute.Tensor, sink: Float32, head: Int32, batch: Int32, first: Int32, count: Int32):
        """Return a thread's part of the sum over a sequence."""
        total = Float32(0.0)
        for row in range(first + arch.thread_idx()[0], first + count, _THREADS):
            p = arch.exp2(sink - lse_delta[0, batch, head, row])
            total = cute.math.fma(p, lse_delta[1, batch, head, row], total)
        return total
