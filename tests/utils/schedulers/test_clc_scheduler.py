"""The tile scheduler of cluster launch control with its pipeline, and preferred clusters, on the CPU target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute, pipeline, utils
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.targets.cpu.runtime import parts

Params, Scheduler = utils.ClcDynamicPersistentTileSchedulerParams, utils.ClcDynamicPersistentTileScheduler


def group(size: int = 1) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


def program(tiles: tuple[int, int, int], cluster: tuple[int, int, int], swizzle: int = 1, along_m: bool = True) -> Any:
    """Each CTA counts its tiles with one warp; a second warp of CTA 0 of a cluster requests them."""
    ctas = cluster[0] * cluster[1]

    @cute.kernel
    def kernel(params: Any, out: cute.Tensor, executed: cute.Tensor):
        warp, rank = arch.make_warp_uniform(arch.warp_idx()), arch.block_idx_in_cluster()
        layout = cute.tiled_divide(cute.make_layout(cluster), (1,))
        answer = arch.alloc_smem(kiln.Int32, 4, 16)
        pipe = pipeline.PipelineClcFetchAsync.create(
            num_stages=1, producer_group=group(), consumer_group=group(32 * (1 + ctas)), tx_count=16,
            cta_layout_vmnk=layout, defer_sync=True,
        )  # fmt: skip
        pipeline.pipeline_init_arrive(cluster_shape_mn=cluster, is_relaxed=True)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
        pipeline.pipeline_init_wait(cluster_shape_mn=cluster)
        scheduler = Scheduler.create(params, arch.block_idx(), arch.grid_dim(), answer)
        tile = scheduler.initial_work_tile_info()
        if warp == 0:
            while tile.is_valid_tile:
                m, n, l = tile.tile_idx
                if arch.lane_idx() == 0:
                    out[m, n, l] += 1
                pipe.consumer_wait(state)
                tile = scheduler.get_current_work()
                pipe.consumer_release(state)
                state.advance()
            if arch.lane_idx() == 0:
                executed[tuple(arch.block_idx())] = scheduler.num_tiles_executed
        elif rank == 0:
            requests = pipeline.make_pipeline_state(pipeline.PipelineUserType.ProducerConsumer, 1)
            while tile.is_valid_tile:
                pipe.producer_acquire(requests)
                scheduler.advance_to_next_work(pipe.producer_get_barrier(requests))
                requests.advance()
                pipe.consumer_wait(state)
                tile = scheduler.get_current_work()
                pipe.consumer_release(state)
                state.advance()
            pipe.producer_tail(requests)
        arch.cluster_arrive()
        arch.cluster_wait()

    @cute.jit
    def main(out: cute.Tensor, executed: cute.Tensor):
        params = Params(tiles, cluster, swizzle, along_m)
        grid = Scheduler.get_grid_shape(params)
        kernel(params, out, executed).launch(grid=grid, block=64, cluster=cluster)

    return main


def counted(grid: tuple[int, int, int]) -> list[np.ndarray]:
    return [np.zeros(grid, np.int32) for _ in range(2)]


@pytest.mark.parametrize(
    ("tiles", "cluster", "swizzle", "along_m", "grid"),
    [
        ((5, 3, 2), (1, 1, 1), 1, True, (5, 3, 2)),
        ((5, 4, 1), (2, 1, 1), 1, True, (6, 4, 1)),
        ((4, 5, 2), (2, 2, 1), 2, True, (4, 8, 2)),
        ((5, 3, 1), (1, 1, 1), 2, False, (6, 3, 1)),
    ],
)
def test_every_tile_is_done_once(tiles, cluster, swizzle, along_m, grid):
    main = program(tiles, cluster, swizzle, along_m)
    with kiln.target("cpu"):
        out, executed = counted(grid)
        with kiln.sanitize():  # under several schedules, in which clusters take any number of others
            main(out, executed)
        assert (out > 0).all() and len(set(out.reshape(-1))) == 1
        out, executed = counted(grid)
        main(out, executed)
    assert (out == 1).all()
    # each CTA that ran has read an answer for each tile: the tiles it took over and the end
    assert executed.sum() == out.size


def test_the_raster_order_is_that_of_the_static_scheduler():
    """The n-th cluster that the hardware starts has the n-th tile of the static scheduler with one cluster."""
    tiles, grid = (3, 4, 2), (3, 4, 2)

    @cute.kernel
    def kernel(dynamic: Any, static: Any, out: cute.Tensor):
        answer = arch.alloc_smem(kiln.Int32, 4, 16)
        first = Scheduler.create(dynamic, arch.block_idx(), arch.grid_dim(), answer).initial_work_tile_info()
        x, y, z = arch.block_idx()
        number = x + 3 * (y + 4 * z)
        other = utils.StaticPersistentTileScheduler(static, 1, number, (0, 0, 0), 0).get_current_work()
        for i in kiln.range_constexpr(3):
            out[number, i] = first.tile_idx[i]
            out[number, 3 + i] = other.tile_idx[i]

    @cute.jit
    def main(out: cute.Tensor):
        given = (tiles, (1, 1, 1), 2, True)
        kernel(Params(*given), utils.PersistentTileSchedulerParams(*given), out).launch(grid=grid, block=1)

    out = np.zeros((24, 6), np.int32)
    with kiln.target("cpu"):
        main(out)
    np.testing.assert_array_equal(out[:, :3], out[:, 3:])
    assert len({tuple(row) for row in out[:, :3].tolist()}) == 24


@needs_ptxas
def test_requests_in_ptx():
    out = from_dlpack(np.zeros((2, 2, 1), np.int32))
    ptx = compile_for(program((2, 2, 1), (2, 1, 1)), out, out, arch="sm_100a").artifacts["ptx"]
    request = (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128"
    )
    assert ptx.count(request) == 1
    assert "fence.proxy.async.shared::cta" in ptx and "query_cancel.is_canceled" in ptx


@pytest.mark.parametrize(("grid", "seeds"), [((4, 4, 1), True), ((2, 6, 1), False)])
def test_preferred_clusters_run_where_the_grid_has_whole_ones(grid, seeds):
    """On a GPU some clusters may be the fallback's: under schedule seeds a launch may have them."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        x, y, _ = utils.PersistentTileSchedulerParams((1, 1, 1), (1, 1, 1)).runtime_cluster_dims()
        if arch.thread_idx()[0] == 0:
            out[tuple(arch.block_idx()[:2])] = 10 * x + y

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=grid, block=32, cluster=(2, 4, 1), fallback_cluster=(2, 1, 1))

    found = set()
    for seed in range(8 if seeds else 1):
        out = np.zeros(grid[:2], np.int32)
        parts.set_seed(seed)
        try:
            with kiln.target("cpu"):
                cute.compile(main, out, options="--gpu-arch sm_100a")(out)
        finally:
            parts.set_seed()
        assert len(set(out.reshape(-1).tolist())) == 1
        assert seed or out[0, 0] == (24 if seeds else 21)
        found.add(int(out[0, 0]))
    assert found == ({24, 21} if seeds else {21})


@pytest.mark.parametrize(("swizzle", "along_m"), [(1, True), (2, True), (1, False)])
def test_clusters_of_the_fallback_have_neighbouring_tiles(swizzle, along_m):
    """Whatever cluster a CTA runs in, its tile is that of its place in a whole cluster; every tile has one CTA."""
    cluster, fallback, tiles = (4, 2, 1), (2, 1, 1), (8, 8, 2)

    @cute.kernel
    def kernel(dynamic: Any, static: Any, out: cute.Tensor):
        answer = arch.alloc_smem(kiln.Int32, 4, 16)
        first = Scheduler.create(dynamic, arch.block_idx(), arch.grid_dim(), answer).initial_work_tile_info()
        other = utils.StaticPersistentTileScheduler.create(static, arch.block_idx(), arch.grid_dim()).get_current_work()
        x, y, z = arch.block_idx()
        for i in kiln.range_constexpr(3):
            out[x, y, z, i] = first.tile_idx[i]
            out[x, y, z, 3 + i] = other.tile_idx[i]

    @cute.jit
    def main(out: cute.Tensor):
        given = (tiles, cluster, swizzle, along_m)
        dynamic = Params(*given, fallback_cluster_shape_mnk=fallback)
        static = utils.PersistentTileSchedulerParams(*given, fallback_cluster_shape_mnk=fallback)
        assert static.fallback_cluster_shape_mnk == fallback
        kernel(dynamic, static, out).launch(
            grid=dynamic.get_grid_shape(), block=1, cluster=cluster, fallback_cluster=fallback
        )

    for seed in range(4):  # some launches have clusters of the fallback
        out = np.zeros((*tiles, 6), np.int32)
        parts.set_seed(seed)
        try:
            with kiln.target("cpu"):
                cute.compile(main, out, options="--gpu-arch sm_100a")(out)
        finally:
            parts.set_seed()
        np.testing.assert_array_equal(out[..., :3], out[..., 3:])
        assert len({tuple(row) for row in out[..., :3].reshape(-1, 3).tolist()}) == 128
        m, n = out[..., 0], out[..., 1]
        assert (m[1::2] == m[::2] + 1).all() and (n[1::2] == n[::2]).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: Scheduler.create(utils.PersistentTileSchedulerParams((1, 1, 1), (1, 1, 1)), (0, 0, 0), (1, 1, 1), p),
         "a dynamic tile scheduler made of PersistentTileSchedulerParams"),
        (lambda p: Scheduler.create(Params((1, 1, 1), (1, 1, 1)), (0, 0, 0), (1, 1, 1), 5), "clc_response_ptr is int"),
        (lambda p: Params((1, 1), (1, 1, 1)), "problem_shape_ntile_mnl is"),
        (lambda p: Params((1, 1, 1), (3, 1, 1), fallback_cluster_shape_mnk=(2, 1, 1)), "multiple of the fallback's"),
        (lambda p: Params((1, 1, 1), (2, 1, 1), fallback_cluster_shape_mnk=(2, 1)), "fallback_cluster_shape_mnk is"),
    ],
)  # fmt: skip
def test_refused(make, says):
    @cute.kernel
    def kernel():
        make(arch.alloc_smem(kiln.Int32, 4, 16))

    @cute.jit
    def main():
        kernel().launch(grid=1, block=1)

    with kiln.target("cpu"), pytest.raises(kiln.DSLUserCodeError, match=says):
        main()
