"""What attention cut by an `Sm80AttentionConfig` is expected to take, and the config for a problem."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from . import decode_cost
from .decode_cost import FEW, visible
from .sm80_config import MAX_SPLITS, Sm80AttentionConfig, copy_lanes, padded_head_dim

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from ..problem import AttentionProblem

_SPEED = {16: 3.5e6, 8: 2.2e6}
"""Multiplications and additions that an SM does in a microsecond, by the bits of elements: those of 8 are widened."""


def default_config(problem: AttentionProblem, device: Device) -> Sm80AttentionConfig:
    """The config for a problem on a device.

    As many keys in a step as registers allow, since every step has its own costs; of few queries the cheapest of those that were measured.
    """
    if decode_cost.few(problem):
        return min(
            decode_cost.candidates(problem, device), key=lambda config: decode_cost.expected(problem, config, device)
        )
    share = problem.group_size if problem.seqlen_q <= FEW else 1
    chosen = _prefill_config(problem, device)
    chosen = dataclasses.replace(chosen, pack_gqa=share > 1)
    return dataclasses.replace(chosen, num_splits=splits_for(*_work(problem, chosen), device.sm_count))


def expected(problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> float:
    """Microseconds that attention takes."""
    if decode_cost.few(problem):
        return decode_cost.expected(problem, config, device)
    step = 2 * config.tile_m * config.tile_n * (problem.head_dim + problem.head_dim_v) / _SPEED[problem.dtype.width]
    return step * _time(*_work(problem, config), device.sm_count, config.num_splits)


def _work(problem: AttentionProblem, config: Sm80AttentionConfig) -> tuple[int, int, float, int]:
    """Tiles, the steps of each, what writing and reading a part of one takes in steps, blocks on an SM."""
    share = problem.group_size if config.pack_gqa else 1
    rows = problem.seqlen_q * share
    tiles = -(-rows // config.tile_m) * (problem.heads // share) * problem.batch
    steps = -(-visible(problem) // config.tile_n)
    written_and_read = 8 * min(rows, config.tile_m) * problem.head_dim_v
    part_steps = _OF_PARTS * written_and_read / (problem.dtype.width // 8 * config.tile_n * sum(problem.head_dims))
    return tiles, steps, part_steps, config.ctas_per_sm


def _prefill_config(problem: AttentionProblem, device: Device) -> Sm80AttentionConfig:
    """The config for many queries, not cut."""
    head_dim, head_dim_v, width = *problem.head_dims, problem.dtype.width
    outputs = padded_head_dim(head_dim_v)
    if outputs > 128:
        tried = [Sm80AttentionConfig(128, keys, 8, 1) for keys in ((96, 64) if outputs <= 192 else (64,))]
        tried += [Sm80AttentionConfig(64, keys, 4, 1) for keys in (64, 32)]
    else:
        tried = [Sm80AttentionConfig(128, keys, 4, 2) for keys in ((64, 32) if outputs <= 96 else (32,))]
        tried += [Sm80AttentionConfig(64, 32, 4, 1)]
    for config in tried:
        copied = config.threads // min(copy_lanes(head_dim * width // 16), copy_lanes(head_dim_v * width // 16))
        if config.smem_bytes(head_dim, head_dim_v, width) <= device.smem and config.tile_n % copied == 0:
            return config
    return tried[-1]


_LEAST = 0.45
"""What the first of several small blocks of an SM take, of what all of them do: they wait for memory. Measured."""
_STEPS_OF_A_BLOCK = 1.5
"""What beginning and ending a block takes, in steps."""
_STEPS_OF_PARTS = 3.0
"""What a second kernel takes, in steps of a block that has an SM to itself."""
_OF_PARTS = 0.6
"""What a byte of a part takes, as a share of what a byte of keys and values does: parts stay in the L2 cache."""
_WORTH_IT = 0.97
"""Keys are cut only if that takes less than this share of the time."""


@functools.lru_cache(maxsize=4096)
def splits_for(tiles: int, steps: int, part_steps: float, ctas_per_sm: int, sm_count: int) -> int:
    """How many parts the steps of tiles are cut into: those that take least time.

    Writing and reading the outputs of a part takes as long as `part_steps` steps.
    """

    def cost(num_splits: int) -> float:
        return _time(tiles, steps, part_steps, ctas_per_sm, sm_count, num_splits)

    best = min(range(1, max(1, min(steps, MAX_SPLITS)) + 1), key=cost)
    return best if cost(best) < _WORTH_IT * cost(1) else 1


def _time(tiles: int, steps: int, part_steps: float, ctas_per_sm: int, sm_count: int, num_splits: int) -> float:
    """Steps of a block that has an SM to itself that tiles take whose keys are cut into parts."""
    at_once = ctas_per_sm * sm_count
    rounds, rest = divmod(tiles * num_splits, at_once)
    whole = rounds + _last_round(rounds, rest / at_once, ctas_per_sm)
    time = ctas_per_sm * (-(-steps // num_splits) + _STEPS_OF_A_BLOCK) * whole
    return time if num_splits == 1 else time + _STEPS_OF_PARTS + part_steps * tiles * num_splits / sm_count


def _last_round(rounds: int, share: float, ctas_per_sm: int) -> float:
    """How long the last round, after `rounds` whole ones, takes with some share of a whole one's blocks: so much of it. Measured.

    Blocks that have an SM to themselves run faster, but some share one before every SM has one.
    Small blocks wait for memory rather than for each other.
    """
    if share == 0.0:
        return 0.0
    if ctas_per_sm == 1:
        return 1.0
    if ctas_per_sm == 2:
        return 0.55 if share <= 0.25 else max(share, 0.9)
    return max(share if rounds else math.ceil(share * ctas_per_sm) / ctas_per_sm, _LEAST)
