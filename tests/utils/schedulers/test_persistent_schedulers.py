"""Schedulers that turn tile numbers into coordinates: every tile is computed once, in raster order, and K is divided without gaps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, const_expr, cute, range_constexpr, utils
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.utils import schedulers

TILE = (4, 2)
K_TILES = 7


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


def raster(tiles_m: int, tiles_n: int, group: int) -> list[tuple[int, int]]:
    """The tiles in order: down a raster group of rows, then on to the next column."""
    return [
        (m, n)
        for first in range(0, tiles_m, group)
        for n in range(tiles_n)
        for m in range(first, min(first + group, tiles_m))
    ]


def computed(
    scheduler: Any,
    shape: tuple[int, int, int],
    bounds: list[int] | None = None,
    turns: tuple[int, int] = (0, 1),
    ahead: bool = False,
) -> list[list[int]]:
    """What every CTA gets, one row for each tile: (number, m, n, batch, batch of B, first row, rows, first K tile, K tiles).

    `turns`: which of how many consumers that take turns; `ahead`: tiles are looked up one ahead.
    """
    ctas = 96
    out = np.full((ctas, 40, 9), -1, np.int32)
    arguments = [from_dlpack(np.array(bounds, np.int32)).mark_layout_dynamic()] if bounds is not None else []

    @cute.kernel
    def kernel(d: cute.Tensor, out: cute.Tensor, bounds: Any):
        smem = utils.SmemAllocator()
        tiles = scheduler.setup(smem, d, bounds)
        first_k, k_tiles = scheduler.k_range(Int32(K_TILES), tiles)
        x, y, z = arch.block_idx()
        gx, gy, _ = arch.grid_dim()
        cta = x + gx * (y + gy * z)
        i = Int32(0)
        for work in schedulers.TileLoopAhead(scheduler, tiles) if ahead else scheduler.tile_loop(tiles, *turns):
            row = (work.number, *work.tile(), first_k, k_tiles)
            if const_expr(isinstance(work, schedulers.TileLoopAhead)):
                work.look_ahead()
            if arch.thread_idx()[0] == 0:
                for j in range_constexpr(9):
                    out[cta, i, j] = Int32(row[j])
            i = i + 1

    @cute.jit
    def run(d: cute.Tensor, out: cute.Tensor, bounds: Any):
        kernel(d, out, [*bounds, *scheduler.divisors(d)]).launch(
            grid=scheduler.grid(d), block=32, cluster=scheduler.cluster()
        )

    d = from_dlpack(np.zeros(shape, np.float32)).mark_layout_dynamic()
    run(d, from_dlpack(out), arguments)
    return [row for cta in out.tolist() for row in cta if row[0] >= 0]


@pytest.mark.parametrize("shape", [(20, 6, 1), (21, 7, 3), (3, 1, 2), (40, 10, 1)])
@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
def test_persistent_tiles_come_in_raster_order(shape: tuple[int, int, int], cluster: tuple[int, int]) -> None:
    scheduler = schedulers.PersistentTileScheduler(TILE, cluster, 3, 5, batched=shape[2] > 1)
    rows = computed(scheduler, shape)
    clusters_m, clusters_n = (-(-shape[i] // (TILE[i] * cluster[i])) for i in (0, 1))
    order = raster(clusters_m, clusters_n, 3)
    expected = sorted(
        [number + batch * len(order), m * cluster[0] + x, n * cluster[1] + y, batch, batch, 0, 0, 0, K_TILES]
        for batch in range(shape[2])
        for number, (m, n) in enumerate(order)
        for x, y in itertools.product(range(cluster[0]), range(cluster[1]))
    )
    assert sorted(rows) == expected


def test_consumers_that_take_turns_have_all_tiles_between_them() -> None:
    scheduler = schedulers.PersistentTileScheduler(TILE, (1, 1), 3, 4, batched=False)
    shape = (40, 6, 1)
    first, second = (computed(scheduler, shape, turns=(part, 2)) for part in range(2))
    assert sorted(first + second) == sorted(computed(scheduler, shape))
    assert {row[0] // 4 % 2 for row in first} == {0}


@pytest.mark.parametrize("split_k", [1, 2, 3])
@pytest.mark.parametrize("reduces_later", [False, True])
def test_split_k_covers_every_k_tile_once(split_k: int, reduces_later: bool) -> None:
    shape = (13, 5, 2)
    rows = computed(schedulers.SplitKTileScheduler(TILE, 2, split_k, True, reduces_later), shape)
    order = raster(4, 3, 2)
    covered: dict[Any, list[int]] = {}
    for _, m, n, batch, batch_b, _, _, first, count in rows:
        assert batch == batch_b
        covered.setdefault((m, n) if reduces_later else (m, n, batch), []).extend(range(first, first + count))
    tiles = order if reduces_later else [(m, n, l) for m, n in order for l in range(2)]
    assert {tile: sorted(k) for tile, k in covered.items()} == {tile: list(range(K_TILES)) for tile in tiles}


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("folds_batches", [False, True])
def test_single_tiles(split_k: int, folds_batches: bool) -> None:
    scheduler = schedulers.SingleTileScheduler(TILE, split_k, folds_batches)

    @cute.kernel
    def kernel(d: cute.Tensor, out: cute.Tensor, divisors: Any):
        (m, n), batch, rank = scheduler.work(d, divisors)
        out[m, n, batch, rank] += 1

    @cute.jit
    def run(d: cute.Tensor, out: cute.Tensor):
        kernel(d, out, scheduler.divisors(d)).launch(grid=scheduler.grid(d), block=1, cluster=scheduler.cluster())

    out = np.zeros((18, 4, 3, split_k), np.int32)
    run(from_dlpack(np.zeros((69, 7, 3), np.float32)).mark_layout_dynamic(), from_dlpack(out))
    assert (out == 1).all()


@pytest.mark.parametrize("swap_ab", [False, True])
@pytest.mark.parametrize("contiguous", [False, True])
def test_grouped_rows(swap_ab: bool, contiguous: bool) -> None:
    lengths = [5, 0, 9, 1, 40] if contiguous else [5, 0, 9, 1, 99]  # the last bound is past the end, and clamped
    bounds = list(itertools.accumulate(lengths)) if contiguous else lengths
    total, other = 55 if contiguous else 20, 7
    rows = [min(n, total) for n in lengths]
    tile = TILE[::-1] if swap_ab else TILE
    scheduler = schedulers.GroupedRowsTileScheduler(tile, (1, 1), 2, 6, 32, contiguous, swap_ab)
    shape = (other, total, 1) if swap_ab else (total, other, 1)
    found = computed(scheduler, shape, bounds)
    assert computed(scheduler, shape, bounds, ahead=True) == found
    expected, number = [], 0
    for group, count in enumerate(rows):
        start = sum(rows[:group]) if contiguous else 0
        for row, column in raster(-(-count // TILE[0]), -(-other // TILE[1]), 2):
            m, n = (column, row) if swap_ab else (row, column)
            expected.append([number, m, n, 0 if contiguous else group, group, start, count, 0, K_TILES])
            number += 1
    assert sorted(found) == expected
