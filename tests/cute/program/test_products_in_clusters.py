"""Products as programs for Hopper compute them, in small: many tiles for each cluster, batches, odd sizes, both majors, tiles that
blocks share, sums that are added up at times, tiles with nothing to multiply, warp groups that skip each other's stages."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float16, Float32, Int32, cute, pipeline, range_constexpr, utils
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.runtime import from_dlpack
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (64, 32, 64)
STAGES = 2
GROUP = 128
Role = pipeline.PipelineUserType


def matrix(shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Small integers; the modes lie in memory in this order, the first one contiguous."""
    values = np.random.default_rng(shape).integers(-3, 4, [shape[mode] for mode in reversed(order)]).astype(np.float16)
    return values.transpose([len(order) - 1 - order.index(mode) for mode in range(len(order))])


def threads(count: int) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, count)


@cute.jit
def store_inside(sums, target, coordinates, shape):
    """Store those of a thread's sums that lie inside of the matrix."""
    for i in range_constexpr(cute.size(sums)):
        if cute.elem_less(coordinates[i], shape):
            target[i] = sums[i]


def product(rows: int, columns: int, majors: str):
    """C[l] = A[l] B[l]^T over the first `counts[l]` tiles of K, in clusters; sums are added up after every second tile."""
    cluster = (rows, columns, 1)

    @cute.kernel
    def kernel(
        params, counts: cute.Tensor, load_a, a, load_b, b, c: cute.Tensor, mma: cute.TiledMma, layouts: kiln.Constexpr
    ):
        thread, warp = arch.thread_idx()[0], arch.make_warp_uniform(arch.warp_idx())
        blocks = cute.make_layout((1, *cluster))
        _, m, n, _ = blocks.get_flat_coord(arch.make_warp_uniform(arch.block_idx_in_cluster()))
        smem = utils.SmemAllocator()
        tile_a, tile_b = (smem.allocate_tensor(Float16, x.outer, 1024, x.inner) for x in layouts)
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=STAGES,
            producer_group=threads(1),
            consumer_group=threads((rows + columns - 1) * GROUP // 32),
            tx_count=(M + N) * K * 2,
            cta_layout_vmnk=blocks,
        ).make_participants()
        tiles_a, tiles_b = (
            cute.local_tile(a, (M, K), (None, None, None)),
            cute.local_tile(b, (N, K), (None, None, None)),
        )
        scheduler = utils.StaticPersistentTileScheduler.create(params, arch.block_idx(), arch.grid_dim())
        work = scheduler.initial_work_tile_info()
        if warp == GROUP // 32:
            mask_a = cpasync.create_tma_multicast_mask(blocks, (0, m, n, 0), 2) if columns > 1 else None
            mask_b = cpasync.create_tma_multicast_mask(blocks, (0, m, n, 0), 1) if rows > 1 else None
            while work.is_valid_tile:
                at_m, at_n, batch = work.tile_idx
                to_a, of_a = cpasync.tma_partition(
                    load_a, n, cute.make_layout(columns), cute.group_modes(tile_a, 0, 2),
                    cute.group_modes(tiles_a[None, None, at_m, None, batch], 0, 2),
                )  # fmt: skip
                to_b, of_b = cpasync.tma_partition(
                    load_b, m, cute.make_layout(rows), cute.group_modes(tile_b, 0, 2),
                    cute.group_modes(tiles_b[None, None, at_n, None, batch], 0, 2),
                )  # fmt: skip
                for k in range(counts[batch]):
                    stage = producer.acquire_and_advance()
                    bar = stage.barrier
                    cute.copy(load_a, of_a[None, k], to_a[None, stage.index], tma_bar_ptr=bar, mcast_mask=mask_a)
                    cute.copy(load_b, of_b[None, k], to_b[None, stage.index], tma_bar_ptr=bar, mcast_mask=mask_b)
                scheduler.advance_to_next_work()
                work = scheduler.get_current_work()
            producer.tail()
        elif warp < GROUP // 32:
            part = mma.get_slice(thread)
            left, right = mma.make_fragment_A(part.partition_A(tile_a)), mma.make_fragment_B(part.partition_B(tile_b))
            sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
            total = cute.make_rmem_tensor_like(sums)
            tiles_c = cute.local_tile(c, (M, N), (None, None, None))
            tiles_of_coordinates = cute.local_tile(cute.make_identity_tensor(c.shape), (M, N), (None, None, None))
            while work.is_valid_tile:
                total.fill(0.0)
                mma.set(warpgroup.Field.ACCUMULATE, False)
                added = Int32(0)
                for _k in range(counts[work.tile_idx[2]]):
                    stage = consumer.wait_and_advance()
                    warpgroup.fence()
                    for block in range_constexpr(cute.size(left, mode=[2])):
                        at = (None, None, block, stage.index)
                        cute.gemm(mma, sums, left[at], right[at], sums)
                        mma.set(warpgroup.Field.ACCUMULATE, True)
                    warpgroup.commit_group()
                    warpgroup.wait_group(0)
                    stage.release()
                    added += 1
                    if added == 2:
                        total.store(total.load() + sums.load())
                        mma.set(warpgroup.Field.ACCUMULATE, False)
                        added = Int32(0)
                if added > 0:
                    total.store(total.load() + sums.load())
                where = (None, None, *work.tile_idx)
                found, coordinates = part.partition_C(tiles_c[where]), part.partition_C(tiles_of_coordinates[where])
                store_inside(total, found, coordinates, c.shape)
                scheduler.advance_to_next_work()
                work = scheduler.get_current_work()

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, counts: cute.Tensor):
        ways = LayoutEnum.from_tensor(a), LayoutEnum.from_tensor(b)
        layout_a = sm90.make_smem_layout_a(ways[0], TILE, Float16, STAGES)
        layout_b = sm90.make_smem_layout_b(ways[1], TILE, Float16, STAGES)
        made = []
        for x, layout, tile, sharing in ((a, layout_a, (M, K), columns), (b, layout_b, (N, K), rows)):
            op = cpasync.CopyBulkTensorTileG2SMulticastOp() if sharing > 1 else cpasync.CopyBulkTensorTileG2SOp()
            made += cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile, sharing)
        mode_a, mode_b = (way.sm90_mma_major_mode() for way in ways)
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, mode_a, mode_b, Float32, (1, 1, 1), (64, N))
        tiles = cute.ceil_div(c.shape, (M, N, 1))
        params = utils.PersistentTileSchedulerParams(tiles, cluster)
        grid = utils.StaticPersistentTileScheduler.get_grid_shape(params, Int32(2))
        kernel(params, counts, *made, c, mma, (layout_a, layout_b)).launch(grid=grid, block=GROUP + 32, cluster=cluster)

    m, n, k, counts = 2 * M + 8, 2 * N + 8, 2 * K + 8, np.array([3, 0, 1], np.int32)
    a = matrix((m, k, 3), (1, 0, 2) if majors[0] == "k" else (0, 1, 2))
    b = matrix((n, k, 3), (1, 0, 2) if majors[1] == "k" else (0, 1, 2))
    c = np.full((m, n, 3), 77, np.float32)
    dynamic = [from_dlpack(x, assumed_align=16).mark_layout_dynamic() for x in (a, b)]
    f(*dynamic, from_dlpack(c).mark_layout_dynamic(), from_dlpack(counts))
    for batch, count in enumerate(counts):
        left, right = (x[:, : K * count, batch].astype(np.float32) for x in (a, b))
        np.testing.assert_array_equal(c[:, :, batch], left @ right.T)


@pytest.mark.parametrize(("rows", "columns", "majors"), [(2, 1, "mk"), (2, 2, "kn")])
def test_many_tiles_in_clusters(rows, columns, majors):
    with kiln.target("cpu"), kiln.sanitize():
        product(rows, columns, majors)


def test_warp_groups_skip_the_stages_of_others(recwarn):
    """Two warp groups multiply tiles of A that have a stage each; what they computed takes the place of what they multiplied."""

    @cute.kernel
    def kernel(load_a, a, load_b, b, store_c, c, mma: cute.TiledMma, layouts: kiln.Constexpr):
        thread, warp = arch.thread_idx()[0], arch.make_warp_uniform(arch.warp_idx())
        group = arch.make_warp_uniform(thread // GROUP)
        smem = utils.SmemAllocator()
        tile_a, tile_b = (smem.allocate_tensor(Float16, x.outer, 1024, x.inner) for x in layouts[:2])
        tile_c = cute.make_tensor(cute.recast_ptr(tile_a.iterator, layouts[2].inner, Float16), layouts[2].outer)
        arrivals = {"producer_group": threads(1), "cta_layout_vmnk": cute.make_layout((1, 1, 1, 1))}
        ring = pipeline.PipelineTmaAsync.create(
            num_stages=2, consumer_group=threads(GROUP // 32), tx_count=M * K * 2, **arrivals
        )
        shared = pipeline.PipelineTmaAsync.create(
            num_stages=1, consumer_group=threads(2 * GROUP // 32), tx_count=N * K * 2, **arrivals
        )
        if warp == 2 * GROUP // 32:
            state, other = (pipeline.make_pipeline_state(Role.Producer, stages) for stages in (2, 1))
            of = cute.group_modes(cute.local_tile(a, (M, K), (None, 0)), 0, 2)
            to_a, of_a = cpasync.tma_partition(load_a, 0, cute.make_layout(1), cute.group_modes(tile_a, 0, 2), of)
            of = cute.group_modes(cute.local_tile(b, (N, K), (0, 0)), 0, 2)
            to_b, of_b = cpasync.tma_partition(load_b, 0, cute.make_layout(1), cute.group_modes(tile_b, 0, 2), of)
            for which in range_constexpr(2):
                ring.producer_acquire(state)
                bar = ring.producer_get_barrier(state)
                cute.copy(load_a, of_a[None, which], to_a[None, state.index], tma_bar_ptr=bar)
                state.advance()
                if which == 0:
                    shared.producer_acquire(other)
                    cute.copy(load_b, of_b, to_b[None, 0], tma_bar_ptr=shared.producer_get_barrier(other))
        elif warp < 2 * GROUP // 32:
            state = pipeline.make_pipeline_state(Role.Consumer, 2)
            other = pipeline.make_pipeline_state(Role.Consumer, 1)
            if group == 1:
                state.advance()  # the first stage is the other one's
            part = mma.get_slice(thread % GROUP)
            left, right = mma.make_fragment_A(part.partition_A(tile_a)), mma.make_fragment_B(part.partition_B(tile_b))
            sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
            ring.consumer_wait(state)
            shared.consumer_wait(other)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            for block in range_constexpr(cute.size(left, mode=[2])):
                cute.gemm(mma, sums, left[None, None, block, state.index], right[None, None, block, 0], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            halves = cute.make_rmem_tensor_like(sums, Float16)
            halves.store(sums.load().to(Float16))
            arch.barrier(barrier_id=1, number_of_threads=2 * GROUP)  # nobody reads A any more
            cute.autovec_copy(halves, part.partition_C(tile_c[None, None, group]))
            arch.fence_proxy("async.shared", space="cta")
            arch.barrier(barrier_id=2 + group, number_of_threads=GROUP)
            of, to = cpasync.tma_partition(
                store_c, 0, cute.make_layout(1), cute.group_modes(tile_c, 0, 2),
                cute.group_modes(cute.local_tile(c, (M, N), (None, 0)), 0, 2),
            )  # fmt: skip
            if warp % 4 == 0:
                cute.copy(store_c, of[None, group], to[None, group])  # nobody waits for it

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        rows = LayoutEnum.ROW_MAJOR
        layout_a, layout_b = (
            sm90.make_smem_layout_a(rows, TILE, Float16, 2),
            sm90.make_smem_layout_b(rows, TILE, Float16, 1),
        )
        layout_c = sm90.make_smem_layout_epi(Float16, rows, (M, N), 2)
        made = []
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        for op, x, layout, tile in (
            (load, a, layout_a, (M, K)),
            (load, b, layout_b, (N, K)),
            (store, c, layout_c, (M, N)),
        ):
            made += cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile)
        k = warpgroup.OperandMajorMode.K
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (64, N))
        kernel(*made, mma, (layout_a, layout_b, layout_c)).launch(grid=1, block=2 * GROUP + 32)

    a, b = matrix((2 * M - 5, K), (1, 0)), matrix((N, K), (1, 0))
    c = np.zeros((2 * M - 5, N), np.float16)
    with kiln.target("cpu"), kiln.sanitize():
        f(*(from_dlpack(x, assumed_align=16) for x in (a, b, c)))
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    assert ["a bulk store that it issued may still read" in str(w.message) for w in recwarn] == [True]
