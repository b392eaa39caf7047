"""Exercise 1 of lesson 3: each block reverses its part of an array in shared memory. It races: fix it."""

import kiln.cute as cute
from kiln import Float32, utils

THREADS = 64


@cute.kernel
def reverse_kernel(x: cute.Tensor):
    """Reverse each run of THREADS elements of x in place. The length of x is a multiple of THREADS."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS))
    # TODO: fix it
    #: shared[thread] = x[block * THREADS + thread]
    #: x[block * THREADS + thread] = shared[THREADS - 1 - thread]
    shared[thread] = x[block * THREADS + thread]
    cute.arch.sync_threads()
    x[block * THREADS + thread] = shared[THREADS - 1 - thread]
    # END


@cute.jit
def reverse(x: cute.Tensor):
    reverse_kernel(x).launch(grid=cute.size(x) // THREADS, block=THREADS)
