"""Checks of lesson 7."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln

from ...checking import Exercise, Wrong, conflicts, same, sanitized


def _no_conflicts(case: str, run: Any) -> None:
    lost, report = conflicts(run)
    if lost:
        raise Wrong(f"{case}: bank conflicts", report, expected="0 wavefronts lost", got=lost)


def _choose(module: Any) -> None:
    x = np.random.default_rng(0).standard_normal((32, 16), np.float32)
    y = np.zeros((16, 32), np.float32)
    case = f"S<{','.join(map(str, module.SWIZZLE))}>"
    with sanitized(case):
        module.move(x, y)
    same(case, y, x.T)
    _no_conflicts(case, lambda: module.move(x, y))


def _transpose(module: Any) -> None:
    for shape in ((32, 32), (40, 70)):
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        y = np.full(shape[::-1], np.nan, np.float32)
        case = f"transpose of a matrix {shape}"
        with sanitized(case):
            module.transpose(x, y)
        same(case, y, x.T)
        _no_conflicts(case, lambda x=x, y=y: module.transpose(x, y))
    with kiln.bank_conflicts() as report:
        module.transpose(x, y)
    if not report.places:
        raise Wrong("the kernel does not use shared memory", "so it reads or writes columns, which is not coalesced")


EXERCISES = (
    Exercise(
        "choose a swizzle",
        _choose,
        (
            "The offset is row * 16 + column. The bank is offset % 32: bits 0 to 4, four of the column, one of the row.",
            "Bit 4 differs between even and odd rows already. The other bits of the row begin at bit 5.",
            "Flip the four bits of the column (b = 4, m = 0) with those from bit m + s = 5 on.",
        ),
    ),
    Exercise(
        "transpose any matrix",
        _transpose,
        (
            "lane runs along a row of x when you fill the tile, and along a row of y when you empty it.",
            "Guard both loops: a tile at the edge is not full. The barrier is for all threads.",
            "S<5,0,5>, or rows of 33 elements.",
        ),
    ),
)
