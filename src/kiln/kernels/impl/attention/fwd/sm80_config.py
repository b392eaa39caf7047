"""The config of the sm_80 forward kernel, which also decodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ....dispatch.config import Config, Rule
from ..config_rules import copies_whole_tiles, fits_registers

_SM_REGISTERS = 65536
_OTHER_REGISTERS = 40
"""Registers that a thread needs besides its accumulators."""
MAX_SPLITS = 256


@dataclasses.dataclass(frozen=True)
class Sm80AttentionConfig(Config):
    """Tile shape, warps and split-KV of the sm_80 forward kernel.

    A warp has `tile_m / warps` query rows: 32 of them use what is loaded from smem twice as often as 16, and hold twice
    as much in registers. `num_splits` divides the KV sequence among CTAs (split-KV), for problems with fewer tiles than
    a GPU runs at once; a combine kernel merges the partial outputs. `pack_gqa` puts the query heads that share a KV
    head into one tile."""

    tile_m: int = 128
    tile_n: int = 32
    warps: int = 4
    ctas_per_sm: int = 2
    num_splits: int = 1
    pack_gqa: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """MMA tiles of 16 rows of a warp."""
        return self.tile_m // (16 * self.warps)

    def smem_bytes(self, head_dim: int, head_dim_v: int, width: int = 16) -> int:
        """Return the smem of a CTA: 16-bit Q, which O replaces, and two stages of K and V of `width` bits."""
        pack = 16 // width
        d = padded_head_dim(head_dim // pack)
        d_v = padded_head_dim(head_dim_v // pack)
        return 2 * (self.tile_m * pack * max(d, d_v) + 2 * self.tile_n * (d + d_v))

    def registers(self, head_dim_v: int, width: int = 16) -> int:
        """Return the registers of a thread's accumulators."""
        pack = 16 // width
        return self.m_tiles * (pack * padded_head_dim(head_dim_v // pack) // 2 + self.tile_n // 2)

    def rules(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> Iterator[Rule]:
        """Yield the rules for a head_dim, elements of `width` bits and `capacity` bytes of smem."""
        rows = 16 * self.warps
        yield Rule(self.warps <= 32, "warps must be 1 to 32")
        yield Rule(self.tile_m % rows == 0, f"tile_m must be a multiple of {rows}, 16 rows for each warp")
        copied = max(self.threads // copy_lanes(d * width // 16) for d in (head_dim, head_dim_v))
        yield copies_whole_tiles(self.tile_m, self.tile_n, self.threads, copied)
        yield Rule(self.num_splits <= MAX_SPLITS, f"num_splits must be 1 to {MAX_SPLITS}")
        available = min(255, _SM_REGISTERS // (self.threads * self.ctas_per_sm) // 8 * 8)
        used = self.registers(head_dim_v, width)
        hint = "fewer rows for a warp, a smaller tile_n, or fewer ctas_per_sm"
        yield fits_registers(f"accumulators with head_dim {head_dim_v}", used, _OTHER_REGISTERS, available, hint)
        smem = self.smem_bytes(head_dim, head_dim_v, width)
        yield self.fits_smem(smem, capacity, "a smaller tile_m or tile_n", f" for head_dim {head_dim}")


def padded_head_dim(head_dim: int) -> int:
    """Return the 16-bit elements of a head in smem."""
    return -(-head_dim // 32) * 32


def copy_lanes(head_dim: int) -> int:
    """Return the threads that copy a row of smem, 16 bytes each."""
    return 8 if padded_head_dim(head_dim) % 64 == 0 else 4
