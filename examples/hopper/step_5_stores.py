"""Step 5: an epilogue with TMA stores. Results go to shared memory in epilogue tiles, and TMA stores one while the
next is written.

Run it with `kiln run examples/hopper/step_5_stores.py`.

`stmatrix` writes epilogue tiles without bank conflicts, and TMA clips them at the edge of C: extents need not be
multiples of the tile any more. Threads write what TMA reads, through another proxy: each executes `fence_proxy` before
the barrier after which one warp issues the store.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
WARPGROUP = 128
THREADS = 3 * WARPGROUP
STAGES = 4
EPI_TILE, EPI_STAGES = (M, 32), 4  # the shape of an epilogue tile of C, and how many are in flight
ROWS = LayoutEnum.ROW_MAJOR


@cute.jit
def store_acc(acc, smem_c, mma, thread, first_warp, store_c, epi_tiles):
    """Store the accumulators of a tile: `smem_c` is (M, n, stages), `epi_tiles` is (epilogue tile, their numbers)."""
    by_warp = cute.make_tiled_copy_C_atom(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16), mma)
    write = cute.make_tiled_copy_S(sm90.sm90_get_smem_store_op(ROWS, Float16, Float32), by_warp)
    writer = write.get_slice(thread)
    slots = writer.partition_D(smem_c)
    values = write.retile(acc)
    fragment = cute.make_rmem_tensor(slots.shape[:3], Float16)
    count = cute.size(fragment)
    source_c, tma_c = cpasync.tma_partition(store_c, 0, cute.make_layout(1), cute.group_modes(smem_c, 0, 2), epi_tiles)
    stores = pipeline.PipelineTmaStore.create(num_stages=EPI_STAGES)
    writers = pipeline.NamedBarrier(1, 2 * WARPGROUP)
    for epi_tile in range_constexpr(N // EPI_TILE[1]):
        slot = epi_tile % EPI_STAGES
        for i in range_constexpr(count):
            fragment[i] = values[epi_tile * count + i].to(Float16)
        cute.copy(write, fragment, slots[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")
        writers.arrive_and_wait()
        if first_warp:
            cute.copy(store_c, source_c[None, slot], tma_c[None, (0, epi_tile)])
            stores.producer_commit()
            stores.producer_acquire()
        writers.arrive_and_wait()
    if first_warp:
        stores.producer_tail()


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
):
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    warp_number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float16, layout_c.outer, 1024, layout_c.inner)
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * WARPGROUP // 32),
        tx_count=BYTES,
    )
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    no_multicast = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, *no_multicast, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, *no_multicast, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    count = tiles_a.shape[2]
    producer, consumer = pipe.make_participants()

    if warp_number < WARPGROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp_number == 0:
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
    else:
        cute.arch.setmaxregister_increase(232)
        thr_mma = mma.get_slice(thread - WARPGROUP)
        frag_a = mma.make_fragment_A(thr_mma.partition_A(tile_a))
        frag_b = mma.make_fragment_B(thr_mma.partition_B(tile_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)  # the first MMA adds to zeros, too
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in range(count):
            full = consumer.wait_and_advance()
            warpgroup.fence()
            cute.gemm(mma, acc, frag_a[None, None, None, full.index], frag_b[None, None, None, full.index], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if k > 0:
                pipe.consumer_release(before)
                before.advance()
        warpgroup.wait_group(0)
        epi_tiles = cute.zipped_divide(cute.local_tile(c, (M, N), (m, n)), EPI_TILE)
        store_acc(acc, tile_c, mma, thread - WARPGROUP, warp_number == WARPGROUP // 32, store_c, epi_tiles)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T."""
    layout_a = sm90.make_smem_layout_a(ROWS, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(ROWS, TILE, Float16, STAGES)
    layout_c = sm90.make_smem_layout_epi(Float16, ROWS, EPI_TILE, EPI_STAGES)
    load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, tma_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    store_c, tma_c = cpasync.make_tiled_tma_atom(store, c, cute.slice_(layout_c, (None, None, 0)), EPI_TILE)
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, store_c, tma_c, mma, layout_a, layout_b, layout_c)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS, min_blocks_per_mp=1)


if __name__ == "__main__":
    harness.run(gemm, ((256, 256, 192), (200, 328, 136)))
