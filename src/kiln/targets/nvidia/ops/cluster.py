"""Clusters: indices of their blocks, the cluster barrier, and distributed shared memory."""

from __future__ import annotations

from ....dialects import cute, nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import control, sync
from ...lowering import memory
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, cluster_address, prints, special_register
from ..expand import Expander

HANDLERS = Handlers()
OVERRIDES = Handlers()
"""How addresses in the shared memory of the cluster become integers, and integers addresses."""
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


@OVERRIDES.expands(cute.PtrToInt, types=True)
def _ptr_to_int(x: Expander, op: cute.PtrToInt, b: DeviceBuilder) -> ir.Value:
    if cute.info(op.types.pointer).space != "dsmem":
        return memory.ptr_to_int(x, op, b)
    return b.value("arith.extui", int_type(64), (cluster_address(b, op.pointer),))


@OVERRIDES.expands(cute.IntToPtr)
def _int_to_ptr(x: Expander, op: cute.IntToPtr, b: DeviceBuilder) -> ir.Value:
    if cute.info(op.result.type).space != "dsmem":
        return memory.int_to_ptr(x, op, b)
    window = b.binary("andi", op.address, (1 << 32) - 1)
    (generic,) = b.asm("cvta.shared::cluster.u64 $0, $1;", "=l,l", [window], [int_type(64)], pure=True)
    return b.value("llvm.inttoptr", ptr_type(), (generic,))


@HANDLERS.expands(nvgpu.cluster.MapShared)
def _map_shared(x: Expander, op: nvgpu.cluster.MapShared, b: DeviceBuilder) -> ir.Value:
    x.require(op, features.CLUSTERS, "shared memory of another block")
    # a plain access to shared memory reaches this block's only: the result is a generic address
    address = b.value("llvm.ptrtoint", int_type(64), (b.cast_space(op.pointer, ptr_type()),))
    (mapped,) = b.ptx(control.MAPA_WIDE, [int_type(64)], pure=True, address=address, rank=op.rank)
    return b.value("llvm.inttoptr", x.lowered(op.result.type), (mapped,))
