"""Multicast in a cluster: the CTAs of a row share A, those of a column share B, and wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Int32
from ..cute import arch
from ..cute.layout.layout import rank, size
from ..cute.layout.tiling import make_layout_image_mask
from ..cute.nvgpu.common import CtaGroup
from .barriers import in_cluster

if TYPE_CHECKING:
    from ..base_dsl.typing import Boolean

_WARP = 32
_MOST_CTAS = 16


def sharers(cta_layout_vmnk: object, mcast_mode_mn: tuple[int, int]) -> int:
    """Return in how many CTAs a warp releases a stage: those of its row if A is multicast, of its column if B is."""
    if not in_cluster(cta_layout_vmnk):
        return 1
    rows = size(cta_layout_vmnk, mode=[1])
    columns = size(cta_layout_vmnk, mode=[2])
    return (columns if mcast_mode_mn[0] else 1) + (rows if mcast_mode_mn[1] else 1) - 1


def cluster_size(cta_layout_vmnk: object) -> int:
    """Return the CTAs of a cluster; raise an error if its layout is not one that pipelines can take."""
    if cta_layout_vmnk is None:
        return 1
    ctas = size(cta_layout_vmnk)
    if rank(cta_layout_vmnk) != 4 or not isinstance(ctas, int) or ctas > _MOST_CTAS:
        raise type_error(
            f"cta_layout_vmnk is {cta_layout_vmnk}",
            "a static layout of the CTAs of a cluster in four modes (V, M, N, K), at most 16 of them",
        )
    return ctas


def cta_group(cta_layout_vmnk: Any) -> CtaGroup:
    """Return how many CTAs execute an MMA together: the extent of V."""
    if cta_layout_vmnk is None:
        return CtaGroup.ONE
    ctas = cluster_size(cta_layout_vmnk)
    along_v = size(cta_layout_vmnk, mode=[0])
    neighbours = along_v == 1 or [cta_layout_vmnk((v, 0, 0, 0)) for v in range(along_v)] == [0, 1]
    if along_v not in (1, 2) or ctas % along_v or not neighbours:
        raise type_error(
            f"cta_layout_vmnk is {cta_layout_vmnk}: mode V has {along_v} CTAs",
            "V is 1, or 2 for pairs of CTAs, whose ranks in the cluster differ by 1: "
            "cute.tiled_divide(cute.make_layout((m, n, 1)), (tiled_mma.thr_id.shape,)) with an even m",
        )
    return CtaGroup(along_v)


def leader() -> Int32:
    """Return the rank of the CTA of this pair that issues the MMAs: the even one."""
    return arch.make_warp_uniform(arch.block_idx_in_cluster()) & ~1


def is_leader() -> Boolean:
    """Return whether this CTA issues the MMAs of its pair."""
    return (arch.make_warp_uniform(arch.block_idx_in_cluster()) & 1) == 0


def pair_mask() -> Int32:
    """Return a mask of the two CTAs of this pair."""
    return Int32(3) << leader()


def consumers_mask(cta_layout_vmnk: Any, mcast_mode_mn: tuple[int, int]) -> Any:
    """Return a mask of the CTAs that fill stages of this one: those of its row if A is multicast, of its column if B
    is, with pairs counted whole; None for this CTA alone."""
    if not in_cluster(cta_layout_vmnk):
        return None
    group = cta_group(cta_layout_vmnk)
    here = cta_layout_vmnk.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
    mask = Int32(0)
    for v in range(group.value):
        coordinate = (v, *here[1:])
        for mode, shared in ((2, mcast_mode_mn[0]), (1, mcast_mode_mn[1])):
            if shared:
                mask = mask | make_layout_image_mask(cta_layout_vmnk, coordinate, mode)
    if not any(mcast_mode_mn):
        return None if group is CtaGroup.ONE else pair_mask()
    return mask


def releases(cta_layout_vmnk: Any, tidx: Any, mcast_mode_mn: tuple[int, int]) -> tuple[Any, Boolean]:
    """Return where this thread releases a stage for its warp (None: in its own CTA), and whether it is one that does.

    The lanes of a warp have a CTA each, so that a warp arrives once in each CTA that fills stages of this one, its own
    among them.
    """
    thread = arch.thread_idx()[0] if tidx is None else tidx
    lane = thread % _WARP
    if not in_cluster(cta_layout_vmnk):
        return None, lane == 0
    blocks = cluster_size(cta_layout_vmnk)
    mine = cta_layout_vmnk.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
    other = cta_layout_vmnk.get_flat_coord(lane % blocks)
    same = [a == b for a, b in zip(mine, other, strict=True)]
    shares = (same[1] & bool(mcast_mode_mn[0])) | (same[2] & bool(mcast_mode_mn[1])) | (same[1] & same[2])
    return lane % blocks, (lane < blocks) & same[0] & same[3] & shares
