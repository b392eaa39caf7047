"""The ring of buffers in shared memory through which tiles of A and B stream, several of them ahead of their use."""

from __future__ import annotations

from typing import Any

from ... import Boolean, Int32, const_expr, cute, range_constexpr
from ...cute import arch


class Ring:
    """What a thread does for the ring: `stages` buffers, filled by `cp.async`, all but one of them ahead.

    The `splits` blocks that share a tile of the result take `depth` of K at a time, each its own part of K.
    """

    __kiln_immutable__ = True

    def __init__(self, feeds: tuple[Any, Any], stages: int, depth: int, splits: int) -> None:
        self.feeds = feeds
        self.stages = stages
        self.depth = depth
        self.splits = splits

    @cute.jit
    def begin(self, a: cute.Tensor, b: cute.Tensor, buffers: Any, where: Any, thread: Int32, rank: Any):
        """Begin to fill it with this block's tiles of K: where those that follow are, and how many there are in all."""
        splits, stages, depth = self.splits, self.stages, self.depth
        a_feed, b_feed = self.feeds
        a_next = a_feed.start(a, buffers[0], where[0], thread)
        b_next = b_feed.start(b, buffers[1], where[1], thread)
        tiles = cute.ceil_div(a.shape[1], depth)
        rest = a.shape[1] - (tiles - 1) * depth  # of the first tile; the others are whole
        exists = Boolean(True)
        if const_expr(splits > 1):
            first = tiles * rank // splits
            tiles = tiles * (rank + 1) // splits - first
            exists = tiles > 0
            before = rest + (first - 1) * depth if first > 0 else Int32(0)
            a_next, b_next = a_feed.advanced(a_next, before), b_feed.advanced(b_next, before)
            rest = Int32(depth) if first > 0 else rest
        a_feed.fetch(a_next, 0, exists, rest)
        b_feed.fetch(b_next, 0, exists, rest)
        arch.cp_async_commit_group()
        a_next, b_next = a_feed.advanced(a_next, rest), b_feed.advanced(b_next, rest)
        for stage in range_constexpr(1, stages - 1):
            if stage <= tiles:  # one more than there are: what is read ahead of the last is zeros
                a_feed.fetch(a_next, stage, stage < tiles)
                b_feed.fetch(b_next, stage, stage < tiles)
            arch.cp_async_commit_group()
            a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
        return a_next, b_next, tiles

    def wait(self) -> None:
        """Wait for the next tile, and until everybody is done with the one before the present one."""
        arch.cp_async_wait_group(self.stages - 2)
        arch.sync_threads()

    def fill(self, a_next: Any, b_next: Any, stage: Any, exists: Any) -> tuple[Any, Any]:
        """Begin to fill a buffer with the next tile, or with zeros: where the tile after it is."""
        a_feed, b_feed = self.feeds
        a_feed.fetch(a_next, stage, exists)
        b_feed.fetch(b_next, stage, exists)
        arch.cp_async_commit_group()
        return a_feed.advanced(a_next, self.depth), b_feed.advanced(b_next, self.depth)

    def end(self) -> None:
        """Wait until nobody uses the buffers any more."""
        arch.cp_async_wait_group(0)
        arch.sync_threads()
