"""`block_copy`: the copy of a tile between global and shared memory by TMA, partitioned where it is issued."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import type_error
from ..cute import arch
from ..cute.atoms.copying import copy
from ..cute.layout.int_tuple import product_each
from ..cute.layout.layout import make_layout
from ..cute.layout.modes import group_modes
from ..cute.nvgpu.tma_atom import create_tma_multicast_mask
from ..cute.nvgpu.tma_partition import tma_partition
from ..cute.tensor.iterator import AddressSpace

__all__ = ["block_copy"]


def block_copy(
    tiled_copy: Any,
    src: object,
    dst: Any,
    *,
    tma_multicast: dict[str, Any] | None = None,
    loc: object = None,
    ip: object = None,
    **kwargs: object,
) -> None:
    """Copy a tile by a TMA atom: `tma_partition` and `cute.copy` in one call.

    Args:
        tiled_copy: the TMA atom.
        src: the tile to copy, in shared memory or as a coordinate tensor.
        dst: the destination, the other of the two.
        tma_multicast: how the CTAs of a cluster share the tile: `cluster_shape` (M, N), and `multicast_dim`, the mode
            of the cluster whose coordinate they have in common ("M": the CTAs along N have the tile of A). Each loads a
            part of it for all of them.
        kwargs: options of `cute.copy`, such as `tma_bar_ptr`.
    """
    to_smem = dst.memspace is AddressSpace.smem
    smem, gmem = (dst, src) if to_smem else (src, dst)
    coord = 0
    layout = make_layout(1)
    shape = product_each(tuple((tma_multicast or {}).get("cluster_shape", (1, 1))))
    if shape[0] * shape[1] > 1 and getattr(tiled_copy.op, "multicast", False):
        along = (tma_multicast or {}).get("multicast_dim")
        if along not in ("M", "N"):
            raise type_error(
                f"multicast_dim is {along!r}", '"M" where CTAs along N share a tile, "N" where those along M do'
            )
        mode = 1 if along == "M" else 0
        cluster = make_layout((*shape, 1))
        place = cluster.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
        coord = place[mode]
        layout = make_layout(shape[mode])
        kwargs["mcast_mask"] = create_tma_multicast_mask(make_layout((1, *shape, 1)), (0, *place[:2], 0), mode + 1)
    parts = tma_partition(tiled_copy, coord, layout, _tile(smem), _tile(gmem))
    copy(tiled_copy, *(parts[::-1] if to_smem else parts), **kwargs)


def _tile(tensor: Any) -> Any:
    """Return a tensor with all its modes as one."""
    return group_modes(tensor, 0, len(tensor.layout)) if len(tensor.layout) > 1 else tensor
