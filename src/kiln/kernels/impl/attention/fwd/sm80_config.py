"""How attention is cut into blocks of threads."""

from __future__ import annotations

import dataclasses

from ....dispatch import arrays

_REGISTERS = 65536
"""Registers of a multiprocessor."""
MAX_SPLITS = 256


@dataclasses.dataclass(frozen=True)
class Sm80AttentionConfig:
    """How attention is cut: the queries of a block of threads, the keys of a step, warps, blocks on a multiprocessor.

    Each warp has `tile_m / warps` queries: 32 of them use what is loaded from shared memory twice as often as 16, and
    hold twice as much in registers. `num_splits`: parts that the keys of a query are cut into, each for a block of its own, for
    where there are fewer blocks than a GPU runs at once; what they find is put together by a second kernel. `pack_gqa`: the
    queries of a block are those of all heads that share keys.
    """

    tile_m: int = 128
    tile_n: int = 32
    warps: int = 4
    ctas_per_sm: int = 2
    num_splits: int = 1
    pack_gqa: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 queries of a warp."""
        return self.tile_m // (16 * self.warps)

    def smem_bytes(self, head_dim: int, head_dim_v: int, width: int = 16) -> int:
        """Shared memory of a block: the queries or the outputs, of 16 bits, two buffers of keys, two of values, of `width` bits."""
        pack = 16 // width
        d, d_v = padded(head_dim // pack), padded(head_dim_v // pack)
        return 2 * (self.tile_m * pack * max(d, d_v) + 2 * self.tile_n * (d + d_v))

    def registers(self, head_dim_v: int, width: int = 16) -> int:
        """Registers of a thread that the accumulators take."""
        pack = 16 // width
        return self.m_tiles * (pack * padded(head_dim_v // pack) // 2 + self.tile_n // 2)

    @arrays.checked_once
    def check(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> None:
        """Refuse what cannot work for heads of so many elements of `width` bits where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(1 <= self.warps <= 32, f"{self}: a block has 1 to 32 warps")
        require(
            self.tile_m > 0 and self.tile_m % (16 * self.warps) == 0,
            f"{self}: the queries are a multiple of 16 for each warp, and {self.tile_m} is none of {16 * self.warps}",
        )
        copied = max(self.threads // lanes(d * width // 16) for d in (head_dim, head_dim_v))
        require(
            self.tile_n > 0 and self.tile_n % 16 == 0 and self.tile_n % copied == 0 and self.tile_m % copied == 0,
            f"{self}: the keys of a step are a multiple of 16, and they and the queries of the {copied} rows that "
            f"{self.threads} threads copy at once",
        )
        require(self.ctas_per_sm >= 1, f"{self}: at least one block runs on a multiprocessor")
        require(1 <= self.num_splits <= MAX_SPLITS, f"{self}: keys are cut into 1 to {MAX_SPLITS} parts")
        available = min(255, _REGISTERS // (self.threads * self.ctas_per_sm) // 8 * 8)
        taken = self.registers(head_dim_v, width)
        require(
            taken + 40 <= available,
            f"{self}: accumulators for heads of {head_dim_v} take {taken} registers of a thread, which has {available}, "
            "and about 40 for the rest",
            hint="fewer queries for a warp, fewer keys in a step, or fewer blocks on a multiprocessor",
        )
        used = self.smem_bytes(head_dim, head_dim_v, width)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {head_dim}, and a block has {capacity}",
            hint="fewer queries or fewer keys in a step",
        )


def padded(head_dim: int) -> int:
    """Elements of a head in shared memory, of 16 bits each."""
    return -(-head_dim // 32) * 32


def lanes(head_dim: int) -> int:
    """Threads that copy a row of shared memory, 16 bytes each."""
    return 8 if padded(head_dim) % 64 == 0 else 4
