"""Four blocks of a cluster: each loads halves of the tiles that it shares with the block beside it and the one below."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup

M, N, K = TILE = (64, 16, 32)
BYTES = (M + N) * K * 2
STAGES = 2
ROUNDS = 5
CLUSTER = (2, 2, 1)


@cute.kernel
def multicast(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    blocks = cute.make_layout((1, *CLUSTER))
    mine = blocks.get_flat_coord(rank)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, 3 * GROUP // 32)  # of this block and two others
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=filling,
        consumer_group=reading,
        tx_count=BYTES,
        barrier_storage=barriers,
        cta_layout_vmnk=blocks,
        defer_sync=True,
    )
    pipeline.pipeline_init_arrive(cluster_shape_mn=CLUSTER, is_relaxed=True)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (m, None)), mine[2], CLUSTER[1])
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (n, None)), mine[1], CLUSTER[0])
    of_row = cpasync.create_tma_multicast_mask(blocks, mine, mcast_mode=2)
    of_column = cpasync.create_tma_multicast_mask(blocks, mine, mcast_mode=1)
    pipeline.pipeline_init_wait(cluster_shape_mn=CLUSTER)
    if warp == 4:
        fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for k in range(Int32(ROUNDS)):
            pipe.producer_acquire(fill)
            full = pipe.producer_get_barrier(fill)
            cute.copy(load_a, of_a[None, k], to_a[None, fill.index], tma_bar_ptr=full, mcast_mask=of_row)
            cute.copy(load_b, of_b[None, k], to_b[None, fill.index], tma_bar_ptr=full, mcast_mask=of_column)
            pipe.producer_commit(fill)
            fill.advance()
        pipe.producer_tail(fill)
    else:
        part = mma.get_slice(thread)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(cute.local_tile(c, (M, N), (m, n)))
        sums = cute.make_rmem_tensor(place.shape, Float32)
        sums.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in range(Int32(ROUNDS)):
            pipe.consumer_wait(read)
            warpgroup.fence()
            cute.gemm(mma, sums, left[None, None, None, read.index], right[None, None, None, read.index], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            pipe.consumer_release(read)
            read.advance()
        cute.autovec_copy(sums, place)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    load_a, load_b = loads(a, layout_a, (M, K), CLUSTER[1]), loads(b, layout_b, (N, K), CLUSTER[0])
    kernel = multicast(*load_a, *load_b, c, multiplies(N), layout_a, layout_b)
    kernel.launch(grid=CLUSTER, block=GROUP + 32, cluster=CLUSTER)


def run():
    a, b = matrices((2 * M, ROUNDS * K), (2 * N, ROUNDS * K))
    c = np.zeros((2 * M, 2 * N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
