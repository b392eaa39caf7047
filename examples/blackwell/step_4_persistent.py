"""Step 4: a persistent kernel with two accumulators. The epilogue stores one while MMAs fill the other.

Run it with `kiln run examples/blackwell/step_4_persistent.py`.

As many CTAs are launched as run at a time, and each computes one tile after the other. Two accumulators of 128 x 256
take all 512 columns of tensor memory. Tensor cores, TMA loads and the epilogue now work on different tiles at the same
time: the MMA warp goes on to the next tile as soon as the other accumulator is free.
"""

import blackwell_harness as harness
from step_3_roles import EPI_STAGES, store_acc

import kiln.cute as cute
from kiln import Float16, Float32, Int32, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import LayoutEnum, sm100

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
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
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    epilogue = pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)
    tiles = pipeline.PipelineTmaUmma.create(num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=BYTES)
    accs = pipeline.PipelineUmmaAsync.create(num_stages=ACC_STAGES, producer_group=one, consumer_group=epilogue)
    # the warps that use tensor memory meet at this barrier: the epilogue and the MMA warp
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, EPILOGUE_THREADS + 32))

    cta_mma = mma.get_slice(0)
    part_a = cta_mma.partition_A(cute.local_tile(a, (M, K), (None, None)))
    part_b = cta_mma.partition_B(cute.local_tile(b, (N, K), (None, None)))
    count = part_a.shape[4]  # ((128, 16), 1, K / 16, m tiles, k tiles)
    acc_layout = mma.make_fragment_C(cute.append(mma.partition_shape_C((M, N)), ACC_STAGES)).layout
    scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
    work = scheduler.initial_work_tile_info()

    if warp == TMA_WARP:
        no_multicast = (0, cute.make_layout(1))
        smem_a, gmem_a = cpasync.tma_partition(
            load_a, *no_multicast, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
        )
        smem_b, gmem_b = cpasync.tma_partition(
            load_b, *no_multicast, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
        )
        producer = tiles.make_producer()
        while work.is_valid_tile:
            m, n, _ = work.tile_idx
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, gmem_a[None, m, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, gmem_b[None, n, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        producer.tail()  # the last releases arrive at this CTA's mbarriers
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        accs_tmem = cute.make_tensor(tmem.retrieve_ptr(Float32), acc_layout)
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
            tile = cute.local_tile(c, (M, N), (m, n))
            store_acc(acc, full, tile_c, store_c, tile, epi_tile, False, stores, writers, thread, warp)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        if warp == 0:
            stores.producer_tail()
        writers.arrive_and_wait()
        tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, ctas: Int32):
    """C (M, N) = A (M, K) B (N, K)^T, on `ctas` CTAs at a time."""
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, STAGES)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    epi_tile = sm100.compute_epilogue_tile_shape(TILE, False, ROWS, Float16)  # 128 x 32
    layout_c = sm100.make_smem_layout_epi(Float16, ROWS, epi_tile, EPI_STAGES)
    load, store = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE), cpasync.CopyBulkTensorTileS2GOp()
    stage = (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(layout_a, stage), TILE, mma)
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(layout_b, stage), TILE, mma)
    store_c, tma_c = cpasync.make_tiled_tma_atom(store, c, cute.slice_(layout_c, (None, None, 0)), epi_tile)
    params = utils.PersistentTileSchedulerParams((*cute.ceil_div(c.shape, (M, N)), 1), (1, 1, 1), swizzle_size=8)
    gemm_kernel(
        params, load_a, tma_a, load_b, tma_b, store_c, tma_c, mma, layout_a, layout_b, layout_c, epi_tile
    ).launch(grid=utils.StaticPersistentTileScheduler.get_grid_shape(params, ctas), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm, (456, 264, 136), utils.HardwareInfo().get_max_active_clusters(1))
