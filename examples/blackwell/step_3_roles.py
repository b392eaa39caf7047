"""Step 3: warp specialisation, and an epilogue with TMA stores.

Run it with `kiln run examples/blackwell/step_3_roles.py`.

Warp 5 loads, warp 4 issues MMAs, and warps 0 to 3 are the epilogue, one for each quarter of the lanes. Neither loads
nor MMAs need registers, so no warp gives any away. The epilogue takes 32 columns of the accumulator at a time through
shared memory, and TMA stores one epilogue tile while the next is converted. TMA clips tiles at the edge of C: extents
need not be multiples of the tile any more.
"""

import blackwell_harness as harness

import kiln.cute as cute
from kiln import Float16, Float32, Int32, const_expr, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import LayoutEnum, sm100

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
EPILOGUE_WARPS, MMA_WARP, TMA_WARP = 4, 4, 5
EPILOGUE_THREADS = 32 * EPILOGUE_WARPS
THREADS = 32 * 6
STAGES = 4
EPI_STAGES = 2
ROWS = LayoutEnum.ROW_MAJOR


@cute.jit
def store_acc(acc, full, tile_c, store_c, tma_c, epi_tile, pair, stores, writers, thread, warp):
    """Store an accumulator (M, N) of the CTA in epilogue tiles: through `tile_c`, (epilogue tile, stages), to `tma_c`,
    the (M, N) of C. Its stage `full` is released when the last columns are loaded."""
    acc = cute.flat_divide(acc, epi_tile)  # (M, N of the epilogue tile, their numbers)
    atom = sm100.get_tmem_load_op(TILE, ROWS, Float16, Float32, epi_tile, pair)
    load_acc = tcgen05.make_tmem_copy(atom, acc[None, None, 0, 0])
    write = cute.make_tiled_copy_D(sm100.get_smem_store_op(ROWS, Float16, Float32, load_acc), load_acc)
    loader, writer = load_acc.get_slice(thread), write.get_slice(thread)
    thr_acc = loader.partition_S(acc)
    thr_tile = writer.partition_D(tile_c)
    values = cute.make_rmem_tensor(loader.partition_D(tile_c[None, None, 0]).shape, Float32)
    rounded = cute.make_rmem_tensor_like(values, Float16)
    source, target = cpasync.tma_partition(
        store_c,
        0,
        cute.make_layout(1),
        cute.group_modes(tile_c, 0, 2),
        cute.group_modes(cute.flat_divide(tma_c, epi_tile), 0, 2),
    )
    for i in range_constexpr(cute.size(acc, mode=[3])):
        slot = i % EPI_STAGES
        cute.copy(load_acc, thr_acc[None, None, None, 0, i], values)
        cute.arch.fence_view_async_tmem_load()
        if const_expr(i == cute.size(acc, mode=[3]) - 1):
            full.release()
        rounded.store(values.load().to(Float16))
        if warp == 0:
            stores.producer_acquire()  # TMA has read what was in this slot
        writers.arrive_and_wait()
        cute.copy(write, write.retile(rounded), thr_tile[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")
        writers.arrive_and_wait()
        if warp == 0:
            cute.copy(store_c, source[None, slot], target[None, 0, i])
            stores.producer_commit()


@cute.kernel
def gemm_kernel(
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
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float16, layout_c.outer, 1024, layout_c.inner)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    epilogue = pipeline.CooperativeGroup(pipeline.Agent.Thread, EPILOGUE_THREADS)
    tiles = pipeline.PipelineTmaUmma.create(num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=BYTES)
    accs = pipeline.PipelineUmmaAsync.create(num_stages=1, producer_group=one, consumer_group=epilogue)
    # the warps that use tensor memory meet at this barrier: the epilogue and the MMA warp
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, EPILOGUE_THREADS + 32))

    cta_mma = mma.get_slice(0)
    part_a = cta_mma.partition_A(cute.local_tile(a, (M, K), (m, None)))
    part_b = cta_mma.partition_B(cute.local_tile(b, (N, K), (n, None)))
    count = part_a.shape[3]
    acc_layout = mma.make_fragment_C(mma.partition_shape_C((M, N))).layout

    if warp == TMA_WARP:
        no_multicast = (0, cute.make_layout(1))
        smem_a, gmem_a = cpasync.tma_partition(
            load_a, *no_multicast, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
        )
        smem_b, gmem_b = cpasync.tma_partition(
            load_b, *no_multicast, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
        )
        producer = tiles.make_producer()
        for k in range(count):
            stage = producer.acquire_and_advance()
            cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
            cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
        producer.tail()  # the last releases arrive at this CTA's mbarriers
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        acc = cute.make_tensor(tmem.retrieve_ptr(Float32), acc_layout)
        frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
        consumer, acc_producer = tiles.make_consumer(), accs.make_producer()
        done = acc_producer.acquire_and_advance()
        for k in range(count):
            full = consumer.wait_and_advance()
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
            cute.gemm(mma, acc, frag_a[None, None, None, full.index], frag_b[None, None, None, full.index], acc)
            full.release()
        done.commit()
        acc_producer.tail()
    if warp < EPILOGUE_WARPS:
        tmem.allocate(N)
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        acc_ptr = tmem.retrieve_ptr(Float32)
        acc = cute.make_tensor(acc_ptr, acc_layout)
        acc_consumer = accs.make_consumer()
        writers = pipeline.NamedBarrier(2, EPILOGUE_THREADS)
        stores = pipeline.PipelineTmaStore.create(num_stages=EPI_STAGES)
        acc_full = acc_consumer.wait_and_advance()
        store_acc(
            acc[(None, None), 0, 0],
            acc_full,
            tile_c,
            store_c,
            cute.local_tile(c, (M, N), (m, n)),
            epi_tile,
            False,
            stores,
            writers,
            thread,
            warp,
        )
        if warp == 0:
            stores.producer_tail()
        writers.arrive_and_wait()
        tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T."""
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
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, store_c, tma_c, mma, layout_a, layout_b, layout_c, epi_tile)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm, (200, 328, 136))
