"""What attention of few queries is expected to take, and the configs to choose from.

Blocks of threads go through their keys at the same time, as many as SMs have room for. Memory bounds them, or the instructions of the warps
of a scheduler, or, where a block is alone, what it waits for itself. Coefficients are in
`kernels/tuned/h200.json`; `python benchmarks/fit.py fit decode` fits them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.explaining import bytes_per_us
from ....dispatch.registry import passes
from ....tuned import coefficients
from .sm80_config import MAX_SPLITS, Sm80AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ..problem import AttentionProblem

FEW = 64
"""Up to so many queries those of the heads that share keys are put into one tile."""
READ = 1.1
"""Bytes that are read in the time in which a copy moves one: nothing is written."""
_SCHEDULERS = 4
_SHORT = 8
"""Steps of a block of threads up to which some SM always has one block more than others."""
_MEASURED = 256
"""Elements of a head of K and one of V that coefficients are of."""
_SMALL_PAGE, _PAGED = 16, 1.1
"""What instructions take in pages of fewer rows, of what they take else."""


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
    """A config to choose from, and its coefficients for head_dim 128."""

    bits: int
    tile_m: int
    tile_n: int
    warps: int
    max_ctas_per_sm: int
    issue_us: float
    """Microseconds in which a warp scheduler issues a step of one of its warps."""
    latency_us: float
    """Microseconds of a step of a CTA that is alone on its SM."""
    cta_us: float
    """Microseconds of the prologue and the epilogue of a CTA."""


_MODEL = coefficients("attention_decode")
MEASURED = tuple(MeasuredConfig(**row) for row in _MODEL["configs"])
_LAUNCH_US: float = _MODEL["launch_us"]
_COMBINE_US: float = _MODEL["combine_us"]
"""Microseconds of the kernel that combines splits."""
_COMBINE_SPLIT_US: float = _MODEL["combine_split_us"]
"""Microseconds of each split in it: they are added one after the other."""
_COMBINE_ELEMENT_US: float = _MODEL["combine_element_us"]
"""Microseconds of an output element of a split, written and read."""
_UNEVEN_SHARE: float = _MODEL["uneven_share"]
"""How often an SM has one CTA more than an even spread gives it."""


def few(problem: AttentionProblem) -> bool:
    """Whether the queries of the heads that share keys fit into one tile."""
    return problem.seqlen_q * problem.group_size <= FEW


def candidates(problem: AttentionProblem, device: Device) -> Iterator[Sm80AttentionConfig]:
    """Configs to choose from: those that were measured, as many blocks on an SM as fit; keys not cut, or into as many parts as give each SM a
    number of blocks, up to all that run at once, or twice or three times those."""
    share, width = problem.group_size, problem.dtype.width
    rows = problem.seqlen_q * share
    tile_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    found = {}
    for measured in MEASURED:
        if (measured.bits, measured.tile_m) == (width, tile_m):
            config = Sm80AttentionConfig(
                tile_m, measured.tile_n, measured.warps, measured.max_ctas_per_sm, pack_gqa=share > 1
            )
            used = config.smem_bytes(*problem.head_dims, width)
            room = max(1, (device.smem + 1024) // (used + 1024))
            for blocks in range(min(room, measured.max_ctas_per_sm), 0, -1):
                one = dataclasses.replace(config, ctas_per_sm=blocks)
                if passes(lambda candidate: candidate.check(*problem.head_dims, device.smem, width), one):
                    found[one] = True
                    break
    for config in found or (Sm80AttentionConfig(tile_m, 32, tile_m // 16, 1, pack_gqa=share > 1),):
        tiles, steps = _work(problem, config)
        blocks = config.ctas_per_sm
        parts = {1}
        for count in (*range(1, blocks + 1), 2 * blocks, 3 * blocks):
            most = min(steps, MAX_SPLITS, count * device.sm_count // tiles)
            if most > 1:
                parts.add(-(-steps // -(-steps // most)))  # fewer, if the longest have as many steps
        for num_splits in sorted(parts):
            yield dataclasses.replace(config, num_splits=num_splits)


def expected(problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> float:
    """Microseconds that attention takes."""
    measured = _nearest(problem.dtype.width, config)
    tiles, steps = _work(problem, config)
    rows, sms = min(problem.seqlen_q * problem.group_size, config.tile_m), device.sm_count
    each, total = -(-steps // config.num_splits), tiles * config.num_splits
    read = config.tile_n * sum(problem.head_dims) * problem.dtype.width / 8 / (READ * bytes_per_us(device))
    slower = sum(problem.head_dims) / _MEASURED * (_PAGED if 0 < problem.page_size < _SMALL_PAGE else 1.0)

    uneven = max(_UNEVEN_SHARE, min(1.0, _SHORT / each))

    def turn(count: int) -> float:
        """So many blocks of threads that run at once. An SM may have one more than others."""
        deep = -(-count // sms)
        warps = [-(-min(config.ctas_per_sm, n) * config.warps // _SCHEDULERS) for n in (deep, deep + 1)]
        issued = measured.issue_us * (warps[0] + uneven * (warps[1] - warps[0]))
        return each * max(slower * measured.latency_us, slower * issued, count * read) + measured.cta_us

    turns, rest = divmod(total, config.ctas_per_sm * sms)
    took = _LAUNCH_US + turns * turn(config.ctas_per_sm * sms) + (turn(rest) if rest else 0.0)
    return (
        took
        if config.num_splits == 1
        else took
        + _COMBINE_US
        + _COMBINE_SPLIT_US * config.num_splits
        + _COMBINE_ELEMENT_US * total * rows * problem.head_dim_v
    )


def _work(problem: AttentionProblem, config: Sm80AttentionConfig) -> tuple[int, int]:
    """Tiles, and the steps of each."""
    share = problem.group_size if config.pack_gqa else 1
    tiles = -(-problem.seqlen_q * share // config.tile_m) * (problem.heads // share) * problem.batch
    return tiles, -(-visible(problem) // config.tile_n)


def visible(problem: AttentionProblem) -> int:
    """Keys that a query may see, at most."""
    if problem.window_left is None or problem.window_right is None:
        return problem.seqlen_k
    return min(problem.seqlen_k, problem.window_left + problem.window_right + problem.seqlen_q)


def _nearest(bits: int, config: Sm80AttentionConfig) -> MeasuredConfig:
    """Return the coefficients of a config, or of the most similar one that was measured, for as many keys in a step."""

    def distance(x: MeasuredConfig) -> tuple[int, ...]:
        own = (bits, config.tile_m, config.warps, config.tile_n, config.ctas_per_sm)
        measured = (x.bits, x.tile_m, x.warps, x.tile_n, x.max_ctas_per_sm)
        return tuple(abs(a - b) for a, b in zip(own, measured, strict=True))

    nearest = min(MEASURED, key=distance)
    keys = config.tile_n / nearest.tile_n
    return dataclasses.replace(nearest, issue_us=keys * nearest.issue_us, latency_us=keys * nearest.latency_us)
