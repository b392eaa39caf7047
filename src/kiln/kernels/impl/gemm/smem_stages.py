"""The ring of buffers in shared memory through which tiles of A and B stream, several of them ahead of their use."""

from __future__ import annotations

from typing import Any

from .... import Boolean, Int32, const_expr, cute, pipeline, range_constexpr


class SmemStages:
    """What a thread copies into the ring: the `stages` buffers of a pipeline, all but one of them ahead, `depth` of K at a time.

    The `splits` blocks that share a tile of the result each take their own part of K. `sums`: of groups, whose factors come with each tile; None: there are none.
    """

    __kiln_immutable__ = True

    def __init__(self, feeds: tuple[Any, Any], stages: int, depth: int, splits: int) -> None:
        self.feeds = feeds
        self.stages = stages
        self.depth = depth
        self.splits = splits
        self.pipe = pipeline.PipelineCpAsyncGroups.create(num_stages=stages)

    @cute.jit
    def begin(
        self,
        producer: Any,
        a: cute.Tensor,
        b: cute.Tensor,
        buffers: Any,
        where: Any,
        thread: Int32,
        rank: Any,
        sums: Any,
    ):
        """Begin to fill it with this block's tiles of K: where those that follow are, which is the first, and how many there are in all."""
        splits, stages, depth = self.splits, self.stages, self.depth
        a_feed, b_feed = self.feeds
        a_next = a_feed.start(a, buffers[0], where[0], thread)
        b_next = b_feed.start(b, buffers[1], where[1], thread)
        tiles = cute.ceil_div(a.shape[1], depth)
        rest = a.shape[1] - (tiles - 1) * depth  # of the first tile; the others are whole
        first, exists = 0, Boolean(True)
        if const_expr(splits > 1):
            first = tiles * rank // splits
            tiles = tiles * (rank + 1) // splits - first
            exists = tiles > 0
            before = rest + (first - 1) * depth if first > 0 else Int32(0)
            a_next, b_next = a_feed.advanced(a_next, before), b_feed.advanced(b_next, before)
            rest = Int32(depth) if first > 0 else rest
        a_feed.fetch(a_next, 0, exists, rest)
        b_feed.fetch(b_next, 0, exists, rest)
        if const_expr(sums is not None):
            sums.fetch(first, 0, exists)
        producer.commit()
        producer.advance()
        a_next, b_next = a_feed.advanced(a_next, rest), b_feed.advanced(b_next, rest)
        for stage in range_constexpr(1, stages - 1):
            if stage <= tiles:  # one more than there are: what is read ahead of the last is zeros
                a_feed.fetch(a_next, stage, stage < tiles)
                b_feed.fetch(b_next, stage, stage < tiles)
                if const_expr(sums is not None):
                    sums.fetch(first + stage, stage, stage < tiles)
            producer.commit()
            producer.advance()
            a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
        return a_next, b_next, first, tiles

    def fill(self, producer: Any, a_next: Any, b_next: Any, exists: Any, sums: Any, tile: Any) -> tuple[Any, Any]:
        """Begin to fill the next buffer with the next tile, or with zeros: where the tile after it is."""
        a_feed, b_feed = self.feeds
        buffer = producer.acquire()
        a_feed.fetch(a_next, buffer.index, exists)
        b_feed.fetch(b_next, buffer.index, exists)
        if sums is not None:
            sums.fetch(tile, buffer.index, exists)
        buffer.commit()
        producer.advance()  # not before: two numbers of buffers would be held in registers
        return a_feed.advanced(a_next, self.depth), b_feed.advanced(b_next, self.depth)
