"""Clusters of CTAs: a CTA's place in its cluster, the cluster's barrier, distributed shared memory."""

from __future__ import annotations

from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32
from ..deferred_dialects import cute, nvgpu
from ..tensor.pointer import AddressSpace, Pointer
from .thread import Triple
from .values import i32, kernel_only, number, pointer

__all__ = [
    "block_idx_in_cluster",
    "block_in_cluster_dim",
    "block_in_cluster_idx",
    "cluster_arrive",
    "cluster_arrive_relaxed",
    "cluster_dim",
    "cluster_idx",
    "cluster_size",
    "cluster_wait",
    "map_dsmem_ptr",
    "store_async_dsmem",
]


def _index(name: str, dim: int) -> Int32:
    return Int32._make(nvgpu.cluster.cluster_index(name, dim), nonneg=True)


def _triple(name: str) -> Triple:
    kernel_only(name)
    return _index(name, 0), _index(name, 1), _index(name, 2)


def block_in_cluster_idx(*, loc: object = None, ip: object = None) -> Triple:
    """Return the index of this CTA in its cluster."""
    return _triple("block_in_cluster_idx")


def block_in_cluster_dim(*, loc: object = None, ip: object = None) -> Triple:
    """Return the CTAs of a cluster along each axis."""
    return _triple("block_in_cluster_dim")


def cluster_idx(*, loc: object = None, ip: object = None) -> Triple:
    """Return the index of this cluster in the grid."""
    return _triple("cluster_idx")


def cluster_dim(*, loc: object = None, ip: object = None) -> Triple:
    """Return the clusters of the grid along each axis."""
    return _triple("cluster_dim")


def block_idx_in_cluster(*, loc: object = None, ip: object = None) -> Int32:
    """Return the rank of this CTA in its cluster: its linear index."""
    kernel_only("block_idx_in_cluster")
    return _index("block_idx_in_cluster", 0)


def cluster_size(*, loc: object = None, ip: object = None) -> Int32:
    """Return the number of CTAs of a cluster."""
    kernel_only("cluster_size")
    return _index("cluster_size", 0)


def cluster_arrive(*, aligned: bool | None = None, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier; earlier writes are visible after `cluster_wait`. Needs sm_90 or later.

    Args:
        aligned: all threads of a warp get here together.
    """
    kernel_only("cluster_arrive")
    nvgpu.cluster.cluster_arrive(relaxed=False, aligned=bool(aligned))


def cluster_arrive_relaxed(*, aligned: bool | None = None, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier without ordering memory. Needs sm_90 or later.

    Args:
        aligned: all threads of a warp get here together.
    """
    kernel_only("cluster_arrive_relaxed")
    nvgpu.cluster.cluster_arrive(relaxed=True, aligned=bool(aligned))


def cluster_wait(*, loc: object = None, ip: object = None) -> None:
    """Wait until all threads of the cluster have arrived. Needs sm_90 or later."""
    kernel_only("cluster_wait")
    nvgpu.cluster.cluster_wait()


def map_dsmem_ptr(smem_ptr: Any, cta_rank_in_cluster: object, *, loc: object = None, ip: object = None) -> Pointer:
    """Return a pointer into the shared memory of another CTA of the cluster. Needs sm_90 or later.

    A tensor there is `cute.make_tensor(map_dsmem_ptr(tensor.iterator, rank), tensor.layout)`; a swizzle of addresses is
    kept. `toint()` is the address of 32 bits that instructions of `.shared::cluster` take in inline PTX.

    Args:
        smem_ptr: a pointer into this CTA's shared memory; the result points to the same place there.
        cta_rank_in_cluster: the rank of the other CTA, as `block_idx_in_cluster` counts.
    """
    kernel_only("map_dsmem_ptr")
    source = pointer(smem_ptr, "map_dsmem_ptr", "smem")
    dtype = smem_ptr.dtype
    alignment = smem_ptr.alignment
    type_ = cute.ptr_type(dtype.mlir_type, "dsmem", alignment)
    mapped = nvgpu.cluster.map_shared(source, i32(cta_rank_in_cluster), type_=type_)
    return Pointer(mapped, dtype, AddressSpace.dsmem, alignment, swizzle=smem_ptr.swizzle)


def store_async_dsmem(
    smem_ptr: object,
    value: object,
    mbar_ptr: object,
    cta_rank_in_cluster: object,
    *,
    loc: object = None,
    ip: object = None,
) -> None:
    """Store a number to the shared memory of a CTA of the cluster later; an mbarrier there counts its bytes.

    Needs sm_90 or later. The CTA expects the bytes with `mbarrier_arrive_and_expect_tx` or `mbarrier_expect_tx`.

    Args:
        smem_ptr: where the number goes, as a pointer into this CTA's shared memory, aligned to its size.
        value: a number of 32 or 64 bits.
        mbar_ptr: the mbarrier, as a pointer into this CTA's shared memory.
        cta_rank_in_cluster: the rank of the CTA whose memory and mbarrier they are.
    """
    kernel_only("store_async_dsmem")
    typed = number(value)
    width = type(typed).width
    if width not in (32, 64):
        raise type_error(f"store_async_dsmem() of {type(typed).__name__}", "a number of 32 or 64 bits")
    one = tracing.emit_value("vector.from_elements", type(typed).vector_type(1), (typed.ir_value(),))
    words = tracing.emit_value("vector.bitcast", Int32.vector_type(width // 32), (one,))
    target, mbarrier = (map_dsmem_ptr(where, cta_rank_in_cluster).ir_value() for where in (smem_ptr, mbar_ptr))
    nvgpu.async_copy.store_async(target, words, mbarrier)
