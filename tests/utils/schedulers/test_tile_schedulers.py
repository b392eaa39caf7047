"""Persistent tile schedulers: who takes which tile in which order, against a model in plain Python."""

from __future__ import annotations

import ast
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, cute, utils
from kiln.cute.runtime import from_dlpack

OBSERVED = json.loads((Path(__file__).parents[1] / "observed_hopper.json").read_text())


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def _write_tiles(params: utils.PersistentTileSchedulerParams, out: cute.Tensor, counts: cute.Tensor):
    """Each block writes the tiles it takes."""
    bx, by, bz = cute.arch.block_idx()
    gx, gy, _ = cute.arch.grid_dim()
    block = bx + gx * (by + gy * bz)
    scheduler = utils.StaticPersistentTileScheduler.create(params, (bx, by, bz), cute.arch.grid_dim())
    tile = scheduler.initial_work_tile_info()
    while tile.is_valid_tile:
        for i in kiln.range_constexpr(3):
            out[block, scheduler.num_tiles_executed, i] = tile.tile_idx[i]
        scheduler.advance_to_next_work()
        tile = scheduler.get_current_work()
    counts[block] = scheduler.num_tiles_executed


def taken(tiles: Any, cluster: Any, swizzle: Any, along_m: Any, active: int, dynamic: bool) -> tuple[Any, list[Any]]:
    """The grid, and the tiles of each block."""
    shape: list[Any] = []
    options = {"swizzle_size": swizzle, "raster_along_m": along_m}
    options = {name: value for name, value in options.items() if value is not None}

    @cute.jit
    def run(m: Any, n: Any, l: Any, out: cute.Tensor, counts: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, n, l), cluster, **options)
        grid = utils.StaticPersistentTileScheduler.get_grid_shape(params, active)
        shape.extend(grid[:2])
        counts[0] = Int32(grid[2])
        _write_tiles(params, out, cute.domain_offset(1, counts)).launch(grid=grid, block=1, cluster=cluster)

    blocks = active * cluster[0] * cluster[1]
    out = np.full((blocks, 200, 3), -1, np.int32)
    counts = np.zeros(blocks + 1, np.int32)
    numbers = [Int32(x) for x in tiles] if dynamic else list(tiles)
    run(*numbers, from_dlpack(out), from_dlpack(counts))
    grid = (*shape, int(counts[0]))
    return grid, [
        [tuple(map(int, tile)) for tile in out[block, : counts[block + 1]]] for block in range(math.prod(grid))
    ]


def model(tiles: Any, cluster: Any, swizzle: Any, along_m: Any, active: int) -> tuple[Any, list[Any]]:
    """The clusters in order, dealt out in turn."""
    s, along_m = swizzle or 1, along_m is not False
    m, n = (-(-tiles[i] // cluster[i]) for i in (0, 1))
    fast, slow = (m, n) if along_m else (n, m)
    order = [
        (f, strip * s + side, l) if along_m else (strip * s + side, f, l)
        for l, strip, f, side in itertools.product(range(tiles[2]), range(-(-slow // s)), range(fast), range(s))
    ]
    clusters = min(len(order), active)
    blocks = [
        [(a * cluster[0] + x, b * cluster[1] + y, l) for a, b, l in order[c::clusters]]
        for c in range(clusters)
        for y in range(cluster[1])
        for x in range(cluster[0])
    ]
    return (cluster[0], cluster[1], clusters), blocks


CASES = [
    ((5, 7, 2), (1, 1, 1), None, None, 8),
    ((4, 3, 2), (2, 1, 1), 1, False, 3),
    ((5, 3, 1), (1, 2, 1), 2, True, 4),
    ((3, 5, 2), (2, 2, 1), 3, False, 2),
    ((1, 1, 1), (1, 1, 1), 1, True, 4),
    ((3, 3, 3), (2, 2, 1), 2, True, 2),
]


@pytest.mark.parametrize(("case", "dynamic"), [*((case, True) for case in CASES), (CASES[1], False), (CASES[2], False)])
def test_tiles_are_dealt_out_in_turn(case: Any, dynamic: bool) -> None:
    tiles, *how = case
    grid, blocks = taken(tiles, *how, dynamic=dynamic)
    assert (grid, blocks) == model(tiles, *how)
    every = [tile for block in blocks for tile in block]
    assert len(every) == len(set(every))
    assert set(every) >= set(itertools.product(*map(range, tiles)))


@pytest.mark.parametrize("key", OBSERVED["tiles"])
def test_orders_that_were_observed(key: str) -> None:
    *shapes, rest = key.split(") ")
    tiles, *how = *(ast.literal_eval(shape + ")") for shape in shapes), *map(ast.literal_eval, rest.split())
    grid, blocks = taken(tiles, *how, dynamic=True)
    assert blocks == ast.literal_eval(OBSERVED["tiles"][key])
    if key in OBSERVED["grid"]:
        assert grid == ast.literal_eval(OBSERVED["grid"][key])


def test_an_empty_problem_has_no_tile_and_a_wide_grid_shares_them() -> None:
    @cute.jit
    def run(m: Int32, out: cute.Tensor, counts: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, 3, 1), (2, 1, 1))
        _write_tiles(params, out, counts).launch(grid=(4, 1, 2), block=1, cluster=(2, 1, 1))

    out, counts = np.full((8, 20, 3), -1, np.int32), np.zeros(8, np.int32)
    run(Int32(0), from_dlpack(out), from_dlpack(counts))
    assert (out == -1).all() and not counts.any()
    run(Int32(6), from_dlpack(out), from_dlpack(counts))
    every = [tuple(tile) for block in range(8) for tile in out[block, : counts[block]].tolist()]
    assert sorted(every) == sorted(itertools.product(range(6), range(3), range(1)))


def test_roles_have_schedulers_of_their_own() -> None:
    """Made in branches, advanced by more than one tile, and one of two chosen while running."""

    @cute.kernel
    def kernel(params: utils.PersistentTileSchedulerParams, out: cute.Tensor):
        role, number = cute.arch.thread_idx()[0], cute.arch.block_idx()
        if role == 0:
            scheduler = utils.StaticPersistentTileScheduler.create(params, number, cute.arch.grid_dim())
            tile = scheduler.initial_work_tile_info()
            while tile.is_valid_tile:
                out[0, tile.tile_idx[0], tile.tile_idx[1]] += 1
                scheduler.advance_to_next_work()
                tile = scheduler.get_current_work()
        if role == 1:
            scheduler = utils.StaticPersistentTileScheduler.create(params, number, cute.arch.grid_dim())
            tile = scheduler.get_current_work()
            while tile.is_valid_tile:
                out[1, tile.tile_idx[0], tile.tile_idx[1]] += scheduler.num_tiles_executed + 1
                scheduler.advance_to_next_work(advance_count=2)
                tile = scheduler.get_current_work()
        if role == 2:
            later = utils.StaticPersistentTileScheduler.create(params, number, cute.arch.grid_dim())
            if number[2] == 0:
                later.advance_to_next_work(advance_count=3)
            tile = later.get_current_work()
            if number[2] == 1:
                tile = utils.WorkTileInfo((Int32(0), Int32(0), 0), kiln.Boolean(True))
            if tile.is_valid_tile:
                out[2, tile.tile_idx[0], tile.tile_idx[1]] += 1

    @cute.jit
    def run(m: Int32, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, 3, 1), (1, 1, 1))
        kernel(params, out).launch(grid=params.get_grid_shape(Int32(2)), block=32)

    out = np.zeros((3, 4, 3), np.int32)
    run(Int32(4), from_dlpack(out))
    assert (out[0] == 1).all()
    numbers = np.arange(12).reshape(3, 4).T  # of tiles, M first
    np.testing.assert_array_equal(out[1], np.where(numbers // 2 % 2 == 0, numbers // 4 + 1, 0))
    assert out[2, 0, 0] == 1 and out[2][numbers == 6] == 1 and out[2].sum() == 2


@pytest.mark.parametrize("inner_mode", [0, 1])
def test_coordinates_of_clusters_without_an_end(inner_mode: int) -> None:
    @cute.kernel
    def kernel(params: utils.PersistentTileSchedulerParams, out: cute.Tensor):
        scheduler = utils.StaticPersistentRuntimeTileScheduler.create(
            params, cute.arch.block_idx(), cute.arch.grid_dim(), inner_mode=inner_mode
        )
        tile = scheduler.initial_work_tile_info()
        while scheduler.num_tiles_executed < 9:
            number = cute.arch.block_idx()[2] + 2 * scheduler.num_tiles_executed
            if cute.arch.block_idx()[0] == 0:
                out[number, 0], out[number, 1] = tile.tile_idx[0], tile.tile_idx[1]
                out[number, 2] = Int32(tile.is_valid_tile)
            scheduler.advance_to_next_work()
            tile = scheduler.get_current_work()

    @cute.jit
    def run(m: Int32, n: Int32, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, n, 1), (2, 1, 1))
        kernel(params, out).launch(grid=(2, 1, 2), block=1, cluster=(2, 1, 1))

    out = np.zeros((18, 3), np.int32)
    run(Int32(5), Int32(4), from_dlpack(out))  # 3 by 4 clusters
    number = np.arange(18)
    inner = (3, 4)[inner_mode]
    np.testing.assert_array_equal(out[:, inner_mode], number % inner)
    np.testing.assert_array_equal(out[:, 1 - inner_mode], number // inner)
    np.testing.assert_array_equal(out[:, 2], number < 12)


WRONG = {
    "problem_shape_ntile_mnl is": lambda: utils.PersistentTileSchedulerParams((4, 4), (1, 1, 1)),
    "-1 tiles": lambda: utils.PersistentTileSchedulerParams((4, -1, 1), (1, 1, 1)),
    "cluster_shape_mnk is": lambda: utils.PersistentTileSchedulerParams((4, 4, 1), (1, 0, 1)),
    "tiles along K": lambda: utils.PersistentTileSchedulerParams((4, 4, 1), (1, 1, 2)),
    "swizzle_size is 0": lambda: utils.PersistentTileSchedulerParams((4, 4, 1), (1, 1, 1), 0),
    "raster_along_m is 'm'": lambda: utils.PersistentTileSchedulerParams((4, 4, 1), (1, 1, 1), 1, "m"),  # pyright: ignore
    "max_active_clusters is 0": lambda: utils.PersistentTileSchedulerParams((4, 4, 1), (1, 1, 1)).get_grid_shape(0),
    "made of tuple": lambda: utils.StaticPersistentTileScheduler.create((4, 4, 1), (0, 0, 0), (1, 1, 1)),  # pyright: ignore
    "inner_mode is 2": lambda: utils.StaticPersistentRuntimeTileScheduler.create(
        utils.PersistentTileSchedulerParams((4, 4, 1), (1, 1, 1)), (0, 0, 0), (1, 1, 1), 2
    ),
    "3 problems along L": lambda: utils.StaticPersistentRuntimeTileScheduler.create(
        utils.PersistentTileSchedulerParams((4, 4, 3), (1, 1, 1)), (0, 0, 0), (1, 1, 1)
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_refused(message: str) -> None:
    with pytest.raises(TypeError, match=message):
        WRONG[message]()


def test_where_schedulers_of_different_orders_meet() -> None:
    @cute.jit
    def run(m: Int32):
        params = utils.PersistentTileSchedulerParams((m, 3, 1), (1, 1, 1))
        if m > 2:
            params = utils.PersistentTileSchedulerParams((m, 3, 1), (1, 1, 1), 2)
        return params.get_grid_shape(8)[2]

    with pytest.raises(TypeError, match="PersistentTileSchedulerParams"):
        run(Int32(4))


def test_tiles_are_found_without_divisions_on_the_gpu() -> None:
    """What is divided by is known before the launch."""

    @cute.jit
    def run(m: Int32, n: Int32, l: Int32, out: cute.Tensor, counts: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, n, l), (2, 1, 1), 4)
        _write_tiles(params, out, counts).launch(grid=params.get_grid_shape(66), block=1, cluster=(2, 1, 1))

    out, counts = np.zeros((4, 4, 3), np.int32), np.zeros(4, np.int32)
    arguments = (Int32(1), Int32(1), Int32(1), from_dlpack(out), from_dlpack(counts))
    ptx = cute.compile(run, *arguments, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert "div." not in ptx and "rem." not in ptx


def test_known_parts_of_coordinates_meet() -> None:
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = utils.WorkTileInfo((0, (1, 2)), out[0] == 0)
        if out[1] == 0:
            tile = utils.WorkTileInfo((0, (out[1] + 3, 5)), out[1] == 0)
        assert tile.tile_idx[0] == 0  # the same in both: known
        out[2], out[3] = tile.tile_idx[1][0], tile.tile_idx[1][1]

    @cute.jit
    def run(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    for second, expected in ((0, [3, 5]), (7, [1, 2])):
        out = np.array([0, second, 0, 0], np.int32)
        run(from_dlpack(out))
        assert out[2:].tolist() == expected


@pytest.mark.parametrize("along_m", [True, False])
@pytest.mark.parametrize("swizzle", [1, 2])
def test_the_layout_of_clusters_numbers_them_in_raster_order(along_m: bool, swizzle: int) -> None:
    params = utils.PersistentTileSchedulerParams((7, 12, 3), (2, 1, 1), swizzle, along_m)
    layout = params.problem_layout_ncluster_mnl
    assert cute.product_each(layout.shape) == (4, 12, 3)
    for number in range(4 * 12 * 3):
        m, n, l = params._cluster_at(number)
        assert layout((m, n, l)) == number
