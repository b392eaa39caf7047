"""The cost model of attention backward on sm_90a for head_dim up to 128.

An SM computes its blocks of keys one after the other, with steps that were measured for the config. Coefficients are in
`kernels/tuned/h200.json`; `python benchmarks/fit.py fit backward` fits them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....dispatch.explaining import bytes_per_us
from ....tuned import coefficients
from .sm90_config import (
    TILE_N,
    WARPGROUPS,
    Sm90AttentionBackwardConfig,
    converted_heads,
    head_groups,
    mean_visible_queries,
    padded_head_dim,
)

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from .problem import AttentionBackwardProblem

_CYCLES = 1980.0
"""Of a microsecond, in bursts."""


@dataclasses.dataclass(frozen=True)
class MeasuredConfig:
    """A config to choose from, for a padded head dimension, and its coefficients."""

    head_dim: int
    tile_m: int
    q_stages: int
    operands_in_regs: int
    step_us: float
    """Microseconds of a step of `tile_m` queries."""
    cta_us: float
    """Microseconds of the prologue and the epilogue of a block of keys."""

    @property
    def config(self) -> Sm90AttentionBackwardConfig:
        return Sm90AttentionBackwardConfig(self.tile_m, self.q_stages, self.operands_in_regs)


_MODEL = coefficients("attention_backward_sm90")
MEASURED = tuple(MeasuredConfig(**row) for row in _MODEL["configs"])
_LAUNCHES_US: float = _MODEL["launches_us"]
"""Microseconds of the launches of all kernels."""
_UNMEASURED_FACTOR: float = _MODEL["unmeasured_factor"]
"""The time of a config that was not measured, relative to what its units say beside one that was."""


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm90AttentionBackwardConfig:
    """The cheapest config for a problem of those that were measured."""
    of, elements = problem.attention, padded_head_dim(problem.attention.head_dims)
    if elements == 64 and (
        of.varlen or of.has_seqused_k or of.has_softcap or of.has_alibi or problem.functions is not None
    ):
        return Sm90AttentionBackwardConfig(64, operands_in_regs=1)  # else registers are spilled
    found = (measured.config for measured in MEASURED if measured.head_dim == elements)
    return min(found, key=lambda config: expected(problem, config, device))


def cycles(config: Sm90AttentionBackwardConfig, elements: int) -> dict[str, float]:
    """Cycles of a step side by side: of tensor cores, of shared memory at 128 bytes each, and of the unit for powers."""
    rows, other = config.tile_m, WARPGROUPS * config.tile_m * elements
    # keys and values for scores and their gradients, unless they are held in registers; queries and gradients of outputs twice each
    operands = (2 - config.operands_in_regs) * TILE_N * elements + 4 * other
    # dQ: each warp group has some of the elements, or some of the queries
    by_elements = elements == 64 * WARPGROUPS
    operands += TILE_N * elements * (1 if by_elements else WARPGROUPS) + rows * TILE_N * (
        WARPGROUPS if by_elements else 1
    )
    moved = 2 * operands + 2 * TILE_N * rows + 4 * rows * elements + 2 * 4 * rows * elements
    return {
        "tensor cores": 10 * TILE_N * rows * elements / 4096,
        "shared memory": moved / 128,
        "powers": TILE_N * rows / 16,
    }


def parts(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> dict[str, float]:
    """Microseconds side by side of the units of an SM, if nothing waits."""
    blocks, steps = _work(problem, config)
    each = blocks * steps / device.sm_count / _CYCLES
    return {name: each * count for name, count in cycles(config, padded_head_dim(problem.attention.head_dims)).items()}


def expected(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> float:
    """Microseconds that gradients take."""
    rounds, steps, rest = units(problem, config, device)
    step, block = _step_and_cta_us(config, padded_head_dim(problem.attention.head_dims))
    return rounds * (steps * step + block) + rest


def units(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
) -> tuple[float, float, float]:
    """Blocks of keys of an SM, steps of each, and microseconds of what is before and after."""
    of = problem.attention
    blocks, steps = _work(problem, config)
    rounds = blocks / device.sm_count
    if of.window_left is None and of.window_right is None:  # all are equally long
        rounds = -(-blocks // device.sm_count)
    side, _, sums = head_groups(problem, config, device)
    early = converted_heads(problem, config, side, sums)
    rows, heads = of.seqlen_q * of.head_dim, of.heads * of.batch
    passes = heads * 4 * rows + (heads - early) * rows * (2 + 4 * sums)
    return max(1.0, rounds), steps, passes / bytes_per_us(device) + _LAUNCHES_US


def _step_and_cta_us(config: Sm90AttentionBackwardConfig, elements: int) -> tuple[float, float]:
    """Return the microseconds of a step and of a block of keys: as measured, or as units say beside what was."""
    known = {measured.config: measured for measured in MEASURED if measured.head_dim == elements}
    if config in known:
        return known[config].step_us, known[config].cta_us
    first = next(iter(known.values()))
    busiest = lambda one: max(cycles(one, elements).values())
    return _UNMEASURED_FACTOR * first.step_us * busiest(config) / busiest(first.config), first.cta_us


def _work(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig) -> tuple[int, float]:
    """Blocks of threads, and steps of one on average."""
    of = problem.attention
    return -(-of.seqlen_k // TILE_N) * of.heads_k * of.batch, of.group_size * max(
        1.0, mean_visible_queries(problem) / config.tile_m
    )
