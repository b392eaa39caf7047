"""How the keys of all sequences are cut into equal shares, on the device, whose lengths nobody else knows.

Blocks of keys of all sequences stand in one row, sequence after sequence, and after each some that stand for what beginning and ending
a sequence takes. Each share of the row is for one block of threads; a sequence that lies in several is put together by `combine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .... import Int32, cute
from ....cute import arch

SPLIT_FIELDS = 4
"""Numbers that are splits of a share: its first sequence, where its blocks begin in the row, blocks of each share, blocks of that sequence."""
KV_TILE = 64
"""Keys of a block: rows of a page."""
_SEQUENCE_OVERHEAD = 3
"""Blocks that beginning and ending a sequence takes as long as."""
_LENGTHS_PER_LANE = 4
"""Sequences whose lengths a lane loads at once."""


class KvRange(NamedTuple):
    """What a share has of a sequence: blocks from `first` to before `last` of `count`; nothing, if these are equal. `whole`: it is all
    that the rows of a tile see."""

    first: Any
    last: Any
    count: Any
    whole: Any


@cute.jit
def kv_length(lengths: cute.Tensor, sequence: Int32, most: Int32):
    """Keys of a sequence: at most as many as its pages have room for, since numbers that are wrong must not lead out of arrays."""
    return max(Int32(0), min(lengths[sequence], most))


@cute.jit
def kv_tiles(length: Int32):
    """Blocks of a sequence; of one without keys there is one, all of it hidden."""
    return max(Int32(1), cute.ceil_div(length, KV_TILE))


@cute.jit
def next_start(start: Int32, count: Int32):
    """Where the next sequence begins."""
    return start + count + _SEQUENCE_OVERHEAD


@cute.jit
def kv_range(length: Int32, unseen: Int32, start: Int32, begin: Int32, each: Int32):
    """What the share that begins at `begin` has of a sequence of which the rows of a tile do not see so many keys at the end.

    Those are left out where the share has all of the sequence: a part of it is waited for, and has to be there.
    """
    count = kv_tiles(length)
    first = max(begin - start, Int32(0))
    last = max(first, min(begin + each - start, count))
    whole = (first == 0) & (last == count)
    if whole:
        last = kv_tiles(length - unseen)
    return KvRange(first, last, count, whole)


@cute.jit
def _extent(lengths: cute.Tensor, most: Int32, sequence: Int32, batch: Int32):
    """What a sequence takes of the row; nothing, if it does not exist. Loaded in any case, so that nobody waits for one load before the next."""
    own = next_start(Int32(0), kv_tiles(kv_length(lengths, min(sequence, batch - 1), most)))
    return own if sequence < batch else Int32(0)


@cute.jit
def find_split(
    lengths: cute.Tensor, most: Int32, number: Int32, num_splits: Int32, fields: cute.Tensor, splits: cute.Tensor, stores: Any
):  # fmt: skip
    """One warp finds a share and leaves its `MEMBERS` in `fields`; and if it `stores` it, in its
    row of `splits` (share, member)."""
    lane = arch.lane_idx()
    batch = Int32(lengths.shape[0])
    qk_tiles = cute.ceil_div(batch, 32 * _LENGTHS_PER_LANE)
    total = Int32(0)
    for turn in range(qk_tiles):
        first = (turn * 32 + lane) * _LENGTHS_PER_LANE
        total = sum((_extent(lengths, most, first + i, batch) for i in range(_LENGTHS_PER_LANE)), total)
    for distance in (1, 2, 4, 8, 16):
        total = total + arch.shuffle_sync_bfly(total, offset=distance)
    each = cute.ceil_div(total, num_splits)
    begin = number * each
    if lane == 0:
        fields[0], fields[1], fields[2], fields[3] = batch, Int32(0), each, Int32(0)
    arch.sync_warp()
    before = Int32(0)
    for turn in range(qk_tiles):
        first = (turn * 32 + lane) * _LENGTHS_PER_LANE
        rows = [_extent(lengths, most, first + i, batch) for i in range(_LENGTHS_PER_LANE)]
        end = sum(rows, Int32(0))
        for distance in (1, 2, 4, 8, 16):
            other = arch.shuffle_sync_up(end, offset=distance)
            if lane >= distance:
                end = end + other
        start = before + end - sum(rows, Int32(0))
        for i, own in enumerate(rows):
            if begin >= start and begin < start + own:
                fields[0], fields[1], fields[3] = first + i, start, own - _SEQUENCE_OVERHEAD
            start = start + own
        before = before + arch.shuffle_sync(end, 31)
    arch.sync_warp()
    if stores and lane < SPLIT_FIELDS:
        splits[number, lane] = fields[lane]
