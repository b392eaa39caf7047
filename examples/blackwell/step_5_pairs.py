"""Step 5: pairs of CTAs, and multicast. One MMA of 256 x 256 works in two CTAs at a time.

Run it with `kiln run examples/blackwell/step_5_pairs.py`.

The CTAs of a pair are neighbours along M. Each has 128 rows of A, half of the columns of B and 128 rows of the
accumulator; the MMA reads B from the shared memory of both. So a CTA loads half as much of B for the same work. Only
the even CTA, the leader, issues MMAs; copies of both CTAs complete at the leader's mbarrier, and `tcgen05.commit`
arrives in both. A cluster has two pairs side by side, which share A: each loads one half for both (multicast).
"""

import blackwell_harness as harness
from step_3_roles import EPI_STAGES, store_acc

import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import LayoutEnum, sm100

M, N, K = TILE = (256, 256, 64)  # of a pair
CTA_M = M // 2
BYTES = (M + N) * K * 2  # of both CTAs, which the leader's mbarrier counts
CLUSTER = (2, 2, 1)
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
EPILOGUE_THREADS = 32 * EPILOGUE_WARPS
THREADS = 32 * 6
STAGES = 4
ACC_STAGES = 2
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
    epi_tile: cute.Tile,
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float16, layout_c.outer, 1024, layout_c.inner)
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    ctas = cute.tiled_divide(cute.make_layout(CLUSTER), (mma.thr_id.shape,))  # (2 of a pair, 1, 2, 1)
    place = ctas.get_flat_coord(rank)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    epilogue = pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * EPILOGUE_THREADS)  # of both CTAs
    tiles = pipeline.PipelineTmaUmma.create(
        num_stages=STAGES,
        producer_group=one,
        consumer_group=one,
        tx_count=BYTES,
        cta_layout_vmnk=ctas,
        enable_multicast_signaling=True,
        defer_sync=True,
    )
    accs = pipeline.PipelineUmmaAsync.create(
        num_stages=ACC_STAGES, producer_group=one, consumer_group=epilogue, cta_layout_vmnk=ctas, defer_sync=True
    )
    # both CTAs allocate and free the same columns together
    tmem = utils.TmemAllocator(
        smem.allocate_array(Int32),
        pipeline.NamedBarrier(1, EPILOGUE_THREADS + 32),
        is_two_cta=True,
        two_cta_tmem_dealloc_mbar_ptr=smem.allocate_array(Int64),
    )
    pipeline.pipeline_init_arrive(cluster_shape_mn=ctas, is_relaxed=True)
    pipeline.pipeline_init_wait(cluster_shape_mn=ctas)  # all CTAs have started, and have their mbarriers

    cta_mma = mma.get_slice(place[0])
    part_a = cta_mma.partition_A(cute.local_tile(a, (M, K), (None, None)))
    part_b = cta_mma.partition_B(cute.local_tile(b, (N, K), (None, None)))
    count = part_a.shape[4]  # ((128, 16), 1, K / 16, m tiles, k tiles)
    acc_layout = mma.make_fragment_C(cute.append(mma.partition_shape_C((M, N)), ACC_STAGES)).layout
    scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
    work = scheduler.initial_work_tile_info()

    if warp == TMA_WARP:
        sharers = cute.make_layout(CLUSTER[1])  # the CTAs along N, which need the same A
        smem_a, gmem_a = cpasync.tma_partition(
            load_a, place[2], sharers, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
        )
        smem_b, gmem_b = cpasync.tma_partition(
            load_b, 0, cute.make_layout(1), cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
        )
        share_a = cpasync.create_tma_multicast_mask(ctas, place, 2)
        producer = tiles.make_producer()
        while work.is_valid_tile:
            m, n, _ = work.tile_idx
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(
                    load_a,
                    gmem_a[None, m // 2, k],
                    smem_a[None, stage.index],
                    tma_bar_ptr=stage.barrier,
                    mcast_mask=share_a,
                )
                cute.copy(load_b, gmem_b[None, n, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        producer.tail()  # the last releases arrive at this CTA's mbarriers
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        accs_tmem = cute.make_tensor(tmem.retrieve_ptr(Float32), acc_layout)
        if place[0] == 0:  # the leader
            frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
            consumer, acc_producer = tiles.make_consumer(), accs.make_producer()
            while work.is_valid_tile:
                free = acc_producer.acquire_and_advance()  # the epilogue has loaded the tile before the last
                acc = accs_tmem[None, None, None, free.index]
                for k in range(count):
                    full = consumer.wait_and_advance()
                    mma.set(tcgen05.Field.ACCUMULATE, k != 0)
                    cute.gemm(mma, acc, frag_a[None, None, None, full.index], frag_b[None, None, None, full.index], acc)
                    full.release()
                free.commit()
                scheduler.advance_to_next_work()
                work = scheduler.get_current_work()
            acc_producer.tail()
    if warp < EPILOGUE_WARPS:
        tmem.allocate(ACC_STAGES * N)
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        acc_ptr = tmem.retrieve_ptr(Float32)
        accs_tmem = cute.make_tensor(acc_ptr, acc_layout)
        acc_consumer = accs.make_consumer()
        writers = pipeline.NamedBarrier(2, EPILOGUE_THREADS)
        stores = pipeline.PipelineTmaStore.create(num_stages=EPI_STAGES)
        while work.is_valid_tile:
            m, n, _ = work.tile_idx
            full = acc_consumer.wait_and_advance()
            acc = accs_tmem[(None, None), 0, 0, full.index]
            tile = cute.local_tile(c, (CTA_M, N), (m, n))
            store_acc(acc, full, tile_c, store_c, tile, epi_tile, True, stores, writers, thread, warp)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        if warp == 0:
            stores.producer_tail()
        writers.arrive_and_wait()
        tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, clusters: Int32):
    """C (M, N) = A (M, K) B (N, K)^T, on `clusters` clusters at a time."""
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.TWO, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, STAGES)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    epi_tile = sm100.compute_epilogue_tile_shape((CTA_M, N, K), True, ROWS, Float16)  # 128 x 32
    layout_c = sm100.make_smem_layout_epi(Float16, ROWS, epi_tile, EPI_STAGES)
    op_a = sm100.cluster_shape_to_tma_atom_A(CLUSTER, mma.thr_id)  # multicast: two pairs along N
    op_b = sm100.cluster_shape_to_tma_atom_B(CLUSTER, mma.thr_id)  # plain: one pair along M
    ctas = cute.tiled_divide(cute.make_layout(CLUSTER), (mma.thr_id.shape,))
    stage = (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(op_a, a, cute.slice_(layout_a, stage), TILE, mma, ctas.shape)
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(op_b, b, cute.slice_(layout_b, stage), TILE, mma, ctas.shape)
    store_c, tma_c = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), c, cute.slice_(layout_c, (None, None, 0)), epi_tile
    )
    params = utils.PersistentTileSchedulerParams((*cute.ceil_div(c.shape, (CTA_M, N)), 1), CLUSTER, swizzle_size=4)
    gemm_kernel(
        params, load_a, tma_a, load_b, tma_b, store_c, tma_c, mma, layout_a, layout_b, layout_c, epi_tile
    ).launch(grid=utils.StaticPersistentTileScheduler.get_grid_shape(params, clusters), block=THREADS, cluster=CLUSTER)


if __name__ == "__main__":
    harness.run(gemm, (264, 520, 136), utils.HardwareInfo().get_max_active_clusters(CLUSTER[0] * CLUSTER[1]))
