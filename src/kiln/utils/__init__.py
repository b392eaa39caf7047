"""Building blocks of kernels besides the language: tile schedulers, allocators, helpers for each architecture.

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy, unavailable

if TYPE_CHECKING:
    from ..cute.pictures.draw import print_latex as print_latex
    from ..cute.pictures.draw import print_latex_tv as print_latex_tv
    from ..torch import create_cute_tensor_for_fp8 as create_cute_tensor_for_fp8
    from . import blackwell_helpers as blackwell_helpers
    from . import block_copies as block_copies
    from . import blockscaled_layout as blockscaled_layout
    from . import distributed as distributed
    from . import gemm as gemm
    from . import hardware_info as hardware_info
    from . import hopper_helpers as hopper_helpers
    from . import layout_enum as layout_enum
    from . import mixed_input_helpers as mixed_input_helpers
    from . import reductions as reductions
    from . import rubin_helpers as rubin_helpers
    from . import schedulers as schedulers
    from . import sm90 as sm90
    from . import sm100 as sm100
    from . import sm107 as sm107
    from . import smem_allocator as smem_allocator
    from . import smem_capacity as smem_capacity
    from . import tensor_helpers as tensor_helpers
    from . import tensor_map_manager as tensor_map_manager
    from . import tmem_allocator as tmem_allocator
    from . import tmem_columns as tmem_columns
    from . import value_parts as value_parts
    from .blackwell_helpers import cluster_shape_to_tma_atom_A as cluster_shape_to_tma_atom_A
    from .blackwell_helpers import cluster_shape_to_tma_atom_B as cluster_shape_to_tma_atom_B
    from .blackwell_helpers import cluster_shape_to_tma_atom_SFB as cluster_shape_to_tma_atom_SFB
    from .blackwell_helpers import compute_epilogue_tile_shape as compute_epilogue_tile_shape
    from .blackwell_helpers import get_permutation_mnk as get_permutation_mnk
    from .blackwell_helpers import get_smem_layout_atom_ab as get_smem_layout_atom_ab
    from .blackwell_helpers import get_smem_layout_atom_epi as get_smem_layout_atom_epi
    from .blackwell_helpers import get_smem_store_op as get_smem_store_op
    from .blackwell_helpers import get_tmem_load_op as get_tmem_load_op
    from .blackwell_helpers import make_blockscaled_trivial_tiled_mma as make_blockscaled_trivial_tiled_mma
    from .blackwell_helpers import make_smem_layout as make_smem_layout
    from .blackwell_helpers import make_smem_layout_a as make_smem_layout_a
    from .blackwell_helpers import make_smem_layout_b as make_smem_layout_b
    from .blackwell_helpers import make_smem_layout_epi as make_smem_layout_epi
    from .blackwell_helpers import make_trivial_tiled_mma as make_trivial_tiled_mma
    from .block_copies import block_copy as block_copy
    from .hardware_info import HardwareInfo as HardwareInfo
    from .hopper_helpers import sm90_get_smem_layout_atom as sm90_get_smem_layout_atom
    from .hopper_helpers import sm90_make_trivial_tiled_mma as sm90_make_trivial_tiled_mma
    from .layout_enum import LayoutEnum as LayoutEnum
    from .mixed_input_helpers import TransformMode as TransformMode
    from .mixed_input_helpers import compute_smem_layout as compute_smem_layout
    from .mixed_input_helpers import get_copy_atom_a_transform as get_copy_atom_a_transform
    from .mixed_input_helpers import get_divisibility as get_divisibility
    from .mixed_input_helpers import get_gmem_layout_scale as get_gmem_layout_scale
    from .mixed_input_helpers import get_smem_layout_scale as get_smem_layout_scale
    from .mixed_input_helpers import get_tma_atom_kind as get_tma_atom_kind
    from .mixed_input_helpers import get_transform_a_source as get_transform_a_source
    from .mixed_input_helpers import is_valid_scale_granularity as is_valid_scale_granularity
    from .mixed_input_helpers import scale_partition as scale_partition
    from .mixed_input_helpers import scale_tma_partition as scale_tma_partition
    from .mixed_input_helpers import transform_partition as transform_partition
    from .reductions import reduce_in_block as reduce_in_block
    from .reductions import reduce_in_warp as reduce_in_warp
    from .schedulers import ClcDynamicPersistentTileScheduler as ClcDynamicPersistentTileScheduler
    from .schedulers import ClcDynamicPersistentTileSchedulerParams as ClcDynamicPersistentTileSchedulerParams
    from .schedulers import GroupedGemmGroupSearchState as GroupedGemmGroupSearchState
    from .schedulers import GroupedGemmTileSchedulerHelper as GroupedGemmTileSchedulerHelper
    from .schedulers import GroupedWorkTileInfo as GroupedWorkTileInfo
    from .schedulers import GroupSearchResult as GroupSearchResult
    from .schedulers import PersistentTileSchedulerParams as PersistentTileSchedulerParams
    from .schedulers import StaticPersistentGroupTileScheduler as StaticPersistentGroupTileScheduler
    from .schedulers import StaticPersistentRuntimeTileScheduler as StaticPersistentRuntimeTileScheduler
    from .schedulers import StaticPersistentTileScheduler as StaticPersistentTileScheduler
    from .schedulers import WorkTileInfo as WorkTileInfo
    from .schedulers import create_initial_search_state as create_initial_search_state
    from .schedulers import swizzled_tile as swizzled_tile
    from .smem_allocator import SmemAllocator as SmemAllocator
    from .smem_allocator import SmemPartition as SmemPartition
    from .smem_capacity import get_smem_capacity_in_bytes as get_smem_capacity_in_bytes
    from .tensor_helpers import is_fp8_dtype as is_fp8_dtype
    from .tensor_map_manager import TensorMapManager as TensorMapManager
    from .tensor_map_manager import TensorMapUpdateMode as TensorMapUpdateMode
    from .tmem_allocator import TmemAllocator as TmemAllocator
    from .tmem_allocator import TmemBufferPool as TmemBufferPool
    from .tmem_columns import compute_tmem_cols_from_layout as compute_tmem_cols_from_layout
    from .tmem_columns import get_num_tmem_alloc_cols as get_num_tmem_alloc_cols

_SCHEDULERS = (
    "ClcDynamicPersistentTileScheduler",
    "ClcDynamicPersistentTileSchedulerParams",
    "GroupSearchResult",
    "GroupedGemmGroupSearchState",
    "GroupedGemmTileSchedulerHelper",
    "GroupedWorkTileInfo",
    "PersistentTileSchedulerParams",
    "StaticPersistentGroupTileScheduler",
    "StaticPersistentRuntimeTileScheduler",
    "StaticPersistentTileScheduler",
    "WorkTileInfo",
    "create_initial_search_state",
    "swizzled_tile",
)
_BLACKWELL = (
    "cluster_shape_to_tma_atom_A",
    "cluster_shape_to_tma_atom_B",
    "cluster_shape_to_tma_atom_SFB",
    "compute_epilogue_tile_shape",
    "get_permutation_mnk",
    "get_smem_layout_atom_ab",
    "get_smem_layout_atom_epi",
    "get_smem_store_op",
    "get_tmem_load_op",
    "make_blockscaled_trivial_tiled_mma",
    "make_smem_layout",
    "make_smem_layout_a",
    "make_smem_layout_b",
    "make_smem_layout_epi",
    "make_trivial_tiled_mma",
)
_MIXED_INPUT = (
    "TransformMode",
    "compute_smem_layout",
    "get_copy_atom_a_transform",
    "get_divisibility",
    "get_gmem_layout_scale",
    "get_smem_layout_scale",
    "get_tma_atom_kind",
    "get_transform_a_source",
    "is_valid_scale_granularity",
    "scale_partition",
    "scale_tma_partition",
    "transform_partition",
)
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
    "compute_tmem_cols_from_layout": ".tmem_columns",
    "create_cute_tensor_for_fp8": "..torch",
    "get_num_tmem_alloc_cols": ".tmem_columns",
    "get_smem_capacity_in_bytes": ".smem_capacity",
    "is_fp8_dtype": ".tensor_helpers",
    "print_latex": "..cute.pictures.draw",
    "print_latex_tv": "..cute.pictures.draw",
    "reduce_in_block": ".reductions",
    "reduce_in_warp": ".reductions",
    "sm90_get_smem_layout_atom": ".hopper_helpers",
    "sm90_make_trivial_tiled_mma": ".hopper_helpers",
    **dict.fromkeys(_BLACKWELL, ".blackwell_helpers"),
    **dict.fromkeys(_MIXED_INPUT, ".mixed_input_helpers"),
    **dict.fromkeys(_SCHEDULERS, ".schedulers"),
}
"""The module that defines each name."""

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, modules=None, otherwise=unavailable.name)
