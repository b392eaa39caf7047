"""Checks of lesson 8."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln.cute as cute
from kiln import Float16, Float32
from kiln.cute.nvgpu import warp

from ...checking import Exercise, Wrong, same, sanitized


def _place(module: Any) -> None:
    layout = cute.make_mma_atom(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16))).tv_layout_C
    for lane in range(32):
        for value in range(4):
            index = layout((lane, value))
            expected = (index % 16, index // 16)
            got = module.place(lane, value)
            if got != expected:
                raise Wrong(f"place(lane={lane}, value={value})", expected=expected, got=got)


def _epilogue(module: Any) -> None:
    for m, n, k in ((16, 8, 16), (32, 24, 48)):
        rng = np.random.default_rng(k)
        a = rng.integers(-2, 3, (m, k)).astype(np.float16)
        b = rng.integers(-2, 3, (n, k)).astype(np.float16)
        bias = np.arange(-n // 2, n - n // 2, dtype=np.float32)
        c = np.full((m, n), np.nan, np.float32)
        case = f"gemm with M, N, K = {m}, {n}, {k}"
        with sanitized(case):
            module.gemm(a, b, bias, c)
        same(case, c, np.maximum(a.astype(np.float32) @ b.T.astype(np.float32) + bias, 0))


EXERCISES = (
    Exercise(
        "who owns what",
        _place,
        (
            "Lanes 0 to 3 hold row 0, lanes 4 to 7 row 1: the row begins with lane // 4.",
            "Lane 1 holds columns 2 and 3. Values 2 and 3 are the same columns, 8 rows further down.",
        ),
    ),
    Exercise(
        "an epilogue: bias and ReLU",
        _epilogue,
        (
            "cute.make_layout((M, columns), stride=(0, 1)) repeats one row: every row of C sees the same bias.",
            "Partition that matrix with local_tile and partition_C as C is: then values lie beside the accumulators.",
            "acc.load() is a vector of a lane's accumulators; acc.store(v) puts a vector back.",
        ),
    ),
)
