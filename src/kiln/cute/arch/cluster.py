"""Clusters of CTAs: a CTA's place in its cluster, the cluster's barrier, distributed shared memory."""

from __future__ import annotations

from typing import Any

from ...base_dsl.typing import Int32
from ..deferred_dialects import cute, nvgpu
from ..tensor.pointer import AddressSpace, Pointer
from .thread import Triple
from .values import i32, kernel_only, pointer

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
    kept.

    Args:
        smem_ptr: a pointer into this CTA's shared memory; the result points to the same place there.
        cta_rank_in_cluster: the rank of the other CTA, as `block_idx_in_cluster` counts.
    """
    kernel_only("map_dsmem_ptr")
    source = pointer(smem_ptr, "map_dsmem_ptr", "smem")
    dtype = smem_ptr.dtype
    alignment = smem_ptr.alignment
    type_ = cute.ptr_type(dtype.mlir_type, "generic", alignment)
    mapped = nvgpu.cluster.map_shared(source, i32(cta_rank_in_cluster), type_=type_)
    return Pointer(mapped, dtype, AddressSpace.generic, alignment, swizzle=smem_ptr.swizzle)
