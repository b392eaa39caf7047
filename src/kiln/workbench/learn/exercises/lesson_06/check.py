"""Checks of lesson 6."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln.cute as cute

from ...checking import Exercise, Wrong, same, sanitized


def _rms_norm(module: Any) -> None:
    for m, n, size in ((1, 96, 1), (3, 70, 1), (2, 5, 1e-3)):
        rng = np.random.default_rng(n)
        x = rng.standard_normal((m, n), np.float32)
        w = rng.standard_normal(n, np.float32)
        x *= np.float32(size)
        y = np.full((m, n), np.nan, np.float32)
        case = f"rms_norm of a matrix {(m, n)}" + (" of small numbers" if size < 1 else "")
        with sanitized(case):
            module.rms_norm(x, w, y)
        expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-5) * w
        same(case, y, expected, tolerance=1e-5)


def _row_max(module: Any) -> None:
    for m, n in ((1, 128), (3, 500), (2, 7)):
        x = np.random.default_rng(n).standard_normal((m, n), np.float32) - 4
        out = np.full(m, np.nan, np.float32)
        case = f"row_max of a matrix {(m, n)}"
        with sanitized(case):
            module.row_max(x, out)
        same(case, out, x.max(axis=1))
    ptx = cute.compile(module.row_max, x, out, target="nvidia", options="--gpu-arch sm_90a").artifacts["ptx"]
    barriers = ptx.count("bar.sync") + ptx.count("barrier.sync")
    if barriers > 2:
        hint = "shuffles need no barrier: only the one number of each warp goes through shared memory"
        raise Wrong("barriers in the kernel", expected="at most 2", got=barriers, hint=hint)


EXERCISES = (
    Exercise(
        "RMSNorm, a warp for each row",
        _rms_norm,
        (
            "Fill `mine` with 0 first: squares of lanes past the end then add nothing.",
            "(v * v).reduce(cute.ReductionOp.ADD, Float32(0), 0) adds a lane's registers, warp_reduction_sum the lanes.",
            "The mean divides by n, the length of the row, not by 32 * VALUES.",
        ),
    ),
    Exercise(
        "row maximum, with a block",
        _row_max,
        (
            "cute.arch.warp_reduction_max(largest) needs all 32 lanes: call it outside of any `if`.",
            "Lane 0 of each warp writes partial[warp]; a barrier; then thread 0 reads all of them.",
        ),
    ),
)
