"""A thread's place in its CTA and grid."""

from __future__ import annotations

from ...base_dsl.typing import Int32
from ..deferred_dialects import cute
from .values import kernel_only

__all__ = ["block_dim", "block_idx", "grid_dim", "lane_idx", "thread_idx", "warp_idx"]

Triple = tuple[Int32, Int32, Int32]


def _index(name: str, dim: int | None = None) -> Int32:
    return Int32._make(cute.index(name, dim), nonneg=True)


def _triple(name: str) -> Triple:
    kernel_only(name)
    return _index(name, 0), _index(name, 1), _index(name, 2)


def thread_idx(*, loc: object = None, ip: object = None) -> Triple:
    """Return the index of this thread in its CTA, (x, y, z)."""
    return _triple("thread_idx")


def block_idx(*, loc: object = None, ip: object = None) -> Triple:
    """Return the index of this CTA in the grid."""
    return _triple("block_idx")


def block_dim(*, loc: object = None, ip: object = None) -> Triple:
    """Return the threads of a CTA along each axis."""
    return _triple("block_dim")


def grid_dim(*, loc: object = None, ip: object = None) -> Triple:
    """Return the CTAs of the grid along each axis."""
    return _triple("grid_dim")


def lane_idx(*, loc: object = None, ip: object = None) -> Int32:
    """Return the position of this thread in its warp, 0 to 31."""
    kernel_only("lane_idx")
    return _index("lane_idx")


def warp_idx(*, loc: object = None, ip: object = None) -> Int32:
    """Return the number of this thread's warp in its CTA."""
    kernel_only("warp_idx")
    return _index("warp_idx")
