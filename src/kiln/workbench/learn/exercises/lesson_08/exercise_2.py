"""Exercise 2 of lesson 8: a GEMM with an epilogue, C = relu(A B^T + bias)."""

import kiln.cute as cute
from kiln import Float16, Float32
from kiln.cute.nvgpu import warp

M = 16
N = 8
K = 16
MMA = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (M, N, K)))


@cute.kernel
def gemm_kernel(a: cute.Tensor, b: cute.Tensor, bias: cute.Tensor, c: cute.Tensor):
    """Each block of one warp computes a tile of 16 by 8; bias has an element for each column of C."""
    lane, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    part = MMA.get_slice(lane)
    tCgA = part.partition_A(cute.local_tile(a, (M, K), (m, None)))  # (values, 1, 1, steps)
    tCgB = part.partition_B(cute.local_tile(b, (N, K), (n, None)))
    tCgC = part.partition_C(cute.local_tile(c, (M, N), (m, n)))
    tCrA = MMA.make_fragment_A(tCgA[None, None, None, 0])
    tCrB = MMA.make_fragment_B(tCgB[None, None, None, 0])
    acc = MMA.make_fragment_C(tCgC)
    acc.fill(0.0)
    for step in range(a.shape[1] // K):
        cute.autovec_copy(tCgA[None, None, None, step], tCrA)
        cute.autovec_copy(tCgB[None, None, None, step], tCrB)
        cute.gemm(MMA, acc, tCrA, tCrB, acc)

    # TODO: add the bias of each element's column, then the larger of that and 0, and leave the result in acc
    # (a layout with a stride of 0 shows the bias as a matrix; partition it like C; acc.load() is a vector, and cute.where(v > 0, v, 0) is one)
    rows = cute.make_tensor(bias.iterator, cute.make_layout((M, c.shape[1]), stride=(0, 1)))
    tCgBias = part.partition_C(cute.local_tile(rows, (M, N), (0, n)))
    v = acc.load() + tCgBias.load()
    acc.store(cute.where(v > 0, v, 0))
    # END
    cute.autovec_copy(acc, tCgC)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, bias: cute.Tensor, c: cute.Tensor):
    gemm_kernel(a, b, bias, c).launch(grid=(c.shape[0] // M, c.shape[1] // N, 1), block=32)
