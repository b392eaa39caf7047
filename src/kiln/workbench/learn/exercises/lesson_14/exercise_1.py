"""Exercise 1 of lesson 14: the contract of a kernel, for `kiln verify`, `bench`, `tune` and `profile`."""

import numpy as np

import kiln.cute as cute

THREADS = 128


@cute.kernel
def axpy_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(out):
        out[i] = 2 * x[i] + y[i]


@cute.jit
def axpy(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
    axpy_kernel(x, y, out).launch(grid=cute.ceil_div(cute.size(out), THREADS), block=THREADS)


def kernel_fn(x, y):
    out = np.empty_like(x)
    axpy(x, y, out)
    return out


def reference_fn(x, y):
    """Return what the kernel should compute, in plain numpy."""
    # TODO: the same in numpy
    result = 2 * x + y
    # END
    return result


def get_inputs(n: int = 4096):
    """Return the arguments of kernel_fn: two arrays of n random float32 numbers."""
    # TODO: random numbers, not zeros: np.random.default_rng(0).standard_normal(n, np.float32)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(n, np.float32), rng.standard_normal(n, np.float32)]
    # END
    return inputs


def flops_bytes(n: int) -> tuple[int, int]:
    """Return the floating-point operations and the bytes that the kernel must move for n elements."""
    # TODO: a multiplication and an addition; two arrays in, one out
    operations = 2 * n
    moved = 3 * n * 4
    # END
    return operations, moved
