"""Roofline model of the Hopper backward kernel for head_dim up to 128, and the configs to choose from.

An SM computes its KV tiles one after the other, in steps of a query tile. The time of a step was measured for the
configs to choose from; that of others is scaled by their busiest unit. Coefficients are in `kernels/tuned/h200.json`;
`python benchmarks/fit.py fit backward` fits them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.roofline import Roofline, copy_tbps, us
from ....tuned import Coefficients
from .sm90_config import TILE_N, WARPGROUPS, Sm90AttentionBackwardConfig, mean_visible_queries, padded_head_dim

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
    """A config to choose from, for a padded head_dim, and its coefficients."""

    head_dim: int
    tile_m: int
    q_stages: int
    operands_in_regs: int
    kv_stages: int
    step_us: float
    """Microseconds of a step, a query tile."""
    cta_us: float
    """Microseconds of the prologue and the epilogue of a KV tile."""

    @property
    def config(self) -> Sm90AttentionBackwardConfig:
        return Sm90AttentionBackwardConfig(self.tile_m, self.q_stages, self.operands_in_regs, self.kv_stages)


@dataclasses.dataclass(frozen=True)
class BackwardCoefficients(Coefficients):
    """The figures of the models for all head dimensions."""

    table = "attention_backward_sm90"
    row = MeasuredConfig

    launches_us: float
    """Microseconds of the launches of all kernels."""
    cycles_per_us: float
    unmeasured_slowdown: float
    """The time of a config that was not measured, relative to what its busiest unit says beside a measured one."""
    dkv_hd256_slowdown: float
    dq_hd256_slowdown: float
    """For head_dim over 128, the time of a step of the dK/dV kernel, and of the dQ kernel, relative to that of its
    busiest unit."""
    hd256_cta_us: float
    """Microseconds of the prologue and the epilogue of a CTA of either kernel."""
    configs: tuple[MeasuredConfig, ...]


def candidates(problem: AttentionBackwardProblem, device: Device) -> Iterator[Sm90AttentionBackwardConfig]:
    """Return the configs to choose from, the cheapest first."""
    of = problem.attention
    head_dim = padded_head_dim(problem.attention.head_dims)
    lengths_vary = of.varlen or of.has_seqused_k
    modified = of.has_softcap or of.has_alibi or problem.functions
    if head_dim == 64 and (lengths_vary or modified):
        return iter((Sm90AttentionBackwardConfig(64, operands_in_regs=1),))  # larger tiles would spill
    configs = (measured.config for measured in BackwardCoefficients.on(device).configs if measured.head_dim == head_dim)
    return iter(sorted(configs, key=lambda config: roofline(problem, config, device).us))


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm90AttentionBackwardConfig:
    """Return the cheapest config for a problem."""
    return next(candidates(problem, device))


def roofline(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> Roofline:
    """Return what a backward pass is expected to spend time on."""
    tiles, steps, other_us = units(problem, config, device)
    head_dim = padded_head_dim(problem.attention.head_dims)
    step_us, cta_us = _step_and_cta_us(config, head_dim, device)
    busy = busy_us(step_cycles(config, head_dim), _work(problem, config), device)
    return Roofline(busy, {"prologue and epilogue": tiles * cta_us, "other kernels": other_us}, tiles * steps * step_us)


def busy_us(cycles: dict[str, float], work: tuple[int, float], device: Device) -> dict[str, float]:
    """Return the microseconds that each unit of an SM is busy with the steps of some CTAs, by the cycles of one."""
    ctas, steps = work
    rate = BackwardCoefficients.on(device).cycles_per_us
    return {name: ctas * steps / device.sm_count * count / rate for name, count in cycles.items()}


def units(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
) -> tuple[float, float, float]:
    """Return KV tiles of an SM, steps of each, and the microseconds of launches, preprocess and dQ conversion."""
    tiles, steps = _work(problem, config)
    # O and dO are read as 16-bit elements, dQ is read as f32 and written as 16-bit elements
    return waves(problem, tiles, device), steps, other_kernels_us(problem, device, 4 + 6)


def waves(problem: AttentionBackwardProblem, ctas: int, device: Device) -> float:
    """Return how many CTAs an SM has, one after the other: whole waves, unless a mask makes CTAs differ in length."""
    masks_right, masks_left, _ = problem.attention.masks
    return max(1.0, ctas / device.sm_count) if masks_right or masks_left else -(-ctas // device.sm_count)


def other_kernels_us(problem: AttentionBackwardProblem, device: Device, element_bytes: int) -> float:
    """Return the microseconds of launches, and of kernels that move `element_bytes` for each element of Q."""
    of = problem.attention
    size = of.seqlen_q * of.heads * of.batch * of.head_dim * element_bytes
    return BackwardCoefficients.on(device).launches_us + us(size, copy_tbps(device))


def step_cycles(config: Sm90AttentionBackwardConfig, head_dim: int) -> dict[str, float]:
    """Return the cycles of a step in each unit: tensor cores, smem at 128 bytes a cycle, and exp2."""
    tile_m = config.tile_m
    kv = TILE_N * head_dim
    q = config.tile_m * head_dim
    # A operands of S and dP that are not in registers, B operands of both warpgroups for S, dP, dK and dV
    operands = (2 - config.operands_in_regs) * kv + 4 * WARPGROUPS * q
    # dQ is split by elements, so that warpgroups share dS, or by queries, so that they share K
    operands += kv + WARPGROUPS * tile_m * TILE_N if head_dim == 64 * WARPGROUPS else WARPGROUPS * kv + tile_m * TILE_N
    smem_bytes = (
        2 * operands + 2 * TILE_N * tile_m + 3 * 4 * q
    )  # dS is written; f32 dQ is written and read, Q and dO loaded
    return {"tensor cores": 10 * TILE_N * q / 4096, "shared memory": smem_bytes / 128, "exp2": TILE_N * tile_m / 16}


def _step_and_cta_us(config: Sm90AttentionBackwardConfig, head_dim: int, device: Device) -> tuple[float, float]:
    """Return the microseconds of a step, and of the prologue and epilogue of a KV tile."""
    measured = {x.config: x for x in BackwardCoefficients.on(device).configs if x.head_dim == head_dim}
    if config in measured:
        return measured[config].step_us, measured[config].cta_us
    first = next(iter(measured.values()))
    busiest = lambda config: max(step_cycles(config, head_dim).values())
    return BackwardCoefficients.on(device).unmeasured_slowdown * first.step_us * busiest(config) / busiest(
        first.config
    ), first.cta_us


def _work(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig) -> tuple[int, float]:
    """Return the KV tiles of a problem, and the mean steps of one."""
    of = problem.attention
    steps = of.group_size * max(1.0, mean_visible_queries(problem) / config.tile_m)
    return -(-of.seqlen_k // TILE_N) * of.heads_k * of.batch, steps
