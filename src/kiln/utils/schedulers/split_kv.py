"""Split-KV over sequences whose lengths only the device knows: all KV blocks are divided evenly among CTAs.

The KV blocks of all sequences stand in one row, sequence after sequence, and after each sequence `overhead` blocks
that stand for the time its prologue and epilogue take. Each CTA has one split: an equal part of that row. A combine
kernel merges the pieces of a sequence that lies in several splits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...base_dsl.typing import Int32
from ...cute import Tensor, arch, ceil_div, jit

__all__ = ["KVPiece", "SplitKVScheduler"]

_WARP = 32
_LOADS = 4
"""Sequences whose lengths a lane loads at once."""


class KVPiece(NamedTuple):
    """The KV blocks of one sequence that lie in a split: `first` up to `last` of `count`; none if these are equal.

    `whole`: they are all that the rows of a query tile see.
    """

    first: Any
    last: Any
    count: Any
    whole: Any


class SplitKVScheduler:
    """Equal splits of the KV blocks of all sequences, with `block_k` keys to a block."""

    __kiln_immutable__ = True
    FIELDS = 4
    """Numbers that describe a split: its first sequence, where that sequence begins in the row, the blocks of each
    split, and the blocks of that sequence."""

    def __init__(self, block_k: int, overhead: int = 3) -> None:
        self.block_k = block_k
        self.overhead = overhead

    @jit
    def length(self, seqlens: Tensor, sequence: Int32, max_keys: Int32):
        """Return the keys of a sequence, clamped to what its pages hold, so that a wrong length is harmless."""
        return max(Int32(0), min(seqlens[sequence], max_keys))

    @jit
    def blocks(self, length: Int32):
        """Return the KV blocks of a sequence; a sequence without keys has one, all of it masked."""
        return max(Int32(1), ceil_div(length, self.block_k))

    @jit
    def next_start(self, start: Int32, blocks: Int32):
        """Return where the next sequence begins in the row."""
        return start + blocks + self.overhead

    @jit
    def piece(self, length: Int32, masked_keys: Int32, start: Int32, begin: Int32, split_blocks: Int32):
        """Return the piece of a sequence, which starts at `start`, that lies in the split from `begin` on.

        The last `masked_keys` keys, which no row of the query tile sees, are left out where the split has the whole
        sequence: the combine kernel waits for every piece of a sequence that is divided.
        """
        count = self.blocks(length)
        first = max(begin - start, Int32(0))
        last = max(first, min(begin + split_blocks - start, count))
        whole = (first == 0) & (last == count)
        if whole:
            last = self.blocks(length - masked_keys)
        return KVPiece(first, last, count, whole)

    @jit
    def _extent(self, seqlens: Tensor, max_keys: Int32, sequence: Int32, batch: Int32):
        """Return the blocks of a sequence in the row, 0 past the last one. The load is unconditional, to overlap."""
        extent = self.next_start(Int32(0), self.blocks(self.length(seqlens, min(sequence, batch - 1), max_keys)))
        return extent if sequence < batch else Int32(0)

    @jit
    def find(
        self, seqlens: Tensor, max_keys: Int32, split: Int32, num_splits: Int32, place: Tensor, kept: Tensor, keeps: Any
    ):
        """Let one warp find a split and write its `FIELDS` to `place`, and if `keeps` to row `split` of `kept`, too."""
        lane = arch.lane_idx()
        batch = Int32(seqlens.shape[0])
        turns = ceil_div(batch, _WARP * _LOADS)
        total = Int32(0)
        for turn in range(turns):
            first = (turn * _WARP + lane) * _LOADS
            total = sum((self._extent(seqlens, max_keys, first + i, batch) for i in range(_LOADS)), total)
        for distance in (1, 2, 4, 8, 16):
            total = total + arch.shuffle_sync_bfly(total, offset=distance)
        split_blocks = ceil_div(total, num_splits)
        begin = split * split_blocks
        if lane == 0:
            place[0] = batch
            place[1] = Int32(0)
            place[2] = split_blocks
            place[3] = Int32(0)
        arch.sync_warp()
        before = Int32(0)
        for turn in range(turns):
            first = (turn * _WARP + lane) * _LOADS
            extents = [self._extent(seqlens, max_keys, first + i, batch) for i in range(_LOADS)]
            end = sum(extents, Int32(0))
            for distance in (1, 2, 4, 8, 16):  # inclusive prefix sum over the lanes
                other = arch.shuffle_sync_up(end, offset=distance)
                if lane >= distance:
                    end = end + other
            start = before + end - sum(extents, Int32(0))
            for i, extent in enumerate(extents):
                if begin >= start and begin < start + extent:
                    place[0] = first + i
                    place[1] = start
                    place[3] = extent - self.overhead
                start = start + extent
            before = before + arch.shuffle_sync(end, _WARP - 1)
        arch.sync_warp()
        if keeps and lane < self.FIELDS:
            kept[split, lane] = place[lane]
