"""How attention is cut for the warp groups of Hopper."""

from __future__ import annotations

import dataclasses

from ....dispatch import arrays

ROWS = 64
"""Queries of a warp group: rows of its products."""


def padded(head_dim: int, width: int) -> int:
    """Elements of a head in shared memory: multiples of those that a product adds up."""
    unit = 256 // width
    return -(-head_dim // unit) * unit


_REGISTERS = {1: (24, 240), 2: (24, 240), 3: (32, 160)}
"""Registers of a thread that loads, and of one that computes, for so many warp groups that compute."""
_REST = {1: 36, 2: 36, 3: 28}
"""Registers of a thread that computes besides its accumulators, at least."""
_BARRIERS = 1024
"""Bytes of shared memory for mbarriers."""


@dataclasses.dataclass(frozen=True)
class Sm90AttentionConfig:
    """How attention is cut on Hopper: warp groups that have 64 queries each, keys of a step, buffers of keys and of values.

    One more warp group loads for them. `persistent`: there are as many blocks as multiprocessors, and each has several tiles of
    queries, of which it loads the next while it stores the one before. `pingpong`: warp groups begin their products in turns. `lazy_rescale`:
    sums are scaled only when a score exceeds what its row is compared with by much, not whenever it does. `q_in_regs`: queries stay
    in registers. `pack_gqa`: the queries of a block are those of all heads that share keys, which divide 64. `dynamic_scheduler`: blocks
    take the next tile when they are done with one, instead of each every so many.
    """

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
        """Queries of a block of threads."""
        return ROWS * self.consumer_warpgroups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.consumer_warpgroups + 1)

    @property
    def skips(self) -> bool:
        """Whether warp groups leave out blocks of keys that only others see: where they take turns, all have as many."""
        return self.consumer_warpgroups > 1 and not self.pingpong

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that loads, and of one that computes."""
        return _REGISTERS[self.consumer_warpgroups]

    def smem_bytes(self, head_dim: int, head_dim_v: int, own_outputs: bool = False, width: int = 16) -> int:
        """Shared memory of a block: queries, keys, values of `width` bits, and outputs unless these are put where queries were."""
        dim, dim_v = padded(head_dim, width), padded(head_dim_v, width)
        read = (self.tile_m * dim + self.kv_stages * self.tile_n * (dim + dim_v)) * width // 8
        return read + (2 * self.tile_m * dim_v if own_outputs else 0) + _BARRIERS

    def own_outputs(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> bool:
        """Whether outputs have shared memory of their own, so that the next queries can be loaded before they are stored."""
        return width == 8 or self.smem_bytes(head_dim, head_dim_v, own_outputs=True) <= capacity

    @arrays.checked_once
    def check(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> None:
        """Refuse what cannot work for heads of so many elements where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(self.consumer_warpgroups in _REGISTERS, f"{self}: 1 to {max(_REGISTERS)} warp groups compute")
        require(
            self.tile_n % 16 == 0 and 16 <= self.tile_n <= 256,
            f"{self}: keys of a step are a multiple of 16, up to 256",
        )
        require(self.kv_stages >= 2, f"{self}: there are at least two buffers of keys and of values")
        available = self.registers[1]
        of_queries = head_dim * width // 64 if self.q_in_regs else 0
        taken = self.tile_n // 2 + self.tile_n * width // 64 + head_dim_v // 2 + of_queries
        require(
            width == 16 or (self.tile_n % 32 == 0 and not self.q_in_regs),
            f"{self}: of 8 bits, keys of a step are a multiple of 32, and queries stay in shared memory",
        )
        rest = _REST[self.consumer_warpgroups] - (4 if width == 8 and self.consumer_warpgroups == 2 else 0)
        require(
            taken + rest <= available,
            f"{self}: scores, weights and outputs of heads of {head_dim_v} take {taken} registers of a thread, which has {available}, "
            f"and {rest} for the rest",
            hint="fewer keys in a step",
        )
        used = self.smem_bytes(head_dim, head_dim_v, head_dim != head_dim_v or width == 8, width)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {head_dim} and {head_dim_v}, and a block has {capacity}",
            hint="fewer keys in a step, or fewer buffers",
        )
