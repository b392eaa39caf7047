"""What `hopper.py` has summed of the gradients of queries, in f32 as it lay in registers, becomes gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Boolean, Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from ..attentions.tile import VALUES
from .hopper_blocks import stretch, tile_of

if TYPE_CHECKING:
    from .hopper import HopperBackward

_THREADS = 256


class Queries:
    """The kernel: a block of threads has a block of queries of a head, which it turns by way of shared memory."""

    def __init__(self, of: HopperBackward, dim: int) -> None:
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
            grid=(cute.ceil_div(longest, self.of.tiling.block_q), dq.shape[2], batches),
            block=(_THREADS, 1, 1),
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
            if tile * self.of.tiling.block_q < queries:
                of_all = tile_of(first, batch, Int32(self.of.tiling.block_q)) + tile
                self.convert(sums, turns, dq, factor, (of_all, head, Int32(0)), tile, first, queries)

    @cute.jit
    def convert(
        self, sums: cute.Tensor, turns: Any, dq: cute.Tensor, factor: Float32, place: Any, own_tile: Int32, first: Int32,
        queries: Int32,
    ):  # fmt: skip
        """A block of queries: its place among sums, and in the sequence, which begins somewhere and has so many."""
        tile, head, batch = place
        of, rows, elements = self.of, self.of.tiling.block_q, self.of.elements
        thread = arch.thread_idx()[0]
        # rows of 16 bytes more, so that the elements of a column lie in different banks
        shared = utils.SmemAllocator().allocate_tensor(
            of.dtype, cute.make_layout((rows, elements), stride=(elements + VALUES, 1)), 16
        )
        group, lane = thread // 128, thread % 128
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        pieces = of.columns // 8
        held, more = (cute.make_rmem_tensor((4, pieces), Float32) for _ in range(2))
        held.fill(0.0)
        for layer in range(batch, sums.shape[0], dq.shape[0]):
            start = sums[layer, head, None].iterator + cute.assume((tile * rows * elements), divby=4)
            for n in range_constexpr(pieces):
                at = (start + cute.assume(((group * pieces + n) * 128 + lane) * 4, divby=4)).with_alignment(16)
                cute.copy(load, cute.make_tensor(at, cute.make_layout(4)), more[None, n])
            there = Boolean(True)
            if const_expr(turns is not None):
                # where nothing has been added there is nothing
                there = turns[layer, head, tile] > 0
            for n in range_constexpr(4 * pieces):
                held[n] = held[n] + more[n] if there else held[n]
        element = lane // 32 * 16 + lane % 32 // 4
        row = lane % 4 * 2
        if of.by_elements:
            element = element + 64 * group
        else:
            row = row + of.columns * group
        for n in range_constexpr(pieces):
            for half in range_constexpr(2):
                for c in range_constexpr(2):
                    value = (held[2 * half + c, n] * factor).to(of.dtype)
                    shared[row + 8 * n + c, element + 8 * half] = value
        arch.sync_threads()
        lanes = elements // VALUES
        move = cute.make_copy_atom(CopyUniversalOp(), of.dtype, num_bits_per_copy=VALUES * of.dtype.width)
        piece = cute.make_rmem_tensor((VALUES,), of.dtype)
        for n in range_constexpr(-(-rows * lanes // _THREADS)):
            own = n * (_THREADS // lanes) + thread // lanes
            column = thread % lanes * VALUES
            query = own_tile * rows + own
            if own < rows and query < queries and column < self.dim:
                from_ = (
                    shared.iterator + cute.assume(own * (elements + VALUES) + column, divby=VALUES)
                ).with_alignment(16)
                cute.copy(move, cute.make_tensor(from_, cute.make_layout(VALUES)), piece)
                to = (dq[batch, first + query, head, None].iterator + cute.assume(column, divby=VALUES)).with_alignment(
                    16
                )
                cute.copy(move, piece, cute.make_tensor(to, cute.make_layout(VALUES)))
