"""A product of matrices that no tile divides: fragments loaded with a guard, staged rows of B, sums stored with a guard."""

import numpy as np

import kiln
from kiln import Float16, Float32, Int32, cute

GUARDS = True
M, N, K = 16, 8, 16


@cute.kernel
def product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, m: Int32, n: Int32, k: Int32):
    t, _, _ = cute.arch.thread_idx()
    mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(Float16, Float32, (M, N, K)))
    part = mma.get_slice(t)
    staged = cute.make_tensor(cute.arch.alloc_smem(Float16, N * 24), cute.make_layout((N, K), stride=(24, 1)))
    place_a = part.partition_A(cute.make_identity_tensor((M, K)))
    place_c = part.partition_C(cute.make_identity_tensor((M, N)))
    held_a = mma.make_fragment_A(part.partition_shape_A((M, K)))
    held_b = mma.make_fragment_B(part.partition_shape_B((N, K)))
    held_c = mma.make_fragment_C(part.partition_shape_C((M, N)))
    held_c.fill(0.0)
    for step in range((k + K - 1) // K):
        held_a.fill(0.0)
        for i in kiln.range_constexpr(cute.size(held_a)):
            row, column = place_a[i]
            if row < m and step * K + column < k:
                held_a[i] = a[row, step * K + column]
        for i in kiln.range_constexpr(N * K // 32):
            row, column = t % N, t // N * 4 + i
            staged[row, column] = Float16(0.0)
            if row < n and step * K + column < k:
                staged[row, column] = b[row, step * K + column]
        cute.arch.sync_warp()
        cute.autovec_copy(part.partition_B(staged), held_b)
        cute.arch.sync_warp()
        cute.gemm(mma, held_c, held_a, held_b, held_c)
    for i in kiln.range_constexpr(cute.size(held_c)):
        row, column = place_c[i]
        if row < m and column < n:
            c[row, column] = held_c[i]


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    product(a, b, c, a.shape[0], b.shape[0], a.shape[1]).launch(grid=1, block=32)


def run():
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-4, 5, (rows, 40)).astype(np.float16) for rows in (20, 12))
    c = np.zeros((20, 12), np.float32)
    a, b, c = a[:11, :37], b[:6, :37], c[:11, :6]
    main(a, b, c)
    return np.array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)
