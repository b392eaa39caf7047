"""Which tiles a block computes."""

from __future__ import annotations

from typing import Any, NamedTuple

from .... import const_expr, cute, select_
from ....cute import arch

MAX_GRID_Y = 65535
"""Blocks along a mode of a grid that is not its first."""
_GROUP = 16
"""So many rows of tiles are computed side by side, to find each other's operands in the L2 cache."""


@cute.jit
def _order(tiles_m: Any, tiles_n: Any, group: Any):
    """What numbers of tiles are divided by, found on the host: tiles of a whole group of rows, and rows of the last group."""
    last = tiles_m - (max(tiles_m, 1) - 1) // group * group
    # Where there are fewer rows than a group's they are all of them, and so many tiles as 32 bits count.
    return [cute.fast_divmod_create_divisor(max(x, 1)) for x in (min(group, tiles_m) * tiles_n, last)]


def _place(number: Any, tiles_m: Any, order: Any, group: int) -> tuple[Any, Any]:
    """`swizzled_tile` without divisions, which a block would wait for before it loads anything."""
    of_group, last = order
    strip, number = divmod(number, of_group)
    first = strip * group
    whole = first + group <= tiles_m
    n = select_(whole, number // group, number // last)
    return first + number - n * select_(whole, group, last.divisor), n


class Work(NamedTuple):
    """What a block has to do: a tile (in M, in N) of a batch, and its place among the blocks that share the tile."""

    tile: tuple[Any, Any]
    batch: Any
    rank: Any


class WorkTile(NamedTuple):
    """A tile (in M, in N) of a batch of rows times a batch of the other matrix, with `rows` of them from `start` on (0: all)."""

    m: Any
    n: Any
    batch: Any
    matrix: Any
    start: Any = 0
    rows: Any = 0


class Sm80TileScheduler:
    """One tile to a block, or to `splits` neighbouring ones, which are a cluster and each take a part of K. `many`: more batches than `MAX_GRID_Y`."""

    def __init__(self, tile: tuple[int, int], splits: int, many: bool = False) -> None:
        self.tile = tile
        self.splits = splits
        self.many = many

    def grid(self, d: Any) -> tuple[Any, Any, int]:
        """The blocks for a result (M, N, L)."""
        tiles_m, tiles_n = self._tiles(d)
        blocks, batches = tiles_m * tiles_n * self.splits, d.shape[2]
        return (blocks * batches, 1, 1) if self.many else (blocks, batches, 1)

    def cluster(self) -> tuple[int, int, int] | None:
        """The blocks that share a tile."""
        return (self.splits, 1, 1) if self.splits > 1 else None

    def divisors(self, d: Any) -> list[Any]:
        """What `work` divides by, for a result (M, N, L). Called on the host."""
        tiles_m, tiles_n = self._tiles(d)
        of_batch = [cute.fast_divmod_create_divisor(tiles_m * tiles_n)] if self.many else []
        return [*_order(tiles_m, tiles_n, _GROUP), *of_batch]

    def work(self, d: Any, divisors: Any) -> Work:
        """What this block does."""
        number, batch, _ = arch.block_idx()
        rank, number = number % self.splits, number // self.splits
        if self.many:
            batch, number = divmod(number, divisors[2])
        return Work(_place(number, self._tiles(d)[0], divisors[:2], _GROUP), batch, rank)

    def _tiles(self, d: Any) -> tuple[Any, Any]:
        return cute.ceil_div(d.shape[0], self.tile[0]), cute.ceil_div(d.shape[1], self.tile[1])


class PersistentTileScheduler:
    """A block for each multiprocessor, in clusters of neighbouring tiles, that takes one tile after the other.

    `clusters` run at a time. `group` rows of clusters are computed side by side. `batched`: there may be several results. `begin` gives what the
    other functions are asked with.
    """

    grouped = False
    """Whether rows of tiles begin and end anywhere."""
    bounds = 0
    """Tensors that `begin` needs besides the result."""
    few = False
    """Whether a warp group multiplies nothing where it has no rows of a tile."""
    summed = False
    """Whether a second kernel adds the results."""

    def __init__(
        self, tile: tuple[int, int], cluster_shape_mn: tuple[int, int], group: int, clusters: int, batched: bool = True
    ) -> None:
        self.tile_mn = tile
        self.cluster_shape_mn = cluster_shape_mn
        self.group = group
        self.clusters = clusters
        self.batched = batched

    @cute.jit
    def grid(self, d: Any):
        """The blocks for a result (M, N, L)."""
        return *self.cluster_shape_mn, min(self.count((d, ())), self.clusters)

    def cluster(self) -> tuple[int, int, int] | None:
        """The blocks of a cluster."""
        return None if self.cluster_shape_mn == (1, 1) else (*self.cluster_shape_mn, 1)

    @cute.jit
    def divisors(self, d: Any):
        """What `tile` divides by, for a result (M, N, L). Called on the host."""
        across, down = self._clusters(d)
        return [cute.fast_divmod_create_divisor(max(across * down, 1)), *_order(across, down, self.group)]

    def begin(self, smem: Any, d: Any, bounds: Any) -> Any:
        """Called by all threads: what is known of the tiles of a result (M, N, L). `bounds`: tensors, and `divisors`."""
        return d, bounds

    def count(self, tiles: Any) -> Any:
        """Clusters of tiles in all."""
        d, _ = tiles
        across, down = self._clusters(d)
        return across * down * d.shape[2]

    def first(self) -> Any:
        """The number of the first cluster of tiles of this block."""
        return arch.block_idx()[2]

    def step(self) -> Any:
        """What is added to it for the next."""
        return arch.grid_dim()[2]

    def tile(self, number: Any, tiles: Any) -> WorkTile:
        """This block's tile of a cluster of tiles."""
        m, n, batch = self.place(number, tiles)
        x, y, _ = arch.block_idx()
        return WorkTile(m * self.cluster_shape_mn[0] + x, n * self.cluster_shape_mn[1] + y, batch, batch)

    def place(self, number: Any, tiles: Any) -> tuple[Any, Any, Any]:
        """The cluster of tiles (in M, in N) of a batch."""
        d, (of_batch, *order) = tiles
        batch, number = divmod(number, of_batch) if self.batched else (0, number)
        return *_place(number, self._clusters(d)[0], order, self.group), batch

    def steps(self, depth: Any, tiles: Any) -> tuple[Any, Any]:
        """Which of so many stages of K a block multiplies: the first, and their number."""
        return 0, depth

    def _clusters(self, d: Any) -> tuple[Any, Any]:
        (m, n), (x, y) = self.tile_mn, self.cluster_shape_mn
        return cute.ceil_div(d.shape[0], m * x), cute.ceil_div(d.shape[1], n * y)


class SplitKTileScheduler(PersistentTileScheduler):
    """`splits` blocks to a tile, which are a cluster and each take a part of K; every cluster has one tile.

    `summed`: each of several results is of a part of K, too.
    """

    def __init__(
        self, tile: tuple[int, int], group: int, splits: int, batched: bool = True, summed: bool = False
    ) -> None:
        super().__init__(tile, (1, 1), group, 0, batched and not summed)
        self.splits = splits
        self.summed = summed

    def grid(self, d: Any):
        return self.count((d, ())) * self.splits, d.shape[2] if self.summed else 1, 1

    def cluster(self) -> tuple[int, int, int] | None:
        return (self.splits, 1, 1) if self.splits > 1 else None

    @cute.jit
    def divisors(self, d: Any):
        parts = [cute.fast_divmod_create_divisor(self.splits * d.shape[2])] if const_expr(self.summed) else []
        return [*PersistentTileScheduler.divisors(self, d), *parts]

    def count(self, tiles: Any) -> Any:
        across, down = self._clusters(tiles[0])
        return across * down if self.summed else super().count(tiles)

    def first(self) -> Any:
        return arch.block_idx()[0] // self.splits

    def step(self) -> Any:
        return arch.grid_dim()[0] // self.splits

    def tile(self, number: Any, tiles: Any) -> WorkTile:
        m, n, batch = self.place(number, (tiles[0], tiles[1][:3]))
        if self.summed:
            batch = arch.block_idx()[1]
        return WorkTile(m, n, batch, batch)

    def steps(self, depth: Any, tiles: Any) -> tuple[Any, Any]:
        x, y, _ = arch.block_idx()
        part, parts = (
            (x % self.splits + y * self.splits, tiles[1][-1]) if self.summed else (x % self.splits, self.splits)
        )
        first = depth * part // parts
        return first, depth * (part + 1) // parts - first
