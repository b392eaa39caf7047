"""How attention is cut into blocks of threads, and when its keys are."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from ...base_dsl.diagnostics import DSLUserCodeTypeError
from ..common import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..devices import Device
    from .problem import Attention

_REGISTERS = 65536
"""Registers of a multiprocessor."""
MOST_SPLITS = 256
MOST_BLOCKS = 8
"""Blocks of threads of a multiprocessor where there are few queries."""
FEW = 64
"""Up to so many queries those of the heads that share keys are put into one tile."""


@dataclasses.dataclass(frozen=True)
class AttentionTiling:
    """How attention is cut: the queries of a block of threads, the keys of a step, warps, blocks on a multiprocessor.

    Each warp has `block_q / warps` queries: 32 of them use what is loaded from shared memory twice as often as 16, and
    hold twice as much in registers. `splits`: parts that the keys of a query are cut into, each for a block of its own, for
    where there are fewer blocks than a GPU runs at once; what they find is put together by a second kernel. `grouped`: the
    queries of a block are those of all heads that share keys.
    """

    block_q: int = 128
    block_k: int = 32
    warps: int = 4
    blocks_per_sm: int = 2
    splits: int = 1
    grouped: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 queries of a warp."""
        return self.block_q // (16 * self.warps)

    def smem_bytes(self, head_dim: int, head_dim_v: int, width: int = 16) -> int:
        """Shared memory of a block: the queries or the outputs, of 16 bits, two buffers of keys, two of values, of `width` bits."""
        pack = 16 // width
        d, d_v = padded(head_dim // pack), padded(head_dim_v // pack)
        return 2 * (self.block_q * pack * max(d, d_v) + 2 * self.block_k * (d + d_v))

    def registers(self, head_dim_v: int, width: int = 16) -> int:
        """Registers of a thread that the accumulators take."""
        pack = 16 // width
        return self.m_tiles * (pack * padded(head_dim_v // pack) // 2 + self.block_k // 2)

    @arrays.checked_once
    def check(self, head_dim: int, head_dim_v: int, capacity: int, width: int = 16) -> None:
        """Refuse what cannot work for heads of so many elements of `width` bits where a block has `capacity` bytes of shared memory."""
        require = arrays.require
        require(1 <= self.warps <= 32, f"{self}: a block has 1 to 32 warps")
        require(
            self.block_q > 0 and self.block_q % (16 * self.warps) == 0,
            f"{self}: the queries are a multiple of 16 for each warp, and {self.block_q} is none of {16 * self.warps}",
        )
        copied = max(self.threads // lanes(d * width // 16) for d in (head_dim, head_dim_v))
        require(
            self.block_k > 0 and self.block_k % 16 == 0 and self.block_k % copied == 0 and self.block_q % copied == 0,
            f"{self}: the keys of a step are a multiple of 16, and they and the queries of the {copied} rows that "
            f"{self.threads} threads copy at once",
        )
        require(self.blocks_per_sm >= 1, f"{self}: at least one block runs on a multiprocessor")
        require(1 <= self.splits <= MOST_SPLITS, f"{self}: keys are cut into 1 to {MOST_SPLITS} parts")
        available = min(255, _REGISTERS // (self.threads * self.blocks_per_sm) // 8 * 8)
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


def default_tiling(problem: Attention, device: Device) -> AttentionTiling:
    """The tiling for a problem on a device.

    As many keys in a step as registers allow, since every step has its own costs.
    """
    share = problem.share if problem.queries <= FEW else 1
    chosen = _rows_tiling(problem.queries * share, problem, device)
    chosen = dataclasses.replace(chosen, grouped=share > 1)
    return dataclasses.replace(
        chosen, splits=splits_for(*_work(problem, chosen), device.multiprocessors, _least(problem, chosen))
    )


_STEPS = {
    (16, 16): ((64, 1), (32, 1)),
    (16, 32): ((64, 2), (32, 2), (128, 2)),
    (16, 64): ((64, 4), (32, 2), (128, 4)),
    (8, 16): ((64, 1), (96, 1)),
    (8, 32): ((64, 2), (32, 1), (96, 2), (128, 2)),
    (8, 64): ((64, 2), (64, 4)),
}
"""Keys of a step and warps, by bits of elements and rows of a tile: of 16 to 128 keys and one to four warps those that were best for some shape, or near it."""


def few_tilings(problem: Attention, device: Device) -> Iterator[AttentionTiling]:
    """Tilings to choose from where there are few queries: as many blocks on a multiprocessor as fit with some number of registers, and as many
    parts as are expected to be best, or as make half of the blocks that run at once, as many, or twice those."""
    share, width = problem.share, problem.dtype.width
    rows = problem.queries * share
    block_q = 16 if rows <= 16 else 32 if rows <= 32 else 64
    for block_k, warps in _STEPS[width, block_q]:
        tiling = AttentionTiling(block_q, block_k, warps, 1, grouped=share > 1)
        room = (device.smem + 1024) // (tiling.smem_bytes(*problem.head_dims, width) + 1024)
        capped = {min(255, _REGISTERS // (32 * warps * n) // 8 * 8): n for n in range(1, min(room, MOST_BLOCKS) + 1)}
        for blocks in capped.values():
            one = dataclasses.replace(tiling, blocks_per_sm=blocks)
            with contextlib.suppress(DSLUserCodeTypeError):
                one.check(*problem.head_dims, device.smem, width)
                tiles, steps, *_ = work = _work(problem, one)
                found = {splits_for(*work, device.multiprocessors, _least(problem, one))}
                found |= {int(turns * blocks * device.multiprocessors / tiles) for turns in (0.5, 1, 2)}
                for splits in sorted(found):
                    if 1 <= splits <= min(steps, MOST_SPLITS):
                        yield dataclasses.replace(one, splits=splits)


def _work(problem: Attention, plan: AttentionTiling) -> tuple[int, int, float, int]:
    """Tiles, the steps of each, what writing and reading a part of one takes in steps, blocks on a multiprocessor."""
    share = problem.share if plan.grouped else 1
    rows = problem.queries * share
    tiles = -(-rows // plan.block_q) * (problem.heads // share) * problem.batches
    steps = -(-_visible(problem) // plan.block_k)
    written_and_read = 8 * min(rows, plan.block_q) * problem.head_dim_v
    part_steps = _OF_PARTS * written_and_read / (problem.dtype.width // 8 * plan.block_k * sum(problem.head_dims))
    return tiles, steps, part_steps, plan.blocks_per_sm


_LEAST = 0.45
"""What the first of several small blocks of a multiprocessor take, of what all of them do: they wait for memory. Measured."""


def _least(problem: Attention, plan: AttentionTiling) -> float:
    """What few blocks take of what all do: where elements are widened for many rows, they wait for their own instructions. Measured."""
    return _LEAST if problem.dtype.width == 16 or plan.m_tiles == 1 else 0.95


def _visible(problem: Attention) -> int:
    """Keys that a query may see, at most."""
    if problem.left is None or problem.right is None:
        return problem.keys
    return min(problem.keys, problem.left + problem.right + problem.queries)


_SPEED = {16: 3.5e6, 8: 2.2e6}
"""Multiplications and additions that a multiprocessor does in a microsecond, by the bits of elements: those of 8 are widened."""


def expected(problem: Attention, plan: AttentionTiling, device: Device) -> float:
    """Microseconds that attention takes."""
    work = _work(problem, plan)
    step = 2 * plan.block_q * plan.block_k * (problem.head_dim + problem.head_dim_v) / _SPEED[problem.dtype.width]
    return step * _time(*work, device.multiprocessors, _least(problem, plan), plan.splits)


def _rows_tiling(rows: int, problem: Attention, device: Device) -> AttentionTiling:
    """The tiling for tiles of so many rows, not cut."""
    head_dim, head_dim_v, width = *problem.head_dims, problem.dtype.width
    outputs = padded(head_dim_v)
    if rows <= 32:
        warps = 1 if rows <= 16 else 2
        tried = [AttentionTiling(16 * warps, keys, warps, 2) for keys in (64, 32)]
    elif rows <= 64:
        tried = [AttentionTiling(64, keys, 4, 2 if outputs <= 128 else 1) for keys in (64, 32)]
        if width == 8 and outputs <= 128:  # what is widened serves for twice as many rows
            tried = [AttentionTiling(64, 32, 2, 4)]
    elif outputs > 128:
        tried = [AttentionTiling(128, keys, 8, 1) for keys in ((96, 64) if outputs <= 192 else (64,))]
        tried += [AttentionTiling(64, keys, 4, 1) for keys in (64, 32)]
    else:
        tried = [AttentionTiling(128, keys, 4, 2) for keys in ((64, 32) if outputs <= 96 else (32,))]
        tried += [AttentionTiling(64, 32, 4, 1)]
    for tiling in tried:
        copied = tiling.threads // min(lanes(head_dim * width // 16), lanes(head_dim_v * width // 16))
        used = tiling.smem_bytes(head_dim, head_dim_v, width)
        if used <= device.smem and tiling.block_k % copied == 0:
            if rows > 32:
                return tiling
            most = 4 if width == 16 else 6  # a step of 8 bits has half of the bytes, and more instructions
            return dataclasses.replace(tiling, blocks_per_sm=max(1, min(most, (device.smem + 1024) // (used + 1024))))
    return tried[-1]


_STEPS_OF_A_BLOCK = 1.5
"""What beginning and ending a block takes, in steps."""
_STEPS_OF_PARTS = 3.0
"""What a second kernel takes, in steps of a block that has a multiprocessor to itself."""
_OF_PARTS = 0.6
"""What a byte of a part takes, as a share of what a byte of keys and values does: parts stay in the L2 cache."""
_WORTH_IT = 0.97
"""Keys are cut only if that takes less than this share of the time."""


@functools.lru_cache(maxsize=4096)
def splits_for(
    tiles: int, steps: int, part_steps: float, blocks_per_sm: int, multiprocessors: int, least: float = _LEAST
) -> int:
    """How many parts the steps of tiles are cut into: those that take least time.

    Writing and reading the outputs of a part takes as long as `part_steps` steps, few blocks `least` of what all do.
    """

    def cost(splits: int) -> float:
        return _time(tiles, steps, part_steps, blocks_per_sm, multiprocessors, least, splits)

    best = min(range(1, max(1, min(steps, MOST_SPLITS)) + 1), key=cost)
    return best if cost(best) < _WORTH_IT * cost(1) else 1


def _time(
    tiles: int, steps: int, part_steps: float, blocks_per_sm: int, multiprocessors: int, least: float, splits: int
) -> float:
    """Steps of a block that has a multiprocessor to itself that tiles take whose keys are cut into parts."""
    at_once = blocks_per_sm * multiprocessors
    rounds, rest = divmod(tiles * splits, at_once)
    whole = rounds + _last_round(rounds, rest / at_once, blocks_per_sm, least)
    time = blocks_per_sm * (-(-steps // splits) + _STEPS_OF_A_BLOCK) * whole
    return time if splits == 1 else time + _STEPS_OF_PARTS + part_steps * tiles * splits / multiprocessors


def _last_round(rounds: int, share: float, blocks_per_sm: int, least: float) -> float:
    """How long the last round, after `rounds` whole ones, takes with some share of a whole one's blocks: so much of it. Measured.

    Blocks that have a multiprocessor to themselves run faster, but before there are as many as multiprocessors some share one.
    Small blocks wait for memory rather than for each other.
    """
    if share == 0.0:
        return 0.0
    if blocks_per_sm == 1:
        return 1.0
    if blocks_per_sm == 2:
        return 0.55 if share <= 0.25 else max(share, 0.9)
    return max(share if rounds else math.ceil(share * blocks_per_sm) / blocks_per_sm, least)
