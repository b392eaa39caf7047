"""Checks of lesson 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checking import Exercise, same, sanitized


def _reverse(module: Any) -> None:
    for blocks in (1, 3):
        x = np.arange(64 * blocks, dtype=np.float32)
        expected = x.reshape(blocks, 64)[:, ::-1].flatten()
        case = f"reverse of {x.size} elements"
        with sanitized(case):
            module.reverse(x)
        same(case, x, expected)


def _block_totals(module: Any) -> None:
    for blocks in (1, 3):
        x = np.random.default_rng(blocks).integers(-9, 10, 128 * blocks).astype(np.float32)
        out = np.full(blocks, np.nan, np.float32)
        case = f"block_totals of {x.size} elements"
        with sanitized(case):
            module.block_totals(x, out)
        same(case, out, x.reshape(blocks, 128).sum(axis=1))


EXERCISES = (
    Exercise(
        "fix a reversal",
        _reverse,
        (
            "Thread 0 reads what thread 63 writes. What orders the two?",
            "A barrier between the line that writes shared memory and the line that reads it.",
        ),
    ),
    Exercise(
        "a tree reduction",
        _block_totals,
        (
            "In each step a thread reads what another thread wrote in the step before: one barrier for each step.",
            "The barrier stands outside the `if`: all threads have to reach it.",
            "`for k in kiln.range_constexpr(7)` with step = THREADS >> (k + 1) gives 64, 32, ... 1.",
        ),
    ),
)
