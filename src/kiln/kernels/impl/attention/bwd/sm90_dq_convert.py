"""What a warp of a block of threads does beside the products: it makes gradients of sums of dQ that others have completed.

Blocks of threads that have keys of some heads share the gradients of queries of the heads before. All that add to those have begun by then, so that
none waits forever. Those of the last heads are left to `sm90_dq_postprocess.py`. (What is known of queries, computed ahead in the same way, made blocks
of threads wait: a warp sums a block of 64 queries in some 40 microseconds.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from ..fwd.query_tile import VALUES, only_here
from .sm90_dq_postprocess import PART, Turning

if TYPE_CHECKING:
    from .sm90 import Sm90BackwardKernel
    from .sm90_scheduler import Blocks

_AT_ONCE = 2
"""Parts of 8 queries that are loaded before the first is used: not more than there are registers for."""
_PAUSE = 500
"""Nanoseconds until the warp looks again."""


class Meanwhile:
    """Sums (batch, heads, numbers), how many have added to them, and gradients (batch, queries, heads, D), which are sums times a factor."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90BackwardKernel, blocks: Blocks, sums: Any, turns: Any, dq: Any) -> None:
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
        return heads * cute.ceil_div(Int32(self.dq.shape[1]), self.of.config.tile_m)

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
        count = self.units(only_here(side * blocks.share))
        return turn * count - Int32(Float32(count) * end), turn * count - Int32(Float32(count) * begin)

    @cute.jit
    def convert_tile(self, head: Int32, tile: Int32):
        """A block of queries of one of all heads, when all have added to it."""
        of = self.of
        every = only_here(Int32(self.dq.shape[2]))  # what divisions need of it is not kept in registers
        # the same in all threads: so they are in uniform registers, and others are left for what is loaded
        batch, head, tile = (arch.warp_redux_sync(x, "max") for x in (head // every, head % every, tile))
        adders = self.blocks.adders(batch, tile)
        turn = self.turns[batch, head, None].iterator + tile
        while arch.load(turn, Int32, sem="acquire", scope="gpu") < adders:
            arch.nanosleep(_PAUSE)
        # where nothing has been added there is nothing; a predicate, which takes no register
        nothing = arch.vote_any_sync(adders == 0)
        turning, first = Turning(of, only_here(arch.lane_idx())), tile * of.config.tile_m
        start = self.sums[batch, head, None].iterator + cute.assume(first * of.elements, divby=4)
        for number in range(turning.parts // _AT_ONCE * turning.lines):
            line, part = number % turning.lines, number // turning.lines * _AT_ONCE
            held = cute.make_rmem_tensor((VALUES, _AT_ONCE), Float32)
            for n in range_constexpr(_AT_ONCE):
                turning.load(start, line, part + n, held[None, n])
            if nothing:
                held.fill(0.0)
            halves = [turning.turned(held[None, n], self.blocks.numbers.factor) for n in range(_AT_ONCE)]
            query, element = turning.place(line, part)
            if first + query < self.dq.shape[1]:
                row = self.dq[batch, first + query, head, None]
                for n in range_constexpr(_AT_ONCE):
                    if element + n * PART < self.dq.shape[3]:
                        turning.store(halves[n], row, element + n * PART)
