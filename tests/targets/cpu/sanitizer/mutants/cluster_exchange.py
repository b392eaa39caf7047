"""Two blocks of a cluster read each other's shared memory, twice."""

import numpy as np

from kiln import Float32, cute, range_constexpr

THREADS = 32


@cute.kernel
def exchange(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    mine = cute.arch.alloc_smem(Float32, THREADS)
    here = cute.make_tensor(mine, cute.make_layout(THREADS))
    there = cute.make_tensor(cute.arch.map_dsmem_ptr(mine, rank ^ 1), cute.make_layout(THREADS))
    for i in range_constexpr(2):
        here[t] = x[block, i, t]
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        y[block, i, t] = there[THREADS - 1 - t]
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    exchange(x, y).launch(grid=4, block=THREADS, cluster=2)


def run():
    x = np.arange(4 * 2 * THREADS, dtype=np.float32).reshape(4, 2, THREADS)
    y = np.zeros_like(x)
    main(x, y)
    return np.array_equal(y, x.reshape(2, 2, 2, THREADS)[:, ::-1, :, ::-1].reshape(4, 2, THREADS))
