"""Two warpgroups work on tiles of their own, in turn: while one multiplies, the other has its sums stored from the one buffer there is."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product, stores

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, utils
from kiln.cute.nvgpu import warpgroup

M, N, K = TILE = (64, 8, 32)
BYTES = (M + N) * K * 2
STAGES = 2
ROUNDS = 3
TILES = 4


@cute.kernel
def pingpong(
    load_a, a: cute.Tensor, load_b, b: cute.Tensor, store_c, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b, layout_c
):  # fmt: skip
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    group = warp // 4
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float32, layout_c, 128)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP // 32)  # a tile is one group's
    turning = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP)
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, tx_count=BYTES, barrier_storage=barriers
    )
    order = pipeline.PipelineOrder.create(depth=2, length=2, group_id=group, producer_group=turning)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (None, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    of_c, to_c = parts(store_c, tile_c, cute.local_tile(c, (M, N), (None, 0)))
    if group == 2:
        fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for i in range(Int32(TILES)):
            for k in range(Int32(ROUNDS)):
                pipe.producer_acquire(fill)
                full = pipe.producer_get_barrier(fill)
                cute.copy(load_a, of_a[None, i, k], to_a[None, fill.index], tma_bar_ptr=full)
                cute.copy(load_b, of_b[None, k], to_b[None, fill.index], tma_bar_ptr=full)
                pipe.producer_commit(fill)
                fill.advance()
        pipe.producer_tail(fill)
    else:
        written = pipeline.NamedBarrier(barrier_id=2 + group, num_threads=GROUP)
        part = mma.get_slice(thread % GROUP)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(tile_c)
        sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        if group == 1:
            read.advance(ROUNDS)
        for i in range(Int32(TILES // 2)):
            order.wait()
            sums.fill(0.0)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            for k in range(Int32(ROUNDS)):
                pipe.consumer_wait(read)
                warpgroup.fence()
                cute.gemm(mma, sums, left[None, None, None, read.index], right[None, None, None, read.index], sums)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                pipe.consumer_release(read)
                read.advance()
            order.arrive()
            read.advance(ROUNDS)  # those are the other group's
            order.wait()
            cute.autovec_copy(sums, place[None, None, None, 0])
            cute.arch.fence_proxy("async.shared", space="cta")
            written.arrive_and_wait()
            if warp % 4 == 0:
                cute.copy(store_c, of_c[None, 0], to_c[None, 2 * i + group])
                with cute.arch.elect_one():
                    cute.arch.cp_async_bulk_commit_group()
                    cute.arch.cp_async_bulk_wait_group(0, read=True)
            written.arrive_and_wait()
            order.arrive()


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    layout_c = cute.make_layout((M, N, 1), stride=(N, 1, M * N))
    load_a, load_b, store_c = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K)), stores(c, layout_c, (M, N))
    kernel = pingpong(*load_a, *load_b, *store_c, multiplies(N), layout_a, layout_b, layout_c)
    kernel.launch(grid=1, block=2 * GROUP + 32)


def run():
    a, b = matrices((TILES * M, ROUNDS * K), (N, ROUNDS * K))
    c = np.zeros((TILES * M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
