"""Exercise 1 of lesson 5: y = max(a * x + b, 0) of f32 arrays, 16 bytes at a time, for any length."""

import kiln
import kiln.cute as cute
from kiln import Float32

THREADS = 64
VECTOR = 4
"""Elements of 16 bytes."""


@cute.kernel
def fused_kernel(x: cute.Tensor, y: cute.Tensor, a: Float32, b: Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    # TODO: load and store vector i if it is whole, and what is left of y element by element
    # (the larger of v and 0: cute.where(v > 0, v, 0) of a vector, kiln.max(v, 0.0) of a number)
    if (i + 1) * VECTOR <= cute.size(y):
        v = cute.local_tile(x, (VECTOR,), (i,)).load() * a + b
        cute.local_tile(y, (VECTOR,), (i,)).store(cute.where(v > 0, v, 0))
    else:
        for k in range(i * VECTOR, cute.size(y)):
            y[k] = kiln.max(x[k] * a + b, 0.0)
    # END


@cute.jit
def fused(x: cute.Tensor, y: cute.Tensor, a: Float32, b: Float32):
    blocks = cute.ceil_div(cute.size(y), THREADS * VECTOR)
    fused_kernel(x, y, a, b).launch(grid=blocks, block=THREADS)
