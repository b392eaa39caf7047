"""What a warp of a block of threads does beside the products: it makes gradients of sums of dQ that others have completed.

Blocks of threads that have keys of some heads share the gradients of queries of the heads before. All that add to those have begun by then, so that
none waits forever. Those of the last heads are left to `hopper_queries.py`. (What is known of queries, computed ahead in the same way, made blocks
of threads wait: a warp sums a block of 64 queries in some 40 microseconds.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from ..attentions.tile import only_here
from .hopper_plan import GROUPS

if TYPE_CHECKING:
    from .hopper import HopperBackward
    from .hopper_blocks import Blocks

_WARPS = 4
"""Of a warp group, whose registers dQ lies as."""
_AT_ONCE = 2
"""Loads before the first is used: not more than there are registers for."""
_PAUSE = 500
"""Nanoseconds until the warp looks again."""


class Meanwhile:
    """Sums (batch, heads, numbers), how many have added to them, and gradients (batch, queries, heads, D), which are sums times a factor."""

    __kiln_immutable__ = True

    def __init__(self, of: HopperBackward, blocks: Blocks, sums: Any, turns: Any, dq: Any) -> None:
        self.of, self.blocks, self.sums, self.turns, self.dq = of, blocks, sums, turns, dq

    @cute.jit
    def run(self, told: Any):
        """Beside all blocks of keys of this block of threads."""
        turn = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        number = told.heard(turn)
        while number >= 0:
            told.release(turn)
            self.beside(number)
            turn.advance()
            number = told.heard(turn)

    @cute.jit
    def beside(self, number: Int32):
        """The share of a block of keys of the heads before its own, from the last queries to the first, as they are completed."""
        numbers = self.blocks.numbers
        turn = number // (self.blocks.each * numbers.side)
        if turn > 0 and numbers.early > 0:
            begin, end = self.part(number, turn)
            for unit in range(begin, end):
                # what divisions need is not kept in registers
                heads = only_here(numbers.side * self.blocks.share)
                before, rest = unit // self.units(heads), unit % self.units(heads)
                self.convert_tile(before * heads + rest % heads, rest // heads)

    def units(self, heads: Any) -> Any:
        """Blocks of queries of so many heads."""
        return heads * cute.ceil_div(Int32(self.dq.shape[1]), self.of.tiling.block_q)

    @cute.jit
    def part(self, number: Int32, turn: Int32):
        """Which of the blocks of queries of the heads before, of all, a block of keys has, the first the last; under a causal mask the first take longer,
        and have more."""
        blocks = self.blocks
        side = blocks.numbers.side
        own = Float32(number - turn * blocks.each * side)
        every = Float32(blocks.each * min(side, blocks.all_heads() - turn * side))
        begin, end = own / every, (own + 1.0) / every
        if const_expr(self.of.right and not self.of.left):
            begin, end = begin * (2.0 - begin), end * (2.0 - end)
        count = self.units(side * blocks.share)
        return turn * count - Int32(Float32(count) * end), turn * count - Int32(Float32(count) * begin)

    @cute.jit
    def convert_tile(self, head: Int32, tile: Int32):
        """A block of queries of one of all heads, when all have added to it."""
        of, lane = self.of, arch.lane_idx()
        every = only_here(Int32(self.dq.shape[2]))  # what divisions need of it is not kept in registers
        batch, head = head // every, head % every
        adders = self.blocks.adders(batch, tile)
        turn = self.turns[batch, head, None].iterator + tile
        while arch.load(turn, Int32, sem="acquire", scope="gpu") < adders:
            arch.nanosleep(_PAUSE)
        pieces = of.columns // 8
        start = self.sums[batch, head, None].iterator + cute.assume(
            tile * (of.tiling.block_q * of.elements) + lane * 4, divby=4
        )
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        store = cute.make_copy_atom(CopyUniversalOp(), of.dtype, num_bits_per_copy=32)
        at_once = _AT_ONCE if pieces % (2 * _AT_ONCE) == 0 else 1
        for number in range(GROUPS * _WARPS * pieces // at_once):
            # a warp of a warp group, the group, some of the pieces
            of_warp, group, first = number % _WARPS, number // _WARPS % GROUPS, number // (_WARPS * GROUPS) * at_once
            element = of_warp * 16 + lane % 4 * 2
            query = tile * of.tiling.block_q + first * 8 + lane // 4
            if of.by_elements:
                element = element + 64 * group
            else:
                query = query + of.columns * group
            at = start + cute.assume((group * pieces + first) * 512 + of_warp * 128, divby=4)
            held = cute.make_rmem_tensor((4, at_once), Float32)
            for n in range_constexpr(at_once):
                piece = cute.make_tensor((at + 512 * n).with_alignment(16), cute.make_layout(4))
                cute.copy(load, piece, held[None, n])
            if adders == 0:  # where nothing has been added there is nothing
                held.fill(0.0)
            halves = cute.make_rmem_tensor((4, at_once), of.dtype)
            halves.store((held.load() * self.blocks.numbers.factor).to(of.dtype))
            # two queries of an element become two elements of a query
            words = cute.recast_tensor(halves, Int32)
            for n in range_constexpr(2 * at_once):
                words[n] = arch.inline_ptx(
                    "movmatrix.sync.aligned.m8n8.trans.b16 {$w0}, {$r0};",
                    write_only_types=[Int32], read_only_args=[words[n]],
                )  # fmt: skip
            for n in range_constexpr(at_once):
                if query + 8 * n < self.dq.shape[1]:
                    to = self.dq[batch, query + 8 * n, head, None].iterator
                    for half in range_constexpr(2):
                        if element + 8 * half < self.dq.shape[3]:
                            pair = cute.make_tensor(halves.iterator + (4 * n + 2 * half), cute.make_layout(2))
                            place = (to + cute.assume(element + 8 * half, divby=2)).with_alignment(4)
                            cute.copy(store, pair, cute.make_tensor(place, cute.make_layout(2)))
