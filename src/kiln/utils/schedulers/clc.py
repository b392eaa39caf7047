"""CuTe's dynamic persistent tile scheduler: clusters take over the tiles of clusters that have not started yet.

The grid has a CTA for each tile. A cluster that is done with its tile asks the hardware (cluster launch control) to
cancel a cluster that waits for an SM, and does that one's tile, until there are none.
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32
from ...cute import arch, ceil_div
from ...cute.tensor.pointer import Pointer
from ..value_parts import ValueParts
from .static_persistent import PersistentTileSchedulerParams
from .work_tile import WorkTileInfo

__all__ = ["ClcDynamicPersistentTileScheduler", "ClcDynamicPersistentTileSchedulerParams"]


class ClcDynamicPersistentTileSchedulerParams(PersistentTileSchedulerParams):
    """A problem of (m, n, l) tiles in clusters of (m, n, 1) CTAs with a tile each, and the raster order of clusters.

    The raster order is that of `PersistentTileSchedulerParams`; clusters are numbered as the hardware starts them.
    """

    def get_grid_shape(self, *, loc: object = None, ip: object = None) -> tuple[Any, Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the grid to launch: a CTA for each tile, rounded up to whole clusters and whole swizzles."""
        rows, columns, _ = self.cluster_shape_mnk
        tiles_m, tiles_n, tiles_l = self.problem_shape_ntile_mnl
        slow = self.swizzle_size
        units = (rows, columns * slow) if self.raster_along_m else (rows * slow, columns)
        return ceil_div(tiles_m, units[0]) * units[0], ceil_div(tiles_n, units[1]) * units[1], tiles_l

    def _tile_of(
        self, first: tuple[Any, Any, Any], offset: tuple[Any, Any, Any], grid_dim: Any
    ) -> tuple[Any, Any, Any]:
        """Return the tile (m, n, l) of the CTA at `offset` in the cluster whose first CTA has the index `first`."""
        x, y, z = first
        if not self.raster_along_m or self.swizzle_size != 1:
            rows, columns, _ = self.cluster_shape_mnk
            across = Int32(grid_dim[0]) // rows
            down = Int32(grid_dim[1]) // columns
            m, n, z = self._cluster_at((x // rows + across * (y // columns + down * z))._assume(nonneg=True))
            is_whole = self.fallback_cluster_shape_mnk is None  # else a cluster may begin inside one
            x = m * rows if is_whole else m * rows + x % rows
            y = n * columns if is_whole else n * columns + y % columns
        return x + offset[0], y + offset[1], z + offset[2]


class ClcDynamicPersistentTileScheduler(ValueParts):
    """The tiles of one CTA, one after the other. Each role of a kernel can create its own.

    One warp of CTA 0 of the cluster requests the next tile (`advance_to_next_work`), for all CTAs of the cluster. Each
    warp that has tiles waits for the answer (`PipelineClcFetchAsync`), reads it (`get_current_work`), and releases it.
    """

    def __init__(
        self,
        params: ClcDynamicPersistentTileSchedulerParams,
        first: Any,
        cta_id_in_cluster: Any,
        grid_dim: Any,
        num_tiles_executed: object,
        clc_response_ptr: Pointer,
        insert_fence: bool = True,
    ) -> None:
        self.params = params
        self._first = first
        self.cta_id_in_cluster = cta_id_in_cluster
        self._grid_dim = grid_dim
        self._num_tiles_executed = Int32(num_tiles_executed)
        self.clc_response_ptr = clc_response_ptr
        self.insert_fence = insert_fence

    @staticmethod
    def create(
        params: ClcDynamicPersistentTileSchedulerParams,
        block_idx: Any,
        grid_dim: Any,
        clc_response_ptr: Pointer,
        insert_fence: bool = True,
        *,
        loc: object = None,
        ip: object = None,
    ) -> ClcDynamicPersistentTileScheduler:
        """Return the scheduler of CTA `cute.arch.block_idx()`.

        `clc_response_ptr` points to 16 bytes of shared memory, aligned to 16, the same in all CTAs. `insert_fence`
        orders the next answer, which the async proxy writes, behind a read of the last one.
        """
        if not isinstance(params, ClcDynamicPersistentTileSchedulerParams):
            raise type_error(
                f"a dynamic tile scheduler made of {type(params).__name__}",
                "ClcDynamicPersistentTileSchedulerParams(tiles (m, n, l), cluster (m, n, 1))",
            )
        if not isinstance(clc_response_ptr, Pointer):
            raise type_error(
                f"clc_response_ptr is {type(clc_response_ptr).__name__}",
                "a pointer to 16 bytes of shared memory: storage.clc_response.data_ptr()",
            )
        offset = tuple(_count(i) for i in arch.block_in_cluster_idx())
        first = tuple(_count(index) - within for index, within in zip(block_idx, offset, strict=True))
        sizes = tuple(_count(extent) for extent in grid_dim)
        return ClcDynamicPersistentTileScheduler(params, first, offset, sizes, 0, clc_response_ptr, insert_fence)

    @staticmethod
    def get_grid_shape(
        params: ClcDynamicPersistentTileSchedulerParams, *, loc: object = None, ip: object = None
    ) -> tuple[Any, Any, Any]:
        """Return the grid to launch: a CTA for each tile, rounded up to whole clusters."""
        return params.get_grid_shape()

    def initial_work_tile_info(self, *, loc: object = None, ip: object = None) -> WorkTileInfo:
        """Return the tile that this CTA was launched for."""
        return WorkTileInfo(self.params._tile_of(self._first, self.cta_id_in_cluster, self._grid_dim), True)

    def advance_to_next_work(self, mbarrier_addr: Pointer, *, loc: object = None, ip: object = None) -> None:
        """Request the next tile for all CTAs of the cluster, by one thread of this warp.

        The mbarrier is that of the answer's stage: `PipelineClcFetchAsync.producer_get_barrier(state)`.
        """
        with arch.elect_one():
            arch.issue_clc_query(mbarrier_addr, self.clc_response_ptr)

    def work_tile_info_from_clc_response(
        self, result_addr: Pointer, *, loc: object = None, ip: object = None
    ) -> WorkTileInfo:
        """Return the tile of this CTA that an answer gives to its cluster; an invalid tile if no cluster waits."""
        x, y, z, is_valid = arch.clc_response(result_addr)
        return WorkTileInfo(
            self.params._tile_of((x, y, z), self.cta_id_in_cluster, self._grid_dim), is_valid != Int32(0)
        )

    def get_current_work(self, *, loc: object = None, ip: object = None) -> WorkTileInfo:
        """Return the tile (m, n, l) of this CTA that the last answer gave to its cluster; then an invalid tile."""
        tile = self.work_tile_info_from_clc_response(self.clc_response_ptr)
        if self.insert_fence:
            arch.fence_view_async_shared()
        self._num_tiles_executed = self._num_tiles_executed + 1
        return tile

    @property
    def num_tiles_executed(self) -> Int32:
        """How many answers this scheduler has read."""
        return self._num_tiles_executed


def _count(x: object) -> Any:
    return Int32(x)._assume(nonneg=True)
