"""Clusters of blocks: where a block is, their barrier, their shared memory."""

from ...base_dsl.trace import emit, emit_value
from ...mlir import ir
from ..cute import info
from ..declaration import PURE, Operand, OptionalAttr, Result
from ..definition import I32, Pointer, attributes, constant, int_type, one_of
from .dialect import CuteNvgpu, wrong_space


class ClusterIndex(CuteNvgpu.Operation, name="cluster_index", traits=PURE):
    """Where the block is in its cluster and its cluster in the grid.

    `which` with `dim` 0, 1, 2: `block_in_cluster_idx`, `block_in_cluster_dim` (blocks of a cluster), `cluster_idx`,
    `cluster_dim` (clusters of the grid); without: `block_idx_in_cluster` (linear), `cluster_size` (blocks).
    """

    result: Result[I32]
    which: one_of(
        "block_in_cluster_idx", "block_in_cluster_dim", "cluster_idx", "cluster_dim", "block_idx_in_cluster", "cluster_size"
    )  # fmt: skip
    dim: one_of(0, 1, 2)


def cluster_index(which: str, dim: int) -> ir.Value:
    """Return an index or a size, an i32."""
    return emit_value("cute_nvgpu.cluster_index", int_type(32), (), attributes(which=which, dim=dim))


class ClusterArrive(CuteNvgpu.Operation, name="cluster_arrive"):
    """Arrive at the cluster's barrier; releases memory, unless it is `relaxed`. `aligned`: all threads of the warp execute it."""

    relaxed: OptionalAttr[ir.BoolAttr]
    aligned: OptionalAttr[ir.BoolAttr]


def cluster_arrive(relaxed: bool, aligned: bool) -> None:
    """Arrive at the cluster's barrier."""
    emit("cute_nvgpu.cluster_arrive", (), (), attributes(relaxed=relaxed or None, aligned=aligned or None))


class ClusterWait(CuteNvgpu.Operation, name="cluster_wait"):
    """Wait until all threads of the cluster have arrived; acquires memory."""


def cluster_wait() -> None:
    """Wait for the cluster's barrier."""
    emit("cute_nvgpu.cluster_wait")


class MapShared(CuteNvgpu.Operation, name="map_shared", traits=PURE):
    """The address in the shared memory of block `rank` of the cluster that corresponds to one in this block's.

    The result is a generic pointer.
    """

    pointer: Operand[Pointer]
    rank: Operand[I32]
    result: Result[Pointer]

    def check(self) -> str:
        which, space = constant(self.rank), info(self.result.type).space
        if space != "generic":
            return f"gives a pointer to {space}: another block's shared memory has generic addresses"
        if which is not None and not 0 <= which < 16:
            return f"is of block {which}: a cluster has at most 16"
        return wrong_space(self.pointer, "pointer", "smem")


def map_shared(pointer: ir.Value, rank: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the pointer of type `type_` into the shared memory of block `rank` (i32)."""
    return emit_value("cute_nvgpu.map_shared", type_, (pointer, rank))
