"""A block of a cluster pushes rows into the other block's shared memory and arrives at its mbarrier; it answers likewise."""

import numpy as np

from kiln import Float32, Int64, cute

WARP = 32
ROUNDS = 4


@cute.kernel
def pushes(x: cute.Tensor, y: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    memory = cute.arch.alloc_smem(Float32, WARP)
    row = cute.make_tensor(memory, cute.make_layout(WARP))
    full = cute.arch.alloc_smem(Int64, 1)
    empty = cute.arch.alloc_smem(Int64, 1)
    if lane == 0:
        cute.arch.mbarrier_init(full, WARP)
        cute.arch.mbarrier_init(empty, WARP)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if rank == 0:
        theirs = cute.make_tensor(cute.arch.map_dsmem_ptr(memory, 1), cute.make_layout(WARP))
        for i in range(ROUNDS):
            cute.arch.mbarrier_wait(empty, (i % 2) ^ 1)
            theirs[lane] = x[i, lane]
            cute.arch.mbarrier_arrive(full, 1)
    else:
        for i in range(ROUNDS):
            cute.arch.mbarrier_wait(full, i % 2)
            y[i, lane] = row[WARP - 1 - lane]
            cute.arch.mbarrier_arrive(empty, 0)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    pushes(x, y).launch(grid=2, block=WARP, cluster=(2, 1, 1))


def run():
    x = np.random.default_rng(9).integers(0, 100, (ROUNDS, WARP)).astype(np.float32)
    y = np.zeros_like(x)
    main(x, y)
    return np.array_equal(y, x[:, ::-1])
