"""Checks of lesson 9."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from kiln import cute
from kiln.cute.runtime import from_dlpack

from ...checking import Exercise, Wrong, same, sanitized


def _total(module: Any) -> None:
    for tiles in (1, 5):
        x = np.random.default_rng(tiles).integers(-9, 10, (tiles, 128)).astype(np.float32)
        y = np.full(32, np.nan, np.float32)
        case = f"total of {tiles} tiles"
        with sanitized(case):
            module.total(from_dlpack(x, assumed_align=16).mark_compact_shape_dynamic(0), y)
        same(case, y, x.sum(axis=0)[:95:-1])
    ptx = cute.compile(module.total, from_dlpack(x, assumed_align=16), y, target="nvidia").artifacts["ptx"]
    if not re.search(r"cp\.async\.wait_group\s+[1-9]", ptx):
        hint = "cp_async_wait_group(1) leaves the newest group in flight while the tile before it is added up"
        raise Wrong("groups in flight while a tile is added up", expected=1, got=0, hint=hint)


def _column_totals(module: Any) -> None:
    for rows in (1, 2, 7):
        x = np.random.default_rng(rows).integers(-9, 10, (rows, 32)).astype(np.float32)
        y = np.full(32, np.nan, np.float32)
        case = f"column_totals of {rows} rows"
        with sanitized(case):
            module.column_totals(x, y)
        same(case, y, x.sum(axis=0)[::-1])


EXERCISES = (
    Exercise(
        "wait for the right group",
        _total,
        (
            "Two groups are under way: this tile's and the next one's. Wait until at most one is left.",
            "A group ends with cp_async_commit_group(), also in the last iteration, when it is empty.",
            "cp_async_wait_group waits for a thread's own copies: a sync_warp() makes them everybody's.",
        ),
    ),
    Exercise(
        "the consumer",
        _column_totals,
        (
            "consumer.wait_and_advance() returns a handle of the full buffer: its number is handle.index.",
            "handle.release() says that the buffer may be filled again: after the last read of it.",
        ),
    ),
)
