"""CuTe's static persistent tile scheduler: as many clusters as run at a time, each of which takes one tile after the
other.

Cluster c of n takes tiles c, c + n, c + 2 n, ...
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.numeric.operators import select
from ...base_dsl.typing import Int32, Integer
from ...cute import FastDivmodDivisor, Layout, arch, ceil_div, make_layout
from ..value_parts import ValueParts
from .work_tile import WorkTileInfo

__all__ = [
    "PersistentTileSchedulerParams",
    "StaticPersistentRuntimeTileScheduler",
    "StaticPersistentTileScheduler",
    "WorkTileInfo",
]


class PersistentTileSchedulerParams(ValueParts):
    """A problem of (m, n, l) tiles in clusters of (m, n, 1) CTAs with a tile each, and the raster order of clusters.

    Clusters are numbered along M first (or along N), then along the other mode, then along l. With a `swizzle_size` of
    s, s clusters side by side in the other mode come first, so that clusters that run at the same time share more
    operands. Counts that are no multiple of the cluster, or of s clusters, are rounded up: there are tiles outside the
    problem, whose loads and stores a kernel predicates like those of its last tiles.

    A launch with `fallback_cluster` may have smaller clusters: their shape is `fallback_cluster_shape_mnk`, and the CTAs
    of one have neighbouring tiles of those that a whole cluster would have.
    """

    __kiln_immutable__ = True

    def __init__(
        self,
        problem_shape_ntile_mnl: Any,
        cluster_shape_mnk: object,
        swizzle_size: int = 1,
        raster_along_m: bool = True,
        *,
        fallback_cluster_shape_mnk: tuple[int, int, int] | None = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        if not isinstance(problem_shape_ntile_mnl, tuple) or len(problem_shape_ntile_mnl) != 3:
            raise type_error(
                f"problem_shape_ntile_mnl is {problem_shape_ntile_mnl!r}", "the number of tiles along M, N and L"
            )
        for tiles in problem_shape_ntile_mnl:
            if not isinstance(tiles, (int, Integer)) or (isinstance(tiles, int) and tiles < 0):
                raise type_error(
                    f"problem_shape_ntile_mnl has {tiles!r} tiles along a mode", "each is an integer of at least 0"
                )
        cluster = _cluster("cluster_shape_mnk", cluster_shape_mnk)
        fallback = fallback_cluster_shape_mnk
        if fallback is not None:
            fallback = _cluster("fallback_cluster_shape_mnk", fallback)
            if any(extent % smaller for extent, smaller in zip(cluster, fallback, strict=True)):
                raise type_error(
                    f"cluster_shape_mnk is {cluster} and fallback_cluster_shape_mnk {fallback}",
                    "each extent of the cluster is a multiple of the fallback's",
                )
        if not _is_count(swizzle_size):
            raise type_error(f"swizzle_size is {swizzle_size!r}", "at least 1, known when compiling")
        if not isinstance(raster_along_m, bool):
            raise type_error(f"raster_along_m is {raster_along_m!r}", "True or False, known when compiling")
        self.problem_shape_ntile_mnl: tuple[Any, Any, Any] = problem_shape_ntile_mnl
        self.cluster_shape_mnk: tuple[int, int, int] = cluster
        self.fallback_cluster_shape_mnk = fallback
        self.swizzle_size = swizzle_size
        self.raster_along_m = raster_along_m
        along_m, along_n = (ceil_div(problem_shape_ntile_mnl[i], cluster[i]) for i in (0, 1))
        fast, slow = (along_m, along_n) if raster_along_m else (along_n, along_m)
        strips = ceil_div(slow, swizzle_size)
        self._num_clusters = fast * strips * swizzle_size * problem_shape_ntile_mnl[2]
        self._fast = _divisor(fast)
        self._strips = _divisor(strips)

    @property
    def problem_layout_ncluster_mnl(self) -> Layout:
        """The clusters along M, N and L, to the number of each in raster order; with a swizzle, (side, strip) is a mode."""
        along_m, along_n = (ceil_div(self.problem_shape_ntile_mnl[i], self.cluster_shape_mnk[i]) for i in (0, 1))
        fast, slow = (along_m, along_n) if self.raster_along_m else (along_n, along_m)
        side = self.swizzle_size
        strips = ceil_div(slow, side)
        first = make_layout(fast, stride=side)
        second = make_layout((side, strips), stride=(1, side * fast)) if side > 1 else make_layout(slow, stride=fast)
        modes = (first, second) if self.raster_along_m else (second, first)
        batches = make_layout(self.problem_shape_ntile_mnl[2], stride=side * fast * strips)
        return make_layout([*modes, batches])

    def get_grid_shape(
        self, max_active_clusters: object, *, loc: object = None, ip: object = None
    ) -> tuple[Any, Any, Any]:
        """Return the grid to launch: as many clusters as run at a time, or fewer if the problem has fewer."""
        if isinstance(max_active_clusters, int) and max_active_clusters < 1:
            raise type_error(
                f"max_active_clusters is {max_active_clusters}",
                "at least 1: HardwareInfo().get_max_active_clusters(CTAs of a cluster)",
            )
        clusters = select(self._num_clusters < max_active_clusters, self._num_clusters, max_active_clusters)
        return (*self.cluster_shape_mnk[:2], clusters)

    def runtime_cluster_dims(self) -> tuple[Int32, Int32, Int32]:
        """Return the extents of the cluster that this CTA runs in: preferred and fallback clusters differ."""
        return arch.block_in_cluster_dim()

    def _cluster_at(self, number: Any) -> tuple[Any, Any, Any]:
        """Return the coordinate (m, n, l) of a cluster, counted in clusters."""
        rest, side = divmod(number, self.swizzle_size) if self.swizzle_size > 1 else (number, 0)
        rest, fast = divmod(rest, self._fast)
        l, strip = divmod(rest, self._strips)
        slow = strip * self.swizzle_size + side
        return (fast, slow, l) if self.raster_along_m else (slow, fast, l)


def _cluster(name: str, shape: object) -> tuple[int, int, int]:
    if not isinstance(shape, tuple) or len(shape) != 3 or not all(_is_count(extent) for extent in shape):
        raise type_error(f"{name} is {shape!r}", "three integers of at least 1, known when compiling")
    m, n, k = shape
    if k != 1:
        raise type_error(f"a cluster of {shape}: tiles along K are one block's work", f"{name}=({m}, {n}, 1)")
    return m, n, k


def _is_count(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 1


def _divisor(count: Any) -> Any:
    """Return a divisor for a number of clusters; it is at least 1, and unused where there are no tiles."""
    if isinstance(count, int):
        return max(count, 1)
    return FastDivmodDivisor(Int32(select(count > 0, count, 1)))


class StaticPersistentTileScheduler(ValueParts):
    """The tiles of one CTA, one after the other. Each role of a kernel can create its own."""

    def __init__(
        self,
        params: PersistentTileSchedulerParams,
        num_persistent_clusters: object,
        current_work_linear_idx: object,
        cta_id_in_cluster: Any,
        num_tiles_executed: object,
    ) -> None:
        self.params = params
        self.num_persistent_clusters: Int32 = Int32(num_persistent_clusters)
        self._current_work_linear_idx = Int32(current_work_linear_idx)
        self.cta_id_in_cluster = cta_id_in_cluster
        self._num_tiles_executed = Int32(num_tiles_executed)

    @staticmethod
    def _start(params: object, block_idx: Any, grid_dim: Any) -> tuple[Any, ...]:
        """Return what the scheduler of a CTA starts with, in a grid of whole clusters."""
        if not isinstance(params, PersistentTileSchedulerParams):
            raise type_error(
                f"a tile scheduler made of {type(params).__name__}",
                "PersistentTileSchedulerParams(tiles (m, n, l), cluster (m, n, 1))",
            )
        m, n, _ = params.cluster_shape_mnk
        x, y, z = (_count(i) for i in block_idx)
        across, down, deep = (_count(extent) for extent in grid_dim)
        across = across // m
        down = down // n
        number = x // m + across * (y // n + down * z)
        return params, across * down * deep, number, (x % m, y % n, Int32(0)), 0

    @staticmethod
    def create(
        params: PersistentTileSchedulerParams,
        block_idx: object,
        grid_dim: object,
        *,
        loc: object = None,
        ip: object = None,
    ) -> StaticPersistentTileScheduler:
        """Return the scheduler of CTA `cute.arch.block_idx()` in a grid `cute.arch.grid_dim()` of whole clusters."""
        return StaticPersistentTileScheduler(*StaticPersistentTileScheduler._start(params, block_idx, grid_dim))

    @staticmethod
    def get_grid_shape(
        params: PersistentTileSchedulerParams, max_active_clusters: object, *, loc: object = None, ip: object = None
    ) -> tuple[Any, Any, Any]:
        """Return the grid to launch: as many clusters as run at a time, or fewer if the problem has fewer."""
        return params.get_grid_shape(max_active_clusters)

    def get_current_work(self, *, loc: object = None, ip: object = None) -> WorkTileInfo:
        """Return the tile (m, n, l) of this CTA; past the last one, an invalid tile."""
        number = self._current_work_linear_idx._assume(nonneg=True)
        m, n, l = self.params._cluster_at(number)
        rows, columns, _ = self.params.cluster_shape_mnk
        x, y, _ = self.cta_id_in_cluster
        return WorkTileInfo((m * rows + x, n * columns + y, l), number < self.params._num_clusters)

    def initial_work_tile_info(self, *, loc: object = None, ip: object = None) -> WorkTileInfo:
        """Return the first tile."""
        return self.get_current_work()

    def advance_to_next_work(self, *, advance_count: Any = 1, loc: object = None, ip: object = None) -> None:
        """Advance by one tile, or by `advance_count`; that counts as one tile."""
        self._current_work_linear_idx = self._current_work_linear_idx + self.num_persistent_clusters * advance_count
        self._num_tiles_executed = self._num_tiles_executed + 1

    @property
    def num_tiles_executed(self) -> Int32:
        """How often this scheduler was advanced."""
        return self._num_tiles_executed

    @num_tiles_executed.setter
    def num_tiles_executed(self, count: object) -> None:
        self._num_tiles_executed = Int32(count)


def _count(x: object) -> Any:
    return Int32(x)._assume(nonneg=True)


class StaticPersistentRuntimeTileScheduler(StaticPersistentTileScheduler):
    """Gives coordinates of clusters, counted in clusters, in a problem whose end only the kernel knows.

    `inner_mode` (0 for M, 1 for N) is the mode they are numbered along first; the other mode has no end. Tiles are
    valid up to the end that the parameters name; a kernel whose problem ends elsewhere compares the coordinate itself.
    """

    def __init__(
        self,
        params: PersistentTileSchedulerParams,
        num_persistent_clusters: object,
        current_work_linear_idx: object,
        cta_id_in_cluster: object,
        num_tiles_executed: object,
        inner_mode: int = 1,
    ) -> None:
        super().__init__(
            params, num_persistent_clusters, current_work_linear_idx, cta_id_in_cluster, num_tiles_executed
        )
        if inner_mode not in (0, 1):
            raise type_error(f"inner_mode is {inner_mode!r}", "0 for M, 1 for N")
        batches = params.problem_shape_ntile_mnl[2]
        if isinstance(batches, int) and batches > 1:
            raise type_error(
                f"{batches} problems along L: the mode without an end comes last",
                "one problem, or StaticPersistentTileScheduler",
            )
        self.inner_mode = inner_mode
        inner, outer = (
            ceil_div(params.problem_shape_ntile_mnl[mode], params.cluster_shape_mnk[mode])
            for mode in (inner_mode, 1 - inner_mode)
        )
        self._inner = _divisor(inner)
        self._end = inner * outer

    @staticmethod
    def create(  # pyright: ignore[reportIncompatibleMethodOverride]
        params: PersistentTileSchedulerParams,
        block_idx: object,
        grid_dim: object,
        inner_mode: int = 1,
        *,
        loc: object = None,
        ip: object = None,
    ) -> StaticPersistentRuntimeTileScheduler:
        """Return the scheduler of CTA `cute.arch.block_idx()` in a grid `cute.arch.grid_dim()` of whole clusters."""
        start = StaticPersistentTileScheduler._start(params, block_idx, grid_dim)
        return StaticPersistentRuntimeTileScheduler(*start, inner_mode=inner_mode)

    def get_current_work(self, *, loc: object = None, ip: object = None) -> WorkTileInfo:
        """Return the cluster's coordinate (m, n, 0)."""
        number = self._current_work_linear_idx._assume(nonneg=True)
        outer, inner = divmod(number, self._inner)
        m, n = (inner, outer) if self.inner_mode == 0 else (outer, inner)
        return WorkTileInfo((m, n, Int32(0)), number < self._end)
