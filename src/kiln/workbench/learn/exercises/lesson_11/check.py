"""Checks of lesson 11."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...checking import Exercise, Wrong, same, sanitized


def _order(module: Any) -> None:
    for m_tiles, n_tiles in ((4, 4), (8, 6)):
        order = [module.tile_of(number, m_tiles, n_tiles) for number in range(m_tiles * n_tiles)]
        missing = sorted({(i, j) for i in range(m_tiles) for j in range(n_tiles)} - set(order))
        if missing:
            raise Wrong(f"{m_tiles} by {n_tiles} tiles: nobody computes", expected="every tile once", got=missing[:3])
        wave = order[:16]
        loaded = len({row for row, _ in wave}) + len({column for _, column in wave})
        if loaded != 8:
            case = f"{m_tiles} by {n_tiles} tiles: rows of A and columns of B that the first 16 tiles need"
            raise Wrong(case, expected=8, got=loaded)
        if order[1] != (1, 0):
            raise Wrong(f"{m_tiles} by {n_tiles} tiles: the tile number 1", expected=(1, 0), got=order[1])


def _producer(module: Any) -> None:
    for m, n, k in ((64, 16, 64), (64, 32, 192)):
        rng = np.random.default_rng(k)
        a = rng.integers(-3, 4, (m, k)).astype(np.float16)
        b = rng.integers(-3, 4, (n, k)).astype(np.float16)
        c = np.full((m, n), np.nan, np.float32)
        case = f"gemm with M, N, K = {m}, {n}, {k}"
        with sanitized(case):
            module.gemm(a, b, c)
        same(case, c, a.astype(np.float32) @ b.T.astype(np.float32))


EXERCISES = (
    Exercise(
        "tile rasterization",
        _order,
        (
            "A band has GROUP * n_tiles tiles: divmod(number, GROUP * n_tiles) gives the band and the place in it.",
            "Inside a band the row changes fastest: place % GROUP; the column is place // GROUP.",
        ),
    ),
    Exercise(
        "the producer",
        _producer,
        (
            "stage = producer.acquire_and_advance() waits until a stage is empty and announces its bytes.",
            "cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier), and the same of B.",
            "producer.tail() keeps the CTA alive until the consumers have released all stages.",
        ),
    ),
)
