"""The sum of an array: a tree of barriers in each block, its last steps by one warp, and two rounds in the same memory."""

import numpy as np

from kiln import Float32, cute, range_constexpr

THREADS = 128


@cute.kernel
def reduce(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    sums = cute.make_tensor(cute.arch.alloc_smem(Float32, THREADS), cute.make_layout(THREADS))
    for half in range_constexpr(2):
        sums[t] = x[half * THREADS + t]
        cute.arch.sync_threads()
        if t < 64:
            sums[t] = sums[t] + sums[t + 64]
        cute.arch.sync_threads()
        if t < 32:
            sums[t] = sums[t] + sums[t + 32]
            cute.arch.sync_warp()
            for step in range_constexpr(5):
                distance = 16 >> step
                value = sums[t] + sums[(t + distance) % 32]
                cute.arch.sync_warp()
                sums[t] = value
                cute.arch.sync_warp()
        cute.arch.sync_threads()
        if t == 0:
            y[half] = sums[0]
        cute.arch.sync_threads()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    reduce(x, y).launch(grid=1, block=THREADS)


def run():
    x = np.random.default_rng(1).integers(0, 100, 2 * THREADS).astype(np.float32)
    y = np.zeros(2, np.float32)
    main(x, y)
    return np.array_equal(y, x.reshape(2, -1).sum(1))
