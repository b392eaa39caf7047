"""Clusters: where a block is in one, its barrier, and the shared memory of its other blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import ir
from ...lowering.builder import int_type, ptr_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, special_register

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


_CLUSTERREGISTERS = {
    "block_in_cluster_idx": "cluster.ctaid",
    "block_in_cluster_dim": "cluster.nctaid",
    "cluster_idx": "clusterid",
    "cluster_dim": "nclusterid",
}


@HANDLERS.expands("cute_nvgpu.cluster_index")
def _cluster_index(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    which, dim = op.attributes["which"].value, op.attributes["dim"].value
    if not features.CLUSTERS.on(x.arch):  # every block is a cluster
        if which in ("block_in_cluster_idx", "block_idx_in_cluster"):
            return [b.i32(0)]
        if which in ("block_in_cluster_dim", "cluster_size"):
            return [b.i32(1)]
        return [special_register(b, f"{'ctaid' if which == 'cluster_idx' else 'nctaid'}.{'xyz'[dim]}")]
    if which == "block_idx_in_cluster":
        return [special_register(b, "cluster.ctarank")]
    if which == "cluster_size":
        return [special_register(b, "cluster.nctarank")]
    return [special_register(b, f"{_CLUSTERREGISTERS[which]}.{'xyz'[dim]}")]


@HANDLERS.expands("cute_nvgpu.cluster_arrive")
def _cluster_arrive(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "a cluster barrier")
    aligned = ".aligned" if "aligned" in op.attributes else ""
    order = ".relaxed" if "relaxed" in op.attributes else ".release"
    b.asm(f"barrier.cluster.arrive{order}{aligned};", "")
    return []


@HANDLERS.expands("cute_nvgpu.cluster_wait")
def _cluster_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "a cluster barrier")
    aligned = ".aligned" if "aligned" in op.attributes else ""
    b.asm(f"barrier.cluster.wait.acquire{aligned};", "")
    return []


@HANDLERS.expands("cute_nvgpu.map_shared")
def _map_shared(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.CLUSTERS, "shared memory of another block")
    # a plain access to shared memory reaches this block's only: the result is a generic address
    address = b.value("llvm.ptrtoint", int_type(64), (b.cast_space(op.operands[0], ptr_type()),))
    operands = [address, op.operands[1]]
    (mapped,) = b.asm("mapa.u64 $0, $1, $2;", "=l,l,r", operands, [int_type(64)], pure=True)
    return [b.value("llvm.inttoptr", x.lowered(results[0]), (mapped,))]
