"""How attention is cut for the warp groups of Hopper."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..common import arrays

if TYPE_CHECKING:
    from ..devices import Device
    from .problem import Attention

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
class HopperAttentionTiling:
    """How attention is cut on Hopper: warp groups that have 64 queries each, keys of a step, buffers of keys and of values.

    One more warp group loads for them. `persistent`: there are as many blocks as multiprocessors, and each has several tiles of
    queries, of which it loads the next while it stores the one before. `in_turns`: warp groups begin their products in turns. `lazy`:
    sums are scaled only when a score exceeds what its row is compared with by much, not whenever it does. `queries_held`: queries stay
    in registers. `grouped`: the queries of a block are those of all heads that share keys, which divide 64. `counted`: blocks
    take the next tile when they are done with one, instead of each every so many.
    """

    groups: int = 2
    block_k: int = 128
    stages: int = 2
    persistent: bool = True
    in_turns: bool = True
    lazy: bool = True
    queries_held: bool = False
    grouped: bool = False
    counted: bool = False

    @property
    def block_q(self) -> int:
        """Queries of a block of threads."""
        return ROWS * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a thread that loads, and of one that computes."""
        return _REGISTERS[self.groups]

    def smem_bytes(self, head_dim: int, head_dim_v: int, own_outputs: bool = False, width: int = 16) -> int:
        """Shared memory of a block: queries, keys, values of `width` bits, and outputs unless these are put where queries were."""
        dim, dim_v = padded(head_dim, width), padded(head_dim_v, width)
        read = (self.block_q * dim + self.stages * self.block_k * (dim + dim_v)) * width // 8
        return read + (2 * self.block_q * dim_v if own_outputs else 0) + _BARRIERS

    def own_outputs(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> bool:
        """Whether outputs have shared memory of their own, so that the next queries can be loaded before they are stored."""
        return width == 8 or self.smem_bytes(head_dim, head_dim_v, own_outputs=True) <= capacity

    @arrays.checked_once
    def check(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> None:
        """Refuse what cannot work for heads of so many elements where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(self.groups in _REGISTERS, f"{self}: 1 to {max(_REGISTERS)} warp groups compute")
        require(
            self.block_k % 16 == 0 and 16 <= self.block_k <= 256,
            f"{self}: keys of a step are a multiple of 16, up to 256",
        )
        require(self.stages >= 2, f"{self}: there are at least two buffers of keys and of values")
        available = self.registers[1]
        of_queries = head_dim * width // 64 if self.queries_held else 0
        taken = self.block_k // 2 + self.block_k * width // 64 + head_dim_v // 2 + of_queries
        require(
            width == 16 or (self.block_k % 32 == 0 and not self.queries_held),
            f"{self}: of 8 bits, keys of a step are a multiple of 32, and queries stay in shared memory",
        )
        require(
            taken + _REST[self.groups] <= available,
            f"{self}: scores, weights and outputs of heads of {head_dim_v} take {taken} registers of a thread, which has {available}, "
            f"and {_REST[self.groups]} for the rest",
            hint="fewer keys in a step",
        )
        used = self.smem_bytes(head_dim, head_dim_v, head_dim != head_dim_v or width == 8, width)
        require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory for heads of {head_dim} and {head_dim_v}, and a block has {capacity}",
            hint="fewer keys in a step, or fewer buffers",
        )


def default_tiling(problem: Attention, device: Device) -> HopperAttentionTiling:
    """The tiling for a problem: as many keys in a step as registers and shared memory allow."""
    outputs = max(problem.head_dims)
    tilings = _TILINGS if problem.dtype.width == 16 else _TILINGS_8
    tiling = next(tiling for most, tiling in tilings if outputs <= most)
    if problem.score is not None and tiling.groups == 3:  # which needs registers, too
        tiling = dataclasses.replace(tiling, block_k=tiling.block_k - 16)
    if problem.page:  # whole pages, or parts of one
        fit = (n for n in range(tiling.block_k, 0, -16) if n % problem.page == 0 or problem.page % n == 0)
        tiling = dataclasses.replace(tiling, block_k=next(fit, tiling.block_k))
    grouped = problem.share > 1 and problem.queries < tiling.block_q and ROWS % problem.share == 0
    # where tiles are equally long, they need no counter
    uneven = problem.left is not None or problem.right is not None or problem.packed or problem.partial
    return dataclasses.replace(tiling, grouped=grouped, counted=uneven)


_TILINGS = (
    (64, HopperAttentionTiling(3, 128, 3, in_turns=False)),
    (96, HopperAttentionTiling(3, 112)),
    (128, HopperAttentionTiling(3, 80, 3, in_turns=False)),
    (192, HopperAttentionTiling(2, 96)),
    (256, HopperAttentionTiling(2, 80)),
)
_TILINGS_8 = (
    (64, HopperAttentionTiling(3, 128, 3)),
    (128, HopperAttentionTiling(2, 128, 3)),
    (256, HopperAttentionTiling(2, 96)),
)
"""The largest heads that a tiling is for. Where steps are short, more buffers are filled ahead."""

_SPEED = 4.9e6
"""Multiplications and additions that a multiprocessor does in a microsecond."""
_KEYS_OF_A_TILE = 256
"""What beginning and ending a tile takes, in keys."""


def expected(problem: Attention, plan: HopperAttentionTiling, device: Device) -> float:
    """Microseconds that attention takes."""
    share = problem.share if plan.grouped else 1
    tiles = -(-problem.queries * share // plan.block_q) * (problem.heads // share) * problem.batches
    keys = problem.keys
    if problem.left is not None and problem.right is not None:
        keys = min(keys, problem.left + problem.right + plan.block_q)
    keys = -(-keys // plan.block_k) * plan.block_k + _KEYS_OF_A_TILE
    tile = 2 * plan.block_q * keys * sum(problem.head_dims) / _SPEED
    return tile * -(-tiles // device.multiprocessors)
