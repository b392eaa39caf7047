"""Exercise 2 of lesson 10: the main loop of a WGMMA kernel, C (64, 32) = A (64, 64) B (32, 64)^T."""

import kiln
import kiln.cute as cute
from kiln import Float16, Float32, utils
from kiln.cute.nvgpu import warpgroup
from kiln.utils import LayoutEnum, sm90

M = 64
N = 32
K = 64


@cute.kernel
def gemm_kernel(tiled_mma: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    smem = utils.SmemAllocator()
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (M, N, K), Float16, 1)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (M, N, K), Float16, 1)
    sA = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    sB = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    for i in range(thread, M * K, 128):
        sA[i] = a[i]
    for i in range(thread, N * K, 128):
        sB[i] = b[i]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()

    part = tiled_mma.get_slice(thread)
    tCrA = tiled_mma.make_fragment_A(part.partition_A(sA))
    tCrB = tiled_mma.make_fragment_B(part.partition_B(sB))
    acc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((M, N)))
    # TODO: the first MMA overwrites acc, the others add; fence before them, commit and wait after them
    # (tiled_mma.set(warpgroup.Field.ACCUMULATE, ...), cute.gemm(tiled_mma, acc, tCrA[None, None, k, 0], ..., acc))
    tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
    warpgroup.fence()
    for k in kiln.range_constexpr(cute.size(tCrA, mode=[2])):
        cute.gemm(tiled_mma, acc, tCrA[None, None, k, 0], tCrB[None, None, k, 0], acc)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    # END
    cute.autovec_copy(acc, part.partition_C(cute.local_tile(c, (M, N), (0, 0))))


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    major = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
    tiled_mma = sm90.make_trivial_tiled_mma(Float16, Float16, major, major, Float32, (1, 1, 1), (64, N))
    gemm_kernel(tiled_mma, a, b, c).launch(grid=1, block=128)
