"""How many blocks of a kernel an SM runs at a time, and what keeps it from running more.

The rules are those that the driver's occupancy functions follow; `tests/hardware/test_occupancy.py` has its answers for
real kernels.
"""

from __future__ import annotations

import dataclasses

from .architectures import Architecture, Generation, generation_of
from .limits import BARRIERS, REGISTERS_PER_THREAD

__all__ = ["BARRIERS", "CARVE_OUTS", "REGISTERS_PER_THREAD", "Occupancy", "occupancy"]

_PARTITIONS = 4
"""Parts of an SM; each has a quarter of the registers, and a warp lives in one."""
_REGISTER_UNIT = 256
"""Allocation granularity of a warp's registers."""
_SMEM_UNIT = 128
"""Allocation granularity of a block's shared memory in bytes."""
_BARRIERS_PER_BLOCK = 2
"""Named barriers per block that an SM has for all its blocks."""
_KIB = 1 << 10
CARVE_OUTS = tuple(kib * _KIB for kib in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228, 328))
"""How much of an SM's memory can be shared memory; the rest is its L1 cache. Each has those up to its most."""


@dataclasses.dataclass(frozen=True)
class Occupancy:
    """What runs on an SM at a time."""

    blocks: int
    limits: dict[str, int]
    """How many blocks each resource would allow: "registers", "shared memory", "warps", "blocks", "barriers",
    and "tensor memory" of a kernel that allocates columns of it."""
    warps: int
    """Warps of all CTAs."""
    most_warps: int
    """Warps that an SM can have."""
    carve_out: int
    """Bytes of its memory that become shared memory: the smallest step with room for the blocks."""

    @property
    def limiter(self) -> str:
        """The resources that allow no more blocks."""
        return ", ".join(name for name, blocks in self.limits.items() if blocks == self.blocks)

    @property
    def fraction(self) -> float:
        """Active warps divided by the maximum, as in profilers."""
        return self.warps / self.most_warps

    def __str__(self) -> str:
        return f"{self.blocks} blocks, {self.warps} of {self.most_warps} warps, limited by {self.limiter}"


def occupancy(
    architecture: str | Architecture | Generation,
    threads: int,
    registers: int = 0,
    shared: int = 0,
    barriers: int = 0,
    columns: int = 0,
) -> Occupancy:
    """Return the occupancy of blocks with these threads, registers per thread, bytes of shared memory, named barriers
    and columns of tensor memory.

    It is zero if one block alone exceeds a limit. Clusters, which can only lower it, are ignored. More blocks than have
    columns can start, but wait in `tcgen05.alloc`: they do not count.
    """
    if threads < 1 or min(registers, shared, barriers, columns) < 0:
        raise ValueError(f"a block of {threads} threads, {registers} registers, {shared} bytes, {barriers} barriers?")
    of = architecture if isinstance(architecture, Generation) else _generation(architecture)
    warps = -(-threads // of.warp)
    most_warps = of.threads // of.warp
    taken = _up(shared + of.kept_smem, _SMEM_UNIT)
    whole = of.smem if shared <= of.smem_optin else of.oversized_smem
    limits = {
        "registers": _by_registers(of, warps, registers),
        "shared memory": whole // taken if shared <= of.smem_per_block else 0,
        "warps": most_warps // warps if threads <= of.threads_per_block else 0,
        "blocks": of.blocks,
        "barriers": _BARRIERS_PER_BLOCK * of.blocks // max(barriers, 1) if barriers <= BARRIERS else 0,
    }
    if columns:
        limits["tensor memory"] = of.tmem_columns // columns
    blocks = min(limits.values())
    # What the hardware keeps of each block is there even if the kernel asks for none.
    room = next(step for step in CARVE_OUTS if step >= min(blocks * taken, whole))
    return Occupancy(blocks, limits, blocks * warps, most_warps, room)


def _generation(architecture: str | Architecture) -> Generation:
    return architecture.generation if isinstance(architecture, Architecture) else generation_of(architecture)


def _by_registers(of: Generation, warps: int, registers: int) -> int:
    if registers > REGISTERS_PER_THREAD:
        return 0
    per_warp = _up(max(registers, 1) * of.warp, _REGISTER_UNIT)
    if per_warp * _up(warps, _PARTITIONS) > of.registers:
        return 0
    return of.registers // _PARTITIONS // per_warp * _PARTITIONS // warps


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
