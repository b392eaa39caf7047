"""What kernels are built from besides the language itself. Names load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:
    from ..cute.atoms.draw import print_latex, print_latex_tv
    from ..torch import create_cute_tensor_for_fp8
    from .grouped_gemm_tile_scheduler import (
        GroupedGemmTileSchedulerHelper,
        StaticPersistentGroupTileScheduler,
        create_initial_search_state,
    )
    from .hardware_info import HardwareInfo
    from .layout_enum import LayoutEnum
    from .reductions import reduce_in_block, reduce_in_warp
    from .smem_allocator import SmemAllocator, SmemPartition
    from .smem_capacity import get_smem_capacity_in_bytes
    from .static_persistent_tile_scheduler import (
        PersistentTileSchedulerParams,
        StaticPersistentRuntimeTileScheduler,
        StaticPersistentTileScheduler,
    )
    from .tensor_helpers import is_fp8_dtype
    from .tensor_map_manager import TensorMapManager, TensorMapUpdateMode
    from .tile_swizzle import swizzled_tile
    from .work_tile import WorkTileInfo

_PLACES = {
    "GroupedGemmTileSchedulerHelper": ".grouped_gemm_tile_scheduler",
    "HardwareInfo": ".hardware_info",
    "LayoutEnum": ".layout_enum",
    "PersistentTileSchedulerParams": ".static_persistent_tile_scheduler",
    "SmemAllocator": ".smem_allocator",
    "SmemPartition": ".smem_allocator",
    "get_smem_capacity_in_bytes": ".smem_capacity",
    "print_latex": "..cute.atoms.draw",
    "print_latex_tv": "..cute.atoms.draw",
    "StaticPersistentGroupTileScheduler": ".grouped_gemm_tile_scheduler",
    "StaticPersistentRuntimeTileScheduler": ".static_persistent_tile_scheduler",
    "StaticPersistentTileScheduler": ".static_persistent_tile_scheduler",
    "TensorMapManager": ".tensor_map_manager",
    "TensorMapUpdateMode": ".tensor_map_manager",
    "create_initial_search_state": ".grouped_gemm_tile_scheduler",
    "create_cute_tensor_for_fp8": "..torch",
    "is_fp8_dtype": ".tensor_helpers",
    "reduce_in_block": ".reductions",
    "reduce_in_warp": ".reductions",
    "swizzled_tile": ".tile_swizzle",
    "WorkTileInfo": ".work_tile",
}
"""Where a name is defined."""


__getattr__ = lazy.names(__name__, _PLACES, modules=None)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
