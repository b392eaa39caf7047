"""Two warpgroups share each tile, and have their sums stored from two buffers in turn while they work on the next one."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product, stores

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import warpgroup

M, N, K = TILE = (128, 16, 32)
BYTES = (M + N) * K * 2
STAGES = 2
BUFFERS = 2
ROUNDS = 2
TILES = 8  # enough that one arrival too few lets a phase pass


@cute.kernel
def cooperative(
    params, load_a, a: cute.Tensor, load_b, b: cute.Tensor, store_c, c: cute.Tensor, mma: cute.TiledMma,
    layout_a, layout_b, layout_c,
):  # fmt: skip
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float32, layout_c, 128)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * GROUP // 32)
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, tx_count=BYTES, barrier_storage=barriers
    )
    producer, consumer = pipe.make_participants()
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (None, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    of_c, to_c = parts(store_c, tile_c, cute.local_tile(c, (M, N), (None, 0)))
    scheduler = utils.StaticPersistentTileScheduler.create(params, cute.arch.block_idx(), cute.arch.grid_dim())
    work = scheduler.initial_work_tile_info()
    if warp == 8:
        while work.is_valid_tile:
            for k in range(Int32(ROUNDS)):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, of_a[None, work.tile_idx[0], k], to_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, of_b[None, k], to_b[None, stage.index], tma_bar_ptr=stage.barrier)
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        producer.tail()
    else:
        storing = pipeline.PipelineTmaStore.create(num_stages=BUFFERS)
        written = pipeline.NamedBarrier(barrier_id=1, num_threads=2 * GROUP)
        part = mma.get_slice(thread)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        places = part.partition_C(tile_c)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        count = Int32(0)
        while work.is_valid_tile:
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for k in range(Int32(ROUNDS)):
                stage = consumer.wait_and_advance()
                warpgroup.fence()
                for block in range_constexpr(cute.size(left, mode=[2])):
                    cute.gemm(
                        mma, sums, left[None, None, block, stage.index], right[None, None, block, stage.index], sums
                    )
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                stage.release()
            slot = count % BUFFERS
            cute.autovec_copy(sums, places[None, None, None, slot])
            cute.arch.fence_proxy("async.shared", space="cta")
            written.arrive_and_wait()
            if warp == 0:
                cute.copy(store_c, of_c[None, slot], to_c[None, work.tile_idx[0]])
                storing.producer_commit()
                storing.producer_acquire()
            written.arrive_and_wait()
            count += 1
            scheduler.advance_to_next_work()
            work = scheduler.get_current_work()
        if warp == 0:
            storing.producer_tail()


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    layout_c = cute.make_layout((M, N, BUFFERS), stride=(N, 1, M * N))
    load_a, load_b, store_c = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K)), stores(c, layout_c, (M, N))
    params = utils.PersistentTileSchedulerParams((TILES, 1, 1), (1, 1, 1))
    grid = utils.StaticPersistentTileScheduler.get_grid_shape(params, 1)
    kernel = cooperative(params, *load_a, *load_b, *store_c, multiplies(N, 2), layout_a, layout_b, layout_c)
    kernel.launch(grid=grid, block=2 * GROUP + 32)


def run():
    a, b = matrices((TILES * M, ROUNDS * K), (N, ROUNDS * K))
    c = np.zeros((TILES * M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
