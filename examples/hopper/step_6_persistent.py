"""Step 6: a persistent kernel. A CTA for each SM computes one tile after the other, in clusters of two that load for
each other.

Run it with `kiln run examples/hopper/step_6_persistent.py`.

While the last epilogue tiles are stored, the operands of the next tile are being loaded. The two CTAs of a cluster
have tiles with the same columns: each loads one half of the tile of B for both (multicast), so that half as many bytes
come from the L2 cache. A stage is free when the consumers of both CTAs have released it.
"""

import harness
from step_5_stores import EPI_STAGES, EPI_TILE, store_acc

import kiln.cute as cute
from kiln import Float16, Float32, Int32, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
WARPGROUP = 128
THREADS = 3 * WARPGROUP
STAGES = 4
CLUSTER = (2, 1, 1)
ROWS = LayoutEnum.ROW_MAJOR


@cute.kernel
def gemm_kernel(
    params: utils.PersistentTileSchedulerParams,
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    store_c: cute.CopyAtom,
    c: cute.Tensor,
    mma: cute.TiledMma,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    layout_c: cute.ComposedLayout,
):
    thread, _, _ = cute.arch.thread_idx()
    warp_number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    if warp_number == 0:
        cpasync.prefetch_descriptor(load_a)
        cpasync.prefetch_descriptor(load_b)
        cpasync.prefetch_descriptor(store_c)
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float16, layout_c.outer, 1024, layout_c.inner)
    blocks = cute.make_layout((1, *CLUSTER))
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        # the consumer warps of both CTAs, which read what this one loads
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, CLUSTER[0] * 2 * WARPGROUP // 32),
        tx_count=BYTES,
        cta_layout_vmnk=blocks,
    )
    tiles_a = cute.local_tile(a, (M, K), (None, None))
    tiles_b = cute.local_tile(b, (N, K), (None, None))
    tiles_c = cute.local_tile(c, (M, N), (None, None))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, 0, cute.make_layout(1), cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, rank, cute.make_layout(CLUSTER[0]), cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    count = tiles_a.shape[3]
    producer, consumer = pipe.make_participants()

    if warp_number < WARPGROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp_number == 0:
            scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
            work = scheduler.initial_work_tile_info()
            while work.is_valid_tile:
                m, n, _ = work.tile_idx
                for k in range(count):
                    stage = producer.acquire_and_advance()
                    cute.copy(load_a, gmem_a[None, m, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                    cute.copy(
                        load_b,
                        gmem_b[None, n, k],
                        smem_b[None, stage.index],
                        tma_bar_ptr=stage.barrier,
                        mcast_mask=0b11,
                    )
                scheduler.advance_to_next_work()
                work = scheduler.get_current_work()
            producer.tail()  # the other CTA may still release stages here
    else:
        cute.arch.setmaxregister_increase(232)
        thr_mma = mma.get_slice(thread - WARPGROUP)
        frag_a = mma.make_fragment_A(thr_mma.partition_A(tile_a))
        frag_b = mma.make_fragment_B(thr_mma.partition_B(tile_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
        work = scheduler.initial_work_tile_info()
        while work.is_valid_tile:
            m, n, _ = work.tile_idx
            mma.set(warpgroup.Field.ACCUMULATE, False)  # the first MMA of a tile overwrites the accumulators
            for k in range(count):
                full = consumer.wait_and_advance()
                warpgroup.fence()
                for block in range_constexpr(cute.size(frag_a, mode=[2])):
                    cute.gemm(
                        mma, acc, frag_a[None, None, block, full.index], frag_b[None, None, block, full.index], acc
                    )
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                if k > 0:
                    pipe.consumer_release(before)
                    before.advance()
            warpgroup.wait_group(0)
            pipe.consumer_release(before)
            before.advance()
            epi_tiles = cute.zipped_divide(tiles_c[None, None, m, n], EPI_TILE)
            store_acc(acc, tile_c, mma, thread - WARPGROUP, warp_number == WARPGROUP // 32, store_c, epi_tiles)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, clusters: Int32):
    """C (M, N) = A (M, K) B (N, K)^T, on `clusters` clusters at a time."""
    layout_a = sm90.make_smem_layout_a(ROWS, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(ROWS, TILE, Float16, STAGES)
    layout_c = sm90.make_smem_layout_epi(Float16, ROWS, EPI_TILE, EPI_STAGES)
    load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, tma_b = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), b, cute.slice_(layout_b, (None, None, 0)), (N, K), CLUSTER[0]
    )
    store_c, tma_c = cpasync.make_tiled_tma_atom(store, c, cute.slice_(layout_c, (None, None, 0)), EPI_TILE)
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    tiles = cute.ceil_div(c.shape, (M, N))
    params = utils.PersistentTileSchedulerParams((*tiles, 1), CLUSTER, swizzle_size=8)
    grid = utils.StaticPersistentTileScheduler.get_grid_shape(params, clusters)
    gemm_kernel(params, load_a, tma_a, load_b, tma_b, store_c, tma_c, mma, layout_a, layout_b, layout_c).launch(
        grid=grid, block=THREADS, cluster=CLUSTER, min_blocks_per_mp=1
    )


if __name__ == "__main__":
    clusters = utils.HardwareInfo().get_max_active_clusters(CLUSTER[0])
    harness.run(gemm, ((256, 512, 192), (200, 328, 136)), clusters)
