"""The config of the Hopper forward kernel."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ....dispatch.config import Config, Rule
from ..config_rules import fits_registers

WARPGROUP_M = 64
"""Query rows of a consumer warpgroup: M of its WGMMAs."""
_REGISTERS = {1: (24, 240), 2: (24, 240), 3: (32, 160)}
"""Registers of a producer thread and of a consumer thread, by the number of consumer warpgroups."""
_OTHER_REGISTERS = {1: 36, 2: 36, 3: 28}
"""Registers that a consumer thread needs besides its fragments."""
_BARRIER_BYTES = 1024


def padded_head_dim(head_dim: int, width: int) -> int:
    """Return the elements of a head in smem: a multiple of a WGMMA's K."""
    unit = 256 // width
    return -(-head_dim // unit) * unit


@dataclasses.dataclass(frozen=True)
class Sm90AttentionConfig(Config):
    """Tile shape, stages and scheduling of the Hopper forward kernel.

    A tile has 64 query rows for each of `consumer_warpgroups`, and `tile_n` keys; one more warpgroup loads. `kv_stages`
    stages hold K, and as many V. A `persistent` kernel has a CTA for each SM, which loads the next query tile while it
    stores one. With `pingpong`, warpgroups issue their GEMMs in turns, so that one's softmax overlaps with another's
    GEMMs. With `lazy_rescale`, accumulators are rescaled only when a score exceeds row_max by 8 powers of two.
    `q_in_regs` keeps Q in registers. `pack_gqa` puts the query heads that share a KV head into one tile; their number
    must divide 64. With `dynamic_scheduler`, CTAs fetch tiles from a counter."""

    consumer_warpgroups: int = 2
    tile_n: int = 128
    kv_stages: int = 2
    persistent: bool = True
    pingpong: bool = True
    lazy_rescale: bool = True
    q_in_regs: bool = False
    pack_gqa: bool = False
    dynamic_scheduler: bool = False

    @property
    def tile_m(self) -> int:
        """Query rows of a CTA's tile."""
        return WARPGROUP_M * self.consumer_warpgroups

    @property
    def skips_hidden_tiles(self) -> bool:
        """Whether a warpgroup skips KV tiles that only others see; those that take turns need equally many."""
        return self.consumer_warpgroups > 1 and not self.pingpong

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer thread and of a consumer thread."""
        return _REGISTERS[self.consumer_warpgroups]

    def smem_bytes(self, head_dim: int, head_dim_v: int, separate_o: bool = False, width: int = 16) -> int:
        """Return the smem of a CTA for Q, K and V of `width` bits, and for O unless it replaces Q."""
        dim = padded_head_dim(head_dim, width)
        dim_v = padded_head_dim(head_dim_v, width)
        read = (self.tile_m * dim + self.kv_stages * self.tile_n * (dim + dim_v)) * width // 8
        return read + (2 * self.tile_m * dim_v if separate_o else 0) + _BARRIER_BYTES

    def separate_o(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> bool:
        """Return whether O has smem of its own, so that the next Q is loaded before O is stored."""
        return width == 8 or self.smem_bytes(head_dim, head_dim_v, separate_o=True) <= capacity

    def rules(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> Iterator[Rule]:
        """Yield the rules for a head_dim, elements of `width` bits and `capacity` bytes of smem."""
        yield Rule(self.consumer_warpgroups in _REGISTERS, f"consumer_warpgroups must be 1 to {max(_REGISTERS)}")
        yield from self.multiples(16, 256, "tile_n")
        yield Rule(self.kv_stages >= 2, "kv_stages must be at least 2")
        narrow = width == 16 or (self.tile_n % 32 == 0 and not self.q_in_regs)
        yield Rule(narrow, "for 8-bit elements tile_n must be a multiple of 32, and q_in_regs False")
        q_registers = head_dim * width // 64 if self.q_in_regs else 0
        used = self.tile_n // 2 + self.tile_n * width // 64 + head_dim_v // 2 + q_registers
        other = _OTHER_REGISTERS[self.consumer_warpgroups] - (4 if width == 8 and self.consumer_warpgroups == 2 else 0)
        hint = "a smaller tile_n"
        yield fits_registers(f"S, P and O with head_dim {head_dim_v}", used, other, self.registers[1], hint)
        smem = self.smem_bytes(head_dim, head_dim_v, head_dim != head_dim_v or width == 8, width)
        yield self.fits_smem(smem, capacity, f"{hint}, or fewer kv_stages", f" for head_dim {head_dim, head_dim_v}")
