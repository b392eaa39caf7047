"""The producer warps of Hopper attention: TMA loads of Q, K and V, dense, varlen or paged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Int32, const_expr, cute, range_constexpr
from ... import range as dynamic_range
from ...cute import arch
from .kv_source import PageTable, transposed_v_offset

if TYPE_CHECKING:
    from ... import pipeline
    from .tma_operand import TmaOperand


def gmem_view(x: cute.Tensor, transposed: bool = False, group_size: int = 1) -> cute.Tensor:
    """Return (batch, row, head, element) as (row, element, head, batch), or with the first two modes exchanged.

    `group_size` adjacent heads go into the row mode, before the rows. Strides are multiples of 16 bytes; those of modes
    of one element may not be, and do not matter."""
    batch, row, head, element = x.shape
    vector = 128 // x.element_type.width
    batch_stride, row_stride, head_stride = (cute.assume(s // vector * vector, divby=vector) for s in x.stride[:3])
    if group_size > 1:
        row = (group_size, row)
        row_stride = (head_stride, row_stride)
        head = head // group_size
        head_stride = head_stride * group_size
    shape, stride = ((element, row), (1, row_stride)) if transposed else ((row, element), (row_stride, 1))
    layout = cute.make_layout((*shape, head, batch), stride=(*stride, head_stride, batch_stride))
    return cute.make_tensor(x.iterator, layout)


class KvProducer:
    """Loads the query tiles of a CTA and the KV tiles that they see.

    `kernel` gives extents, `scheduler` the work; `smem` has the stages of `q`, `k` and `v`."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: Any,
        scheduler: Any,
        broadcast: pipeline.WorkBroadcast,
        q: TmaOperand,
        k: TmaOperand,
        v: TmaOperand,
        smem: Any,
        page_table: Any,
    ) -> None:
        self.kernel = kernel
        self.scheduler = scheduler
        self.broadcast = broadcast
        self.q = q
        self.k = k
        self.v = v
        self.smem = smem
        self.page_table = page_table
        self.heads_per_kv_head: Int32 = scheduler.heads // k.tensor.shape[2]

    @cute.jit
    def run(
        self,
        sender: pipeline.PipelineProducer,
        producers: tuple[pipeline.PipelineProducer, pipeline.PipelineProducer, pipeline.PipelineProducer],
        tile_counter: cute.Tensor | None,
    ):
        """Find the CTA's work, broadcast it and load it, as one whole warp."""
        tiles = self.scheduler.taken(tile_counter)
        for work in tiles:
            self._send(sender, work)
            self._load(work, producers)
        self._send(sender, tiles.work)

    def _send(self, sender: pipeline.PipelineProducer, work: Any) -> None:
        self.broadcast.send(sender, work if self.kernel.lengths_vary else work[:3])

    @cute.jit
    def run_v(self, receiver: Any, producer_v: Any):
        """Load V only, of the work that the other producer warp broadcasts."""
        for work in self.scheduler.received(self.broadcast, receiver):
            self._load(work, (None, None, producer_v))

    @cute.jit
    def _load(
        self,
        work: Any,
        producers: tuple[pipeline.PipelineProducer, pipeline.PipelineProducer, pipeline.PipelineProducer],
    ):
        """Load a query tile and its KV tiles, last to first, V one tile behind K; a producer may be None."""
        producer_q, producer_k, producer_v = producers
        kernel = self.kernel
        config = self.kernel.config
        span = self.scheduler.span(work)
        q = self.q
        k = self.k
        v = self.v
        batch_q = work.batch
        batch_k = work.batch
        if const_expr(kernel.varlen):
            batch_q = Int32(0)
            q = q.at((kernel.row_coord(work.first_q), 0, 0, 0))
        if const_expr(self.scheduler.tensors.cu_seqlens_k is not None):
            batch_k = Int32(0)
            first_v = work.first_k
            if const_expr(kernel.is_fp8):
                first_v = transposed_v_offset(work.first_k, work.batch, config.tile_n)
            k = k.at((work.first_k, 0, 0, 0))
            v = v.at((0, first_v, 0, 0))
        smem_q, tiles_q = q.partition(self.smem.q, q.tiles((None, 0, None, None)))
        if const_expr(producer_q is not None):
            stage = producer_q.acquire_and_advance()
            for group in range_constexpr(config.consumer_warpgroups):
                row = kernel.row_coord(work.tile * config.consumer_warpgroups + group)
                cute.copy(
                    q.atom, tiles_q[None, row, work.head, batch_q], smem_q[None, group], tma_bar_ptr=stage.barrier
                )
        head_k = work.head // self.heads_per_kv_head
        # one TMA load fills a stage, or as much of it as lies in one page
        stages_k = self.smem.k
        stages_v = self.smem.v
        pages_v = kernel.page_size > 0 and not kernel.is_fp8
        if const_expr(kernel.page_size > 0):
            stages_k = cute.local_tile(stages_k, k.tile.shape, (None, 0, None))
        if const_expr(pages_v):
            stages_v = cute.local_tile(stages_v, v.tile.shape, (0, None, None))
        tiles_k = k.tiles((None, 0, None, None))
        tiles_v = v.tiles((0, None, None, None))
        operand_k = (k.atom, *k.partition(stages_k, tiles_k), producer_k, head_k, batch_k)
        operand_v = (v.atom, *v.partition(stages_v, tiles_v), producer_v, head_k, batch_k)
        # pages are looked up one tile ahead, and are the same for K and V
        last = span.last
        pages = self._pages(work.batch, last)
        next_pages = self._pages(work.batch, last - 1)
        self._load_tile(*operand_k, last, pages, kernel.page_size > 0)
        for i in range(1, span.count):
            later_pages = self._pages(work.batch, last - i - 1)
            self._load_tile(*operand_k, last - i, next_pages, kernel.page_size > 0)
            self._load_tile(*operand_v, last - i + 1, pages, pages_v)
            pages = next_pages
            next_pages = later_pages
        self._load_tile(*operand_v, last - span.count + 1, pages, pages_v)

    @cute.jit
    def _load_tile(
        self,
        atom: cute.CopyAtom,
        smem: cute.Tensor,
        tiles: cute.Tensor,
        producer: pipeline.PipelineProducer,
        head: Int32,
        batch: Int32,
        kv_tile: Int32,
        pages: Int32,
        paged: bool,
    ):
        """Load a tile of K or V, box by box if it is paged."""
        page_size = self.kernel.page_size
        box = self.kernel.box_k
        tile_n = self.kernel.config.tile_n
        if const_expr(producer is not None):
            stage = producer.acquire_and_advance()
            if const_expr(not paged):
                cute.copy(atom, tiles[None, kv_tile, head, batch], smem[None, stage.index], tma_bar_ptr=stage.barrier)
            else:
                for i in dynamic_range(tile_n // box, unroll=1):  # a producer has few registers
                    within_page = 0 if page_size == box else (kv_tile * tile_n + i * box) % page_size // box
                    source = tiles[None, within_page, head, arch.shuffle_sync(pages, i)]
                    cute.copy(atom, source, smem[None, i, stage.index], tma_bar_ptr=stage.barrier)

    @cute.jit
    def _pages(self, batch: Int32, kv_tile: Int32):
        """Return the pages of a KV tile: lane i has that of box i."""
        page = Int32(0)
        if const_expr(self.kernel.page_size > 0):
            row = max(kv_tile, 0) * self.kernel.config.tile_n + arch.lane_idx() * self.kernel.box_k
            num_pages = Int32(self.k.tensor.shape[3])
            page = PageTable(self.page_table[batch, None], self.kernel.page_size, num_pages).page(row)
        return page
