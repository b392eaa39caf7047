"""Instructions of the hardware as functions: a thread's place, synchronisation, memory; one module for each unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy
from ...hardware.architectures import Arch
from . import (
    arithmetic,
    async_copy,
    atomic,
    block_barrier,
    cluster,
    control,
    fence,
    inline_assembly,
    launch_control,
    mbarrier,
    packed,
    smem,
    special_registers,
    tensor_memory,
    thread,
    values,
    warp,
    words,
)
from .arithmetic import *
from .async_copy import *
from .atomic import *
from .block_barrier import *
from .cluster import *
from .control import *
from .fence import *
from .inline_assembly import *
from .launch_control import *
from .mbarrier import *
from .packed import *
from .smem import *
from .special_registers import *
from .tensor_memory import *
from .thread import *
from .values import *
from .warp import *
from .words import *

_ELSEWHERE = {
    "__ldg": "x[i], an ordinary load",
    "ldg": "x[i], an ordinary load",
    "__syncthreads": "sync_threads()",
    "syncthreads": "sync_threads()",
    "bar_sync": "barrier(...)",
    "__syncwarp": "sync_warp()",
    "syncwarp": "sync_warp()",
    "__shfl_sync": "shuffle_sync(...)",
    "__shfl_xor_sync": "shuffle_sync_bfly(...)",
    "__shfl_up_sync": "shuffle_sync_up(...)",
    "__shfl_down_sync": "shuffle_sync_down(...)",
    "__any_sync": "vote_any_sync(...)",
    "__all_sync": "vote_all_sync(...)",
    "__ballot_sync": "vote_ballot_sync(...)",
    "elect_sync": "elect_one()",
    "__threadfence": "fence_acq_rel_gpu()",
    "__threadfence_block": "fence_acq_rel_cta()",
    "__threadfence_system": "fence_acq_rel_sys()",
    "threadIdx": "thread_idx(), which returns x, y, z",
    "blockIdx": "block_idx(), which returns x, y, z",
    "blockDim": "block_dim(), which returns x, y, z",
    "gridDim": "grid_dim(), which returns x, y, z",
    "atomicAdd": "atomic_add(pointer, value)",
    "atomicCAS": "atomic_cas(...)",
    "atomicExch": "atomic_exch(pointer, value)",
    "atomicMax": "atomic_max(pointer, value)",
    "atomicMin": "atomic_min(pointer, value)",
    "__popc": "popc(value)",
    "__clz": "clz(value)",
    "__nanosleep": "nanosleep(...)",
    "cp_async": "cute.copy with cute.nvgpu.cpasync.CopyG2SOp",
    "ldmatrix": "cute.copy with cute.nvgpu.warp.LdMatrix8x8x16bOp",
    "stmatrix": "cute.copy with cute.nvgpu.warp.StMatrix8x8x16bOp",
    "fence_proxy_async": 'fence_proxy("async")',
}
"""Names of CUDA C++ and PTX, and what to write for them."""
_EARLIER = {
    "ProxyKind": ".nvvm_dialect",
    "SharedSpace": ".nvvm_dialect",
    "mapa": ".nvvm_wrappers",
    "SM100_TMEM_CAPACITY_COLUMNS": ".earlier_names",
    "SM100_TMEM_MIN_ALLOC_COLUMNS": ".earlier_names",
}
"""Names of earlier versions of CuTe DSL, which programs still use, and where they are."""
if not TYPE_CHECKING:  # or checkers took every name
    __getattr__ = lazy.names(__name__, _EARLIER, elsewhere=_ELSEWHERE)
__dir__ = lazy.listing(__name__)
__all__ = ["Arch"]
__all__ += arithmetic.__all__
__all__ += async_copy.__all__
__all__ += atomic.__all__
__all__ += block_barrier.__all__
__all__ += cluster.__all__
__all__ += control.__all__
__all__ += fence.__all__
__all__ += inline_assembly.__all__
__all__ += launch_control.__all__
__all__ += mbarrier.__all__
__all__ += packed.__all__
__all__ += smem.__all__
__all__ += special_registers.__all__
__all__ += tensor_memory.__all__
__all__ += thread.__all__
__all__ += values.__all__
__all__ += warp.__all__
__all__ += words.__all__
