"""Each block turns its part of an array around through shared memory."""

import numpy as np

from kiln import Float32, cute

THREADS = 96


@cute.kernel
def reverse(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, THREADS), cute.make_layout(THREADS))
    staged[t] = x[block * THREADS + t]
    cute.arch.sync_threads()
    y[block * THREADS + t] = staged[THREADS - 1 - t]


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    reverse(x, y).launch(grid=2, block=THREADS)


def run():
    x = np.arange(2 * THREADS, dtype=np.float32)
    y = np.zeros_like(x)
    main(x, y)
    return np.array_equal(y.reshape(2, -1), x.reshape(2, -1)[:, ::-1])
