"""Which keys a block of threads of Hopper has, which queries see them, and in which order they are gone through.

Blocks of threads have the blocks of keys of a head from the first to the last, which under a causal mask is from the longest to the shortest,
those of some heads side by side, and queries from the last to the first. To the gradients of a block of queries they add in the order
of their keys. So a block of keys waits only for such as were taken before it (`begun` counts that), and blocks of threads take theirs in that order:
however many run at once, and whatever order they start in, none waits forever. And since those of a head begin some steps apart, hardly any
waits at all. Where few heads have all blocks of keys begin at once, these are cut into parts, each with sums of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from ..fwd.query_tile import only_here
from .sm90_config import KEYS

if TYPE_CHECKING:
    from .sm90_tiles import KeyTiles


_WARP = 32


class Counters(NamedTuple):
    """How many have added to each block of queries of sums of dQ, (layers of sums, heads, blocks) (or None), and how many blocks of keys have been taken, (1)."""

    turns: Any
    begun: Any


class Work(NamedTuple):
    """A block of keys of a head of a sequence (`batch`); the layer of the arrays, and where in it queries and keys of the sequence begin.

    `keys`: those that exist; `rows`: those that there are gradients of. `first_tile`: where what is known of queries begins, in blocks of them.
    """

    block: Any
    head: Any
    layer: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any
    rows: Any
    first_tile: Any
    batch: Any


class Span(NamedTuple):
    """The blocks of queries that see a block of keys: the first, and how many."""

    first: Any
    count: Any


@cute.jit
def stretch(starts: cute.Tensor, batch: Int32, rows: Int32):
    """Where a sequence begins, and its length: numbers that are wrong must not lead out of arrays."""
    first = max(Int32(0), min(starts[batch], rows))
    return first, max(min(starts[batch + 1], rows) - first, Int32(0))


@cute.jit
def tile_of(first: Int32, batch: Int32, tile_m: Int32):
    """Where the blocks of queries of a sequence begin, if each sequence of a packed array has blocks of its own."""
    return first // tile_m + batch


def _again(value: Any) -> Any:
    """A number that is the same in all threads. What is computed of it is not kept in registers from one block of keys to the next."""
    return arch.make_warp_uniform(only_here(Int32(value)))


class Blocks:
    """The blocks of keys of a launch: `each` of a head, whose arrays have some queries and keys."""

    __kiln_immutable__ = True

    def __init__(self, of: KeyTiles, q: Any, k: Any, lengths: Any, each: Any, numbers: Any) -> None:
        self.of, self.lengths, self.each, self.numbers = of, lengths, each, numbers
        self.queries, self.keys, self.heads, self.layers = q.shape[0], k.shape[0], k.shape[2], k.shape[3]
        self.share = q.shape[2] // k.shape[2]

    def sequences(self) -> Any:
        """How many there are."""
        starts = self.lengths.starts_q
        return self.layers if starts is None else starts.shape[0] - 1

    def all_heads(self) -> Any:
        """Heads of keys of all sequences."""
        return self.heads * self.sequences()

    @cute.jit
    def work(self, number: Int32):
        """The block of keys with a number."""
        side, lengths = _again(self.numbers.side), self.lengths
        first, rest = number // (self.each * side) * side, number % (self.each * side)
        beside = min(side, _again(self.heads) * self.sequences() - first)
        head = first + rest % beside
        batch = head // self.heads
        layer, first_q, first_k, first_tile = batch, Int32(0), Int32(0), Int32(0)
        queries, rows = _again(self.queries), Int32(self.keys)
        if const_expr(lengths.starts_q is not None):
            first_q, queries = stretch(lengths.starts_q, batch, queries)
            first_k, rows = stretch(lengths.starts_k, batch, rows)
            layer, first_tile = Int32(0), tile_of(first_q, batch, Int32(self.of.config.tile_m))
        keys = rows
        if const_expr(lengths.used is not None):
            keys = max(Int32(0), min(lengths.used[batch], rows))
        return Work(rest // beside, head % self.heads, layer, first_q, queries, first_k, keys, rows, first_tile, batch)

    @cute.jit
    def span(self, work: Any):
        """The queries that see a block of keys: a query at position p sees keys from p - left to p + right, both included."""
        tile_m, own, numbers = self.of.config.tile_m, self.of.keys, self.numbers
        behind = work.keys - work.queries
        first, end = Int32(0), work.queries
        if const_expr(self.of.right):
            first = max(Int32(0), work.block * own - behind - numbers.right) // tile_m
        if const_expr(self.of.left):
            end = min(work.queries, min(work.block * own + own, work.keys) - behind + numbers.left)
        count = max(cute.ceil_div(max(end, Int32(0)), tile_m) - first, Int32(0))
        if work.block * own >= work.keys:
            count = Int32(0)
        return Span(first, count)

    @cute.jit
    def place(self, number: Int32, span: Any):
        """Which head, of those that share keys, and which block of queries a step has: those of all heads one after the other, so that a block
        of threads that has fewer of them does not come to another head before those it waits for."""
        return number % self.share, span.first + span.count - 1 - number // self.share

    def layer_of_sums(self, work: Any) -> Any:
        """Where sums are to which this block of keys adds: each part of the blocks has its own."""
        return work.block // self.numbers.part * self.layers + work.layer

    @cute.jit
    def rank(self, work: Any, tile: Int32):
        """How many blocks of keys of the same part add to a block of queries before this one."""
        first = work.block // self.numbers.part * self.numbers.part
        if const_expr(self.of.left):
            seen = tile * self.of.config.tile_m + work.keys - work.queries - self.numbers.left
            first = max(first, seen // KEYS)
        return work.block - first

    @cute.jit
    def adders(self, batch: Int32, tile: Int32):
        """How many blocks of keys add to a block of queries of a sequence, one of arrays that have the same lengths for all."""
        numbers, keys = self.numbers, Int32(self.keys)
        if const_expr(self.lengths.used is not None):
            keys = max(Int32(0), min(self.lengths.used[batch], keys))
        position = tile * self.of.config.tile_m + keys - self.queries
        first, end = Int32(0), cute.ceil_div(keys, KEYS)
        if const_expr(self.of.right):
            end = min(end, max(position + self.of.config.tile_m - 1 + numbers.right + KEYS, 0) // KEYS)
        if const_expr(self.of.left):
            first = max(position - numbers.left, 0) // KEYS
            if position - numbers.left >= keys:
                end = Int32(0)
        return max(end - first, Int32(0))

    @cute.jit
    def take(self, begun: cute.Tensor):
        """The next block of keys that is left, by number; -1: there is none. A whole warp asks."""
        number = self._asked(begun)
        every = self.each * self.all_heads()
        if const_expr(self.lengths.starts_q is not None):
            # blocks after the end of a sequence that is not the longest have nothing to do
            while number < every and self.is_empty(number):
                number = self._asked(begun)
        return number if number < every else Int32(-1)

    @cute.jit
    def _asked(self, begun: cute.Tensor):
        found = Int32(0)
        if arch.lane_idx() == 0:
            found = arch.atomic_add(begun.iterator, Int32(1))
        return arch.shuffle_sync(found, 0)

    @cute.jit
    def is_empty(self, number: Int32):
        """Whether a sequence ends before a block of keys."""
        work = self.work(number)
        return work.block * KEYS >= work.rows


class Told:
    """What the warp that loads tells the others: blocks of keys, one after the other, in `memory` (2 + fields): the number of one (-1: no more), how many there
    were before, and its `Work`.

    Each warp has a state of its own, of a pipeline with one buffer.
    """

    __kiln_immutable__ = True

    def __init__(self, memory: Any, pipe: Any) -> None:
        self.memory, self.pipe = memory, pipe

    @classmethod
    def create(cls, smem: Any, warps: int) -> Any:
        """Shared memory and barriers, for so many warps that are told."""
        memory = smem.allocate_tensor(Int32, cute.make_layout(2 + len(Work._fields)), 16)
        pipe = pipeline.PipelineAsync.create(
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, _WARP),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, _WARP * warps),
            defer_sync=True,
        )
        return cls(memory, pipe)

    @cute.jit
    def tell(self, state: Any, number: Int32, work: Any):
        """Tell of a block of keys. A whole warp does that."""
        self.pipe.producer_acquire(state)
        if arch.lane_idx() == 0:
            self.memory[0] = number
            self.memory[1] = state.count
            for field in range_constexpr(len(work)):
                self.memory[2 + field] = work[field]
        self.pipe.producer_commit(state)

    def heard(self, state: Any) -> Any:
        """The number that is told of, when it is."""
        self.pipe.consumer_wait(state)
        return arch.make_warp_uniform(self.memory[0])

    def work(self) -> Any:
        """What was heard of, until it is released. It is looked up wherever it is needed, and need not be kept in registers."""
        return Work(*(arch.make_warp_uniform(self.memory[2 + field]) for field in range(len(Work._fields))))

    def turn(self) -> Any:
        """The state of a warp that has heard of it."""
        return pipeline.PipelineState(1, 0, 0, arch.make_warp_uniform(self.memory[1]) & 1)

    def release(self, state: Any) -> None:
        """Let another be told of."""
        self.pipe.consumer_release(state)
