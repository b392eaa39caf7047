"""Tile schedulers: the rules that give CTAs their tiles. Names load when they are first used.

Two levels. `StaticPersistentTileScheduler`, `StaticPersistentGroupTileScheduler` and `ClcDynamicPersistentTileScheduler`
are CuTe's: objects that a kernel advances from tile to tile. The others turn tile numbers into coordinates; the tiles
of a CTA are a `DynamicIterator`, whichever rule they follow:

    for work in scheduler.tile_loop(tiles):
        ...
        tile = work.tile()

A warp that finds its CTA's tiles alone hands them to the other warps with `kiln.pipeline.WorkBroadcast`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:
    from .clc import ClcDynamicPersistentTileScheduler as ClcDynamicPersistentTileScheduler
    from .clc import ClcDynamicPersistentTileSchedulerParams as ClcDynamicPersistentTileSchedulerParams
    from .grouped_gemm import GroupedGemmGroupSearchState as GroupedGemmGroupSearchState
    from .grouped_gemm import GroupedGemmTileSchedulerHelper as GroupedGemmTileSchedulerHelper
    from .grouped_gemm import GroupedWorkTileInfo as GroupedWorkTileInfo
    from .grouped_gemm import GroupSearchResult as GroupSearchResult
    from .grouped_gemm import StaticPersistentGroupTileScheduler as StaticPersistentGroupTileScheduler
    from .grouped_gemm import create_initial_search_state as create_initial_search_state
    from .grouped_rows import GroupedRowsTileScheduler as GroupedRowsTileScheduler
    from .persistent import GemmTile as GemmTile
    from .persistent import PersistentTileScheduler as PersistentTileScheduler
    from .persistent import SingleTile as SingleTile
    from .persistent import SingleTileScheduler as SingleTileScheduler
    from .persistent import SplitKTileScheduler as SplitKTileScheduler
    from .persistent import TileLoop as TileLoop
    from .persistent import TileLoopAhead as TileLoopAhead
    from .raster import raster_divisors as raster_divisors
    from .raster import raster_tile as raster_tile
    from .raster import swizzled_tile as swizzled_tile
    from .split_kv import KVPiece as KVPiece
    from .split_kv import SplitKVScheduler as SplitKVScheduler
    from .static_persistent import PersistentTileSchedulerParams as PersistentTileSchedulerParams
    from .static_persistent import StaticPersistentRuntimeTileScheduler as StaticPersistentRuntimeTileScheduler
    from .static_persistent import StaticPersistentTileScheduler as StaticPersistentTileScheduler
    from .varlen import SequenceSearch as SequenceSearch
    from .varlen import clamp_offset as clamp_offset
    from .varlen import fetch_tile as fetch_tile
    from .varlen import find_sequence as find_sequence
    from .varlen import head_group_tile as head_group_tile
    from .varlen import next_snake_tile as next_snake_tile
    from .varlen import sequence_range as sequence_range
    from .work_tile import WorkTileInfo as WorkTileInfo

_PLACES = {
    **dict.fromkeys(("ClcDynamicPersistentTileScheduler", "ClcDynamicPersistentTileSchedulerParams"), ".clc"),
    **dict.fromkeys(
        (
            "GroupSearchResult",
            "GroupedGemmGroupSearchState",
            "GroupedGemmTileSchedulerHelper",
            "GroupedWorkTileInfo",
            "StaticPersistentGroupTileScheduler",
            "create_initial_search_state",
        ),
        ".grouped_gemm",
    ),
    "GroupedRowsTileScheduler": ".grouped_rows",
    **dict.fromkeys(
        (
            "GemmTile",
            "PersistentTileScheduler",
            "SingleTile",
            "SingleTileScheduler",
            "SplitKTileScheduler",
            "TileLoop",
            "TileLoopAhead",
        ),
        ".persistent",
    ),
    **dict.fromkeys(("raster_divisors", "raster_tile", "swizzled_tile"), ".raster"),
    **dict.fromkeys(("KVPiece", "SplitKVScheduler"), ".split_kv"),
    **dict.fromkeys(
        ("PersistentTileSchedulerParams", "StaticPersistentRuntimeTileScheduler", "StaticPersistentTileScheduler"),
        ".static_persistent",
    ),
    **dict.fromkeys(
        (
            "SequenceSearch",
            "clamp_offset",
            "fetch_tile",
            "find_sequence",
            "head_group_tile",
            "next_snake_tile",
            "sequence_range",
        ),
        ".varlen",
    ),
    "WorkTileInfo": ".work_tile",
}
"""The module that defines each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, modules=None)
