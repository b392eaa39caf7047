"""Building blocks of kernels besides the language: tile schedulers, allocators, helpers for each architecture.

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy, unavailable

if TYPE_CHECKING:
    from ..cute.pictures.draw import print_latex, print_latex_tv
    from ..torch import create_cute_tensor_for_fp8
    from . import schedulers
    from .blackwell_helpers import compute_epilogue_tile_shape
    from .block_copies import block_copy
    from .hardware_info import HardwareInfo
    from .layout_enum import LayoutEnum
    from .reductions import reduce_in_block, reduce_in_warp
    from .schedulers import (
        ClcDynamicPersistentTileScheduler,
        ClcDynamicPersistentTileSchedulerParams,
        GroupedGemmTileSchedulerHelper,
        PersistentTileSchedulerParams,
        StaticPersistentGroupTileScheduler,
        StaticPersistentRuntimeTileScheduler,
        StaticPersistentTileScheduler,
        WorkTileInfo,
        create_initial_search_state,
        swizzled_tile,
    )
    from .smem_allocator import SmemAllocator, SmemPartition
    from .smem_capacity import get_smem_capacity_in_bytes
    from .tensor_helpers import is_fp8_dtype
    from .tensor_map_manager import TensorMapManager, TensorMapUpdateMode
    from .tmem_allocator import TmemAllocator, TmemBufferPool
    from .tmem_columns import get_num_tmem_alloc_cols

_SCHEDULERS = (
    "ClcDynamicPersistentTileScheduler", "ClcDynamicPersistentTileSchedulerParams",
    "GroupedGemmTileSchedulerHelper", "PersistentTileSchedulerParams", "StaticPersistentGroupTileScheduler",
    "StaticPersistentRuntimeTileScheduler", "StaticPersistentTileScheduler", "WorkTileInfo",
    "create_initial_search_state", "swizzled_tile",
)  # fmt: skip
_PLACES = {
    "HardwareInfo": ".hardware_info",
    "LayoutEnum": ".layout_enum",
    "SmemAllocator": ".smem_allocator",
    "SmemPartition": ".smem_allocator",
    "TensorMapManager": ".tensor_map_manager",
    "TensorMapUpdateMode": ".tensor_map_manager",
    "TmemAllocator": ".tmem_allocator",
    "TmemBufferPool": ".tmem_allocator",
    "block_copy": ".block_copies",
    "compute_epilogue_tile_shape": ".blackwell_helpers",
    "create_cute_tensor_for_fp8": "..torch",
    "get_num_tmem_alloc_cols": ".tmem_columns",
    "get_smem_capacity_in_bytes": ".smem_capacity",
    "is_fp8_dtype": ".tensor_helpers",
    "print_latex": "..cute.pictures.draw",
    "print_latex_tv": "..cute.pictures.draw",
    "reduce_in_block": ".reductions",
    "reduce_in_warp": ".reductions",
    **dict.fromkeys(_SCHEDULERS, ".schedulers"),
}
"""The module that defines each name."""

__getattr__ = lazy.names(__name__, _PLACES, modules=None, otherwise=unavailable.name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
