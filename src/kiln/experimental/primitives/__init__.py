"""Single instructions by their names in NVVM, one module for each unit of the hardware.

    from cutlass.experimental import primitives as prims

Addresses are Arrays or Pointers; enumerations are members or strings (`"cg"`). Where CuTe has the same operation these
are names for it, elsewhere they are the instruction in PTX, which the CPU target executes too.
"""

from __future__ import annotations

from ..._support import lazy

_UNITS = {
    "names": (
        "AtomicOp", "CTAGroup", "CpAsyncModifier", "CpReduceOp", "CpReduceType", "GridDepAction", "LoadShape",
        "LoadSrcFormat", "MBarrierScope", "MBarrierWait", "MMALayout", "MemOrder", "MemScope", "PermuteMode", "Proxy",
        "ReductionKind", "ReductionOp", "ReductionType", "SetMaxRegisterAction", "SharedSpace", "Shfl", "StoreShape",
        "TensormapField", "VoteSync",
    ),
    "warp": ("bar_warp_sync", "elect_sync", "redux_sync", "shfl_sync", "vote_sync"),
    "barriers": (
        "barrier", "barrier_cluster_arrive", "barrier_cluster_arrive_relaxed", "barrier_cluster_wait",
        "barrier_cta_arrive", "barrier_cta_red", "barrier_cta_sync", "barrier_cta_sync_aligned", "cluster_ctarank",
        "mapa",
    ),
    "mbarriers": (
        "cp_async_mbarrier_arrive", "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx",
        "mbarrier_init", "mbarrier_inval", "mbarrier_try_wait_parity", "mbarrier_try_wait_timelimit",
        "mbarrier_wait_parity",
    ),
    "fences": (
        "exit", "fence_mbarrier_init", "fence_proxy", "fence_proxy_acquire", "fence_proxy_release",
        "fence_sync_restrict", "griddepcontrol", "setmaxregister",
    ),
    "copies": (
        "cp_async_bulk_commit_group", "cp_async_bulk_global_shared_cta", "cp_async_bulk_prefetch",
        "cp_async_bulk_shared_cluster_global", "cp_async_bulk_shared_cluster_shared_cta",
        "cp_async_bulk_tensor_global_shared_cta", "cp_async_bulk_tensor_shared_cluster_global",
        "cp_async_bulk_tensor_shared_cta_global", "cp_async_bulk_wait_group", "cp_async_commit_group",
        "cp_async_shared_global", "cp_async_wait_group", "cp_reduce_async_bulk_global_shared_cta",
        "prefetch_tensormap", "tensormap_replace",
    ),
    "matrices": ("ldmatrix", "stmatrix"),
    "tcgen05": (
        "MMABlockScaleKind", "S2TCopyMode", "Tcgen05CpSrcFormat", "Tcgen05Fence", "Tcgen05InstrDesc",
        "Tcgen05LdStShape", "Tcgen05MMABlockScale", "Tcgen05MMACollectorOp", "Tcgen05MMAKind", "Tcgen05MxInstrDesc",
        "Tcgen05MxOmmaInstrDesc", "Tcgen05SmemDesc", "Tcgen05SmemSwizzle", "Tcgen05Wait", "TmemAddr", "make_tmem_ptr",
        "make_tmem_ptr_from_warp_row_col", "tcgen05_alloc", "tcgen05_commit", "tcgen05_cp", "tcgen05_dealloc",
        "tcgen05_fence", "tcgen05_ld", "tcgen05_mma", "tcgen05_mma_block_scale", "tcgen05_relinquish_alloc_permit",
        "tcgen05_st", "tcgen05_wait",
    ),
    "words": ("atomicrmw", "convert_and_pack_integer", "mov_b32", "print_runtime", "prmt", "red"),
}  # fmt: skip

_PLACES = {name: f".{unit}" for unit, found in _UNITS.items() for name in found}
__getattr__ = lazy.names(__name__, _PLACES, tuple(_UNITS))
