"""Checks of lesson 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checking import Exercise, same, sanitized


def _clamp(module: Any) -> None:
    for n in (1, 128, 130, 1000):
        x = np.random.default_rng(n).uniform(-2, 2, n).astype(np.float32)
        y = np.full(n, np.nan, np.float32)
        case = f"clamp of {n} elements to -1 .. 0.5"
        with sanitized(case, "memory"):
            module.clamp(x, y, -1.0, 0.5)
        same(case, y, np.clip(x, np.float32(-1), np.float32(0.5)))


def _add_row(module: Any) -> None:
    for shape in ((8, 32), (1, 1), (9, 33), (20, 70)):
        rng = np.random.default_rng(shape[0])
        x = rng.standard_normal(shape, np.float32)
        row = rng.standard_normal(shape[1], np.float32)
        out = np.full(shape, np.nan, np.float32)
        case = f"add_row of a matrix {shape}"
        with sanitized(case, "memory"):
            module.add_row(x, row, out)
        same(case, out, x + row)


EXERCISES = (
    Exercise(
        "clamp an array",
        _clamp,
        (
            "Every thread has an index of its own: block * THREADS + thread.",
            "The last block is not full. Compare the index with cute.size(y) before you touch memory.",
            "The grid needs cute.ceil_div(cute.size(y), THREADS) blocks.",
        ),
    ),
    Exercise(
        "add a row to every row of a matrix",
        _add_row,
        (
            "Do the same as in one dimension, twice: rows along y, columns along x.",
            "A thread past the last column would write to the next row: guard i and j.",
        ),
    ),
)
