"""The split-KV scheduler of MLA: divides the KV tiles of all sequences evenly, on the device, which alone knows the
lengths.

The KV tiles of all sequences stand in one line, and behind each sequence a few that stand for the cost of starting and
ending one. Each split of the line is for one CTA; `combine.py` merges sequences that lie in several splits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .... import Int32, cute
from ....cute import arch

if TYPE_CHECKING:
    from .... import Boolean

SPLIT_FIELDS = 4
"""Values of a split: its first sequence, where its tiles begin in the line, tiles of each split, tiles of that
sequence."""
KV_TILE = 64
"""Keys of a tile: the page size."""
_SEQUENCE_OVERHEAD = 3
"""Tiles that take as long as starting and ending a sequence."""
_LENGTHS_PER_LANE = 4
"""Sequences whose lengths a lane loads at once."""


class KvRange(NamedTuple):
    """The KV tiles of a sequence that a split has, from `first` to before `last`."""

    first: Int32
    last: Int32
    count: Int32
    """KV tiles of the sequence."""
    whole: Boolean
    """Whether the split has all KV tiles that the rows of a Q tile see."""


@cute.jit
def kv_length(lengths: cute.Tensor, sequence: Int32, most: Int32):
    """Return the keys of a sequence, at most as many as its pages hold: wrong lengths must not lead out of arrays."""
    return max(Int32(0), min(lengths[sequence], most))


@cute.jit
def kv_tiles(length: Int32):
    """Return the KV tiles of a sequence; 1 without keys, wholly masked."""
    return max(Int32(1), cute.ceil_div(length, KV_TILE))


@cute.jit
def next_start(start: Int32, count: Int32):
    """Return where the next sequence begins."""
    return start + count + _SEQUENCE_OVERHEAD


@cute.jit
def kv_range(length: Int32, unseen: Int32, start: Int32, begin: Int32, each: Int32):
    """Return the tiles of a sequence that the split at `begin` has, where no row of the Q tile sees the last `unseen`
    keys.

    Those are left out where the split has the whole sequence: parts of it are combined, and must exist.
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
    """Return the extent of a sequence in the line; 0 if it does not exist. Loads unconditionally, so that no load waits
    for another."""
    own = next_start(Int32(0), kv_tiles(kv_length(lengths, min(sequence, batch - 1), most)))
    return own if sequence < batch else Int32(0)


@cute.jit
def find_split(
    lengths: cute.Tensor,
    most: Int32,
    number: Int32,
    num_splits: Int32,
    fields: cute.Tensor,
    splits: cute.Tensor,
    stores: Boolean,
):
    """Find a split by one warp and store its `SPLIT_FIELDS` in `fields`, and with `stores` in its row of `splits`
    (split, field)."""
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
        fields[0] = batch
        fields[1] = Int32(0)
        fields[2] = each
        fields[3] = Int32(0)
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
                fields[0] = first + i
                fields[1] = start
                fields[3] = own - _SEQUENCE_OVERHEAD
            start = start + own
        before = before + arch.shuffle_sync(end, 31)
    arch.sync_warp()
    if stores and lane < SPLIT_FIELDS:
        splits[number, lane] = fields[lane]
