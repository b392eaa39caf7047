"""What attention cut by a `Sm90AttentionConfig` is expected to take, and the configs to choose from.

An SM computes its tiles one after the other: the MMA of its steps at a rate that was measured for the config, and a prologue and an
epilogue for each tile. Coefficients are in `kernels/tuned/h200.json`; `python benchmarks/fit.py fit attention` fits them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.explaining import bytes_per_us
from ....dispatch.registry import passes
from ....tuned import coefficients
from .decode_cost import READ
from .gather_pages import MIN_TMA_ROWS
from .sm90_config import WARPGROUP_M, Sm90AttentionConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from ..problem import AttentionProblem


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
    """A config to choose from, for heads of up to some dimensions, and its coefficients."""

    bits: int
    head_dim: int
    head_dim_v: int
    consumer_warpgroups: int
    tile_n: int
    kv_stages: int
    pingpong: bool
    q_in_regs: bool
    tflops: float
    """TFLOP/s of an SM in the main loop."""
    tile_us: float
    """Microseconds of the prologue and the epilogue of a tile."""

    @property
    def config(self) -> Sm90AttentionConfig:
        shape = self.consumer_warpgroups, self.tile_n, self.kv_stages
        return Sm90AttentionConfig(*shape, True, self.pingpong, True, self.q_in_regs)


_MODEL = coefficients("attention_sm90")
MEASURED = tuple(MeasuredConfig(**row) for row in _MODEL["configs"])
_LAUNCH_US: float = _MODEL["launch_us"]
_DYNAMIC_SCHEDULER_US: float = _MODEL["dynamic_scheduler_us"]
_UNMEASURED_EFFICIENCY: float = _MODEL["unmeasured_efficiency"]
"""The rate of a config that was not measured, relative to the most similar one that was."""
_LEAST_KEYS = 16
"""Keys of a step, at least, and what others are multiples of."""


def candidates(problem: AttentionProblem, device: Device) -> Iterator[Sm90AttentionConfig]:
    """Configs to choose from, the cheapest first."""
    found = dict.fromkeys(_fitting(problem, measured.config, device) for measured in _measured_configs(problem))
    return iter(sorted(found, key=lambda config: expected(problem, config, device)))


def default_config(problem: AttentionProblem, device: Device) -> Sm90AttentionConfig:
    """The cheapest config for a problem."""
    return next(candidates(problem, device))


def expected(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> float:
    """Microseconds that attention takes."""
    return sum(parts(problem, config, device).values())


def parts(
    problem: AttentionProblem, config: Sm90AttentionConfig, device: Device, measured: MeasuredConfig | None = None
) -> dict[str, float]:
    """Microseconds one after the other: of steps, of beginning and ending tiles, of SMs that wait for the last, of launches, of laying
    rows of small pages in succession and values of 8 bits by columns."""
    measured = measured or coefficients_of(problem, config)
    steps, tiles, waiting = units(problem, config, device)
    return {
        "steps": max(steps / measured.tflops, problem.bytes / (READ * bytes_per_us(device))),
        "tiles": tiles * measured.tile_us,
        "waiting": waiting[0] / measured.tflops + waiting[1] * measured.tile_us,
        "launch": _LAUNCH_US + (_DYNAMIC_SCHEDULER_US if config.dynamic_scheduler else 0.0),
        **_of_pages(problem, device),
        **_of_values(problem, device),
    }


def _of_pages(problem: AttentionProblem, device: Device) -> dict[str, float]:
    """What laying rows in succession takes, of keys that there may be."""
    moved = 2 * laid_bytes(problem) * min(1.0, problem.seqlen_k / max(1, problem.kv_capacity))
    return {"pages": 2 * _LAUNCH_US + moved / bytes_per_us(device)} if moved else {}


def _of_values(problem: AttentionProblem, device: Device) -> dict[str, float]:
    """What laying values of 8 bits by columns takes."""
    if problem.dtype.width == 16:
        return {}
    moved = 2 * problem.batch * problem.seqlen_k * problem.heads_k * problem.head_dim_v
    return {"values": _LAUNCH_US + moved / bytes_per_us(device)}


def laid_bytes(problem: AttentionProblem) -> int:
    """Bytes of keys, and of values of 16 bits, that are laid in succession first: those in pages that the copy engine does not take."""
    if problem.page_size % MIN_TMA_ROWS == 0:
        return 0
    columns = sum(problem.head_dims) if problem.dtype.width == 16 else problem.head_dim
    return problem.batch * problem.kv_capacity * problem.heads_k * columns * problem.dtype.width // 8


def units(
    problem: AttentionProblem, config: Sm90AttentionConfig, device: Device
) -> tuple[float, float, tuple[float, float]]:
    """Of an SM on average: millions of multiplications and additions, tiles; and both of what the last ones do while others
    wait."""
    share = problem.group_size if config.pack_gqa else 1
    rows = problem.seqlen_q * share
    in_rows = -(-rows // config.tile_m)
    tiles = in_rows * (problem.heads // share) * problem.batch
    keys = _keys(problem, config, in_rows)
    step = 2 * config.tile_m * sum(problem.head_dims) / 1e6
    each = tiles / device.sm_count
    if (
        config.dynamic_scheduler or not config.persistent
    ):  # the last tiles, which see fewest keys, are done at the same time but for one
        ahead = 0.5 if tiles > device.sm_count else 1.0 - each
        return keys * step * each, each, (ahead * keys * step, ahead)
    rounds = -(-tiles // device.sm_count)
    return keys * step * each, each, ((rounds - each) * keys * step, rounds - each)


def _keys(problem: AttentionProblem, config: Sm90AttentionConfig, tiles: int) -> float:
    """Keys of a tile that are multiplied, on average."""
    keys, share = problem.seqlen_k, problem.group_size if config.pack_gqa else 1
    parts = config.consumer_warpgroups if config.skips_hidden_tiles else 1  # what has keys of its own
    each, seen = config.tile_m // share // parts, 0
    some = [tile * parts + part for tile in range(0, tiles, max(1, tiles // 16)) for part in range(parts)]
    for part in some:
        position = part * each + keys - problem.seqlen_q
        end = keys if problem.window_right is None else min(keys, position + each + problem.window_right)
        begin = 0 if problem.window_left is None else max(0, position - problem.window_left)
        seen += max(1, -(-end // config.tile_n) - begin // config.tile_n)
    return seen * config.tile_n / len(some)


def _measured_configs(problem: AttentionProblem) -> list[MeasuredConfig]:
    """Return the configs for the smallest measured head dimensions that hold the problem's."""
    bits, dim, dim_v = problem.dtype.width, *problem.head_dims
    fitting = [x for x in MEASURED if x.bits == bits and dim <= x.head_dim and dim_v <= x.head_dim_v]
    return [x for x in fitting if (x.head_dim, x.head_dim_v) == (fitting[0].head_dim, fitting[0].head_dim_v)]


def coefficients_of(problem: AttentionProblem, config: Sm90AttentionConfig) -> MeasuredConfig:
    """Return the coefficients of a config, or those of the most similar one that was measured."""

    def distance(measured: MeasuredConfig) -> tuple[int, ...]:
        same = ("q_in_regs", "pingpong", "kv_stages", "consumer_warpgroups")
        differing = sum(getattr(config, name) != getattr(measured, name) for name in same)
        groups = abs(measured.consumer_warpgroups - config.consumer_warpgroups)
        return groups, abs(measured.tile_n - config.tile_n), differing

    nearest = min(_measured_configs(problem), key=distance)
    if not any(distance(nearest)):
        return nearest
    return dataclasses.replace(nearest, tflops=_UNMEASURED_EFFICIENCY * nearest.tflops)


def _fitting(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> Sm90AttentionConfig:
    """A config as a problem needs it."""
    tile_n, width = config.tile_n, problem.dtype.width
    need = (problem.score_mod is not None) + problem.has_alibi  # registers, for functions and slopes
    if need and width == 8:
        tile_n -= 32 * (4 - config.consumer_warpgroups)
    elif (
        width == 8
        and problem.head_dim_v > 128
        and (problem.window_left is not None or problem.page_size % MIN_TMA_ROWS == 0 < problem.page_size)
    ):
        tile_n -= 32  # for what windows and pages take: else loops would spill, or products wait for each other
    elif config.consumer_warpgroups == 3 or config.q_in_regs:
        tile_n -= 16 * need
    elif need > 1:
        tile_n = min(48, tile_n)
    while tile_n > _LEAST_KEYS and not passes(
        lambda config: config.check(*problem.head_dims, device.smem, width), dataclasses.replace(config, tile_n=tile_n)
    ):
        tile_n -= _LEAST_KEYS  # heads of two sizes have outputs beside queries, which those that were measured put in their place
    pack_gqa = problem.group_size > 1 and problem.seqlen_q < config.tile_m and WARPGROUP_M % problem.group_size == 0
    # where tiles are equally long, they need no counter
    uneven = (
        problem.window_left is not None or problem.window_right is not None or problem.varlen or problem.has_seqused_k
    )
    return dataclasses.replace(config, tile_n=tile_n, pack_gqa=pack_gqa, dynamic_scheduler=uneven)
