"""Exercise 2 of lesson 2: a polynomial whose coefficients are compiled into the program."""

import kiln.cute as cute
from kiln import Constexpr, Float32

THREADS = 64


@cute.kernel
def polynomial_kernel(x: cute.Tensor, y: cute.Tensor, coefficients: Constexpr[tuple[float, ...]]):
    """y = c0 + c1 x + c2 x^2 + ... of each element; `coefficients` are (c0, c1, c2, ...), a tuple of Python."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(y):
        result = Float32(0)
        # TODO: go through the tuple from its end, result = result * x[i] + c; Python unrolls it, so no loop is left
        for c in reversed(coefficients):
            result = result * x[i] + c
        # END
        y[i] = result


@cute.jit
def polynomial(x: cute.Tensor, y: cute.Tensor, coefficients: Constexpr[tuple[float, ...]]):
    blocks = cute.ceil_div(cute.size(y), THREADS)
    polynomial_kernel(x, y, coefficients).launch(grid=blocks, block=THREADS)
