"""Tile schedulers of GEMMs: one tile to a CTA, several in turn (persistent), or several CTAs to a tile (split-K)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...base_dsl.ranges import DynamicIterator, const_expr
from ...base_dsl.typing import Boolean, Int32, Int64
from ...cute import arch, ceil_div, fast_divmod_create_divisor, jit
from .raster import raster_divisors, raster_tile

__all__ = [
    "MAX_GRID_BATCHES",
    "GemmTile",
    "PersistentTileScheduler",
    "SingleTile",
    "SingleTileScheduler",
    "SplitKTileScheduler",
    "TileLoop",
    "TileLoopAhead",
]

MAX_GRID_BATCHES = 65535
"""The largest extent of a grid's second and third mode."""
_RASTER_GROUP = 16
"""Rows of tiles that `SingleTileScheduler` computes side by side."""


class SingleTile(NamedTuple):
    """The tile (m, n) of a batch that a CTA computes, and its rank among the CTAs that split K of that tile."""

    tile: tuple[Any, Any]
    batch: Any
    rank: Any


class GemmTile(NamedTuple):
    """The tile (m, n) of batch `batch` of A and D and batch `batch_b` of B.

    Rows of a ragged problem begin at `row_start`, and there are `rows` of them (0: all rows of the batch).
    """

    m: Any
    n: Any
    batch: Any
    batch_b: Any
    row_start: Any = 0
    rows: Any = 0


class TileLoop(DynamicIterator["TileLoop"]):
    """The tiles of a CTA, one after the other: `for work in scheduler.tile_loop(tiles): tile = work.tile()`.

    An item is the loop itself, so that `tile` looks its tile up where registers and time are free for it. Of `parts`
    consumers that take turns, number `part` has every tile that is its turn.
    """

    def __init__(
        self, scheduler: PersistentTileScheduler, tiles: object, part: Int32 | int = 0, parts: int = 1
    ) -> None:
        self.scheduler = scheduler
        self.tiles = tiles
        self.number: Int32 = scheduler.first()
        self.stride: Int32 = scheduler.stride()
        self.num_tiles: Int32 = scheduler.num_tiles(tiles)
        if parts > 1:
            self.number = self.number + part * self.stride
            self.stride = parts * self.stride

    def has_item(self) -> Boolean:
        return self.number < self.num_tiles

    def item(self) -> TileLoop:
        return self

    def advance(self) -> None:
        self.number = self.number + self.stride

    def tile(self) -> GemmTile:
        """Return the tile of this CTA."""
        return self.scheduler.tile(self.number, self.tiles)


class TileLoopAhead(TileLoop):
    """Tiles that are looked up one ahead: a kernel that asks for a tile before its main loop need not wait for it."""

    def __init__(self, scheduler: PersistentTileScheduler, tiles: object) -> None:
        super().__init__(scheduler, tiles)
        self.next_tile = GemmTile(*[Int32(0)] * 6)
        self._look_up(self.number)

    def tile(self) -> GemmTile:
        return self.next_tile

    def look_ahead(self) -> None:
        """Look up the next tile, which `tile` returns from here on."""
        self._look_up(self.number + self.stride)

    @jit
    def _look_up(self, number: Int32):
        if number < self.num_tiles:
            self.next_tile = self.scheduler.tile(number, self.tiles)


def extents(d: Any) -> tuple[Any, ...]:
    """Return the extents of a result in 32 bits: those of more than 2**31 elements come in 64, and tiles are fewer."""
    return tuple(Int32(extent) if isinstance(extent, Int64) else extent for extent in d.shape)


class SingleTileScheduler:
    """One tile to a CTA, or to a cluster of `split_k` neighbouring CTAs, each of which has a part of K.

    `folds_batches`: batches are numbered along the grid's first mode, since there may be more than `MAX_GRID_BATCHES`.
    """

    def __init__(self, tile_shape_mn: tuple[int, int], split_k: int, folds_batches: bool = False) -> None:
        self.tile_shape_mn = tile_shape_mn
        self.split_k = split_k
        self.folds_batches = folds_batches

    def grid(self, d: object) -> tuple[Any, Any, int]:
        """Return the grid for a result (M, N, L)."""
        tiles_m, tiles_n = self._tiles(d)
        ctas = tiles_m * tiles_n * self.split_k
        batches = extents(d)[2]
        return (ctas * batches, 1, 1) if self.folds_batches else (ctas, batches, 1)

    def cluster(self) -> tuple[int, int, int] | None:
        """Return the cluster shape: the CTAs that share a tile."""
        return (self.split_k, 1, 1) if self.split_k > 1 else None

    def divisors(self, d: object) -> list[Any]:
        """Return what `work` divides by for a result (M, N, L). Called on the host."""
        tiles_m, tiles_n = self._tiles(d)
        batch_tiles = [fast_divmod_create_divisor(tiles_m * tiles_n)] if self.folds_batches else []
        return [*raster_divisors(tiles_m, tiles_n, _RASTER_GROUP), *batch_tiles]

    def work(self, d: Any, divisors: Any) -> SingleTile:
        """Return the tile of this CTA."""
        number, batch, _ = arch.block_idx()
        rank = number % self.split_k
        number = number // self.split_k
        if self.folds_batches:
            batch, number = divmod(number, divisors[2])
        return SingleTile(raster_tile(number, self._tiles(d)[0], divisors[:2], _RASTER_GROUP), batch, rank)

    def _tiles(self, d: object) -> tuple[Any, Any]:
        m, n, _ = extents(d)
        return ceil_div(m, self.tile_shape_mn[0]), ceil_div(n, self.tile_shape_mn[1])


class PersistentTileScheduler:
    """As many clusters as run at a time, each of which takes one cluster of tiles after the other.

    `num_clusters` run at a time; `raster_group` rows of clusters are computed side by side; without `batched` L is 1.
    `setup` returns the `tiles` that the other methods take; `tile_loop` goes through those of a CTA.
    """

    ragged = False
    """Whether the rows of a batch begin and end anywhere."""
    num_bounds = 0
    """How many tensors `setup` takes before the divisors."""
    skips_empty_warpgroups = False
    """Whether a warpgroup issues no MMA for a tile in which it has no rows."""
    reduces_later = False
    """Whether a second kernel adds split-K partials."""

    def __init__(
        self,
        tile_shape_mn: tuple[int, int],
        cluster_shape_mn: tuple[int, int],
        raster_group: int,
        num_clusters: int,
        batched: bool = True,
    ) -> None:
        self.tile_shape_mn = tile_shape_mn
        self.cluster_shape_mn = cluster_shape_mn
        self.raster_group = raster_group
        self.num_clusters = num_clusters
        self.batched = batched

    @jit
    def grid(self, d: Any) -> tuple[Any, Any, int]:
        """Return the grid for a result (M, N, L)."""
        return *self.cluster_shape_mn, min(self.num_tiles((d, ())), self.num_clusters)

    def cluster(self) -> tuple[int, int, int] | None:
        """Return the cluster shape, or None for single CTAs."""
        return None if self.cluster_shape_mn == (1, 1) else (*self.cluster_shape_mn, 1)

    @jit
    def divisors(self, d: Any):
        """Return what `tile` divides by for a result (M, N, L). Called on the host."""
        clusters_m, clusters_n = self._clusters(d)
        return [
            fast_divmod_create_divisor(max(clusters_m * clusters_n, 1)),
            *raster_divisors(clusters_m, clusters_n, self.raster_group),
        ]

    def setup(self, smem: object, d: object, bounds: object) -> Any:
        """Return the `tiles` of a result (M, N, L); all threads call it. `bounds`: `num_bounds` tensors, divisors."""
        return d, bounds

    def tile_loop(self, tiles: object, part: Int32 | int = 0, parts: int = 1) -> TileLoop:
        """Return the tiles of this CTA, or those of one of `parts` consumers that take turns."""
        return TileLoop(self, tiles, part, parts)

    def num_tiles(self, tiles: Any) -> Any:
        """Return the number of clusters of tiles."""
        d, _ = tiles
        clusters_m, clusters_n = self._clusters(d)
        return clusters_m * clusters_n * extents(d)[2]

    def first(self) -> Any:
        """Return the number of this CTA's first cluster of tiles."""
        return arch.block_idx()[2]

    def stride(self) -> Any:
        """Return the distance from this CTA's cluster of tiles to its next."""
        return arch.grid_dim()[2]

    def tile(self, number: object, tiles: object) -> GemmTile:
        """Return this CTA's tile of a cluster of tiles."""
        m, n, batch = self.cluster_coord(number, tiles)
        x, y, _ = arch.block_idx()
        return GemmTile(m * self.cluster_shape_mn[0] + x, n * self.cluster_shape_mn[1] + y, batch, batch)

    def cluster_coord(self, number: object, tiles: Any) -> tuple[Any, Any, Any]:
        """Return the coordinate (m, n, batch) of a cluster of tiles, counted in clusters."""
        d, (batch_clusters, *divisors) = tiles
        batch, number = divmod(number, batch_clusters) if self.batched else (0, number)
        return *raster_tile(number, self._clusters(d)[0], divisors, self.raster_group), batch

    def k_range(self, k_tiles: object, tiles: object) -> tuple[Any, Any]:
        """Return the first K tile of this CTA and how many it multiplies, of `k_tiles`."""
        return 0, k_tiles

    def _clusters(self, d: object) -> tuple[Any, Any]:
        tile_m, tile_n = self.tile_shape_mn
        x, y = self.cluster_shape_mn
        m, n, _ = extents(d)
        return ceil_div(m, tile_m * x), ceil_div(n, tile_n * y)


class SplitKTileScheduler(PersistentTileScheduler):
    """Gives each CTA one tile and a slice of K.

    The `split_k_cluster` CTAs of a cluster share a tile and reduce their accumulators before the epilogue. With
    `reduces_later`, K is also divided among the L results, which are partials of one GEMM for a second kernel to add.
    """

    def __init__(
        self,
        tile_shape_mn: tuple[int, int],
        raster_group: int,
        split_k_cluster: int,
        batched: bool = True,
        reduces_later: bool = False,
    ) -> None:
        super().__init__(tile_shape_mn, (1, 1), raster_group, 0, batched and not reduces_later)
        self.split_k_cluster = split_k_cluster
        self.reduces_later = reduces_later

    def grid(self, d: object) -> tuple[Any, Any, int]:
        return self.num_tiles((d, ())) * self.split_k_cluster, extents(d)[2] if self.reduces_later else 1, 1

    def cluster(self) -> tuple[int, int, int] | None:
        return (self.split_k_cluster, 1, 1) if self.split_k_cluster > 1 else None

    @jit
    def divisors(self, d: Any):
        parts = (
            [fast_divmod_create_divisor(self.split_k_cluster * extents(d)[2])] if const_expr(self.reduces_later) else []
        )
        return [*PersistentTileScheduler.divisors(self, d), *parts]

    def num_tiles(self, tiles: Any) -> Any:
        clusters_m, clusters_n = self._clusters(tiles[0])
        return clusters_m * clusters_n if self.reduces_later else super().num_tiles(tiles)

    def first(self) -> Any:
        return arch.block_idx()[0] // self.split_k_cluster

    def stride(self) -> Any:
        return arch.grid_dim()[0] // self.split_k_cluster

    def tile(self, number: Any, tiles: Any) -> GemmTile:
        m, n, batch = self.cluster_coord(number, (tiles[0], tiles[1][:3]))
        if self.reduces_later:
            batch = arch.block_idx()[1]
        return GemmTile(m, n, batch, batch)

    def k_range(self, k_tiles: Any, tiles: Any) -> tuple[Any, Any]:
        x, y, _ = arch.block_idx()
        part = x % self.split_k_cluster
        parts = self.split_k_cluster
        if self.reduces_later:
            part = part + y * self.split_k_cluster
            parts = tiles[1][-1]
        first = k_tiles * part // parts
        return first, k_tiles * (part + 1) // parts - first
