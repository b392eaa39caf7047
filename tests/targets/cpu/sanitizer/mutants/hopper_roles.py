"""A warpgroup fills a ring of tiles, another one multiplies them and leaves one product running: a pipeline, and both sides' roles."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warpgroup

M, N, K = TILE = (64, 16, 32)
BYTES = (M + N) * K * 2
STAGES = 4
ROUNDS = 9


@cute.kernel
def roles(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    if warp == 0:
        cpasync.prefetch_descriptor(load_a)
        cpasync.prefetch_descriptor(load_b)
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP // 32)  # a warp arrives once
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=filling,
        consumer_group=reading,
        tx_count=BYTES,
        barrier_storage=barriers,
        defer_sync=True,
    )
    pipeline.pipeline_init_arrive()
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (0, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    producer, consumer = pipe.make_participants()
    pipeline.pipeline_init_wait()
    if warp < GROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            for k in range(Int32(ROUNDS)):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, of_a[None, k], to_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, of_b[None, k], to_b[None, stage.index], tma_bar_ptr=stage.barrier)
                stage.commit()
            producer.tail()
    else:
        cute.arch.setmaxregister_increase(232)
        part = mma.get_slice(thread - GROUP)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(cute.local_tile(c, (M, N), (0, 0)))
        sums = cute.make_rmem_tensor(place.shape, Float32)
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        mma.set(warpgroup.Field.ACCUMULATE, False)  # the first product replaces the sums
        for k in range(Int32(ROUNDS)):
            stage = consumer.wait_and_advance()
            warpgroup.fence()
            for block in range_constexpr(cute.size(left, mode=[2])):
                cute.gemm(mma, sums, left[None, None, block, stage.index], right[None, None, block, stage.index], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if k > 0:
                pipe.consumer_release(before)
                before.advance()
        warpgroup.wait_group(0)
        pipe.consumer_release(before)
        cute.autovec_copy(sums, place)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    load_a, load_b = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K))
    kernel = roles(*load_a, *load_b, c, multiplies(N), layout_a, layout_b)
    kernel.launch(grid=1, block=2 * GROUP, min_blocks_per_mp=1)


def run():
    a, b = matrices((M, ROUNDS * K), (N, ROUNDS * K))
    c = np.zeros((M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
