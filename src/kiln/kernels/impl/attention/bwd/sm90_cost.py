"""What gradients of attention are expected to take on Hopper, and what bounds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....dispatch.explaining import bytes_per_us
from .sm90_coefficients import FIGURES
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
_UNKNOWN = 1.05
"""What a config that was not measured is taken to take, of what the units say beside one that was."""
_LAUNCHES = 6.0
"""Microseconds of three launches."""


def default_config(problem: AttentionBackwardProblem, device: Device) -> Sm90AttentionBackwardConfig:
    """The cheapest config for a problem of those that were measured."""
    of, elements = problem.attention, padded_head_dim(problem.attention.head_dims)
    if elements == 64 and (
        of.varlen or of.has_seqused_k or of.has_softcap or of.has_alibi or problem.functions is not None
    ):
        return Sm90AttentionBackwardConfig(64, operands_in_regs=1)  # else registers are spilled
    found = (Sm90AttentionBackwardConfig(*figures.config) for figures in FIGURES[elements])
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
    """Microseconds side by side of the units of a multiprocessor, if nothing waits."""
    blocks, steps = _work(problem, config)
    each = blocks * steps / device.multiprocessors / _CYCLES
    return {name: each * count for name, count in cycles(config, padded_head_dim(problem.attention.head_dims)).items()}


def expected(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device) -> float:
    """Microseconds that gradients take."""
    rounds, steps, rest = units(problem, config, device)
    step, block = _figures(config, padded_head_dim(problem.attention.head_dims))
    return rounds * (steps * step + block) + rest


def units(
    problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig, device: Device
) -> tuple[float, float, float]:
    """Blocks of keys of a multiprocessor, steps of each, and microseconds of what is before and after."""
    of = problem.attention
    blocks, steps = _work(problem, config)
    rounds = blocks / device.multiprocessors
    if of.window_left is None and of.window_right is None:  # all are equally long
        rounds = -(-blocks // device.multiprocessors)
    side, _, sums = head_groups(problem, config, device)
    early = converted_heads(problem, config, side, sums)
    rows, heads = of.seqlen_q * of.head_dim, of.heads * of.batch
    passes = heads * 4 * rows + (heads - early) * rows * (2 + 4 * sums)
    return max(1.0, rounds), steps, passes / bytes_per_us(device) + _LAUNCHES


def _figures(config: Sm90AttentionBackwardConfig, elements: int) -> tuple[float, float]:
    """Microseconds of a step and of beginning and ending a block of keys: as measured, or as units say beside what was."""
    own = (config.tile_m, config.q_stages, config.operands_in_regs)
    known = {figures.config: figures for figures in FIGURES[elements]}
    if own in known:
        return known[own].step, known[own].block
    first = FIGURES[elements][0]
    worst = lambda one: max(cycles(one, elements).values())
    return _UNKNOWN * first.step * worst(config) / worst(Sm90AttentionBackwardConfig(*first.config)), first.block


def _work(problem: AttentionBackwardProblem, config: Sm90AttentionBackwardConfig) -> tuple[int, float]:
    """Blocks of threads, and steps of one on average."""
    of = problem.attention
    return -(-of.seqlen_k // TILE_N) * of.heads_k * of.batch, of.group_size * max(
        1.0, mean_visible_queries(problem) / config.tile_m
    )
