"""Checks of lesson 13."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checking import Exercise, Wrong, same, sanitized


def _columns(module: Any) -> None:
    for n, accumulators, expected in ((8, 1, 32), (32, 1, 32), (48, 1, 64), (256, 2, 512), (96, 2, 256)):
        if (got := module.columns_to_allocate(n, accumulators)) != expected:
            raise Wrong(f"columns_to_allocate({n}, {accumulators})", expected=expected, got=got)
    try:
        got = module.columns_to_allocate(256, 3)
    except ValueError:
        pass
    else:
        raise Wrong("columns_to_allocate(256, 3)", expected="ValueError", got=got)
    for row in (0, 31, 32, 127):
        if (got := module.reader_of(row)) != divmod(row, 32):
            raise Wrong(f"reader_of({row})", expected=divmod(row, 32), got=got)


def _gemm(module: Any) -> None:
    for k in (64, 192):
        rng = np.random.default_rng(k)
        a = rng.integers(-3, 4, (128, k)).astype(np.float16)
        b = rng.integers(-3, 4, (32, k)).astype(np.float16)
        c = np.full((128, 32), np.nan, np.float32)
        case = f"gemm with K = {k}"
        with sanitized(case):
            module.gemm(a, b, c)
        same(case, c, a.astype(np.float32) @ b.T.astype(np.float32))


EXERCISES = (
    Exercise(
        "columns and lanes",
        _columns,
        (
            "Begin with 32 and double while it is too small.",
            "Row m lies in lane m of tensor memory; warp w sees 32 of these lanes.",
        ),
    ),
    Exercise(
        "issue and commit",
        _gemm,
        (
            "cute.gemm(mma, acc, tCrA[None, None, None, 0], tCrB[None, None, None, 0], acc), by warp 0 alone.",
            "tcgen05.commit(done) under elect_one(): it arrives at `done` when the MMAs before it are complete.",
            "All threads wait for phase step % 2, since the next step overwrites the operands.",
        ),
    ),
)
