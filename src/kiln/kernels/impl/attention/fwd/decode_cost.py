"""Roofline model of the sm_80 kernel for decode, and the configs to choose from.

A CTA goes through its KV tiles, a step for each. A step is bounded by memory bandwidth, by the instructions of the
warps on a scheduler, or, for a CTA alone on its SM, by latency. Coefficients are in `kernels/tuned/h200.json`;
`python benchmarks/fit.py fit decode` fits them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from ....dispatch.registry import passes
from ....dispatch.roofline import Roofline, copy_tbps, us
from ....tuned import Coefficients
from .sm80_config import MAX_SPLITS, Sm80AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ..problem import AttentionProblem

MAX_DECODE_ROWS = 64
"""Query rows up to which the heads of a GQA group are packed into one tile."""
READ_BANDWIDTH = 1.1
"""Bandwidth of loads, relative to that of a copy: nothing is written."""
_SCHEDULERS = 4
"""Warp schedulers of an SM."""
_SHORT_STEPS = 8
"""Steps of a CTA up to which some SM always has one CTA more than the others."""
_MEASURED_DIMS = 256
"""head_dim of K and of V together that the coefficients are for."""
_SMALL_PAGE = 16
_SMALL_PAGE_SLOWDOWN = 1.1
"""Pages of fewer rows take more instructions: the slowdown."""
_SMEM_RESERVED = 1024
"""Bytes of smem that CUDA reserves for each CTA."""


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


@dataclasses.dataclass(frozen=True)
class DecodeCoefficients(Coefficients):
    """The figures of the model."""

    table = "attention_decode"
    row = MeasuredConfig

    launch_us: float
    combine_us: float
    """Microseconds of the combine kernel."""
    combine_split_us: float
    """Microseconds that each split adds to it: splits are merged one after the other."""
    uneven_rate: float
    """How often an SM has one CTA more than an even distribution gives it."""
    configs: tuple[MeasuredConfig, ...]


def is_decode(problem: AttentionProblem) -> bool:
    """Return whether the queries of a GQA group fit into one tile."""
    return problem.seqlen_q * problem.group_size <= MAX_DECODE_ROWS


def candidates(problem: AttentionProblem, device: Device) -> Iterator[Sm80AttentionConfig]:
    """Yield the configs to choose from.

    Tile shapes are those that were measured, with as many CTAs on an SM as fit. The KV sequence is not split, or so
    that each SM has some number of CTAs: up to all that run at once, or two or three waves of them."""
    rows = problem.seqlen_q * problem.group_size
    width = problem.dtype.width
    tile_m = 16 if rows <= 16 else 32 if rows <= 32 else 64

    def fits(config: Sm80AttentionConfig) -> bool:
        smem = config.ctas_per_sm * (config.smem_bytes(*problem.head_dims, width) + _SMEM_RESERVED)
        valid = passes(lambda x: x.check(*problem.head_dims, device.smem, width), config)
        return valid and smem <= device.smem + _SMEM_RESERVED

    shapes: list[Sm80AttentionConfig] = []
    for x in DecodeCoefficients.on(device).configs:
        if (x.bits, x.tile_m) == (width, tile_m):
            config = Sm80AttentionConfig(tile_m, x.tile_n, x.warps, pack_gqa=problem.group_size > 1)
            occupancies = (dataclasses.replace(config, ctas_per_sm=n) for n in range(x.max_ctas_per_sm, 0, -1))
            shapes += itertools.islice(filter(fits, occupancies), 1)
    for config in shapes or [Sm80AttentionConfig(tile_m, 32, tile_m // 16, 1, pack_gqa=problem.group_size > 1)]:
        tiles, steps = tiles_and_steps(problem, config)
        splits = {1}
        for ctas in (*range(1, config.ctas_per_sm + 1), 2 * config.ctas_per_sm, 3 * config.ctas_per_sm):
            most = min(steps, MAX_SPLITS, ctas * device.sm_count // tiles)
            if most > 1:
                splits.add(-(-steps // -(-steps // most)))  # fewer, if the longest split has as many steps
        for num_splits in sorted(splits):
            yield dataclasses.replace(config, num_splits=num_splits)


def roofline(
    problem: AttentionProblem, config: Sm80AttentionConfig, device: Device, c: DecodeCoefficients | None = None
) -> Roofline:
    """Return what a decode is expected to spend time on."""
    c = c or DecodeCoefficients.on(device)
    measured = _nearest(problem.dtype.width, config, c.configs)
    tiles, steps = tiles_and_steps(problem, config)
    cta_steps = -(-steps // config.num_splits)
    sms = device.sm_count
    tile_bytes = config.tile_n * sum(problem.head_dims) * problem.dtype.width / 8
    load_us = us(tile_bytes, READ_BANDWIDTH * copy_tbps(device))
    slowdown = sum(problem.head_dims) / _MEASURED_DIMS
    if 0 < problem.page_size < _SMALL_PAGE:
        slowdown *= _SMALL_PAGE_SLOWDOWN
    uneven = max(c.uneven_rate, min(1.0, _SHORT_STEPS / cta_steps))

    def wave(ctas: int) -> dict[str, float]:
        """Return the units of CTAs that run at once. An SM may have one more than others."""
        even = -(-ctas // sms)
        warps = [-(-min(config.ctas_per_sm, n) * config.warps // _SCHEDULERS) for n in (even, even + 1)]
        issue_us = measured.issue_us * (warps[0] + uneven * (warps[1] - warps[0]))
        steps = {"latency": slowdown * measured.latency_us, "issue": slowdown * issue_us, "memory": ctas * load_us}
        return {name: cta_steps * time for name, time in steps.items()}

    whole, rest = divmod(tiles * config.num_splits, config.ctas_per_sm * sms)
    waves = [(whole, wave(config.ctas_per_sm * sms)), (int(rest > 0), wave(rest))]
    phases = {"launch": c.launch_us, "prologue and epilogue": sum(count for count, _ in waves) * measured.cta_us}
    if config.num_splits > 1:
        phases["combine"] = c.combine_us + c.combine_split_us * config.num_splits
    units = {name: sum(count * units[name] for count, units in waves) for name in waves[0][1]}
    return Roofline(units, phases, sum(count * max(units.values()) for count, units in waves))


def tiles_and_steps(problem: AttentionProblem, config: Sm80AttentionConfig) -> tuple[int, int]:
    """Return the query tiles of a problem, and the KV tiles that each goes through."""
    group_size = problem.group_size if config.pack_gqa else 1
    tiles = -(-problem.seqlen_q * group_size // config.tile_m) * (problem.heads // group_size) * problem.batch
    keys = problem.seqlen_k
    if problem.window_left is not None and problem.window_right is not None:
        keys = min(keys, problem.window_left + problem.window_right + problem.seqlen_q)
    return tiles, -(-keys // config.tile_n)


def _nearest(bits: int, config: Sm80AttentionConfig, configs: tuple[MeasuredConfig, ...]) -> MeasuredConfig:
    """Return the coefficients of a config, or of the most similar one that was measured, scaled to its tile_n."""

    def distance(x: MeasuredConfig) -> tuple[int, ...]:
        own = (bits, config.tile_m, config.warps, config.tile_n, config.ctas_per_sm)
        measured = (x.bits, x.tile_m, x.warps, x.tile_n, x.max_ctas_per_sm)
        return tuple(abs(a - b) for a, b in zip(own, measured, strict=True))

    nearest = min(configs, key=distance)
    keys = config.tile_n / nearest.tile_n
    return dataclasses.replace(nearest, issue_us=keys * nearest.issue_us, latency_us=keys * nearest.latency_us)
