"""Exercise 2 of lesson 6: the largest element of each row, a block of 128 threads for each row, one barrier or two."""

import kiln
import kiln.cute as cute
from kiln import Float32, utils

THREADS = 128


@cute.kernel
def row_max_kernel(x: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    lane = cute.arch.lane_idx()
    partial = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout(THREADS // 32))
    largest = -Float32.inf
    for column in range(thread, x.shape[1], THREADS):
        largest = kiln.max(largest, x[row, column])
    # TODO: reduce over the warp, put one number of each warp into `partial`, and let thread 0 write the largest
    largest = cute.arch.warp_reduction_max(largest)
    if lane == 0:
        partial[warp] = largest
    cute.arch.sync_threads()
    if thread == 0:
        for k in kiln.range_constexpr(THREADS // 32):
            largest = kiln.max(largest, partial[k])
        out[row] = largest
    # END


@cute.jit
def row_max(x: cute.Tensor, out: cute.Tensor):
    row_max_kernel(x, out).launch(grid=x.shape[0], block=THREADS)
