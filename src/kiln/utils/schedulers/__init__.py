"""Tile schedulers: the rules that give CTAs their tiles. Names load when they are first used.

Two levels. `StaticPersistentTileScheduler`, `StaticPersistentGroupTileScheduler` and `ClcDynamicPersistentTileScheduler`
are CuTe's: objects that a kernel advances from tile to tile. The others turn tile numbers into coordinates and leave the loop to the kernel, which may
load ahead, skip tiles, or fetch numbers from an atomic counter:

    idx, num_tiles = scheduler.first(), scheduler.num_tiles(tiles)
    while idx < num_tiles:
        tile = scheduler.tile(idx, tiles)
        ...
        idx = idx + scheduler.stride()

A warp that finds its CTA's tiles alone hands them to the other warps with `kiln.pipeline.WorkBroadcast`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:
    from .clc import ClcDynamicPersistentTileScheduler, ClcDynamicPersistentTileSchedulerParams
    from .grouped_gemm import (
        GroupedGemmTileSchedulerHelper,
        StaticPersistentGroupTileScheduler,
        create_initial_search_state,
    )
    from .grouped_rows import GroupedRowsTileScheduler
    from .persistent import GemmTile, PersistentTileScheduler, SingleTile, SingleTileScheduler, SplitKTileScheduler
    from .raster import raster_divisors, raster_tile, swizzled_tile
    from .split_kv import KVPiece, SplitKVScheduler
    from .static_persistent import (
        PersistentTileSchedulerParams,
        StaticPersistentRuntimeTileScheduler,
        StaticPersistentTileScheduler,
    )
    from .varlen import (
        SequenceSearch,
        clamp_offset,
        fetch_tile,
        find_sequence,
        head_group_tile,
        next_snake_tile,
        sequence_range,
    )
    from .work_tile import WorkTileInfo

_PLACES = {
    **dict.fromkeys(("ClcDynamicPersistentTileScheduler", "ClcDynamicPersistentTileSchedulerParams"), ".clc"),
    **dict.fromkeys(
        ("GroupedGemmTileSchedulerHelper", "StaticPersistentGroupTileScheduler", "create_initial_search_state"),
        ".grouped_gemm",
    ),
    "GroupedRowsTileScheduler": ".grouped_rows",
    **dict.fromkeys(
        ("GemmTile", "PersistentTileScheduler", "SingleTile", "SingleTileScheduler", "SplitKTileScheduler"),
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
            "SequenceSearch", "clamp_offset", "fetch_tile", "find_sequence", "head_group_tile", "next_snake_tile",
            "sequence_range",
        ),
        ".varlen",
    ),
    "WorkTileInfo": ".work_tile",
}  # fmt: skip
"""The module that defines each name."""

__getattr__ = lazy.names(__name__, _PLACES, modules=None)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
