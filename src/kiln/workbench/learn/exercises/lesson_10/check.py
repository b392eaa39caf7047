"""Checks of lesson 10."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checking import Exercise, same, sanitized


def _double(module: Any) -> None:
    for shape in ((8, 32), (11, 44)):
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        y = np.full(shape, np.nan, np.float32)
        case = f"double of a matrix {shape}"
        with sanitized(case):
            module.double(x, y)
        same(case, y, 2 * x)


def _gemm(module: Any) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-3, 4, (64, 64)).astype(np.float16)
    b = rng.integers(-3, 4, (32, 64)).astype(np.float16)
    c = np.full((64, 32), np.nan, np.float32)
    case = "gemm with M, N, K = 64, 32, 64"
    with sanitized(case):
        module.gemm(a, b, c)
    same(case, c, a.astype(np.float32) @ b.T.astype(np.float32))


EXERCISES = (
    Exercise(
        "a TMA round trip",
        _double,
        (
            "cute.size_in_bytes(Float32, load.smem_layout) is what one box brings.",
            "cute.copy(load.atom, source, shared, tma_bar_ptr=full) is called by the whole warp; it elects a thread.",
            'Threads write in the generic proxy, TMA reads in the async proxy: fence_proxy("async.shared", space="cta").',
        ),
    ),
    Exercise(
        "a WGMMA main loop",
        _gemm,
        (
            "There are four MMAs, cute.size(tCrA, mode=[2]) of K = 16 each.",
            "ACCUMULATE is False before the first of them and True after it.",
            "Read acc only after commit_group() and wait_group(0).",
        ),
    ),
)
