"""Clusters: indices of their blocks, the cluster barrier, and distributed shared memory."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import control, sync
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, prints, special_register
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {nvgpu.cluster.ClusterWait: sync.CLUSTER_WAIT}, features.CLUSTERS, "a cluster barrier")

_CLUSTER_REGISTERS = {
    "block_in_cluster_idx": "cluster.ctaid",
    "block_in_cluster_dim": "cluster.nctaid",
    "cluster_idx": "clusterid",
    "cluster_dim": "nclusterid",
}


@HANDLERS.expands(nvgpu.cluster.ClusterIndex)
def _cluster_index(x: Expander, op: nvgpu.cluster.ClusterIndex, b: DeviceBuilder) -> ir.Value:
    which = op.which
    dim = op.dim
    if not features.CLUSTERS.on(x.arch):  # every block is a cluster
        if which in ("block_in_cluster_idx", "block_idx_in_cluster"):
            return b.i32(0)
        if which in ("block_in_cluster_dim", "cluster_size"):
            return b.i32(1)
        return special_register(b, f"{'ctaid' if which == 'cluster_idx' else 'nctaid'}.{'xyz'[dim]}")
    if which == "block_idx_in_cluster":
        return special_register(b, "cluster.ctarank")
    if which == "cluster_size":
        return special_register(b, "cluster.nctarank")
    return special_register(b, f"{_CLUSTER_REGISTERS[which]}.{'xyz'[dim]}")


@HANDLERS.expands(nvgpu.cluster.ClusterArrive)
def _cluster_arrive(x: Expander, op: nvgpu.cluster.ClusterArrive, b: DeviceBuilder) -> None:
    x.require(op, features.CLUSTERS, "a cluster barrier")
    b.ptx(sync.CLUSTER_ARRIVE, order="relaxed" if op.relaxed else "release", aligned=op.aligned)


@HANDLERS.expands(nvgpu.cluster.MapShared)
def _map_shared(x: Expander, op: nvgpu.cluster.MapShared, b: DeviceBuilder) -> ir.Value:
    x.require(op, features.CLUSTERS, "shared memory of another block")
    # a plain access to shared memory reaches this block's only: the result is a generic address
    address = b.value("llvm.ptrtoint", int_type(64), (b.cast_space(op.pointer, ptr_type()),))
    (mapped,) = b.ptx(control.MAPA_WIDE, [int_type(64)], pure=True, address=address, rank=op.rank)
    return b.value("llvm.inttoptr", x.lowered(op.result.type), (mapped,))
