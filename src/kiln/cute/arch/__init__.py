"""What a thread knows about itself and its hardware."""

from __future__ import annotations

from .thread import block_dim, block_idx, grid_dim, lane_idx, thread_idx, warp_idx

__all__ = ["block_dim", "block_idx", "grid_dim", "lane_idx", "thread_idx", "warp_idx"]
