"""Roofline model of the Hopper forward kernel, and the configs to choose from.

An SM computes its query tiles one after the other: the main loop at a rate that was measured for the config, and the
prologue and epilogue of each tile. Coefficients are in `kernels/tuned/h200.json`;
`python benchmarks/fit.py fit attention` fits them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.registry import passes
from ....dispatch.roofline import Roofline, copy_tbps, us
from ....tuned import Coefficients
from .decode_cost import READ_BANDWIDTH
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


@dataclasses.dataclass(frozen=True)
class Sm90Coefficients(Coefficients):
    """The figures of the model."""

    table = "attention_sm90"
    row = MeasuredConfig

    launch_us: float
    dynamic_scheduler_us: float
    unmeasured_efficiency: float
    """The rate of a config that was not measured, relative to the most similar one that was."""
    configs: tuple[MeasuredConfig, ...]


_MIN_TILE_N = 16


def candidates(problem: AttentionProblem, device: Device) -> Iterator[Sm90AttentionConfig]:
    """Return the configs to choose from, the cheapest first."""
    configs = dict.fromkeys(
        _adapted(problem, measured.config, device) for measured in _measured_configs(problem, device)
    )
    return iter(sorted(configs, key=lambda config: roofline(problem, config, device).us))


def default_config(problem: AttentionProblem, device: Device) -> Sm90AttentionConfig:
    """Return the cheapest config for a problem."""
    return next(candidates(problem, device))


def roofline(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> Roofline:
    """Return what an attention is expected to spend time on."""
    c = Sm90Coefficients.on(device)
    measured = coefficients_of(problem, config, device)
    mflops, tiles = units(problem, config, device)
    copied = copy_tbps(device)
    phases = {
        "prologue and epilogue": tiles * measured.tile_us,
        "launch": c.launch_us + (c.dynamic_scheduler_us if config.dynamic_scheduler else 0.0),
    }
    if gathered := 2 * gathered_bytes(problem) * min(1.0, problem.seqlen_k / max(1, problem.kv_capacity)):
        phases["gather pages"] = 2 * c.launch_us + us(gathered, copied)
    if problem.dtype.width == 8:
        transposed = 2 * problem.batch * problem.seqlen_k * problem.heads_k * problem.head_dim_v
        phases["transpose V"] = c.launch_us + us(transposed, copied)
    loads = us(problem.bytes, READ_BANDWIDTH * copied)
    return Roofline({"tensor cores": mflops / measured.tflops, "memory": loads}, phases)


def gathered_bytes(problem: AttentionProblem) -> int:
    """Return the bytes of K, and of 16-bit V, in pages that are too small for TMA and are gathered first."""
    if problem.page_size % MIN_TMA_ROWS == 0:
        return 0
    columns = sum(problem.head_dims) if problem.dtype.width == 16 else problem.head_dim
    return problem.batch * problem.kv_capacity * problem.heads_k * columns * problem.dtype.width // 8


def units(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> tuple[float, float]:
    """Return MFLOPs and query tiles of the SM that is done last.

    Static schedules have whole waves; with a dynamic scheduler, SMs are done within a tile of each other."""
    group_size = problem.group_size if config.pack_gqa else 1
    row_tiles = -(-problem.seqlen_q * group_size // config.tile_m)
    tiles = row_tiles * (problem.heads // group_size) * problem.batch
    waves: float = -(-tiles // device.sm_count)
    if waves > 1 and (config.dynamic_scheduler or not config.persistent):
        waves = tiles / device.sm_count + 0.5
    tile_mflops = 2 * config.tile_m * sum(problem.head_dims) * _mean_keys(problem, config, row_tiles) / 1e6
    return waves * tile_mflops, waves


def _mean_keys(problem: AttentionProblem, config: Sm90AttentionConfig, tiles: int) -> float:
    """Return the keys of the KV tiles that a query tile goes through, averaged over some of a head's tiles."""
    seqlen_k = problem.seqlen_k
    group_size = problem.group_size if config.pack_gqa else 1
    parts = config.consumer_warpgroups if config.skips_hidden_tiles else 1  # that have KV tiles of their own
    queries = config.tile_m // group_size // parts
    kv_tiles = 0
    samples = [tile * parts + part for tile in range(0, tiles, max(1, tiles // 16)) for part in range(parts)]
    for sample in samples:
        position = sample * queries + seqlen_k - problem.seqlen_q
        end = seqlen_k if problem.window_right is None else min(seqlen_k, position + queries + problem.window_right)
        begin = 0 if problem.window_left is None else max(0, position - problem.window_left)
        kv_tiles += max(1, -(-end // config.tile_n) - begin // config.tile_n)
    return kv_tiles * config.tile_n / len(samples)


def _measured_configs(problem: AttentionProblem, device: Device) -> list[MeasuredConfig]:
    """Return the configs for the smallest measured head dimensions that hold the problem's."""
    bits = problem.dtype.width
    dim, dim_v = problem.head_dims
    fitting = [
        x for x in Sm90Coefficients.on(device).configs if x.bits == bits and dim <= x.head_dim and dim_v <= x.head_dim_v
    ]
    return [x for x in fitting if (x.head_dim, x.head_dim_v) == (fitting[0].head_dim, fitting[0].head_dim_v)]


def coefficients_of(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> MeasuredConfig:
    """Return the coefficients of a config, or those of the most similar one that was measured."""

    def distance(measured: MeasuredConfig) -> tuple[int, ...]:
        same = ("q_in_regs", "pingpong", "kv_stages", "consumer_warpgroups")
        differing = sum(getattr(config, name) != getattr(measured, name) for name in same)
        groups = abs(measured.consumer_warpgroups - config.consumer_warpgroups)
        return groups, abs(measured.tile_n - config.tile_n), differing

    nearest = min(_measured_configs(problem, device), key=distance)
    if not any(distance(nearest)):
        return nearest
    return dataclasses.replace(nearest, tflops=Sm90Coefficients.on(device).unmeasured_efficiency * nearest.tflops)


def _adapted(problem: AttentionProblem, config: Sm90AttentionConfig, device: Device) -> Sm90AttentionConfig:
    """Return a config with the tile_n that a problem leaves registers and smem for, packed GQA and scheduler."""
    tile_n = config.tile_n
    width = problem.dtype.width
    modifications = (problem.score_mod is not None) + problem.has_alibi  # each takes registers
    tma_pages = problem.page_size > 0 and problem.page_size % MIN_TMA_ROWS == 0
    if width == 8 and modifications:
        tile_n -= 32 * (4 - config.consumer_warpgroups)
    elif width == 8 and problem.head_dim_v > 128 and (problem.window_left is not None or tma_pages):
        tile_n -= 32  # otherwise the main loop spills, or its WGMMAs are serialised
    elif config.consumer_warpgroups == 3 or config.q_in_regs:
        tile_n -= 16 * modifications
    elif modifications > 1:
        tile_n = min(48, tile_n)
    check = lambda tile_n: dataclasses.replace(config, tile_n=tile_n).check(*problem.head_dims, device.smem, width)
    while tile_n > _MIN_TILE_N and not passes(check, tile_n):
        tile_n -= _MIN_TILE_N  # with different head dims O does not replace Q in smem, as in the measured configs
    pack_gqa = problem.group_size > 1 and problem.seqlen_q < config.tile_m and WARPGROUP_M % problem.group_size == 0
    # query tiles that take equally long need no dynamic scheduler
    uneven = any(problem.masks[:2]) or problem.varlen or problem.has_seqused_k
    return dataclasses.replace(config, tile_n=tile_n, pack_gqa=pack_gqa, dynamic_scheduler=uneven)
