"""Clusters: indices of their blocks, the cluster barrier, and distributed shared memory."""

from __future__ import annotations

from ....dialects import nvgpu
from ....mlir import ir
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime.record_access import block_of
from ..sanitizer.hooks import hooks_of

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.cluster.ClusterIndex)
def _cluster_index(x: Expander, op: nvgpu.cluster.ClusterIndex, b: Builder) -> ir.Value:
    record = block_of(b, x.frame_of(op))
    which = op.which
    dim = op.dim
    sizes = [record.load(f"cluster_{a}") for a in "xyz"]
    if which == "cluster_size":
        return b.product(sizes)
    if which == "block_idx_in_cluster":
        return record.load("rank")
    if which == "block_in_cluster_dim":
        return sizes[dim]
    if which == "block_in_cluster_idx":
        return b.binary("remui", x.function.indices["block_idx"][dim], sizes[dim])
    index = x.function.indices["block_idx" if which == "cluster_idx" else "grid_dim"]
    return b.binary("divui", index[dim], sizes[dim])


@HANDLERS.calls(nvgpu.cluster.ClusterArrive, "relaxed")
def cluster_arrive(x: Expander, op: ir.Operation, b: Builder, relaxed: bool) -> None:
    """Arrive at the cluster's barrier."""
    frame = x.frame_of(op)
    mode = 3 if relaxed else 2
    hooks_of(x, op).arrival(b, frame, None, None, mode, lambda: x.call(b, "kiln_cpu_cluster_arrive", [frame]))


@HANDLERS.calls(nvgpu.cluster.ClusterWait)
def cluster_wait(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Wait for the cluster's barrier."""
    site = b.i32(x.site_of(op, "cluster barrier"))
    x.suspend_if(b, x.call(b, "kiln_cpu_cluster_wait", [x.frame_of(op), site], int_type(32)))
    hooks_of(x, op).passed(b, cluster=True)


@HANDLERS.calls(nvgpu.cluster.MapShared, "pointer", "rank")
def peer(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, rank: ir.Value) -> ir.Value:
    """Return an address in the shared memory of block `rank` of the cluster; the address itself if that is negative.

    The address may already be another block's: its offset in that block counts.
    """
    i64 = int_type(64)
    record = block_of(b, x.frame_of(op))
    bits = b.value("arith.extui", i64, (record.load("chunk_bits"),))
    inside = b.binary("subi", *(b.value("llvm.ptrtoint", i64, (p,)) for p in (pointer, record.load("smem"))))
    now = b.binary("addi", b.binary("shrsi", inside, bits), b.value("arith.extui", i64, (record.load("rank"),)))
    distance = b.binary("shli", b.binary("subi", b.value("arith.extsi", i64, (rank,)), now), bits)
    return b.byte_gep(pointer, b.select(b.compare("slt", rank, 0), b.i64(0), distance))
