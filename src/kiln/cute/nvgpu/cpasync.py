"""Asynchronous copies from global to shared memory."""

from __future__ import annotations

from typing import Any

from ..._support import lazy, unavailable
from ...base_dsl.diagnostics import type_error
from ...base_dsl.numeric.operators import select
from ...base_dsl.typing import Int32
from ..arch.values import i32
from ..atoms.access_modifiers import CacheEvictionPriority, l2_modifier
from ..atoms.atom import CopyOp, CopyTrait
from ..atoms.copying import guarded, predicates
from ..deferred_dialects import nvgpu
from ..layout.layout import make_layout
from ..tensor.pointer import AddressSpace, element_bits
from .access import check_call, memory, paired_rows
from .bulk_copy import (
    CopyBulkG2SMulticastOp,
    CopyBulkG2SOp,
    CopyBulkS2GOp,
    CopyBulkS2SOp,
    CopyDsmemStoreOp,
    CopyReduceBulkS2GOp,
    CopyReduceBulkS2SOp,
)
from .common import LoadCacheMode
from .im2col import make_im2col_tma_atom
from .tensor_map_updates import (
    copy_tensormap,
    cp_fence_tma_desc_release,
    fence_tma_desc_acquire,
    fence_tma_desc_release,
    update_tma_descriptor,
)
from .tma_atom import (
    TmaInfo,
    create_tma_multicast_mask,
    make_tiled_tma_atom,
    make_tiled_tma_atom_A,
    make_tiled_tma_atom_B,
    prefetch_descriptor,
)
from .tma_ops import (
    CopyBulkTensor2DGather4G2SMulticastOp,
    CopyBulkTensor2DGather4G2SOp,
    CopyBulkTensor2DScatter4S2GOp,
    CopyBulkTensorIm2ColG2SMulticastOp,
    CopyBulkTensorIm2ColG2SOp,
    CopyBulkTensorIm2ColS2GOp,
    CopyBulkTensorTileG2SMulticastOp,
    CopyBulkTensorTileG2SNonExecTrait,
    CopyBulkTensorTileG2SOp,
    CopyBulkTensorTileS2GOp,
    CopyReduceBulkTensorTileS2GOp,
    ReductionKind,
    TmaCopyOp,
)
from .tma_partition import tma_partition

__dir__ = lazy.listing(__name__)
__all__ = [
    "CopyBulkG2SMulticastOp",
    "CopyBulkG2SOp",
    "CopyBulkS2GOp",
    "CopyBulkS2SOp",
    "CopyBulkTensor2DGather4G2SMulticastOp",
    "CopyBulkTensor2DGather4G2SOp",
    "CopyBulkTensor2DScatter4S2GOp",
    "CopyBulkTensorIm2ColG2SMulticastOp",
    "CopyBulkTensorIm2ColG2SOp",
    "CopyBulkTensorIm2ColS2GOp",
    "CopyBulkTensorTileG2SMulticastOp",
    "CopyBulkTensorTileG2SNonExecTrait",
    "CopyBulkTensorTileG2SOp",
    "CopyBulkTensorTileS2GOp",
    "CopyDsmemStoreOp",
    "CopyG2SOp",
    "CopyReduceBulkS2GOp",
    "CopyReduceBulkS2SOp",
    "CopyReduceBulkTensorTileS2GOp",
    "LoadCacheMode",
    "ReductionKind",
    "ReductionOp",
    "TmaCopyOp",
    "TmaInfo",
    "copy_tensormap",
    "cp_fence_tma_desc_release",
    "create_tma_multicast_mask",
    "fence_tma_desc_acquire",
    "fence_tma_desc_release",
    "make_im2col_tma_atom",
    "make_tiled_tma_atom",
    "make_tiled_tma_atom_A",
    "make_tiled_tma_atom_B",
    "prefetch_descriptor",
    "tma_partition",
    "update_tma_descriptor",
]

ReductionOp = ReductionKind
"""Another name that programs know it by."""


class CopyG2SOp(CopyOp):
    """`cp.async`: each thread copies 4, 8 or 16 bytes, which arrive later (`cute.arch.cp_async_wait_group`).

    `LoadCacheMode.GLOBAL` bypasses the L1 cache and takes 16 bytes only; `ALWAYS` uses it. Where a predicate is false
    zeros are written and nothing is read, without a branch. An atom's `l2_evict_priority` is the eviction priority in
    the L2 cache, `l2_prefetch_size` (64, 128 or 256) the bytes around those copied that may be prefetched into it.
    """

    def __init__(self, cache_mode: Any = LoadCacheMode.ALWAYS) -> None:
        if cache_mode not in (LoadCacheMode.ALWAYS, LoadCacheMode.GLOBAL):
            raise type_error(f"cache_mode is {cache_mode!r}", "an asynchronous copy is cached ALWAYS or GLOBAL")
        self.cache_mode = cache_mode

    def make_trait(
        self,
        copy_internal_type: object,
        *,
        num_bits_per_copy: int = 0,
        l2_evict_priority: object = CacheEvictionPriority.EVICT_NORMAL,
        l2_prefetch_size: int | None = None,
    ) -> CopyTrait:
        if l2_prefetch_size not in (None, 64, 128, 256):
            raise type_error(f"l2_prefetch_size is {l2_prefetch_size!r}", "64, 128 or 256 bytes")
        hints = {"hint": l2_modifier(l2_evict_priority) or None, "prefetch": l2_prefetch_size}
        return CpAsyncTrait(copy_internal_type, num_bits_per_copy or 128, self.cache_mode, hints)


class CpAsyncTrait(CopyTrait):
    """One thread's asynchronous copy of `bits` bits."""

    def __init__(self, value_type: object, bits: int, cache_mode: LoadCacheMode, hints: Any = None) -> None:
        width = element_bits(value_type)
        allowed = (128,) if cache_mode is LoadCacheMode.GLOBAL else (32, 64, 128)
        if bits not in allowed or bits % width:
            raise type_error(
                f"num_bits_per_copy={bits} with cache mode {cache_mode.name} and elements of {width} bits",
                f"an asynchronous copy takes {' or '.join(map(str, allowed))} bits, a whole number of elements",
            )
        self.bits = bits
        self.hints: dict[str, Any] = hints or {}
        self.values: int = bits // width
        self.cache = "cg" if cache_mode is LoadCacheMode.GLOBAL else "ca"
        layout = make_layout((1, self.values), stride=(0, 1))
        super().__init__(value_type, make_layout(1), layout, layout)

    def copy(self, src: object, dst: object, pred: object) -> None:
        src = memory(src, "the source of an asynchronous copy", AddressSpace.gmem)
        dst = memory(dst, "the destination of an asynchronous copy", AddressSpace.smem)
        whole = self.bits // 8
        pairs = paired_rows(src, dst, self.values, whole, "an asynchronous copy")
        count = len(pairs)

        def move(numbers: Any, size: object = whole) -> None:
            for n in numbers:
                check_call(dst, n, self.values, write=True)
                target, source = pairs[n]
                nvgpu.async_copy.cp_async(target, source, i32(size), whole, self.cache, **self.hints)

        def check(numbers: Any) -> None:
            for n in numbers:
                check_call(src, n, self.values, write=False)

        if pred is None:
            check(range(count))
            move(range(count))
            return
        for condition, numbers in predicates(pred, count * self.values, self.values, src, dst):
            if src._extents is not None:
                guarded(condition, lambda numbers=numbers: check(numbers))
            move(numbers, select(condition, Int32(whole), Int32(0)))


def __getattr__(name: str) -> object:
    return unavailable.name(__name__, name)
