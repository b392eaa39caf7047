"""Tiles of groups of products, against a model in plain Python."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, cute, utils
from kiln.cute.runtime import from_dlpack

TILE = (32, 16, 8)
"""Of a cluster of (2, 1) blocks."""
FIELDS = (
    "group_idx", "cta_tile_idx_m", "cta_tile_idx_n", "problem_shape_m", "problem_shape_n", "problem_shape_k",
    "cta_tile_count_k",
)  # fmt: skip
SHAPES = np.array(
    [[0, 5, 8, 1], [64, 33, 20, 1], [1, 1, 0, 1], [32, 16, 8, 1], [7, 0, 8, 1], [100, 17, 9, 1], [5, 0, 1, 1]], np.int32
)


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def _write_work(params: utils.PersistentTileSchedulerParams, groups: Int32, shapes: cute.Tensor, out: cute.Tensor):
    bx, _, bz = cute.arch.block_idx()
    scheduler = utils.StaticPersistentGroupTileScheduler.create(
        params, cute.arch.block_idx(), cute.arch.grid_dim(), TILE, utils.create_initial_search_state(), groups, shapes
    )
    work = scheduler.initial_work_tile_info()
    while work.is_valid_tile:
        found = work.group_search_result
        state = scheduler.helper.search_state
        cute.testing.assert_(state.found and state.start_group_idx == found.group_idx, "the state is that of the tile")
        cluster = scheduler._current_work_linear_idx
        cute.testing.assert_(state.tile_count_prev_group <= cluster < state.tile_count_searched, "and of its cluster")
        for i in kiln.range_constexpr(len(FIELDS)):
            out[bx, bz, scheduler.num_tiles_executed, i] = getattr(found, FIELDS[i])
        scheduler.advance_to_next_work()
        work = scheduler.get_current_work()


def model(shapes: Any, along_m: bool) -> list[Any]:
    """The clusters in order: (problem, m, n, shape, tiles along k)."""
    order: list[Any] = []
    for group, (m, n, k, _) in enumerate(shapes.tolist()):
        rows, columns, deep = -(-m // TILE[0]), -(-n // TILE[1]), -(-k // TILE[2])
        places = (
            [(x, y) for y, x in itertools.product(range(columns), range(rows))]
            if along_m
            else list(itertools.product(range(rows), range(columns)))
        )
        order += [(group, x, y, m, n, k, deep) for x, y in places]
    return order


@pytest.mark.parametrize("along_m", [True, False])
def test_each_tile_of_each_problem_once(along_m: bool) -> None:
    order = model(SHAPES, along_m)

    @cute.jit
    def run(total: Int32, groups: Int32, shapes: cute.Tensor, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((2, 1, total), (2, 1, 1), 1, along_m)
        grid = utils.StaticPersistentGroupTileScheduler.get_grid_shape(params, 3)
        _write_work(params, groups, shapes, out).launch(grid=grid, block=1, cluster=(2, 1, 1))

    for total in (len(order), len(order) + 50, 4):  # as many clusters as there are; too many: the search ends; too few
        out = np.full((2, 3, 20, len(FIELDS)), -1, np.int32)
        run(Int32(total), Int32(len(SHAPES)), from_dlpack(SHAPES), from_dlpack(out))
        for x, z in itertools.product(range(2), range(3)):
            expected = [(g, 2 * m + x, *rest) for g, m, *rest in order[:total][z::3]]
            assert [tuple(row) for row in out[x, z].tolist() if row[0] >= 0] == expected


def test_searches_in_any_order_end() -> None:
    """Forwards, backwards, and past the last problem, where nothing is found."""
    order = model(SHAPES, along_m=True)
    asked = np.array([5, 0, 999, len(order) - 1, len(order), 2, 2, -1], np.int32)

    @cute.kernel
    def kernel(groups: Int32, shapes: cute.Tensor, asked: cute.Tensor, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((2, 1, 8), (2, 1, 1))
        helper = utils.GroupedGemmTileSchedulerHelper(groups, params, TILE, utils.create_initial_search_state())
        for i in range(cute.size(asked) - 1):
            result = helper.delinearize_z((1, 0, asked[i]), shapes)
            for f in kiln.range_constexpr(len(FIELDS)):
                out[i, f] = getattr(result, FIELDS[f])
            out[i, len(FIELDS)] = Int32(result.is_valid)
            deep, group = helper.search_cluster_tile_count_k((0, 0, asked[i]), shapes)
            out[i, len(FIELDS) + 1], out[i, len(FIELDS) + 2] = deep, group

    @cute.jit
    def run(groups: Int32, shapes: cute.Tensor, asked: cute.Tensor, out: cute.Tensor):
        kernel(groups, shapes, asked, out).launch(grid=1, block=1)

    out = np.full((len(asked) - 1, len(FIELDS) + 3), -1, np.int32)
    run(Int32(len(SHAPES)), from_dlpack(SHAPES), from_dlpack(asked), from_dlpack(out))
    for number, row in zip(asked.tolist(), out.tolist(), strict=False):
        if number < len(order):
            group, m, *rest = order[number]
            assert row == [group, 2 * m + 1, *rest, 1, rest[-1], group]
        else:
            assert row == [len(SHAPES), 1, 0, 0, 0, 0, 0, 0, 0, len(SHAPES)]


def test_what_is_refused() -> None:
    state = utils.create_initial_search_state()
    params = utils.PersistentTileSchedulerParams((1, 1, 8), (1, 1, 1))
    swizzled = utils.PersistentTileSchedulerParams((1, 1, 8), (1, 1, 1), 2)
    for message, arguments in {
        "group_count is 'x'": ("x", params, TILE, state),
        "swizzle_size is 2": (3, swizzled, TILE, state),
        "cluster_tile_shape_mnk is": (3, params, (32, 16), state),
    }.items():
        with pytest.raises(TypeError, match=message):
            utils.GroupedGemmTileSchedulerHelper(*arguments)


class OwnScheduler:
    """A program's own scheduler: made of one of ours and of a search, and carried by its values."""

    def __init__(self, scheduler: Any, search: Any) -> None:
        self.scheduler, self.search = scheduler, search

    def __extract_mlir_values__(self) -> list[Any]:
        return [*kiln.extract_mlir_values(self.scheduler), *kiln.extract_mlir_values(self.search)]

    def __new_from_mlir_values__(self, values: Any) -> OwnScheduler:
        first = len(kiln.extract_mlir_values(self.scheduler))
        return OwnScheduler(
            kiln.new_from_mlir_values(self.scheduler, values[:first]),
            kiln.new_from_mlir_values(self.search, values[first:]),
        )

    def work(self, shapes: Any) -> tuple[Any, Any]:
        tile = self.scheduler.get_current_work()
        x, y, cluster = tile.tile_idx
        return tile.is_valid_tile, self.search.delinearize_z((x, y, cluster * Int32(tile.is_valid_tile)), shapes)


def test_schedulers_of_programs() -> None:
    order = model(SHAPES, along_m=True)

    @cute.kernel
    def kernel(params: utils.PersistentTileSchedulerParams, groups: Int32, shapes: cute.Tensor, out: cute.Tensor):
        bx, _, bz = cute.arch.block_idx()
        if cute.arch.thread_idx()[0] == 0:
            own = OwnScheduler(
                utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim()),
                utils.GroupedGemmTileSchedulerHelper(groups, params, TILE, utils.create_initial_search_state()),
            )
            valid, found = own.work(shapes)
            while valid:
                for i in kiln.range_constexpr(len(FIELDS)):
                    out[bx, bz, own.scheduler.num_tiles_executed, i] = getattr(found, FIELDS[i])
                own.scheduler.advance_to_next_work()
                valid, found = own.work(shapes)

    @cute.jit
    def run(total: Int32, groups: Int32, shapes: cute.Tensor, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((2, 1, total), (2, 1, 1))
        kernel(params, groups, shapes, out).launch(grid=params.get_grid_shape(3), block=32, cluster=(2, 1, 1))

    out = np.full((2, 3, 20, len(FIELDS)), -1, np.int32)
    arguments = (Int32(len(order)), Int32(len(SHAPES)), from_dlpack(SHAPES), from_dlpack(out))
    run(*arguments)
    for x, z in itertools.product(range(2), range(3)):
        expected = [(g, 2 * m + x, *rest) for g, m, *rest in order[z::3]]
        assert [tuple(row) for row in out[x, z].tolist() if row[0] >= 0] == expected
    assert cute.compile(run, *arguments, target="nvidia", options="--gpu-arch sm_90a").__ptx__
