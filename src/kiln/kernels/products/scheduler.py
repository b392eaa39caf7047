"""Which tile a block computes."""

from __future__ import annotations

from typing import Any, NamedTuple

from ... import cute
from ...cute import arch
from ...utils import swizzled_tile

_GROUP = 16
"""So many rows of tiles are computed side by side, to find each other's operands in the L2 cache."""


class Work(NamedTuple):
    """What a block has to do: a tile (in M, in N) of a batch, and its place among the blocks that share the tile."""

    tile: tuple[Any, Any]
    batch: Any
    rank: Any


class TileScheduler:
    """One tile to a block, or to `splits` neighbouring ones, which are a cluster and each take a part of K."""

    def __init__(self, tile: tuple[int, int], splits: int) -> None:
        self.tile = tile
        self.splits = splits

    def grid(self, d: Any) -> tuple[Any, Any, int]:
        """The blocks for a result (M, N, L)."""
        tiles_m, tiles_n = self._tiles(d)
        return tiles_m * tiles_n * self.splits, d.shape[2], 1

    def cluster(self) -> tuple[int, int, int] | None:
        """The blocks that share a tile."""
        return (self.splits, 1, 1) if self.splits > 1 else None

    def work(self, d: Any) -> Work:
        """What this block does."""
        number, batch, _ = arch.block_idx()
        rank, number = number % self.splits, number // self.splits
        return Work(swizzled_tile(number, *self._tiles(d), _GROUP), batch, rank)

    def _tiles(self, d: Any) -> tuple[Any, Any]:
        return cute.ceil_div(d.shape[0], self.tile[0]), cute.ceil_div(d.shape[1], self.tile[1])
