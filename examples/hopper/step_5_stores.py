"""Step 5: the engine stores, too. Sums go to shared memory in pieces, and from there to C while the next piece is written.

Run it with `kiln run examples/hopper/step_5_stores.py`.

`stmatrix` writes the pieces without bank conflicts, the engine cuts off what lies outside of C: matrices need not be whole tiles any more.
Threads wrote what the engine reads, so each says so (`fence_proxy`) before the barrier after which one warp starts the copy.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
GROUP = 128
THREADS = 3 * GROUP
STAGES = 4
PIECE, PIECES = (M, 32), 4  # of C: how large, and how many of them at a time
ROWS = LayoutEnum.ROW_MAJOR


@cute.jit
def store_sums(sums, smem_c, mma, thread, first_warp, store_c, pieces):
    """Store the sums of a tile: `smem_c` is (M, n, pieces), `pieces` (tile of one, their numbers)."""
    by_warp = cute.make_tiled_copy_C_atom(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), Float16), mma)
    write = cute.make_tiled_copy_S(sm90.sm90_get_smem_store_op(ROWS, Float16, Float32), by_warp)
    writer = write.get_slice(thread)
    slots = writer.partition_D(smem_c)
    values = write.retile(sums)
    piece = cute.make_rmem_tensor(slots.shape[:3], Float16)
    count = cute.size(piece)
    of_c, to_c = cpasync.tma_partition(store_c, 0, cute.make_layout(1), cute.group_modes(smem_c, 0, 2), pieces)
    stores = pipeline.PipelineTmaStore.create(num_stages=PIECES)
    writers = pipeline.NamedBarrier(1, 2 * GROUP)
    for number in range_constexpr(N // PIECE[1]):
        slot = number % PIECES
        for i in range_constexpr(count):
            piece[i] = values[number * count + i].to(Float16)
        cute.copy(write, piece, slots[None, None, None, slot])
        cute.arch.fence_proxy("async.shared", space="cta")
        writers.arrive_and_wait()
        if first_warp:
            cute.copy(store_c, of_c[None, slot], to_c[None, (0, number)])
            stores.producer_commit()
            stores.producer_acquire()
        writers.arrive_and_wait()
    if first_warp:
        stores.producer_tail()


@cute.kernel
def gemm_kernel(
    load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, store_c: cute.CopyAtom, c: cute.Tensor,
    mma: cute.TiledMma, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout, layout_c: cute.ComposedLayout,
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    warp_number = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float16, layout_c.outer, 1024, layout_c.inner)
    ring = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * GROUP // 32),
        tx_count=BYTES,
    )
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    alone = (0, cute.make_layout(1))
    to_a, of_a = cpasync.tma_partition(load_a, *alone, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2))
    to_b, of_b = cpasync.tma_partition(load_b, *alone, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2))
    count = tiles_a.shape[2]
    producer, consumer = ring.make_participants()

    if warp_number < GROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp_number == 0:
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, of_a[None, k], to_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, of_b[None, k], to_b[None, stage.index], tma_bar_ptr=stage.barrier)
    else:
        cute.arch.setmaxregister_increase(232)
        part = mma.get_slice(thread - GROUP)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        sums.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)  # products are added to the sums
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in range(count):
            stage = consumer.wait_and_advance()
            warpgroup.fence()
            cute.gemm(mma, sums, left[None, None, None, stage.index], right[None, None, None, stage.index], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if k > 0:
                ring.consumer_release(before)
                before.advance()
        warpgroup.wait_group(0)
        pieces = cute.zipped_divide(cute.local_tile(c, (M, N), (m, n)), PIECE)
        store_sums(sums, tile_c, mma, thread - GROUP, warp_number == GROUP // 32, store_c, pieces)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T."""
    layout_a = sm90.make_smem_layout_a(ROWS, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(ROWS, TILE, Float16, STAGES)
    layout_c = sm90.make_smem_layout_epi(Float16, ROWS, PIECE, PIECES)
    load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
    load_a, from_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, from_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    store_c, to_c = cpasync.make_tiled_tma_atom(store, c, cute.slice_(layout_c, (None, None, 0)), PIECE)
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, from_a, load_b, from_b, store_c, to_c, mma, layout_a, layout_b, layout_c)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS, min_blocks_per_mp=1)


if __name__ == "__main__":
    harness.run(gemm, ((256, 256, 192), (200, 328, 136)))
