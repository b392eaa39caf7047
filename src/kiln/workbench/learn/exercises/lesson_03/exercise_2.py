"""Exercise 2 of lesson 3: add up the elements of each block by a tree in shared memory."""

import kiln
import kiln.cute as cute
from kiln import Float32, utils

THREADS = 128


@cute.kernel
def block_totals_kernel(x: cute.Tensor, out: cute.Tensor):
    """out[block] is the sum of THREADS elements of x. The length of x is a multiple of THREADS."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    shared = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS))
    shared[thread] = x[block * THREADS + thread]
    # TODO: for step = 64, 32, ... 1: threads below `step` add the element `step` further on; thread 0 writes the sum
    for k in kiln.range_constexpr(THREADS.bit_length() - 1):
        step = THREADS >> (k + 1)
        cute.arch.sync_threads()
        if thread < step:
            shared[thread] = shared[thread] + shared[thread + step]
    if thread == 0:
        out[block] = shared[0]
    # END


@cute.jit
def block_totals(x: cute.Tensor, out: cute.Tensor):
    block_totals_kernel(x, out).launch(grid=cute.size(x) // THREADS, block=THREADS)
