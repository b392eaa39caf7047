"""A product whose K is cut among blocks: of each cluster one block sends its sums to the other, which has the engine add them to C."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product, stores

from kiln import Float16, Float32, Int64, cute, range_constexpr, utils
from kiln.cute.nvgpu import cpasync, warpgroup

M, N, K = TILE = (64, 8, 64)
BYTES = (M + N) * K * 2
BLOCKS = 4


@cute.kernel
def reduction(
    load_a, a: cute.Tensor, load_b, b: cute.Tensor, add_c, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b, layout_c
):  # fmt: skip
    thread = cute.arch.thread_idx()[0]
    k = cute.arch.block_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    tile_c = smem.allocate_tensor(Float32, layout_c, 128)
    full = smem.allocate_array(Int64, 1)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (0, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    of_c, to_c = parts(add_c, tile_c, cute.local_tile(c, (M, N), (None, 0)))
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
        cute.copy(load_a, of_a[None, k], to_a[None, 0], tma_bar_ptr=full)
        cute.copy(load_b, of_b[None, k], to_b[None, 0], tma_bar_ptr=full)
    part = mma.get_slice(thread)
    left = mma.make_fragment_A(part.partition_A(tile_a))
    right = mma.make_fragment_B(part.partition_B(tile_b))
    sums = cute.make_rmem_tensor(mma.partition_shape_C((M, N)), Float32)
    sums.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)
    cute.arch.mbarrier_wait(full, 0)
    warpgroup.fence()
    cute.gemm(mma, sums, left[None, None, None, 0], right[None, None, None, 0], sums)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    if rank == 1:
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(tile_c.iterator, 0), layout_c)
        cute.autovec_copy(sums, part.partition_C(there)[None, None, None, 0])
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0:
        mine = part.partition_C(tile_c)[None, None, None, 0]
        for i in range_constexpr(cute.size(sums)):
            mine[i] = mine[i] + sums[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        if warp == 0:
            cute.copy(add_c, of_c[None, 0], to_c[None, 0])
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_threads()
        mine[0] = 0.0  # the memory is used for something else


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, 1)
    layout_c = cute.make_layout((M, N, 1), stride=(N, 1, M * N))
    load_a, load_b = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K))
    add_c = stores(c, layout_c, (M, N), cpasync.CopyReduceBulkTensorTileS2GOp())
    kernel = reduction(*load_a, *load_b, *add_c, multiplies(N), layout_a, layout_b, layout_c)
    kernel.launch(grid=BLOCKS, block=GROUP, cluster=2)


def run():
    a, b = matrices((M, BLOCKS * K), (N, BLOCKS * K))
    c = np.ones((M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, 1 + product(a, b))
