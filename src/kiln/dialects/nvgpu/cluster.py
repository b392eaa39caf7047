"""Clusters of CTAs: indices of a CTA, the cluster's barrier, distributed shared memory."""

from ...mlir import ir
from ..cute import info
from ..declaration import PURE, Alias, Build, Operand, OptionalAttr, Result
from ..definition import I32, Pointer, constant, one_of
from .dialect import CuteNvgpu, wrong_space


class ClusterIndex(CuteNvgpu.Operation, name="cluster_index", traits=PURE, varies="cta"):
    """Return an index or extent of the CTA in its cluster or of the cluster in the grid.

    With `dim` 0, 1, 2: `block_in_cluster_idx`, `block_in_cluster_dim` (CTAs of a cluster), `cluster_idx`, `cluster_dim`
    (clusters of the grid); with `dim` 0 only: `block_idx_in_cluster` (linear), `cluster_size` (CTAs).
    """

    result: Result[I32]
    which: one_of(
        "block_in_cluster_idx",
        "block_in_cluster_dim",
        "cluster_idx",
        "cluster_dim",
        "block_idx_in_cluster",
        "cluster_size",
    )
    dim: one_of(0, 1, 2)


cluster_index: Build = ClusterIndex.build


class ClusterArrive(CuteNvgpu.Operation, name="cluster_arrive", orders="cluster", converged="aligned"):
    """Arrive at the cluster's barrier, with release order unless `relaxed`. `aligned`: the whole warp executes it."""

    relaxed: OptionalAttr[ir.BoolAttr]
    aligned: OptionalAttr[ir.BoolAttr]


cluster_arrive: Build = ClusterArrive.build


class ClusterWait(CuteNvgpu.Operation, name="cluster_wait", orders="cluster", waits=True):
    """Wait until all threads of the cluster have arrived, with acquire order."""


cluster_wait: Build = ClusterWait.build


class MapShared(CuteNvgpu.Operation, name="map_shared", traits=PURE, alias=Alias("pointer", "peer")):
    """Return the address in the shared memory of CTA `rank` of the cluster that corresponds to one in this CTA's.

    The result is a pointer to the shared memory of the cluster (`dsmem`), or a generic one.
    """

    pointer: Operand[Pointer]
    rank: Operand[I32]
    result: Result[Pointer]

    def check(self) -> str:
        which = constant(self.rank)
        space = info(self.result.type).space
        if space not in ("dsmem", "generic"):
            return f"gives a pointer to {space}: another block's shared memory is dsmem"
        if which is not None and not 0 <= which < 16:
            return f"is of block {which}: a cluster has at most 16"
        return wrong_space(self.pointer, "pointer", "smem")


map_shared: Build = MapShared.build
