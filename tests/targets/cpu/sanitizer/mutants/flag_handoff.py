"""A block hands data to another one through a flag in global memory, stored with release and awaited with acquire."""

import numpy as np

from kiln import Int32, cute

THREADS = 64


@cute.kernel
def handoff(x: cute.Tensor, data: cute.Tensor, flag: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if block == 0:
        data[t] = x[t] + 1.0
        cute.arch.sync_threads()
        if t == 0:
            cute.arch.store(flag.iterator, Int32(1), sem="release", scope="gpu")
    else:
        if t == 0:
            seen = Int32(0)
            while seen == 0:
                seen = cute.arch.load(flag.iterator, Int32, sem="acquire", scope="gpu")
        cute.arch.sync_threads()
        y[t] = data[t]


@cute.jit
def main(x: cute.Tensor, data: cute.Tensor, flag: cute.Tensor, y: cute.Tensor):
    handoff(x, data, flag, y).launch(grid=2, block=THREADS)


def run():
    x = np.arange(THREADS, dtype=np.float32)
    data, flag, y = np.zeros_like(x), np.zeros(1, np.int32), np.zeros_like(x)
    main(x, data, flag, y)
    return np.array_equal(y, x + 1)
