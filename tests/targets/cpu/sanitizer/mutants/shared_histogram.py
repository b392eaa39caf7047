"""A histogram by atomic updates of shared memory, then of global memory."""

import numpy as np

from kiln import Int32, cute

THREADS = 64
BINS = 16


@cute.kernel
def histogram(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    counts = cute.make_tensor(cute.arch.alloc_smem(Int32, BINS), cute.make_layout(BINS))
    if t < BINS:
        counts[t] = Int32(0)
    cute.arch.sync_threads()
    cute.arch.atomic_add(counts.iterator + x[block, t], Int32(1))
    cute.arch.sync_threads()
    if t < BINS:
        cute.arch.atomic_add(y.iterator + t, counts[t])


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    histogram(x, y).launch(grid=3, block=THREADS)


def run():
    x = np.random.default_rng(7).integers(0, BINS, (3, THREADS)).astype(np.int32)
    y = np.zeros(BINS, np.int32)
    main(x, y)
    return np.array_equal(y, np.bincount(x.ravel(), minlength=BINS))
