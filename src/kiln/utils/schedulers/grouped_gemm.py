"""CuTe's tile scheduler of grouped GEMMs whose shapes (m, n, k, l) lie in global memory.

The clusters of all problems are numbered one problem after the other, within a problem along M first (or along N, as
the parameters say). A search starts at the problem of the last tile.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32, Integer
from ...cute import jit
from ..value_parts import ValueParts
from .static_persistent import PersistentTileSchedulerParams, StaticPersistentTileScheduler, WorkTileInfo

__all__ = [
    "GroupSearchResult",
    "GroupedGemmGroupSearchState",
    "GroupedGemmTileSchedulerHelper",
    "GroupedWorkTileInfo",
    "StaticPersistentGroupTileScheduler",
    "create_initial_search_state",
]


@dataclasses.dataclass
class GroupSearchResult(ValueParts):
    """The problem of a tile, the tile's coordinate in it, the problem's shape, and its number of tiles along K.

    Past the last problem `is_valid` is false, `group_idx` is the number of problems, and all else is 0.
    """

    group_idx: Any
    cta_tile_idx_m: Any
    cta_tile_idx_n: Any
    problem_shape_m: Any
    problem_shape_n: Any
    problem_shape_k: Any
    cta_tile_count_k: Any
    is_valid: Any = True


@dataclasses.dataclass
class GroupedGemmGroupSearchState(ValueParts):
    """Where the next search starts: the problem of the last tile, and how many clusters come before it.

    `tile_count_searched` counts the clusters up to the end of that problem; `found` is false past the last one.
    """

    start_group_idx: Int32
    tile_count_prev_group: Int32
    tile_count_searched: Int32 | int = 0
    found: Boolean | bool = False


def create_initial_search_state(*, loc: object = None, ip: object = None) -> GroupedGemmGroupSearchState:
    """Return the state of a search that starts at the first problem."""
    return GroupedGemmGroupSearchState(Int32(0), Int32(0), Int32(0), Boolean(False))


class GroupedWorkTileInfo(WorkTileInfo):
    """A tile of a scheduler, and its place in its problem."""

    def __init__(self, tile_idx: object, is_valid_tile: object, group_search_result: Any) -> None:
        super().__init__(tile_idx, is_valid_tile)
        self.group_search_result = group_search_result


class GroupedGemmTileSchedulerHelper(ValueParts):
    """Finds the problem of a tile, for schedulers over (CTAs along M, CTAs along N, clusters of all problems)."""

    def __init__(
        self,
        group_count: Any,
        tile_sched_params: PersistentTileSchedulerParams,
        cluster_tile_shape_mnk: object,
        search_state: GroupedGemmGroupSearchState,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        if not isinstance(group_count, (int, Integer)):
            raise type_error(f"group_count is {group_count!r}", "the number of problems")
        if tile_sched_params.swizzle_size != 1:
            raise type_error(
                f"swizzle_size is {tile_sched_params.swizzle_size}: clusters of a group are numbered one problem after the other",
                "swizzle_size=1",
            )
        tile = cluster_tile_shape_mnk
        if not isinstance(tile, tuple) or len(tile) != 3 or not all(isinstance(e, int) and e >= 1 for e in tile):
            raise type_error(
                f"cluster_tile_shape_mnk is {tile!r}",
                "the elements of a cluster's tile along M, N and K, known when compiling",
            )
        self.group_count = group_count
        self.params = tile_sched_params
        self.cluster_tile_shape_mnk: tuple[int, int, int] = tile
        self.search_state: GroupedGemmGroupSearchState = search_state

    def _find(self, cluster: object, problem_shape_mnkl: object) -> GroupSearchResult:
        """Return the problem of a cluster, with the cluster's coordinate in clusters."""
        state = self.search_state
        group, first, clusters, place, shape = _search(
            Int32(cluster),
            Int32(self.group_count),
            state.start_group_idx,
            state.tile_count_prev_group,
            problem_shape_mnkl,
            self.cluster_tile_shape_mnk,
            self.params.raster_along_m,
        )
        is_valid = group < self.group_count
        self.search_state = GroupedGemmGroupSearchState(group, first, first + clusters, is_valid)
        return GroupSearchResult(group, *place, *shape, is_valid=is_valid)

    def delinearize_z(
        self, cta_tile_coord: Any, problem_shape_mnkl: object, *, loc: object = None, ip: object = None
    ) -> GroupSearchResult:
        """Return the problem of the tile (m in the cluster, n in the cluster, number of the cluster). Shapes are a
        tensor (problems, 4)."""
        x, y, cluster = cta_tile_coord
        result = self._find(cluster, problem_shape_mnkl)
        rows, columns, _ = self.params.cluster_shape_mnk
        result.cta_tile_idx_m = result.cta_tile_idx_m * rows + x
        result.cta_tile_idx_n = result.cta_tile_idx_n * columns + y
        return result

    def search_cluster_tile_count_k(
        self, cta_tile_coord: Any, problem_shape_mnkl: Any, *, loc: object = None, ip: object = None
    ) -> tuple[Any, Any]:
        """Return how many tiles the problem of a tile has along K, and the problem's number."""
        result = self._find(cta_tile_coord[2], problem_shape_mnkl)
        return result.cta_tile_count_k, result.group_idx


@jit
def _search(cluster: Any, groups: Any, group: Any, first: Any, shapes: Any, tile: Any, along_m: Any):
    """Return a cluster's problem, the clusters before it and in it, the cluster's coordinate, and (m, n, k, tiles along
    k)."""
    if cluster < first:  # before the last problem: search from the first one
        group = Int32(0)
        first = Int32(0)
    m = Int32(0)
    n = Int32(0)
    rows = Int32(0)
    columns = Int32(0)
    looking = group < groups
    while looking:
        m = Int32(shapes[group, 0])
        n = Int32(shapes[group, 1])
        rows = (m + (tile[0] - 1)) // tile[0]
        columns = (n + (tile[1] - 1)) // tile[1]
        looking = cluster >= first + rows * columns
        if looking:
            first += rows * columns
            group += 1
            looking = group < groups
    x = Int32(0)
    y = Int32(0)
    k = Int32(0)
    if group < groups:
        k = Int32(shapes[group, 2])
        if along_m:
            x = (cluster - first) % rows
            y = (cluster - first) // rows
        else:
            x = (cluster - first) // columns
            y = (cluster - first) % columns
    else:
        m = Int32(0)
        n = Int32(0)
        rows = Int32(0)
    return group, first, rows * columns, (x, y), (m, n, k, (k + (tile[2] - 1)) // tile[2])


class StaticPersistentGroupTileScheduler(StaticPersistentTileScheduler):
    """The tiles of one CTA in a grouped GEMM.

    Its work tiles also have a `group_search_result`. A tile is valid as long as a problem has it: the parameters may
    name more clusters than the problems have.
    """

    def __init__(self, start: tuple[Any, ...], helper: GroupedGemmTileSchedulerHelper, problem_shape_mnkl: Any) -> None:
        super().__init__(*start)
        self.helper = helper
        self.problem_shape_mnkl = problem_shape_mnkl

    @staticmethod
    def create(  # pyright: ignore[reportIncompatibleMethodOverride]
        params: PersistentTileSchedulerParams,
        block_idx: object,
        grid_dim: object,
        cluster_tile_shape_mnk: object,
        initial_search_state: GroupedGemmGroupSearchState,
        group_count: object,
        problem_shape_mnkl: object,
        use_cached_problem_shapes: bool = False,
        *,
        loc: object = None,
        ip: object = None,
    ) -> StaticPersistentGroupTileScheduler:
        """Return the scheduler of the CTA `cute.arch.block_idx()` in a grid `cute.arch.grid_dim()` of whole clusters.

        Shapes are read where a search needs them; `use_cached_problem_shapes` has no effect.
        """
        start = StaticPersistentTileScheduler._start(params, block_idx, grid_dim)
        helper = GroupedGemmTileSchedulerHelper(group_count, params, cluster_tile_shape_mnk, initial_search_state)
        return StaticPersistentGroupTileScheduler(start, helper, problem_shape_mnkl)

    def delinearize_z(self, cta_tile_coord: object, *, loc: object = None, ip: object = None) -> GroupSearchResult:
        """Return the problem of the tile (m in the cluster, n in the cluster, number of the cluster)."""
        return self.helper.delinearize_z(cta_tile_coord, self.problem_shape_mnkl)

    def get_current_work(self, *, loc: object = None, ip: object = None) -> GroupedWorkTileInfo:
        """Return the tile of this CTA; past the last problem, an invalid tile."""
        tile = super().get_current_work()
        result = self.delinearize_z((*self.cta_id_in_cluster[:2], self._current_work_linear_idx))
        return GroupedWorkTileInfo(tile.tile_idx, Boolean(tile.is_valid_tile) & result.is_valid, result)

    def initial_work_tile_info(self, *, loc: object = None, ip: object = None) -> GroupedWorkTileInfo:
        """Return the first tile."""
        return self.get_current_work()

    def prefetch_problem_shapes(self, *, loc: object = None, ip: object = None) -> None:
        """Do nothing: shapes are read where a search needs them."""
