"""Exercise 1 of lesson 6: RMSNorm of the rows of a matrix, a warp for each row."""

import kiln
import kiln.cute as cute
from kiln import Float32

VALUES = 3
"""Registers of a lane: rows have up to 96 elements."""
EPS = 1e-5


@cute.kernel
def rms_norm_kernel(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
    """y = x / sqrt(mean(x * x) + EPS) * w of each row; one block of 32 threads for each row."""
    lane, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    n = x.shape[1]
    mine = cute.make_rmem_tensor(VALUES, Float32)
    # TODO: load the row into `mine`, 0 past the end; the sum of squares over the warp; store the results
    # (cute.math.rsqrt(v) is 1 / sqrt(v))
    mine.fill(0)
    for k in kiln.range_constexpr(VALUES):
        if k * 32 + lane < n:
            mine[k] = x[row, k * 32 + lane]
    v = mine.load()
    squares = cute.arch.warp_reduction_sum((v * v).reduce(cute.ReductionOp.ADD, Float32(0), 0))
    scale = cute.math.rsqrt(squares / n + EPS)
    for k in kiln.range_constexpr(VALUES):
        if k * 32 + lane < n:
            y[row, k * 32 + lane] = mine[k] * scale * w[k * 32 + lane]
    # END


@cute.jit
def rms_norm(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
    rms_norm_kernel(x, w, y).launch(grid=x.shape[0], block=32)
