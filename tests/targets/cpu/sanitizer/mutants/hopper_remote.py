"""Two blocks of a cluster load half a tile each, for both; readers release a stage in both blocks: mbarriers by hand."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product

from kiln import Float16, Float32, Int32, Int64, cute, utils
from kiln.cute.nvgpu import warpgroup

M, N, K = TILE = (64, 8, 32)
BYTES = (M + N) * K * 2
STAGES = 2
ROUNDS = 5
CLUSTER = (1, 2, 1)


@cute.kernel
def remote(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    n = cute.arch.block_idx()[1]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (0, None)), rank, CLUSTER[1])
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (n, None)))
    if thread == 0:
        for stage in range(STAGES):
            cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init(empty + stage, 2 * GROUP // 32)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()
    if warp == 4:
        for k in range(Int32(ROUNDS)):
            stage = k % STAGES
            cute.arch.mbarrier_wait(empty + stage, (k // STAGES % 2) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
            cute.copy(load_a, of_a[None, k], to_a[None, stage], tma_bar_ptr=full + stage, mcast_mask=0b11)
            cute.copy(load_b, of_b[None, k], to_b[None, stage], tma_bar_ptr=full + stage)
    else:
        part = mma.get_slice(thread)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(cute.local_tile(c, (M, N), (0, n)))
        sums = cute.make_rmem_tensor(place.shape, Float32)
        sums.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        for k in range(Int32(ROUNDS)):
            stage = k % STAGES
            cute.arch.mbarrier_wait(full + stage, k // STAGES % 2)
            warpgroup.fence()
            cute.gemm(mma, sums, left[None, None, None, stage], right[None, None, None, stage], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(empty + stage, rank)
                cute.arch.mbarrier_arrive(empty + stage, rank ^ 1)
        cute.autovec_copy(sums, place)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    load_a, load_b = loads(a, layout_a, (M, K), CLUSTER[1]), loads(b, layout_b, (N, K))
    kernel = remote(*load_a, *load_b, c, multiplies(N), layout_a, layout_b)
    kernel.launch(grid=CLUSTER, block=GROUP + 32, cluster=CLUSTER)


def run():
    a, b = matrices((M, ROUNDS * K), (2 * N, ROUNDS * K))
    c = np.zeros((M, 2 * N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
