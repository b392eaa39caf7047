"""Checks of lesson 5."""

from __future__ import annotations

from typing import Any

import numpy as np

from kiln.cute.runtime import from_dlpack

from ...checking import Exercise, Wrong, bytes_per_access, same, sanitized, sectors


def _row(x: np.ndarray) -> Any:
    return from_dlpack(x, assumed_align=16).mark_layout_dynamic()


def _fused(module: Any) -> None:
    for n in (256, 3, 1003):
        x = np.random.default_rng(n).standard_normal(n, np.float32)
        y = np.full(n, np.nan, np.float32)
        case = f"fused of {n} elements"
        with sanitized(case):
            module.fused(_row(x), _row(y), 2.0, -0.5)
        same(case, y, np.maximum(2 * x - np.float32(0.5), 0), tolerance=1e-6)
    x = np.zeros(256, np.float32)
    widths = bytes_per_access(module.fused, _row(x), _row(x.copy()), 2.0, -0.5)
    for kind, what in (("ld", "loads"), ("st", "stores")):
        if 16 not in widths[kind]:
            raise Wrong(f"the widest of the {what}", expected="16 bytes", got=f"{max(widths[kind], default=0)} bytes")


def _add_column(module: Any) -> None:
    for shape in ((4, 32), (9, 70)):
        rng = np.random.default_rng(shape[0])
        x = rng.standard_normal(shape, np.float32)
        column = rng.standard_normal(shape[0], np.float32)
        out = np.full(shape, np.nan, np.float32)
        case = f"add_column of a matrix {shape}"
        with sanitized(case):
            module.add_column(x, column, out)
        same(case, out, x + column[:, None])
    x = np.zeros((32, 64), np.float32)
    column = np.zeros(32, np.float32)
    most, report = sectors(lambda: module.add_column(x, column, x.copy()))
    if most > 4:
        case = "the most sectors of 32 bytes in one access"
        hint = "lane and lane + 1 should be neighbours in a row"
        raise Wrong(case, report, expected=4, got=most, hint=hint)


EXERCISES = (
    Exercise(
        "fuse, 16 bytes at a time",
        _fused,
        (
            "cute.local_tile(x, (VECTOR,), (i,)) is vector i; .load() and .store() move it in one access.",
            "Whole vectors satisfy (i + 1) * VECTOR <= cute.size(y); for the rest loop from i * VECTOR on.",
        ),
    ),
    Exercise(
        "coalesced",
        _add_column,
        (
            "Write down the offsets of lanes 0, 1 and 2 in a matrix of 1024 columns.",
            "thread % COLUMNS changes from lane to lane, thread // COLUMNS from warp to warp.",
        ),
    ),
)
