"""How gradients of attention are cut for `mma.sync`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch import arrays
from ..fwd.sm80_config import lanes, padded

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

_SPEED = 2.2e6
"""Multiplications and additions that a multiprocessor does in a microsecond."""
_FEW = 32
"""Up to so many queries and keys blocks are as small as can be."""
_TWICE = 1.4
"""Seven products instead of five: scores and their gradients are computed in both passes."""


@dataclasses.dataclass(frozen=True)
class Sm80AttentionBackwardConfig:
    """How gradients of attention are cut: keys (or queries) of a block of threads, 16 for each warp, queries (or keys) of a step."""

    tile_m: int = 64
    tile_n: int = 32

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.tile_m // 16

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 rows of a warp."""
        return 1

    def smem_bytes(self, head_dim: int, head_dim_v: int) -> int:
        """Shared memory of a block: its own rows, and two buffers of those of a step."""
        return 2 * (self.tile_m + 2 * self.tile_n) * (padded(head_dim) + padded(head_dim_v))

    @arrays.checked_once
    def check(self, head_dim: int, head_dim_v: int, capacity: int) -> None:
        """Refuse what cannot work for heads of so many elements where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(
            self.tile_m % 16 == 0 and 16 <= self.tile_m <= 256,
            f"{self}: a block has a multiple of 16 rows, up to 256",
        )
        copied = max(self.threads // lanes(d) for d in (head_dim, head_dim_v))
        require(
            self.tile_n > 0 and self.tile_n % 16 == 0 and self.tile_n % copied == 0 and self.tile_m % copied == 0,
            f"{self}: a step has a multiple of 16 rows, and it and a block of the {copied} that {self.threads} threads copy at once",
        )
        used = self.smem_bytes(head_dim, head_dim_v)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {head_dim} and {head_dim_v}, and a block has {capacity}",
            hint="fewer rows in a step",
        )


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm80AttentionBackwardConfig:
    """The config for a problem: as many rows in a step as shared memory allows."""
    of = problem.attention
    large = max(map(padded, of.head_dims))
    if max(of.seqlen_q, of.seqlen_k) <= _FEW and large <= 128:
        return Sm80AttentionBackwardConfig(16, 16)
    for config in (
        Sm80AttentionBackwardConfig(64, 64 if large <= 64 else 32),
        Sm80AttentionBackwardConfig(64, 32),
        Sm80AttentionBackwardConfig(64, 16),
    ):
        copied = config.threads // min(map(lanes, problem.attention.head_dims))
        if config.smem_bytes(*problem.attention.head_dims) <= device.smem and config.tile_n % copied == 0:
            return config
    return Sm80AttentionBackwardConfig(32, 16)


def expected(problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, device: Device) -> float:
    """Microseconds that gradients take."""
    of = problem.attention
    tiles = -(-of.seqlen_k // config.tile_m) * of.heads_k * of.batch
    rows = -(-of.seqlen_q // config.tile_n) * config.tile_n * of.group_size
    tile = _TWICE * 2 * config.tile_m * rows * (3 * of.head_dim + 2 * of.head_dim_v) / _SPEED
    return tile * max(1.0, tiles / (2 * device.multiprocessors)) * 2
