"""Single instructions by their names in NVVM, one module for each unit of the hardware.

    from cutlass.experimental import primitives as prims

Addresses are Arrays or Pointers; enumerations are members or strings (`"cg"`). Where CuTe has the same operation these
are names for it, elsewhere they are the instruction in PTX, which the CPU target executes too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:
    from . import accesses as accesses
    from . import barriers as barriers
    from . import clusters as clusters
    from . import conversions as conversions
    from . import copies as copies
    from . import fences as fences
    from . import inline as inline
    from . import matrices as matrices
    from . import matrix_names as matrix_names
    from . import mbarriers as mbarriers
    from . import names as names
    from . import packed as packed
    from . import tcgen05 as tcgen05
    from . import warp as warp
    from . import words as words
    from .accesses import *
    from .barriers import *
    from .clusters import *
    from .conversions import *
    from .copies import *
    from .fences import *
    from .inline import *
    from .matrices import *
    from .matrix_names import *
    from .mbarriers import *
    from .names import *
    from .packed import *
    from .tcgen05 import *
    from .warp import *
    from .words import *

_UNITS = {
    "names": """
        AtomicOp BarrierReduction BarrierRedux CTAGroup CVTPackFloat CacheLevel ClusterLaunchControlQueryType CmpOp
        ConvertFP4Type ConvertScale CpAsyncModifier CpReduceOp CpReduceType CvtaSize CvtaSpace DotAccumulateType
        EvictPriority FPRoundingMode GridDepAction IntRoundingMode L1EvictKind L2PrefetchSize LoadCacheModifier
        LoadShape LoadSrcFormat MBarrierScope MBarrierWait MMALayout MatchSync MemOrder MemScope MulMode
        NVVMMemorySpace PermuteMode Proxy ReductionKind ReductionOp ReductionType SaturationMode SaturationModeKind
        SetMaxRegisterAction SetpType SharedSpace Shfl StateSpace StoreCacheModifier StoreShape TMALoadMode TMARedux
        TMAStoreMode TensormapElemtype TensormapField TensormapFillMode TensormapInterleaveLayout TensormapSpace
        TensormapSwizzleAtomicity TensormapSwizzleMode VoteSync
    """,
    "matrix_names": """
        BlockScaleFormat LdStMatrixEltType MMAB1Op MMACtaCount MMAFrag MMAIntOverflow MMAKind MMAType MxScaleFormat
        ScaleVecSize SparsityFormat Tcgen05CpMulticast Tcgen05CpShape Tcgen05MMACollectorBBuffer
        Tcgen05MMAScaleVecSize WGMMAScaleIn WGMMAScaleOut WGMMAType WgmmaSwizzle
    """,
    "warp": """
        bar_warp_sync elect_sync match_sync redux_sync shfl_sync vote_sync
    """,
    "barriers": """
        barrier barrier_cluster_arrive barrier_cluster_arrive_aligned barrier_cluster_arrive_relaxed
        barrier_cluster_arrive_relaxed_aligned barrier_cluster_wait_aligned barrier_cta_arrive_aligned barrier_cluster_wait barrier_cta_arrive
        barrier_cta_red barrier_cta_sync barrier_cta_sync_aligned cluster_ctarank mapa
    """,
    "mbarriers": """
        mbarrier_arrive_nocomplete mbarrier_complete_tx mbarrier_test_wait mbarrier_try_wait mbarrier_wait
        cp_async_mbarrier_arrive mbarrier_arrive mbarrier_arrive_expect_tx mbarrier_expect_tx mbarrier_init
        mbarrier_inval mbarrier_try_wait_parity mbarrier_try_wait_timelimit mbarrier_wait_parity
    """,
    "fences": """
        fence_acq_rel fence_proxy_async_acquire_sync_restrict fence_proxy_async_release_sync_restrict fence_sc_cluster
        memory_barrier nanosleep
        exit fence_mbarrier_init fence_proxy fence_proxy_acquire fence_proxy_release fence_sync_restrict
        griddepcontrol setmaxregister
    """,
    "accesses": """
        load_ext prefetch_l1 prefetch_l2 prefetchu store_ext
    """,
    "copies": """
        cp_async_bulk_commit_group cp_async_bulk_global_shared_cta cp_async_bulk_prefetch
        cp_async_bulk_shared_cluster_global cp_async_bulk_shared_cluster_shared_cta
        cp_async_bulk_tensor_global_shared_cta cp_async_bulk_tensor_prefetch cp_async_bulk_tensor_reduce
        cp_async_bulk_tensor_shared_cluster_global cp_async_bulk_tensor_shared_cta_global cp_async_bulk_wait_group
        cp_async_commit_group cp_async_shared_global cp_async_wait_group cp_reduce_async_bulk_global_shared_cta
        prefetch_tensormap st_bulk tensormap_replace
    """,
    "matrices": """
        mma_sync wgmma_commit_group_sync_aligned wgmma_fence_aligned wgmma_wait_group_sync_aligned
        ldmatrix mma_sp_sync stmatrix
    """,
    "tcgen05": """
        tcgen05_ld_red tcgen05_mma_ws tcgen05_shift
        MMABlockScaleKind S2TCopyMode Tcgen05CpSrcFormat Tcgen05Fence Tcgen05InstrDesc Tcgen05LdStShape
        Tcgen05MMABlockScale Tcgen05MMACollectorOp Tcgen05MMAKind Tcgen05MxInstrDesc Tcgen05MxOmmaInstrDesc
        Tcgen05SmemDesc Tcgen05SmemSwizzle Tcgen05Wait TmemAddr make_tmem_ptr make_tmem_ptr_from_warp_row_col
        tcgen05_alloc tcgen05_commit tcgen05_cp tcgen05_dealloc tcgen05_fence tcgen05_ld tcgen05_mma
        tcgen05_mma_block_scale tcgen05_mma_sp tcgen05_relinquish_alloc_permit tcgen05_st tcgen05_wait
    """,
    "words": """
        atomicrmw convert_and_pack_integer mov_b32 print_runtime prmt red
    """,
    "clusters": """
        clusterlaunchcontrol_query_cancel clusterlaunchcontrol_try_cancel cvta_to
    """,
    "packed": """
        fabs fmax fmin
        add_packed_f32x2 fma_packed_f32x2 mul_bf16x2 mul_packed_f32x2 sub_packed_f32x2
    """,
    "conversions": """
        cvt_packfloat cvt_packfloat_f32
    """,
    "inline": """
        inline_ptx inline_ptx_hl ptx_add_comment
    """,
}
"""The names of each module."""
_PLACES = {name: f".{unit}" for unit, names in _UNITS.items() for name in names.split()}
if not TYPE_CHECKING:  # what loads when it is first used
    __getattr__ = lazy.names(__name__, _PLACES, tuple(_UNITS))
