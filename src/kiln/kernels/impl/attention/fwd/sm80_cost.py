"""The cost model of the sm_80 forward kernel and its default configs; decode has `decode_cost.py`.

A step is a KV tile of a query tile. Steps are counted in the time that one takes in a CTA alone on its SM."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from ....dispatch.registry import passes
from ....dispatch.roofline import Roofline, us
from ....tuned import coefficients
from . import decode_cost
from .decode_cost import MAX_DECODE_ROWS, is_decode, tiles_and_steps
from .sm80_config import MAX_SPLITS, Sm80AttentionConfig, padded_head_dim

if TYPE_CHECKING:
    from ....dispatch.devices import Device
    from ..problem import AttentionProblem

_CTA_STEPS = 1.5
"""Latency of the prologue and the epilogue of a CTA, in steps."""
_COMBINE_STEPS = 3.0
"""Latency of the combine kernel, in steps."""
_PARTIAL_COST = 0.6
"""Time to write and read a byte of partial O, relative to a byte of K and V: partials stay in L2."""
_MIN_SPEEDUP = 1.03
"""The KV sequence is split only if that is so much faster."""


def default_config(problem: AttentionProblem, device: Device) -> Sm80AttentionConfig:
    """Return the config for a problem: for decode the cheapest measured one, otherwise the largest tiles that fit."""
    if is_decode(problem):
        cost = lambda config: decode_cost.roofline(problem, config, device).us
        return min(decode_cost.candidates(problem, device), key=cost)
    pack_gqa = problem.group_size > 1 and problem.seqlen_q <= MAX_DECODE_ROWS
    config = dataclasses.replace(_prefill_config(problem, device), pack_gqa=pack_gqa)
    num_splits = splits_for(*_work(problem, config), config.ctas_per_sm, device.sm_count)
    return dataclasses.replace(config, num_splits=num_splits)


def roofline(problem: AttentionProblem, config: Sm80AttentionConfig, device: Device) -> Roofline:
    """Return what an attention is expected to spend time on."""
    if is_decode(problem):
        return decode_cost.roofline(problem, config, device)
    tflops = coefficients("attention_sm80", device)[f"f{problem.dtype.width}_tflops"]
    step_us = us(2 * config.tile_m * config.tile_n * sum(problem.head_dims), tflops)
    steps = _steps(*_work(problem, config), config.ctas_per_sm, device.sm_count, config.num_splits)
    return Roofline({"tensor cores": step_us * steps})


def _work(problem: AttentionProblem, config: Sm80AttentionConfig) -> tuple[int, int, float]:
    """Return query tiles, steps of each, and the steps in which its partial O is written and read."""
    tiles, steps = tiles_and_steps(problem, config)
    rows = min(problem.seqlen_q * (problem.group_size if config.pack_gqa else 1), config.tile_m)
    kv_bytes = problem.dtype.width // 8 * config.tile_n * sum(problem.head_dims)
    return tiles, steps, _PARTIAL_COST * 8 * rows * problem.head_dim_v / kv_bytes


def _prefill_config(problem: AttentionProblem, device: Device) -> Sm80AttentionConfig:
    """Return the first config that fits, without split-KV."""
    columns = padded_head_dim(problem.head_dim_v)
    if columns > 128:
        shapes = [(128, 96, 8, 1)] if columns <= 192 else []
        shapes += [(128, 64, 8, 1), (64, 64, 4, 1), (64, 32, 4, 1)]
    else:
        shapes = [(128, 64, 4, 2)] if columns <= 96 else []
        shapes += [(128, 32, 4, 2), (64, 32, 4, 1)]
    configs = [Sm80AttentionConfig(*shape) for shape in shapes]
    check = lambda config: config.check(*problem.head_dims, device.smem, problem.dtype.width)
    return next((config for config in configs if passes(check, config)), configs[-1])


@functools.lru_cache(maxsize=4096)
def splits_for(tiles: int, steps: int, partial_steps: float, ctas_per_sm: int, sm_count: int) -> int:
    """Return the number of KV splits that takes least time; a partial O takes `partial_steps` to write and read."""
    cost = functools.partial(_steps, tiles, steps, partial_steps, ctas_per_sm, sm_count)
    best = min(range(1, max(1, min(steps, MAX_SPLITS)) + 1), key=cost)
    return best if _MIN_SPEEDUP * cost(best) < cost(1) else 1


def _steps(tiles: int, steps: int, partial_steps: float, ctas_per_sm: int, sm_count: int, num_splits: int) -> float:
    """Return the steps that all tiles take, if their KV sequence is split."""
    waves = -(-tiles * num_splits // (ctas_per_sm * sm_count))
    total = ctas_per_sm * waves * (-(-steps // num_splits) + _CTA_STEPS)
    return total if num_splits == 1 else total + _COMBINE_STEPS + partial_steps * tiles * num_splits / sm_count
