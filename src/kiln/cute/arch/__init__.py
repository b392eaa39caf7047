"""Instructions of the hardware as functions: a thread's place, synchronisation, memory; one module for each unit."""

from __future__ import annotations

from ...hardware.architectures import Arch
from .arithmetic import (
    add_packed_f32x2,
    clz,
    exp,
    exp2,
    exp_packed_f32x2,
    fma_packed_f32x2,
    fmax,
    fmin,
    log2_approx,
    lop3,
    mul_hi,
    mul_packed_f32x2,
    mul_wide,
    popc,
    prmt,
    rcp_approx,
    rsqrt_approx,
    sub_packed_f32x2,
)
from .async_copy import cp_async_bulk_commit_group, cp_async_bulk_wait_group, cp_async_commit_group, cp_async_wait_group
from .atomic import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_exch,
    atomic_fmax,
    atomic_fmin,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xor,
    load,
    prefetch,
    red,
    store,
)
from .block_barrier import barrier, barrier_arrive, sync_threads
from .cluster import (
    block_idx_in_cluster,
    block_in_cluster_dim,
    block_in_cluster_idx,
    cluster_arrive,
    cluster_arrive_relaxed,
    cluster_dim,
    cluster_idx,
    cluster_size,
    cluster_wait,
    map_dsmem_ptr,
)
from .control import (
    clock,
    clock64,
    globaltimer,
    griddepcontrol_launch_dependents,
    griddepcontrol_wait,
    nanosleep,
    setmaxregister_decrease,
    setmaxregister_increase,
    warpgroup_reg_alloc,
    warpgroup_reg_dealloc,
)
from .fence import (
    fence_acq_rel_cluster,
    fence_acq_rel_cta,
    fence_acq_rel_gpu,
    fence_acq_rel_sys,
    fence_proxy,
    fence_view_async_shared,
    mbarrier_init_fence,
)
from .inline_assembly import inline_ptx
from .mbarrier import (
    cp_async_mbarrier_arrive_noinc,
    mbarrier_arrive,
    mbarrier_arrive_and_expect_tx,
    mbarrier_conditional_try_wait,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_test_wait,
    mbarrier_try_wait,
    mbarrier_wait,
)
from .smem import alloc_smem, dynamic_smem_size, get_dyn_smem
from .thread import block_dim, block_idx, grid_dim, lane_idx, thread_idx, warp_idx
from .values import FULL_MASK, WARP_SIZE
from .warp import (
    ShflKind,
    elect_one,
    make_warp_uniform,
    shuffle_sync,
    shuffle_sync_bfly,
    shuffle_sync_down,
    shuffle_sync_op,
    shuffle_sync_up,
    sync_warp,
    vote_all_sync,
    vote_any_sync,
    vote_ballot_sync,
    vote_uni_sync,
    warp_reduction,
    warp_reduction_max,
    warp_reduction_sum,
    warp_redux_sync,
)

__all__ = [
    "FULL_MASK", "WARP_SIZE", "Arch", "ShflKind", "add_packed_f32x2", "alloc_smem", "atomic_add", "atomic_and",
    "atomic_cas", "atomic_exch", "atomic_fmax", "atomic_fmin", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xor", "barrier", "barrier_arrive", "block_dim", "block_idx", "block_idx_in_cluster",
    "block_in_cluster_dim", "block_in_cluster_idx", "clock", "clock64", "cluster_arrive", "cluster_arrive_relaxed",
    "cluster_dim", "cluster_idx", "cluster_size", "cluster_wait", "clz", "cp_async_bulk_commit_group",
    "cp_async_bulk_wait_group", "cp_async_commit_group", "cp_async_mbarrier_arrive_noinc", "cp_async_wait_group",
    "dynamic_smem_size", "elect_one", "exp", "exp2", "exp_packed_f32x2", "fence_acq_rel_cluster",
    "fence_acq_rel_cta", "fence_acq_rel_gpu", "fence_acq_rel_sys", "fence_proxy", "fence_view_async_shared",
    "fma_packed_f32x2", "fmax", "fmin", "get_dyn_smem", "globaltimer", "grid_dim",
    "griddepcontrol_launch_dependents", "griddepcontrol_wait", "inline_ptx", "lane_idx", "load", "log2_approx",
    "lop3", "make_warp_uniform", "map_dsmem_ptr", "mbarrier_arrive", "mbarrier_arrive_and_expect_tx",
    "mbarrier_conditional_try_wait", "mbarrier_expect_tx", "mbarrier_init", "mbarrier_init_fence",
    "mbarrier_test_wait", "mbarrier_try_wait", "mbarrier_wait", "mul_hi", "mul_packed_f32x2", "mul_wide",
    "nanosleep", "popc", "prefetch", "prmt", "rcp_approx", "red", "rsqrt_approx", "setmaxregister_decrease",
    "setmaxregister_increase", "shuffle_sync", "shuffle_sync_bfly", "shuffle_sync_down", "shuffle_sync_op",
    "shuffle_sync_up", "store", "sub_packed_f32x2", "sync_threads", "sync_warp", "thread_idx", "vote_all_sync",
    "vote_any_sync", "vote_ballot_sync", "vote_uni_sync", "warp_idx", "warp_reduction", "warp_reduction_max",
    "warp_reduction_sum", "warp_redux_sync", "warpgroup_reg_alloc", "warpgroup_reg_dealloc",
]  # fmt: skip
