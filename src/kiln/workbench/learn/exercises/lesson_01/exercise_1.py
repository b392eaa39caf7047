"""Exercise 1 of lesson 1: limit every element of an array to a range."""

import kiln
import kiln.cute as cute

THREADS = 128


@cute.kernel
def clamp_kernel(x: cute.Tensor, y: cute.Tensor, low: cute.Float32, high: cute.Float32):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    # TODO: find your element, guard it, and write min(max(x[i], low), high) to y[i] (kiln.min, kiln.max)
    i = block * THREADS + thread
    if i < cute.size(y):
        y[i] = kiln.min(kiln.max(x[i], low), high)
    # END


@cute.jit
def clamp(x: cute.Tensor, y: cute.Tensor, low: cute.Float32, high: cute.Float32):
    # TODO: enough blocks for all elements of y
    blocks = cute.ceil_div(cute.size(y), THREADS)
    # END
    clamp_kernel(x, y, low, high).launch(grid=blocks, block=THREADS)
