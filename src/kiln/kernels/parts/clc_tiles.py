"""The tile scheduler of GEMMs that takes tiles by cluster launch control: clusters take those of others that have not
started."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ... import Boolean, DynamicIterator, Int32, cute, pipeline
from ...cute import arch
from ...utils.schedulers import GemmTile, PersistentTileScheduler

if TYPE_CHECKING:
    from ...utils import SmemAllocator

_ANSWER_WORDS = 4


class ClcTiles(NamedTuple):
    """The tiles of a result (M, N, L), and how the warps of a cluster learn which one is next."""

    d: cute.Tensor
    divisors: list[cute.FastDivmodDivisor]
    answers: pipeline.PipelineClcFetchAsync
    answer: cute.Pointer
    """Shared memory for the answer of cluster launch control."""


class ClcTileLoop(DynamicIterator["ClcTileLoop"]):
    """The tiles of a CTA: the one it was launched for, then those that cluster launch control gives to its cluster."""

    def __init__(self, scheduler: ClcTileScheduler, tiles: ClcTiles) -> None:
        self.scheduler = scheduler
        self.tiles = tiles
        self.number: Int32 = scheduler.first()
        self.is_valid = Boolean(True)
        self.state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)

    def has_item(self) -> Boolean:
        return self.is_valid

    def item(self) -> ClcTileLoop:
        return self

    def advance(self) -> None:
        """Wait for the next answer, read it, and release it by one thread of the warp."""
        answers = self.tiles.answers
        answers.consumer_wait(self.state)
        x, _, _, is_valid = arch.clc_response(self.tiles.answer)
        arch.fence_view_async_shared()
        arch.sync_warp()
        with arch.elect_one():
            answers.consumer_release(self.state)
        self.state.advance()
        self.number = x // self.scheduler.cluster_shape_mn[0]
        self.is_valid = is_valid != 0

    def tile(self) -> GemmTile:
        """Return the tile of this CTA."""
        return self.scheduler.tile(self.number, self.tiles)


class ClcTileScheduler(PersistentTileScheduler):
    """A grid with a CTA for each tile, of which clusters that run take over others.

    In each cluster `readers` warps loop over tiles, and read every answer; one of CTA 0 calls `request_tiles`.
    """

    def __init__(
        self,
        tile_shape_mn: tuple[int, int],
        cluster_shape_mn: tuple[int, int],
        raster_group: int,
        readers: int,
        batched: bool = True,
    ) -> None:
        super().__init__(tile_shape_mn, cluster_shape_mn, raster_group, 0, batched)
        self.readers = readers

    def grid(self, d: object) -> tuple[Int32, int, int]:
        m, n = self.cluster_shape_mn
        return super().num_tiles((d, ())) * m, n, 1

    def setup(self, smem: SmemAllocator, d: cute.Tensor, bounds: list[cute.FastDivmodDivisor]) -> ClcTiles:
        thread = pipeline.Agent.Thread
        answers = pipeline.PipelineClcFetchAsync.create(
            num_stages=1,
            producer_group=pipeline.CooperativeGroup(thread),
            consumer_group=pipeline.CooperativeGroup(thread, self.readers),
            cta_layout_vmnk=cute.make_layout((1, *self.cluster_shape_mn, 1)),
            defer_sync=True,
        )
        answer = smem.allocate_tensor(Int32, cute.make_layout(_ANSWER_WORDS), 16).iterator
        return ClcTiles(d, bounds, answers, answer)

    def tile_loop(self, tiles: ClcTiles) -> ClcTileLoop:
        return ClcTileLoop(self, tiles)

    @cute.jit
    def request_tiles(self, tiles: ClcTiles):
        """Ask for one tile after the other, once all readers have the one before."""
        requests = tiles.answers.make_producer()
        for _ in self.tile_loop(tiles):
            request = requests.acquire_and_advance()
            with arch.elect_one():
                arch.issue_clc_query(request.barrier, tiles.answer)
        requests.tail()

    def num_tiles(self, tiles: ClcTiles) -> Int32:
        return super().num_tiles((tiles.d, ()))

    def first(self) -> Int32:
        return arch.block_idx()[0] // self.cluster_shape_mn[0]

    def tile(self, number: Int32, tiles: ClcTiles) -> GemmTile:
        m, n, batch = self.cluster_coord(number, (tiles.d, tiles.divisors))
        x, y, _ = arch.block_idx()
        rows, columns = self.cluster_shape_mn
        return GemmTile(m * rows + x % rows, n * columns + y, batch, batch)
