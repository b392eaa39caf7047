"""A warp has the copy engine fill a ring of tiles that a warpgroup multiplies: mbarriers and their phases by hand."""

import numpy as np
from hopper_tiles import GROUP, layouts, loads, matrices, multiplies, parts, product

from kiln import Float16, Float32, Int32, Int64, cute, utils
from kiln.cute.nvgpu import warpgroup

M, N, K = TILE = (64, 8, 64)
BYTES = (M + N) * K * 2
STAGES = 2
ROUNDS = 5


@cute.kernel
def ring(load_a, a: cute.Tensor, load_b, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, layout_a, layout_b):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    to_a, of_a = parts(load_a, tile_a, cute.local_tile(a, (M, K), (0, None)))
    to_b, of_b = parts(load_b, tile_b, cute.local_tile(b, (N, K), (0, None)))
    if warp == 0:
        with cute.arch.elect_one():
            for stage in range(STAGES):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, GROUP // 32)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == GROUP // 32:
        for k in range(Int32(ROUNDS)):
            stage = k % STAGES
            cute.arch.mbarrier_wait(empty + stage, (k // STAGES % 2) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
            cute.copy(load_a, of_a[None, k], to_a[None, stage], tma_bar_ptr=full + stage)
            cute.copy(load_b, of_b[None, k], to_b[None, stage], tma_bar_ptr=full + stage)
    else:
        part = mma.get_slice(thread)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(cute.local_tile(c, (M, N), (0, 0)))
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
                cute.arch.mbarrier_arrive(empty + stage)
        cute.autovec_copy(sums, place)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a, layout_b = layouts(TILE, STAGES)
    load_a, load_b = loads(a, layout_a, (M, K)), loads(b, layout_b, (N, K))
    ring(*load_a, *load_b, c, multiplies(N), layout_a, layout_b).launch(grid=1, block=GROUP + 32)


def run():
    a, b = matrices((M, ROUNDS * K), (N, ROUNDS * K))
    c = np.zeros((M, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, product(a, b))
