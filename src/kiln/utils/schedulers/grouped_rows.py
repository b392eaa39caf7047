"""Tile scheduler of a grouped GEMM whose groups are ranges of rows: the device finds out which tiles there are."""

from __future__ import annotations

from typing import Any

from ...base_dsl.ranges import range_constexpr
from ...base_dsl.typing import Int32
from ...cute import Tensor, arch, ceil_div, jit, make_layout
from .persistent import GemmTile, PersistentTileScheduler
from .raster import swizzled_tile

__all__ = ["GroupedRowsTileScheduler"]

_WARP = 32


class GroupedRowsTileScheduler(PersistentTileScheduler):
    """Persistent tiles of up to `max_groups` groups (a power of two), whose bounds lie in gmem.

    `contiguous`: a bound is where a group's rows end in one array; otherwise it is how many rows of its batch a group
    uses. Rows lie along M, or along N with `swap_ab`.
    """

    num_bounds = 1

    def __init__(
        self,
        tile_shape_mn: tuple[int, int],
        cluster_shape_mn: tuple[int, int],
        raster_group: int,
        num_clusters: int,
        max_groups: int,
        contiguous: bool,
        swap_ab: bool = False,
        skips_empty_warpgroups: bool = False,
    ) -> None:
        super().__init__(tile_shape_mn, cluster_shape_mn, raster_group, num_clusters)
        self.skips_empty_warpgroups = skips_empty_warpgroups
        self.max_groups = max_groups
        self.ragged = contiguous
        self.swap_ab = swap_ab

    @jit
    def grid(self, d: Any):
        """Return the grid: all clusters that run at a time, since the host does not know how many tiles there are."""
        return *self.cluster_shape_mn, self.num_clusters

    def divisors(self, d: object) -> list[Any]:
        """Return no divisors: the host does not know how many rows a group has."""
        return []

    def setup(self, smem: Any, d: Any, bounds: Any) -> Any:
        """Return the result and a table in smem: the clusters before each group, and the bound of its predecessor."""
        table = smem.allocate_tensor(Int32, make_layout((self.max_groups + 1, 2)), 16)
        self._fill(table, bounds[0], d)
        arch.sync_threads()
        return d, table

    @jit
    def _fill(self, table: Tensor, bounds: Tensor, d: Any):
        """Let one warp fill the table; bounds outside the array are clamped."""
        lane = arch.lane_idx()
        mode = 1 if self.swap_ab else 0
        limit = d.shape[mode]
        cluster_rows = self.tile_shape_mn[mode] * self.cluster_shape_mn[mode]
        if arch.warp_idx() == 0:
            self._scan(table, bounds, lane, limit, cluster_rows)

    @jit
    def _scan(self, table: Tensor, bounds: Tensor, lane: Int32, limit: Any, cluster_rows: Any):
        before = Int32(0)
        for first in range_constexpr(0, self.max_groups, _WARP):
            group = first + lane
            rows = Int32(0)
            end = Int32(0)
            if group < bounds.shape[0]:
                end = self._clamp(bounds[group], limit)
                rows = end
                if self.ragged and group > 0:
                    rows = max(end - self._clamp(bounds[group - 1], limit), 0)
            tiles = ceil_div(rows, cluster_rows)
            for step in (1, 2, 4, 8, 16):  # inclusive prefix sum over the lanes
                other = arch.shuffle_sync_up(tiles, step, mask_and_clamp=0)
                if lane >= step:
                    tiles = tiles + other
            table[group + 1, 0] = before + tiles
            table[group + 1, 1] = end
            before = before + arch.shuffle_sync(tiles, _WARP - 1)
        if lane < 2:
            table[0, lane] = 0

    @jit
    def _clamp(self, bound: Any, limit: Any):
        return Int32(min(max(bound, 0), limit))

    def num_tiles(self, tiles: Any) -> Any:
        d, table = tiles
        return table[self.max_groups, 0] * self._columns(d)

    def _columns(self, d: Any) -> Any:
        """Return the clusters of tiles along the mode without groups."""
        mode = 0 if self.swap_ab else 1
        return ceil_div(d.shape[mode], self.tile_shape_mn[mode] * self.cluster_shape_mn[mode])

    @jit
    def tile(self, number: Any, tiles: Any):
        d, table = tiles
        columns = self._columns(d)
        group = Int32(0)
        step = self.max_groups
        for _ in range_constexpr(self.max_groups.bit_length() - 1):  # binary search
            step = step // 2
            if table[group + step, 0] * columns <= number:
                group = group + step
        before = table[group, 0]
        row, column = swizzled_tile(number - before * columns, table[group + 1, 0] - before, columns, self.raster_group)
        x, y, _ = arch.block_idx()
        m, n = (column, row) if self.swap_ab else (row, column)
        batch, start, end = (
            (0, table[group, 1], table[group + 1, 1]) if self.ragged else (group, 0, table[group + 1, 1])
        )
        return GemmTile(
            m * self.cluster_shape_mn[0] + x, n * self.cluster_shape_mn[1] + y, batch, group, start, end - start
        )
