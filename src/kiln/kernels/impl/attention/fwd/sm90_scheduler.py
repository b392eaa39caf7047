"""Which query tiles a CTA of the Hopper kernel computes, and which KV tiles they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, DynamicIterator, Int32, const_expr, cute
from .....cute import arch
from .....utils.schedulers import (
    SequenceSearch,
    clamp_offset,
    fetch_tile,
    find_sequence,
    head_group_tile,
    next_snake_tile,
    sequence_range,
)
from .sm90_config import WARPGROUP_M

if TYPE_CHECKING:
    from ..... import pipeline
    from .....pipeline import PipelineConsumer, WorkBroadcast
    from ..args import AttentionScalars, AttentionTensors
    from .sm90 import Sm90ForwardKernel


class Work(NamedTuple):
    """A query tile (-1 after the last one), its head (the KV head, where GQA is packed) and sequence, and the
    sequence's extents."""

    tile: Int32
    head: Int32
    batch: Int32
    first_q: Int32
    seqlen_q: Int32 | int
    first_k: Int32
    seqlen_k: Int32 | int


class KvSpan(NamedTuple):
    """The KV tiles that a query tile sees, from the last to the first."""

    last: Int32
    count: Int32
    masked: Int32
    """Masked tiles before the last one, at the right end."""
    unmasked: Int32
    """Tiles without a mask, which follow those."""


class TakenTiles(DynamicIterator[Work]):
    """The query tiles that a CTA takes: in alternating order, or by an atomic counter. One whole warp goes through them.

    The next number is asked for when an item begins. `work` is past the last tile in the end.
    """

    def __init__(self, scheduler: QueryTileScheduler, tile_counter: cute.Tensor | None) -> None:
        self.scheduler = scheduler
        self.tile_counter = tile_counter
        self.num_ctas = Int32(arch.grid_dim()[0])
        self.number = Int32(arch.block_idx()[0])
        self.turn = Int32(0)
        self.following = Int32(0)
        self.work, self.search = scheduler.work(self.number, SequenceSearch(Int32(0), Int32(0)))

    def has_item(self) -> Boolean:
        return self.work.tile >= 0

    def item(self) -> Work:
        if self.tile_counter is None:
            self.following = next_snake_tile(self.number, self.turn, self.num_ctas)
        else:
            self.following = fetch_tile(self.tile_counter, self.num_ctas)
        return self.work

    def advance(self) -> None:
        self.turn = self.turn + 1
        self.number = self.following if self.tile_counter is None else arch.shuffle_sync(self.following, 0)
        self.work, self.search = self.scheduler.work(self.number, self.search)


class ReceivedTiles(DynamicIterator[Work]):
    """The query tiles that a producer warp broadcasts. `stage` has the item, and is released when it ends."""

    def __init__(self, scheduler: QueryTileScheduler, broadcast: WorkBroadcast, receiver: PipelineConsumer) -> None:
        self.scheduler = scheduler
        self.broadcast = broadcast
        self.receiver = receiver
        self._receive()

    def has_item(self) -> Boolean:
        return self.work.tile >= 0

    def item(self) -> Work:
        return self.work

    def advance(self) -> None:
        self.stage.release()
        self._receive()

    def _receive(self) -> None:
        self.stage = self.receiver.wait_and_advance()
        self.work = self.read_again()

    def read_again(self) -> Work:
        """Return the item, read again from smem where registers are few."""
        return self.scheduler.read(self.broadcast, self.stage.index)


class QueryTileScheduler:
    """The query tiles of a launch. `seqlen_q` and `seqlen_k` are the rows of the arrays: of one sequence, or of all
    with varlen."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: Sm90ForwardKernel,
        seqlen_q: Int32 | int,
        seqlen_k: Any,
        heads: Int32,
        batch: Int32,
        tensors: AttentionTensors,
        scalars: AttentionScalars,
    ) -> None:
        self.kernel = kernel
        self.seqlen_q = seqlen_q
        self.seqlen_k = seqlen_k
        self.heads = heads
        self.batch = batch
        self.tensors = tensors
        self.scalars = scalars
        self.tile_queries: int = kernel.config.tile_m // kernel.group_size

    def taken(self, tile_counter: cute.Tensor | None) -> TakenTiles:
        """Return the query tiles that this CTA takes, for its producer warp."""
        return TakenTiles(self, tile_counter)

    def received(self, broadcast: WorkBroadcast, receiver: PipelineConsumer) -> ReceivedTiles:
        """Return the query tiles that the producer warp broadcasts, for another warp."""
        return ReceivedTiles(self, broadcast, receiver)

    @cute.jit
    def work(self, number: Int32, search: SequenceSearch):
        """Return the work with a number, and where the search for the next one's sequence begins."""
        first_q = Int32(0)
        first_k = Int32(0)
        seqlen_q = Int32(self.seqlen_q)
        seqlen_k = Int32(self.seqlen_k)
        heads = self.heads
        cu_seqlens_q = self.tensors.cu_seqlens_q
        if const_expr(cu_seqlens_q is None):
            tiles = cute.ceil_div(seqlen_q, self.tile_queries)
            batch = number // (tiles * heads)
            rest = number % (tiles * heads)
        else:
            batch, rest, search = find_sequence(number, cu_seqlens_q, self.seqlen_q, self.tile_queries, heads, search)
            existing = min(batch, self.batch - 1)
            first_q, seqlen_q = sequence_range(cu_seqlens_q, existing, self.seqlen_q)
            tiles = max(cute.ceil_div(seqlen_q, self.tile_queries), 1)  # the last sequence may be empty
            if const_expr(self.tensors.cu_seqlens_k is not None):
                first_k, seqlen_k = sequence_range(self.tensors.cu_seqlens_k, existing, self.seqlen_k)
        if const_expr(self.tensors.seqused_k is not None):
            seqlen_k = clamp_offset(self.tensors.seqused_k[min(batch, self.batch - 1)], seqlen_k)
        head, tile = head_group_tile(rest, tiles, heads, self.scalars.head_group, batch < self.batch)
        return Work(tile, head, batch, first_q, seqlen_q, first_k, seqlen_k), search

    def read(self, broadcast: pipeline.WorkBroadcast, index: Int32) -> Work:
        """Return the work that was broadcast in a stage. Extents are only broadcast where sequences differ in them."""
        if self.kernel.lengths_vary:
            return Work(*broadcast.read(index))
        tile, head, batch = broadcast.read(index, range(3))
        return Work(tile, head, batch, Int32(0), Int32(self.seqlen_q), Int32(0), Int32(self.seqlen_k))

    @cute.jit
    def span(self, work: Work, warpgroup: Any = None):
        """Return the KV tiles that a query tile sees, or one of its consumer warpgroups.

        A query at position p sees keys p - window_left to p + window_right. There is always one tile: if the queries
        see no key, or do not exist, all of it is masked."""
        kernel = self.kernel
        scalars = self.scalars
        seqlen_k = work.seqlen_k
        queries = self.tile_queries
        tile_n = kernel.config.tile_n
        query = work.tile * self.tile_queries
        if const_expr(warpgroup is not None):
            queries = WARPGROUP_M // kernel.group_size
            query = query + warpgroup * queries
        position = query + seqlen_k - work.seqlen_q
        end = seqlen_k
        unmasked_end = seqlen_k
        if const_expr(kernel.masks_right):
            end = min(seqlen_k, position + queries + scalars.window_right)
            unmasked_end = max(Int32(0), min(seqlen_k, position + scalars.window_right + 1))
        begin = Int32(0)
        unmasked_begin = Int32(0)
        if const_expr(kernel.masks_left):
            begin = max(Int32(0), position - scalars.window_left)
            unmasked_begin = max(Int32(0), position + queries - 1 - scalars.window_left)
        last = max(cute.ceil_div(end, tile_n), Int32(1)) - 1
        first = begin // tile_n
        if const_expr(warpgroup is not None):
            first = min(first, last) if query < work.seqlen_q else last
        count = last - first + 1
        # the unmasked tiles are those from `low` to `high`
        high = min(last - 1, unmasked_end // tile_n - 1)
        low = max(first, cute.ceil_div(unmasked_begin, tile_n))
        unmasked = max(high - low + 1, Int32(0))
        masked = min(last - 1 - high, count - 1) if const_expr(kernel.masks_right) else Int32(0)
        return KvSpan(last, count, masked, min(unmasked, count - 1 - masked))
