"""Which tiles of queries a block of threads of Hopper has, and which keys they see.

The warp that loads finds that out, and tells the warp groups that compute by way of shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .sm90_config import ROWS

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel

_WARP = 32
_SLOTS = 2
"""Tiles that are known ahead, the one that is computed among them."""


class Work(NamedTuple):
    """A tile of queries (-1: there is none left), its head (the first, where heads share it) and sequence; where the queries and keys
    of the sequence begin, and how many there are."""

    tile: Any
    head: Any
    batch: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any


class Span(NamedTuple):
    """The blocks of keys that a tile sees: the last, how many, how many of them are masked at the end, and how many are not at the
    beginning, the last not dynamic_scheduler."""

    last: Any
    steps: Any
    masked: Any
    whole: Any


@cute.jit
def within(start: Any, rows: Any):
    """Where a sequence starts or ends, or the nearest row: numbers that are wrong must not lead out of arrays."""
    return max(Int32(0), min(start, Int32(rows)))


@cute.jit
def stretch(starts: cute.Tensor, batch: Int32, rows: Any):
    """Where a sequence begins, and its length."""
    first = within(starts[batch], rows)
    return first, max(within(starts[batch + 1], rows) - first, 0)


class Tiles:
    """The tiles of a launch: `queries` and `keys` are those of all sequences (or of all of them together), `heads` are dynamic_scheduler once
    for those that share a tile. Lengths are arrays, or None."""

    __kiln_immutable__ = True

    def __init__(
        self, of: Sm90ForwardKernel, queries: Any, keys: Any, heads: Any, batches: Any, lengths: Any, numbers: Any
    ) -> None:
        self.of, self.queries, self.keys, self.heads, self.batches = of, queries, keys, heads, batches
        self.lengths, self.numbers = lengths, numbers
        self.each = of.config.tile_m // of.share
        """Queries of a tile."""

    @cute.jit
    def work(self, number: Int32, known: Any):
        """A tile by its number, and `known`: the first of some sequences before which none has it, and how many tiles those before
        them have. Numbers grow, so that the next search begins there.

        The tiles of `group` heads are done side by side, to find each other's keys in the L2 cache, and the last tiles, which
        see most keys where later ones are hidden, first.
        """
        first_q, first_k, queries, keys = Int32(0), Int32(0), Int32(self.queries), Int32(self.keys)
        heads, group = self.heads, self.numbers.group
        if const_expr(self.lengths.starts_q is None):
            tiles = cute.ceil_div(queries, self.each)
            batch, rest = number // (tiles * heads), number % (tiles * heads)
        else:
            batch, rest, known = self.sequence_of(number, known)
            there = min(batch, self.batches - 1)
            first_q, queries = stretch(self.lengths.starts_q, there, self.queries)
            tiles = max(cute.ceil_div(queries, self.each), 1)  # after the last sequence there may be an empty one
            if const_expr(self.lengths.starts_k is not None):
                first_k, keys = stretch(self.lengths.starts_k, there, self.keys)
        if const_expr(self.lengths.used is not None):
            keys = within(self.lengths.used[min(batch, self.batches - 1)], keys)
        first, rest = rest // (tiles * group) * group, rest % (tiles * group)
        beside = max(min(group, heads - first), 1)
        tile = tiles - 1 - rest // beside if batch < self.batches else Int32(-1)
        return Work(tile, first + rest % beside, batch, first_q, queries, first_k, keys), known

    @cute.jit
    def sequence_of(self, number: Int32, known: Any):
        """The sequence that has a tile, the number of the tile among those of that sequence, and what is known then. A whole warp
        finds it together, of as many sequences as it has lanes at once."""
        lane = arch.lane_idx()
        (first, before), found, start = known, Int32(self.batches), Int32(0)
        while first < self.batches and found == self.batches:
            batch = first + lane
            _, queries = stretch(self.lengths.starts_q, min(batch, self.batches - 1), self.queries)
            tiles = cute.ceil_div(queries, self.each) * self.heads if batch < self.batches else Int32(0)
            end = tiles
            for step in (1, 2, 4, 8, 16):  # of this sequence and those before it
                other = arch.shuffle_sync_up(end, step, mask_and_clamp=0)
                end = end + other if lane >= step else end
            later = arch.popc(arch.vote_ballot_sync(before + end <= number))
            if later < _WARP:
                found = first + later
                start = before + arch.shuffle_sync(end - tiles, later)
            else:
                first = first + _WARP
                before = before + arch.shuffle_sync(end, _WARP - 1)
        return found, number - start, (first, before)

    @cute.jit
    def span(self, work: Any, group: Any = None):
        """The keys that the queries of a tile, or of one of its warp groups, see: a query at position p sees those from p - left to
        p + right, both included.

        Where they see none, it is one block, all of it masked; and one block where there are no such queries.
        """
        of, numbers, keys, each = self.of, self.numbers, work.keys, self.each
        tile_n = of.config.tile_n
        query = work.tile * self.each
        if const_expr(group is not None):
            each = ROWS // of.share
            query = query + group * each
        position = query + keys - work.queries
        end, whole_end = keys, keys
        if const_expr(of.right):
            end = min(keys, position + each + numbers.right)
            whole_end = max(Int32(0), min(keys, position + numbers.right + 1))
        begin, whole_begin = Int32(0), Int32(0)
        if const_expr(of.left):
            begin = max(Int32(0), position - numbers.left)
            whole_begin = max(Int32(0), position + each - 1 - numbers.left)
        last = max(cute.ceil_div(end, tile_n), Int32(1)) - 1
        first = begin // tile_n
        if const_expr(group is not None):
            first = min(first, last) if query < work.queries else last
        steps = last - first + 1
        # the blocks that are whole are those from `low` to `high`, both included
        high = min(last - 1, whole_end // tile_n - 1)
        low = max(first, cute.ceil_div(whole_begin, tile_n))
        whole = max(high - low + 1, Int32(0))
        masked = min(last - 1 - high, steps - 1) if const_expr(of.right) else Int32(0)
        return Span(last, steps, masked, min(whole, steps - 1 - masked))


class Told:
    """What the warp that loads tells those that compute: tiles, one after the other, in `memory` (field, slot)."""

    __kiln_immutable__ = True

    def __init__(self, memory: Any, pipe: Any, fields: int) -> None:
        self.memory, self.pipe, self.fields = memory, pipe, fields

    @classmethod
    def create(cls, smem: Any, packed: bool, warps: int) -> Any:
        """Shared memory and barriers, for so many warps that compute."""
        memory = smem.allocate_tensor(Int32, cute.make_layout((len(Work._fields), _SLOTS)), 16)
        pipe = pipeline.PipelineAsync.create(
            num_stages=_SLOTS,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, _WARP),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, _WARP * warps),
            defer_sync=True,
        )
        return cls(memory, pipe, len(Work._fields) if packed else 3)

    @cute.jit
    def tell(self, producer: Any, work: Any):
        """Tell of a tile. A whole warp does that."""
        slot = producer.acquire_and_advance()
        if arch.lane_idx() == 0:
            for field in range_constexpr(self.fields):
                self.memory[field, slot.index] = work[field]
        slot.commit()

    def heard(self, slot: Any, tiles: Tiles) -> Any:
        """The tile in a slot, which is full."""
        known = [arch.make_warp_uniform(self.memory[field, slot.index]) for field in range(self.fields)]
        return Work(*known, *(Int32(0), Int32(tiles.queries), Int32(0), Int32(tiles.keys))[: 7 - self.fields])
