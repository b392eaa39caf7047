"""Which tiles a CTA of the Hopper backward kernels computes, which tiles they see, and in which order.

A CTA has a resident tile, of keys or, in the dQ kernel, of queries; streamed tiles of the other side go past it, from
the last to the first.

CTAs take the KV tiles of a head from the first to the last, which under a causal mask is from the longest to the
shortest, those of some heads side by side. In a fixed order, KV tiles add to dQ of a query tile in the order of their
keys. So a KV tile waits only for such as were taken before it (`DqCounters.next_tile`): however many CTAs run at once,
and whatever order they start in, none waits forever. Since the tiles of a head start some steps apart, hardly any waits
at all; under a one-sided mask, where those that start together would end together, heads start one after the other
(`head_stride`). Where few heads have all KV tiles start at once, these are divided among several dQ accumulators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, DynamicIterator, Int32, const_expr, cute, pipeline
from .....cute import arch
from .....utils.schedulers import clamp_offset, fetch_tile, sequence_range
from ....parts.rematerialize import rematerialized

if TYPE_CHECKING:
    from ..... import utils
    from ..args import AttentionTensors, BackwardScalars
    from .sm90_config import BackwardSchedule
    from .sm90_tiles import BackwardTiles


class DqCounters(NamedTuple):
    """How many KV tiles have added to each query tile of the dQ accumulators, (accumulators, heads, tiles) or None, and
    how many KV tiles have been taken, (1)."""

    additions: Any
    next_tile: cute.Tensor


class Work(NamedTuple):
    """A resident tile of a head; `layer` is the batch index of the arrays, 0 with varlen."""

    tile: Int32
    head: Int32
    layer: Int32
    first_q: Int32
    seqlen_q: Int32 | int
    first_k: Int32
    seqlen_k: Any
    """Keys that exist."""
    rows_k: Int32 | int
    """Keys that there are gradients of."""
    first_q_tile: Int32
    """Where LSE, delta and dQ accumulators of the sequence begin, in query tiles."""
    batch: Int32


class Span(NamedTuple):
    """The streamed tiles that a resident tile sees."""

    first: Int32
    count: Int32 | int


@cute.jit
def varlen_first_tile(first: Int32, batch: Int32, tile_m: Int32):
    """Return where the query tiles of a varlen sequence begin, if each sequence has tiles of its own."""
    return first // tile_m + batch


def _uniform(value: Int32 | int) -> Int32:
    """Return a value that is the same in all threads; what is computed from it is not kept from one KV tile to the
    next."""
    return arch.make_warp_uniform(rematerialized(Int32(value)))


class BackwardTileScheduler:
    """The resident tiles of a launch, `tiles` of a head. `schedule` is a `BackwardSchedule`, of which only `head_group`
    is always used."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: BackwardTiles,
        q: cute.Tensor,
        k: cute.Tensor,
        tensors: AttentionTensors,
        tiles: Int32,
        scalars: BackwardScalars,
        schedule: BackwardSchedule,
    ) -> None:
        self.kernel = kernel
        self.tensors = tensors
        self.tiles = tiles
        self.scalars = scalars
        self.schedule = schedule
        self.seqlen_q: Int32 = q.shape[0]
        self.seqlen_k: Int32 = k.shape[0]
        self.layers: Int32 = k.shape[3]
        self.heads: Int32 = (q if kernel.computes_dq else k).shape[2]
        self.group_size: Int32 = q.shape[2] // k.shape[2]

    def batch(self) -> Int32:
        """Return the number of sequences."""
        cu_seqlens = self.tensors.cu_seqlens_q
        return self.layers if cu_seqlens is None else cu_seqlens.shape[0] - 1

    def all_heads(self) -> Int32:
        """Return the heads of all sequences."""
        return self.heads * self.batch()

    @cute.jit
    def work(self, number: Int32):
        """Return the resident tile with a number."""
        tensors = self.tensors
        head, tile = self.head_and_tile(number)
        batch = head // self.heads
        layer = batch
        first_q = Int32(0)
        first_k = Int32(0)
        first_q_tile = Int32(0)
        seqlen_q = _uniform(self.seqlen_q)
        rows_k = Int32(self.seqlen_k)
        if const_expr(tensors.cu_seqlens_q is not None):
            first_q, seqlen_q = sequence_range(tensors.cu_seqlens_q, batch, seqlen_q)
            first_k, rows_k = sequence_range(tensors.cu_seqlens_k, batch, rows_k)
            layer = Int32(0)
            first_q_tile = varlen_first_tile(first_q, batch, Int32(self.kernel.config.tile_m))
        seqlen_k = rows_k
        if const_expr(tensors.seqused_k is not None):
            seqlen_k = clamp_offset(tensors.seqused_k[batch], rows_k)
        if const_expr(self.kernel.computes_dq and self.kernel.masks_right and not self.kernel.masks_left):
            tile = self.tiles - 1 - tile  # the longest first
        return Work(tile, head % self.heads, layer, first_q, seqlen_q, first_k, seqlen_k, rows_k, first_q_tile, batch)

    @cute.jit
    def head_and_tile(self, number: Int32):
        """Return the head, of those of all sequences, and the resident tile with a number."""
        group = _uniform(self.schedule.head_group)
        if const_expr(self.kernel.computes_dq):
            group = group * self.group_size
        if const_expr(self.kernel.staggers_heads):
            return self._staggered(number, group)
        first = number // (self.tiles * group) * group
        rest = number % (self.tiles * group)
        group_heads = min(group, _uniform(self.heads) * self.batch() - first)
        return first + rest % group_heads, rest // group_heads

    @cute.jit
    def _staggered(self, number: Int32, group: Int32):
        """Return head and tile where a head starts `head_stride` tiles after the one before, with `group` heads at a
        time. There is no such head for some of the first numbers and some of the last."""
        stride = _uniform(self.schedule.head_stride)
        newest = number // self.tiles
        rest = number % self.tiles
        # the tiles of the head that started first may end before the stride does
        ends = (self.tiles - (group - 1) * stride) * group
        step = rest // group
        age = rest % group
        if rest >= ends:
            others = max(group - 1, Int32(1))
            step = ends // group + (rest - ends) // others
            age = (rest - ends) % others
        return newest - age, step + age * stride

    def band(self, work: Work) -> tuple[Any, Any, Any]:
        """Return (shift, before, after): resident row r sees streamed rows r + shift - before to r + shift + after."""
        offset = work.seqlen_k - work.seqlen_q
        left = self.scalars.window_left
        right = self.scalars.window_right
        return (offset, left, right) if self.kernel.computes_dq else (-offset, right, left)

    @cute.jit
    def span(self, work: Work):
        """Return the streamed tiles that a resident tile sees."""
        kernel = self.kernel
        shift, before, after = self.band(work)
        lengths = (work.seqlen_q, work.seqlen_k) if kernel.computes_dq else (work.seqlen_k, work.seqlen_q)
        first = Int32(0)
        end = lengths[1]
        if const_expr(kernel.masks_before):
            first = max(Int32(0), work.tile * kernel.resident_rows + shift - before) // kernel.streamed_rows
        if const_expr(kernel.masks_after):
            last_row = min(work.tile * kernel.resident_rows + kernel.resident_rows, lengths[0])
            end = min(end, last_row + shift + after)
        count = max(cute.ceil_div(max(end, Int32(0)), kernel.streamed_rows) - first, Int32(0))
        if work.tile * kernel.resident_rows >= lengths[0]:
            count = Int32(0)
        return Span(first, count)

    def edge(self, row: Int32, work: Work, span: Span) -> Int32:
        """Return the first streamed row that a resident row sees, relative to the last streamed tile."""
        shift, before, _ = self.band(work)
        return row + shift - before - (span.first + span.count - 1) * self.kernel.streamed_rows

    @cute.jit
    def next_edge(self, edge: Int32, group_index: Int32):
        """Return the edge, and the head of the GQA group, of the next step of a KV tile: after all heads of the group
        comes the query tile before."""
        kernel = self.kernel
        if const_expr(kernel.masks_right or kernel.masks_left or kernel.score_mod):
            group_index = group_index + 1
            if group_index == self.group_size:
                group_index = Int32(0)
                edge = edge + kernel.streamed_rows
        return edge, group_index

    @cute.jit
    def last_tile_queries(self, work: Work):
        """Return how many queries the last query tile that sees a KV tile has; the rest of its rows do not exist."""
        span = self.span(work)
        return work.seqlen_q - (span.first + span.count - 1) * self.kernel.streamed_rows

    def steps(self, span: Span) -> Int32 | int:
        """Return the steps of a resident tile: a KV tile goes through all query heads of its GQA group."""
        return span.count if self.kernel.computes_dq else span.count * self.group_size

    @cute.jit
    def step(self, number: Int32, work: Work, span: Span):
        """Return the streamed head and tile of a step: all heads of a tile in turn, so that a CTA with fewer tiles does
        not come to another head before those it waits for."""
        if const_expr(self.kernel.computes_dq):
            return work.head // self.group_size, span.first + span.count - 1 - number
        head = number % self.group_size
        tile = span.first + span.count - 1 - number // self.group_size
        return work.head * self.group_size + head, tile

    def dq_layer(self, work: Work) -> Int32:
        """Return the dQ accumulator that a KV tile adds to."""
        return work.tile // self.schedule.tiles_per_dq * self.layers + work.layer

    @cute.jit
    def rank(self, work: Work, q_tile: Int32):
        """Return how many KV tiles add to a query tile of the same accumulator before this one."""
        first = work.tile // self.schedule.tiles_per_dq * self.schedule.tiles_per_dq
        if const_expr(self.kernel.masks_left):
            first_key = q_tile * self.kernel.config.tile_m + work.seqlen_k - work.seqlen_q - self.scalars.window_left
            first = max(first, first_key // self.kernel.resident_rows)
        return work.tile - first

    @cute.jit
    def num_additions(self, batch: Int32, q_tile: Int32):
        """Return how many KV tiles add to a query tile of a dense sequence."""
        scalars = self.scalars
        seqlen_k = Int32(self.seqlen_k)
        tile_n = self.kernel.resident_rows
        if const_expr(self.tensors.seqused_k is not None):
            seqlen_k = clamp_offset(self.tensors.seqused_k[batch], seqlen_k)
        position = q_tile * self.kernel.config.tile_m + seqlen_k - self.seqlen_q
        first = Int32(0)
        end = cute.ceil_div(seqlen_k, tile_n)
        if const_expr(self.kernel.masks_right):
            last_key = position + self.kernel.config.tile_m - 1 + scalars.window_right
            end = min(end, max(last_key + tile_n, 0) // tile_n)
        if const_expr(self.kernel.masks_left):
            first = max(position - scalars.window_left, 0) // tile_n
            if position - scalars.window_left >= seqlen_k:
                end = Int32(0)
        return max(end - first, Int32(0))

    def taken(self, next_tile: cute.Tensor) -> TakenKvTiles:
        """Return the KV tiles that this CTA takes, for its producer warp."""
        return TakenKvTiles(self, next_tile)

    @cute.jit
    def take(self, next_tile: cute.Tensor):
        """Return the next KV tile by number, -1 if there is none. A whole warp calls this."""
        number = arch.shuffle_sync(fetch_tile(next_tile), 0)
        every = self.tiles * self.all_heads()
        if const_expr(self.kernel.staggers_heads):
            every = every + self.tiles * (self.schedule.head_group - 1)
        if const_expr(self.tensors.cu_seqlens_q is not None or self.kernel.staggers_heads):
            while number < every and self.is_empty(number):
                number = arch.shuffle_sync(fetch_tile(next_tile), 0)
        return number if number < every else Int32(-1)

    @cute.jit
    def is_empty(self, number: Int32):
        """Return whether a number has no head, or a sequence ends before its KV tile."""
        if const_expr(self.kernel.staggers_heads):
            head, _ = self.head_and_tile(number)
            return (head < 0) | (head >= self.all_heads())
        work = self.work(number)
        return work.tile * self.kernel.resident_rows >= work.rows_k


class TakenKvTiles(DynamicIterator[Int32]):
    """The numbers of the KV tiles that a CTA takes; -1 in the end. One whole warp goes through them."""

    def __init__(self, scheduler: BackwardTileScheduler, next_tile: cute.Tensor) -> None:
        self.scheduler = scheduler
        self.next_tile = next_tile
        self.number: Int32 = scheduler.take(next_tile)

    def has_item(self) -> Boolean:
        return self.number >= 0

    def item(self) -> Int32:
        return self.number

    def advance(self) -> None:
        self.number = self.scheduler.take(self.next_tile)


class ReceivedKvTiles(DynamicIterator[Int32]):
    """The numbers of the KV tiles that the producer warp broadcasts, for one other warp, which releases each itself."""

    def __init__(self, broadcast: KvTileBroadcast) -> None:
        self.broadcast = broadcast
        self.state: pipeline.PipelineState = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        self.number: Int32 = broadcast.wait(self.state)

    def has_item(self) -> Boolean:
        return self.number >= 0

    def item(self) -> Int32:
        return self.number

    def advance(self) -> None:
        self.state.advance()
        self.number = self.broadcast.wait(self.state)

    def release(self) -> None:
        """Let the next KV tile be sent."""
        self.broadcast.release(self.state)


class KvTileBroadcast:
    """Broadcasts KV tiles from the producer warp to the others: the number (-1 at the end), how many there were before,
    and the `Work`.

    Each warp has a `PipelineState` of its own, of a pipeline with one stage. Work is read where it is needed, not kept
    in registers."""

    __kiln_immutable__ = True

    def __init__(self, broadcast: pipeline.WorkBroadcast) -> None:
        self.broadcast = broadcast
        self.pipe: pipeline.PipelineAsync = broadcast.pipe

    @classmethod
    def create(cls, smem: utils.SmemAllocator, consumer_warps: int) -> KvTileBroadcast:
        """Allocate smem and mbarriers."""
        return cls(pipeline.WorkBroadcast.create(smem, 2 + len(Work._fields), consumer_warps, num_stages=1))

    def send(self, state: pipeline.PipelineState, number: Int32, work: Any) -> None:
        """Send a KV tile, as one whole warp."""
        self.broadcast.send_at(state, (number, state.count, *work))

    def received(self) -> ReceivedKvTiles:
        """Return the KV tiles that one warp receives."""
        return ReceivedKvTiles(self)

    def wait(self, state: pipeline.PipelineState) -> Int32:
        """Wait for a KV tile and return its number."""
        self.pipe.consumer_wait(state)
        return self.broadcast.read(0, (0,))[0]

    def work(self) -> Work:
        """Return the work of the KV tile that was waited for."""
        return Work(*self.broadcast.read(0, range(2, 2 + len(Work._fields))))

    def state(self, stages: int = 1) -> pipeline.PipelineState:
        """Return the state, for a warp that has waited, of a pipeline with a stage for each KV tile, of `stages`."""
        count = self.broadcast.read(0, (1,))[0]
        return pipeline.PipelineState(stages, 0, count % stages, count // stages & 1)

    def release(self, state: pipeline.PipelineState) -> None:
        """Let the next KV tile be sent."""
        self.pipe.consumer_release(state)
