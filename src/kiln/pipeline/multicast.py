"""Multicast in a cluster: the CTAs of a row share A, those of a column share B, and wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..cute import arch
from ..cute.layout.layout import rank, size
from .barriers import in_cluster

if TYPE_CHECKING:
    from ..base_dsl.typing import Boolean

_WARP = 32


def sharers(cta_layout_vmnk: Any, mcast_mode_mn: tuple[int, int]) -> int:
    """Return in how many CTAs a warp releases a stage: those of its row if A is multicast, of its column if B is."""
    if not in_cluster(cta_layout_vmnk):
        return 1
    rows, columns = size(cta_layout_vmnk, mode=[1]), size(cta_layout_vmnk, mode=[2])
    return (columns if mcast_mode_mn[0] else 1) + (rows if mcast_mode_mn[1] else 1) - 1


def releases(cta_layout_vmnk: Any, tidx: Any, mcast_mode_mn: tuple[int, int]) -> tuple[Any, Boolean]:
    """Return where this thread releases a stage for its warp (None: in its own CTA), and whether it is one that does.

    The lanes of a warp have a CTA each, so that a warp arrives once in each CTA that fills stages of this one, its own
    among them.
    """
    thread = arch.thread_idx()[0] if tidx is None else tidx
    lane = thread % _WARP
    if not in_cluster(cta_layout_vmnk):
        return None, lane == 0
    blocks = size(cta_layout_vmnk)
    if rank(cta_layout_vmnk) != 4 or not isinstance(blocks, int) or blocks > _WARP:
        raise type_error(
            f"cta_layout_vmnk is {cta_layout_vmnk}",
            "a static layout of the CTAs of a cluster in four modes (V, M, N, K), at most 16 of them",
        )
    mine = cta_layout_vmnk.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
    other = cta_layout_vmnk.get_flat_coord(lane % blocks)
    same = [a == b for a, b in zip(mine, other, strict=True)]
    shares = (same[1] & bool(mcast_mode_mn[0])) | (same[2] & bool(mcast_mode_mn[1])) | (same[1] & same[2])
    return lane % blocks, (lane < blocks) & same[0] & same[3] & shares
