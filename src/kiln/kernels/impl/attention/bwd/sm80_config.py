"""The config of the sm_80 backward kernels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.config import Config, Rule
from ....dispatch.roofline import Roofline, us
from ....tuned import coefficients
from ..config_rules import copies_whole_tiles
from ..fwd.sm80_config import copy_lanes, padded_head_dim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

_SHORT = 32
"""Queries and keys up to which tiles are as small as can be."""
_RECOMPUTE = 1.4
"""Seven GEMMs instead of five: both kernels compute S and dP."""


@dataclasses.dataclass(frozen=True)
class Sm80AttentionBackwardConfig(Config):
    """Tile shape of the sm_80 backward kernels: a CTA has `tile_m` keys (dK/dV) or queries (dQ), 16 for each warp, and
    steps of `tile_n` queries or keys."""

    tile_m: int = 64
    tile_n: int = 32

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return self.tile_m // 16

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    def smem_bytes(self, head_dim: int, head_dim_v: int) -> int:
        """Return the smem of a CTA: its own rows, and two stages of the streamed ones."""
        return 2 * (self.tile_m + 2 * self.tile_n) * (padded_head_dim(head_dim) + padded_head_dim(head_dim_v))

    def rules(self, head_dims: tuple[int, int], capacity: int) -> Iterator[Rule]:
        """Yield the rules for head dimensions and `capacity` bytes of smem."""
        yield from self.multiples(16, 256, "tile_m")
        copied = max(self.threads // copy_lanes(dim) for dim in head_dims)
        yield copies_whole_tiles(self.tile_m, self.tile_n, self.threads, copied)
        yield self.fits_smem(self.smem_bytes(*head_dims), capacity, "a smaller tile_n", f" for head_dim {head_dims}")


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm80AttentionBackwardConfig:
    """Return the config for a problem: as many rows in a step as smem allows."""
    of = problem.attention
    large = max(map(padded_head_dim, of.head_dims))
    if max(of.seqlen_q, of.seqlen_k) <= _SHORT and large <= 128:
        return Sm80AttentionBackwardConfig(16, 16)
    for tile_n in (64 if large <= 64 else 32, 32, 16):
        config = Sm80AttentionBackwardConfig(64, tile_n)
        copied = config.threads // min(map(copy_lanes, of.head_dims))
        if config.smem_bytes(*of.head_dims) <= device.smem and config.tile_n % copied == 0:
            return config
    return Sm80AttentionBackwardConfig(32, 16)


def roofline(problem: AttentionBackwardProblem, config: Sm80AttentionBackwardConfig, device: Device) -> Roofline:
    """Return what a backward pass is expected to spend time on."""
    of = problem.attention
    tiles = -(-of.seqlen_k // config.tile_m) * of.heads_k * of.batch
    rows = -(-of.seqlen_q // config.tile_n) * config.tile_n * of.group_size
    flops = _RECOMPUTE * 2 * config.tile_m * rows * (3 * of.head_dim + 2 * of.head_dim_v)
    tflops = coefficients("attention_sm80", device)["backward_tflops"]
    return Roofline({"tensor cores": us(flops, tflops) * max(1.0, tiles / (2 * device.sm_count)) * 2})
