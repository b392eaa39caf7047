"""What `sm90.py` has summed of the gradients of queries, in f32 as it lay in registers, becomes gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from ..fwd.query_tile import VALUES
from .sm90_scheduler import stretch, tile_of

if TYPE_CHECKING:
    from .sm90 import Sm90BackwardKernel

_WARPS = 8
_LINE = 8
"""Queries, and numbers of a thread, that are turned at once."""
PART = 32
"""Elements of these queries that are turned at once."""


class Turning:
    """How a warp makes rows of the sums of a block of queries, which has `lines` of 8 queries, and `parts` of each of these: a part at a time.

    In 16 bytes, two elements, 8 apart, of two queries, a thread of a warp group had written what it had of 16 elements of a line. One instruction turns 8 elements of 8 queries:
    a thread that had two queries of an element has two elements of a query. So that of four such matrices it has eight elements in succession, threads read 8 bytes that
    others had written, 128 in succession twice for each matrix; they write 16, four of them 64 in succession.
    """

    __kiln_immutable__ = True

    def __init__(self, of: Sm90BackwardKernel, lane: Any) -> None:
        self.of, self.lane = of, lane
        self.lines, self.parts = of.config.tile_m // _LINE, of.elements // PART

    def load(self, sums: Any, line: Any, part: Any, to: Any) -> None:
        """Load what a thread needs of a part of a line."""
        row, four = self.lane // 4, self.lane % 4
        own = row // 4 * 128 + row % 2 * 16 + row // 2 % 2 * 2 + four * 4
        # a warp group has 64 elements
        unit = part // 2 * (2 * self.lines) + 2 * line + part % 2
        start = sums + cute.assume(unit * (_LINE * PART) + own, divby=2)
        for n in range(4):
            pair = cute.make_tensor((start + 32 * n).with_alignment(8), cute.make_layout(2))
            cute.autovec_copy(pair, cute.make_tensor(to.iterator + 2 * n, cute.make_layout(2)))

    def turned(self, held: Any, factor: Any) -> Any:
        """Eight elements of a query, rounded."""
        halves = cute.make_rmem_tensor((VALUES,), self.of.dtype)
        halves.store((held.load() * factor).to(self.of.dtype))
        words = cute.recast_tensor(halves, Int32)
        for n in range(VALUES // 2):
            words[n] = arch.inline_ptx(
                "movmatrix.sync.aligned.m8n8.trans.b16 {$w0}, {$r0};",
                write_only_types=[Int32], read_only_args=[words[n]],
            )  # fmt: skip
        return halves

    def place(self, line: Any, part: Any) -> tuple[Any, Any]:
        """Which query of a block, and which the first of its elements in a part, a thread then has."""
        # looked up again: no register is kept for it
        lane = arch.inline_ptx("mov.u32 {$w0}, %laneid;", write_only_types=[Int32], read_only_args=[])
        return line * _LINE + lane // 4, part * PART + lane % 4 * VALUES

    def store(self, halves: Any, row: Any, element: Any) -> None:
        """Eight elements to a row of gradients."""
        store = cute.make_copy_atom(CopyUniversalOp(), self.of.dtype, num_bits_per_copy=VALUES * self.of.dtype.width)
        place = (row.iterator + cute.assume(element, divby=VALUES)).with_alignment(2 * VALUES)
        cute.copy(store, halves, cute.make_tensor(place, cute.make_layout(VALUES)))


class Queries:
    """The kernel: a block of threads has a block of queries of a head."""

    def __init__(self, of: Sm90BackwardKernel, dim: int) -> None:
        self.of, self.dim = of, dim

    @cute.jit
    def __call__(
        self,
        sums: cute.Tensor,
        turns: Any,
        dq: cute.Tensor,
        starts: Any,
        longest: Int32,
        numbers: Any,
        stream: Int64,
    ):
        """Launch it for sums (batch, heads, numbers), how many have added to them (or None, if they began with zeros) and gradients (batch,
        queries, heads, D), which are sums times a factor; where sequences start (or None), queries of the longest, `Numbers`."""
        # those of the first heads have been made meanwhile
        batches = starts.shape[0] - 1 if const_expr(starts is not None) else dq.shape[0] - numbers.early // dq.shape[2]
        self.kernel(sums, turns, dq, starts, numbers).launch(
            grid=(cute.ceil_div(longest, self.of.config.tile_m), dq.shape[2], batches),
            block=(32 * _WARPS, 1, 1),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, sums: cute.Tensor, turns: Any, dq: cute.Tensor, starts: Any, numbers: Any):
        tile, head, batch = arch.block_idx()
        factor = numbers.factor
        if const_expr(starts is None):
            batch = batch + numbers.early // dq.shape[2]
            if batch * dq.shape[2] + head >= numbers.early:
                self.convert(sums, turns, dq, factor, (tile, head, batch), tile, Int32(0), Int32(dq.shape[1]))
        else:
            first, queries = stretch(starts, batch, Int32(dq.shape[1]))
            if tile * self.of.config.tile_m < queries:
                of_all = tile_of(first, batch, Int32(self.of.config.tile_m)) + tile
                self.convert(sums, turns, dq, factor, (of_all, head, Int32(0)), tile, first, queries)

    @cute.jit
    def convert(
        self, sums: cute.Tensor, turns: Any, dq: cute.Tensor, factor: Float32, place: Any, own_tile: Int32, first: Int32,
        queries: Int32,
    ):  # fmt: skip
        """A block of queries: its place among sums, and in the sequence, which begins somewhere and has so many."""
        tile, head, batch = place
        of, turning = self.of, Turning(self.of, arch.lane_idx())
        units = turning.lines * turning.parts
        each = -(-units // _WARPS)
        held, more = (cute.make_rmem_tensor((VALUES, each), Float32) for _ in range(2))
        held.fill(0.0)
        own = arch.make_warp_uniform(arch.warp_idx()) * each
        for layer in range(batch, sums.shape[0], dq.shape[0]):
            start = sums[layer, head, None].iterator + cute.assume(tile * of.config.tile_m * of.elements, divby=4)
            for n in range_constexpr(each):
                unit = min(own + n, units - 1)
                turning.load(start, unit // turning.parts, unit % turning.parts, more[None, n])
            there = Boolean(True)
            if const_expr(turns is not None):
                # where nothing has been added there is nothing
                there = turns[layer, head, tile] > 0
            for n in range_constexpr(VALUES * each):
                held[n] = held[n] + more[n] if there else held[n]
        for n in range_constexpr(each):
            unit = own + n
            halves = turning.turned(held[None, n], factor)
            query, element = turning.place(unit // turning.parts, unit % turning.parts)
            query = own_tile * of.config.tile_m + query
            if unit < units and query < queries and element < self.dim:
                turning.store(halves, dq[batch, first + query, head, None], element)
