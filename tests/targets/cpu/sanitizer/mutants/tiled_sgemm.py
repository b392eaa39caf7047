"""A matrix product with tiles of both operands in shared memory."""

import numpy as np

from kiln import Float32, cute, range_constexpr

T = 8
N = 16


@cute.kernel
def sgemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    x, y, _ = cute.arch.thread_idx()
    column, row, _ = cute.arch.block_idx()
    tile_a = cute.make_tensor(cute.arch.alloc_smem(Float32, T * T), cute.make_layout((T, T), stride=(T, 1)))
    tile_b = cute.make_tensor(cute.arch.alloc_smem(Float32, T * T), cute.make_layout((T, T), stride=(T, 1)))
    total = Float32(0.0)
    for k in range(N // T):
        tile_a[y, x] = a[row * T + y, k * T + x]
        tile_b[y, x] = b[k * T + y, column * T + x]
        cute.arch.sync_threads()
        for i in range_constexpr(T):
            total += tile_a[y, i] * tile_b[i, x]
        cute.arch.sync_threads()
    c[row * T + y, column * T + x] = total


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    sgemm(a, b, c).launch(grid=(N // T, N // T), block=(T, T))


def run():
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, (N, N)).astype(np.float32) for _ in range(2))
    c = np.zeros((N, N), np.float32)
    main(a, b, c)
    return np.array_equal(c, a @ b)
