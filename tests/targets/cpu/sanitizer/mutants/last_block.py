"""Blocks leave partial sums in global memory; the one that comes last, by an atomic counter, adds them up."""

import numpy as np

from kiln import Float32, Int32, cute

THREADS = 64
BLOCKS = 5


@cute.kernel
def total(x: cute.Tensor, partial: cute.Tensor, counter: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    is_last = cute.make_tensor(cute.arch.alloc_smem(Int32, 1), cute.make_layout(1))
    partial[block, t] = x[block, t] * 2.0
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.fence_acq_rel_gpu()
        before = cute.arch.atomic_add(counter.iterator, Int32(1))
        cute.arch.fence_acq_rel_gpu()
        is_last[0] = Int32(0)
        if before == BLOCKS - 1:
            is_last[0] = Int32(1)
    cute.arch.sync_threads()
    if is_last[0] == 1:
        result = Float32(0.0)
        for i in range(BLOCKS):
            result += partial[i, t]
        y[t] = result


@cute.jit
def main(x: cute.Tensor, partial: cute.Tensor, counter: cute.Tensor, y: cute.Tensor):
    total(x, partial, counter, y).launch(grid=BLOCKS, block=THREADS)


def run():
    x = np.arange(BLOCKS * THREADS, dtype=np.float32).reshape(BLOCKS, THREADS)
    partial, counter, y = np.zeros_like(x), np.zeros(1, np.int32), np.zeros(THREADS, np.float32)
    main(x, partial, counter, y)
    return np.array_equal(y, 2 * x.sum(0))
