"""Accumulators of a CTA tile, as epilogues get them."""

from __future__ import annotations

from typing import Any, NamedTuple


class RegisterAccumulator(NamedTuple):
    """The accumulators of a thread in registers, with its slice of the tiled MMA: where they lie in the tile."""

    fragment: Any
    thr_mma: Any

    def partition(self, tile: Any) -> Any:
        """Return the elements of a tile (M, N) that belong to the accumulators of this thread."""
        return self.thr_mma.partition_C(tile)
