"""Single instructions by their names in NVVM, one module for each unit of the hardware.

    from cutlass.experimental import primitives as prims

Addresses are Arrays or Pointers; enumerations are members or strings (`"cg"`). Where CuTe has the same operation these
are names for it, elsewhere they are the instruction in PTX, which the CPU target executes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import barriers as barriers
    from . import copies as copies
    from . import fences as fences
    from . import matrices as matrices
    from . import mbarriers as mbarriers
    from . import names as names
    from . import tcgen05 as tcgen05
    from . import warp as warp
    from . import words as words
    from .barriers import barrier as barrier
    from .barriers import barrier_cluster_arrive as barrier_cluster_arrive
    from .barriers import barrier_cluster_arrive_relaxed as barrier_cluster_arrive_relaxed
    from .barriers import barrier_cluster_wait as barrier_cluster_wait
    from .barriers import barrier_cta_arrive as barrier_cta_arrive
    from .barriers import barrier_cta_red as barrier_cta_red
    from .barriers import barrier_cta_sync as barrier_cta_sync
    from .barriers import barrier_cta_sync_aligned as barrier_cta_sync_aligned
    from .barriers import cluster_ctarank as cluster_ctarank
    from .barriers import mapa as mapa
    from .copies import cp_async_bulk_commit_group as cp_async_bulk_commit_group
    from .copies import cp_async_bulk_global_shared_cta as cp_async_bulk_global_shared_cta
    from .copies import cp_async_bulk_prefetch as cp_async_bulk_prefetch
    from .copies import cp_async_bulk_shared_cluster_global as cp_async_bulk_shared_cluster_global
    from .copies import cp_async_bulk_shared_cluster_shared_cta as cp_async_bulk_shared_cluster_shared_cta
    from .copies import cp_async_bulk_tensor_global_shared_cta as cp_async_bulk_tensor_global_shared_cta
    from .copies import cp_async_bulk_tensor_shared_cluster_global as cp_async_bulk_tensor_shared_cluster_global
    from .copies import cp_async_bulk_tensor_shared_cta_global as cp_async_bulk_tensor_shared_cta_global
    from .copies import cp_async_bulk_wait_group as cp_async_bulk_wait_group
    from .copies import cp_async_commit_group as cp_async_commit_group
    from .copies import cp_async_shared_global as cp_async_shared_global
    from .copies import cp_async_wait_group as cp_async_wait_group
    from .copies import cp_reduce_async_bulk_global_shared_cta as cp_reduce_async_bulk_global_shared_cta
    from .copies import prefetch_tensormap as prefetch_tensormap
    from .copies import st_bulk as st_bulk
    from .copies import tensormap_replace as tensormap_replace
    from .fences import exit as exit
    from .fences import fence_mbarrier_init as fence_mbarrier_init
    from .fences import fence_proxy as fence_proxy
    from .fences import fence_proxy_acquire as fence_proxy_acquire
    from .fences import fence_proxy_release as fence_proxy_release
    from .fences import fence_sync_restrict as fence_sync_restrict
    from .fences import griddepcontrol as griddepcontrol
    from .fences import setmaxregister as setmaxregister
    from .matrices import ldmatrix as ldmatrix
    from .matrices import mma_sp_sync as mma_sp_sync
    from .matrices import stmatrix as stmatrix
    from .mbarriers import cp_async_mbarrier_arrive as cp_async_mbarrier_arrive
    from .mbarriers import mbarrier_arrive as mbarrier_arrive
    from .mbarriers import mbarrier_arrive_expect_tx as mbarrier_arrive_expect_tx
    from .mbarriers import mbarrier_expect_tx as mbarrier_expect_tx
    from .mbarriers import mbarrier_init as mbarrier_init
    from .mbarriers import mbarrier_inval as mbarrier_inval
    from .mbarriers import mbarrier_try_wait_parity as mbarrier_try_wait_parity
    from .mbarriers import mbarrier_try_wait_timelimit as mbarrier_try_wait_timelimit
    from .mbarriers import mbarrier_wait_parity as mbarrier_wait_parity
    from .names import AtomicOp as AtomicOp
    from .names import CpAsyncModifier as CpAsyncModifier
    from .names import CpReduceOp as CpReduceOp
    from .names import CpReduceType as CpReduceType
    from .names import CTAGroup as CTAGroup
    from .names import GridDepAction as GridDepAction
    from .names import LoadShape as LoadShape
    from .names import LoadSrcFormat as LoadSrcFormat
    from .names import MBarrierScope as MBarrierScope
    from .names import MBarrierWait as MBarrierWait
    from .names import MemOrder as MemOrder
    from .names import MemScope as MemScope
    from .names import MMALayout as MMALayout
    from .names import PermuteMode as PermuteMode
    from .names import Proxy as Proxy
    from .names import ReductionKind as ReductionKind
    from .names import ReductionOp as ReductionOp
    from .names import ReductionType as ReductionType
    from .names import SetMaxRegisterAction as SetMaxRegisterAction
    from .names import SharedSpace as SharedSpace
    from .names import Shfl as Shfl
    from .names import StoreShape as StoreShape
    from .names import TensormapField as TensormapField
    from .names import VoteSync as VoteSync
    from .tcgen05 import MMABlockScaleKind as MMABlockScaleKind
    from .tcgen05 import S2TCopyMode as S2TCopyMode
    from .tcgen05 import Tcgen05CpSrcFormat as Tcgen05CpSrcFormat
    from .tcgen05 import Tcgen05Fence as Tcgen05Fence
    from .tcgen05 import Tcgen05InstrDesc as Tcgen05InstrDesc
    from .tcgen05 import Tcgen05LdStShape as Tcgen05LdStShape
    from .tcgen05 import Tcgen05MMABlockScale as Tcgen05MMABlockScale
    from .tcgen05 import Tcgen05MMACollectorOp as Tcgen05MMACollectorOp
    from .tcgen05 import Tcgen05MMAKind as Tcgen05MMAKind
    from .tcgen05 import Tcgen05MxInstrDesc as Tcgen05MxInstrDesc
    from .tcgen05 import Tcgen05MxOmmaInstrDesc as Tcgen05MxOmmaInstrDesc
    from .tcgen05 import Tcgen05SmemDesc as Tcgen05SmemDesc
    from .tcgen05 import Tcgen05SmemSwizzle as Tcgen05SmemSwizzle
    from .tcgen05 import Tcgen05Wait as Tcgen05Wait
    from .tcgen05 import TmemAddr as TmemAddr
    from .tcgen05 import make_tmem_ptr as make_tmem_ptr
    from .tcgen05 import make_tmem_ptr_from_warp_row_col as make_tmem_ptr_from_warp_row_col
    from .tcgen05 import tcgen05_alloc as tcgen05_alloc
    from .tcgen05 import tcgen05_commit as tcgen05_commit
    from .tcgen05 import tcgen05_cp as tcgen05_cp
    from .tcgen05 import tcgen05_dealloc as tcgen05_dealloc
    from .tcgen05 import tcgen05_fence as tcgen05_fence
    from .tcgen05 import tcgen05_ld as tcgen05_ld
    from .tcgen05 import tcgen05_mma as tcgen05_mma
    from .tcgen05 import tcgen05_mma_block_scale as tcgen05_mma_block_scale
    from .tcgen05 import tcgen05_mma_sp as tcgen05_mma_sp
    from .tcgen05 import tcgen05_relinquish_alloc_permit as tcgen05_relinquish_alloc_permit
    from .tcgen05 import tcgen05_st as tcgen05_st
    from .tcgen05 import tcgen05_wait as tcgen05_wait
    from .warp import bar_warp_sync as bar_warp_sync
    from .warp import elect_sync as elect_sync
    from .warp import redux_sync as redux_sync
    from .warp import shfl_sync as shfl_sync
    from .warp import vote_sync as vote_sync
    from .words import atomicrmw as atomicrmw
    from .words import convert_and_pack_integer as convert_and_pack_integer
    from .words import mov_b32 as mov_b32
    from .words import print_runtime as print_runtime
    from .words import prmt as prmt
    from .words import red as red

_UNITS = {
    "names": (
        "AtomicOp",
        "CTAGroup",
        "CpAsyncModifier",
        "CpReduceOp",
        "CpReduceType",
        "GridDepAction",
        "LoadShape",
        "LoadSrcFormat",
        "MBarrierScope",
        "MBarrierWait",
        "MMALayout",
        "MemOrder",
        "MemScope",
        "PermuteMode",
        "Proxy",
        "ReductionKind",
        "ReductionOp",
        "ReductionType",
        "SetMaxRegisterAction",
        "SharedSpace",
        "Shfl",
        "StoreShape",
        "TensormapField",
        "VoteSync",
    ),
    "warp": ("bar_warp_sync", "elect_sync", "redux_sync", "shfl_sync", "vote_sync"),
    "barriers": (
        "barrier",
        "barrier_cluster_arrive",
        "barrier_cluster_arrive_relaxed",
        "barrier_cluster_wait",
        "barrier_cta_arrive",
        "barrier_cta_red",
        "barrier_cta_sync",
        "barrier_cta_sync_aligned",
        "cluster_ctarank",
        "mapa",
    ),
    "mbarriers": (
        "cp_async_mbarrier_arrive",
        "mbarrier_arrive",
        "mbarrier_arrive_expect_tx",
        "mbarrier_expect_tx",
        "mbarrier_init",
        "mbarrier_inval",
        "mbarrier_try_wait_parity",
        "mbarrier_try_wait_timelimit",
        "mbarrier_wait_parity",
    ),
    "fences": (
        "exit",
        "fence_mbarrier_init",
        "fence_proxy",
        "fence_proxy_acquire",
        "fence_proxy_release",
        "fence_sync_restrict",
        "griddepcontrol",
        "setmaxregister",
    ),
    "copies": (
        "cp_async_bulk_commit_group",
        "cp_async_bulk_global_shared_cta",
        "cp_async_bulk_prefetch",
        "cp_async_bulk_shared_cluster_global",
        "cp_async_bulk_shared_cluster_shared_cta",
        "cp_async_bulk_tensor_global_shared_cta",
        "cp_async_bulk_tensor_shared_cluster_global",
        "cp_async_bulk_tensor_shared_cta_global",
        "cp_async_bulk_wait_group",
        "cp_async_commit_group",
        "cp_async_shared_global",
        "cp_async_wait_group",
        "cp_reduce_async_bulk_global_shared_cta",
        "prefetch_tensormap",
        "st_bulk",
        "tensormap_replace",
    ),
    "matrices": ("ldmatrix", "mma_sp_sync", "stmatrix"),
    "tcgen05": (
        "MMABlockScaleKind",
        "S2TCopyMode",
        "Tcgen05CpSrcFormat",
        "Tcgen05Fence",
        "Tcgen05InstrDesc",
        "Tcgen05LdStShape",
        "Tcgen05MMABlockScale",
        "Tcgen05MMACollectorOp",
        "Tcgen05MMAKind",
        "Tcgen05MxInstrDesc",
        "Tcgen05MxOmmaInstrDesc",
        "Tcgen05SmemDesc",
        "Tcgen05SmemSwizzle",
        "Tcgen05Wait",
        "TmemAddr",
        "make_tmem_ptr",
        "make_tmem_ptr_from_warp_row_col",
        "tcgen05_alloc",
        "tcgen05_commit",
        "tcgen05_cp",
        "tcgen05_dealloc",
        "tcgen05_fence",
        "tcgen05_ld",
        "tcgen05_mma",
        "tcgen05_mma_block_scale",
        "tcgen05_mma_sp",
        "tcgen05_relinquish_alloc_permit",
        "tcgen05_st",
        "tcgen05_wait",
    ),
    "words": ("atomicrmw", "convert_and_pack_integer", "mov_b32", "print_runtime", "prmt", "red"),
}

_PLACES = {name: f".{unit}" for unit, names in _UNITS.items() for name in names}
if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, tuple(_UNITS))
