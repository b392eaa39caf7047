"""Persistent tile schedulers on a GPU, against the CPU target."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
from kiln import Int32, cute, utils
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")

TARGETS = {"cpu": "cpu", "nvidia": "cuda"}


def needs_clusters() -> None:
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need sm_90")


@pytest.mark.parametrize(("swizzle", "along_m"), [(1, True), (3, True), (2, False)])
def test_tiles_of_each_block(swizzle: int, along_m: bool) -> None:
    needs_clusters()

    @cute.kernel
    def kernel(params: utils.PersistentTileSchedulerParams, out: cute.Tensor):
        x, _, z = cute.arch.block_idx()
        if cute.arch.thread_idx()[0] == 32:  # a role of its own
            scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
            work = scheduler.initial_work_tile_info()
            while work.is_valid_tile:
                for i in kiln.range_constexpr(3):
                    out[2 * z + x, scheduler.num_tiles_executed, i] = work.tile_idx[i]
                scheduler.advance_to_next_work()
                work = scheduler.get_current_work()

    @cute.jit
    def run(m: Int32, n: Int32, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((m, n, 2), (2, 1, 1), swizzle, along_m)
        kernel(params, out).launch(grid=params.get_grid_shape(5), block=64, cluster=(2, 1, 1))

    results: list[Any] = []
    for target, device in TARGETS.items():
        out = torch.full((10, 64, 3), -1, dtype=torch.int32, device=device)
        arguments = (Int32(7), Int32(5), from_dlpack(out))
        cute.compile(run, *arguments, target=target)(*arguments)
        results.append(out.cpu())
    assert (results[0][:, 0] >= 0).all()
    assert torch.equal(*results)


def test_tiles_of_groups() -> None:
    needs_clusters()
    tile, fields = (32, 16, 8), ("group_idx", "cta_tile_idx_m", "cta_tile_idx_n", "problem_shape_k", "cta_tile_count_k")

    @cute.kernel
    def kernel(params: utils.PersistentTileSchedulerParams, shapes: cute.Tensor, out: cute.Tensor):
        x, _, z = cute.arch.block_idx()
        scheduler = utils.StaticPersistentGroupTileScheduler.create(
            params, cute.arch.block_idx(), cute.arch.grid_dim(), tile,
            utils.create_initial_search_state(), shapes.shape[0], shapes,
        )  # fmt: skip
        work = scheduler.initial_work_tile_info()
        while work.is_valid_tile:
            if cute.arch.thread_idx()[0] == 0:
                for i in kiln.range_constexpr(len(fields)):
                    out[2 * z + x, scheduler.num_tiles_executed, i] = getattr(work.group_search_result, fields[i])
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()

    @cute.jit
    def run(clusters: Int32, shapes: cute.Tensor, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((2, 1, clusters), (2, 1, 1))
        kernel(params, shapes, out).launch(grid=params.get_grid_shape(4), block=64, cluster=(2, 1, 1))

    problems = torch.tensor(
        [(0, 5, 8, 1), (64, 33, 20, 1), (1, 1, 0, 1), (100, 17, 9, 1), (5, 0, 1, 1)], dtype=torch.int32
    )
    results: list[Any] = []
    for target, device in TARGETS.items():
        out = torch.full((8, 32, len(fields)), -1, dtype=torch.int32, device=device)
        arguments = (Int32(1000), from_dlpack(problems.to(device)), from_dlpack(out))  # more than there are
        cute.compile(run, *arguments, target=target)(*arguments)
        results.append(out.cpu())
    assert int((results[0][:, :, 0] >= 0).sum()) == 2 * (2 * 3 + 1 + 4 * 2)
    assert torch.equal(*results)
