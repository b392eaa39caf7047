"""Parts of kernels that work on tiles of matrices: what the kernel library is made of, between the language and the library.

A part computes where things lie and does one thing; what happens when is the kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:
    from .smem_layouts import swizzled as swizzled
    from .staged_tile import StagedTile as StagedTile
    from .tile_softmax import TileSoftmax as TileSoftmax
    from .warp_tiles import accumulator_coords as accumulator_coords
    from .warp_tiles import accumulators as accumulators
    from .warp_tiles import store_tile as store_tile
    from .warp_tiles import warp_mma as warp_mma

_PLACES = {
    "StagedTile": ".staged_tile",
    "TileSoftmax": ".tile_softmax",
    "accumulator_coords": ".warp_tiles",
    "accumulators": ".warp_tiles",
    "store_tile": ".warp_tiles",
    "swizzled": ".smem_layouts",
    "warp_mma": ".warp_tiles",
}

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, modules=None)
