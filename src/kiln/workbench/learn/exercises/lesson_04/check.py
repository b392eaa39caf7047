"""Checks of lesson 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...checking import Exercise, Wrong, same, sanitized


def _agrees(case: str, layout: Any, shape: tuple[int, int], offset: Callable[[int, int], int]) -> None:
    """Compare a layout with a function of two coordinates."""
    if layout is None:
        raise Wrong(case, "returns None: the gap is still there")
    for i in range(shape[0]):
        for j in range(shape[1]):
            if (got := layout((i, j))) != offset(i, j):
                raise Wrong(f"{case} is {layout}: coordinate {(i, j)}", expected=offset(i, j), got=got)


def _layouts(module: Any) -> None:
    for m, n in ((4, 8), (8, 12)):
        _agrees(f"padded({m}, {n}, 3)", module.padded(m, n, 3), (m, n), lambda i, j, n=n: i * (n + 3) + j)
        _agrees(f"transposed({m}, {n})", module.transposed(m, n), (n, m), lambda i, j, n=n: j * n + i)
        tiles = lambda i, j, n=n: (i // 2 * (n // 4) + j // 4) * 8 + i % 2 * 4 + j % 4
        _agrees(f"tile_by_tile({m}, {n})", module.tile_by_tile(m, n), (m, n), tiles)
        dealt = lambda t, v, m=m, n=n: (t + 4 * (v % (m // 4))) * n + v // (m // 4)
        _agrees(f"every_fourth_row({m}, {n})", module.every_fourth_row(m, n), (4, m // 4 * n), dealt)


def _tiles(module: Any) -> None:
    for m, n in ((4, 8), (8, 24)):
        x = np.full((m, n), -1, np.float32)
        case = f"number_tiles of a matrix {(m, n)}"
        with sanitized(case):
            module.number_tiles(x)
        numbers = np.arange(m // 4 * (n // 8), dtype=np.float32).reshape(m // 4, n // 8)
        same(case, x, numbers.repeat(4, axis=0).repeat(8, axis=1))


EXERCISES = (
    Exercise(
        "four layouts",
        _layouts,
        (
            "A stride says how far one step in its mode moves in memory.",
            "tile_by_tile: a step inside a tile moves 4 down and 1 right; to the next tile, 8 right and 2 * n down.",
            "every_fourth_row: from thread to thread one row, n; from row to row of a thread four of them.",
        ),
    ),
    Exercise(
        "tiles of a matrix",
        _tiles,
        (
            "cute.local_tile(x, TILE, (row of tiles, column of tiles)) is a tensor of 4 by 8 elements.",
            "A tensor takes one index, too: tile[thread] counts down the columns.",
        ),
    ),
)
