"""One warp hands values to another through one buffer; named barriers say that it is full and that it is free."""

import numpy as np

from kiln import Float32, cute

WARP = 32
ROUNDS = 4
FULL, FREE = 1, 2


@cute.kernel
def handoff(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    buffer = cute.make_tensor(cute.arch.alloc_smem(Float32, WARP), cute.make_layout(WARP))
    if warp == 0:
        for i in range(ROUNDS):
            cute.arch.barrier(barrier_id=FREE, number_of_threads=64)
            buffer[lane] = x[i * WARP + lane]
            cute.arch.barrier_arrive(barrier_id=FULL, number_of_threads=64)
    else:
        for i in range(ROUNDS):
            cute.arch.barrier_arrive(barrier_id=FREE, number_of_threads=64)
            cute.arch.barrier(barrier_id=FULL, number_of_threads=64)
            y[i * WARP + lane] = buffer[WARP - 1 - lane]


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    handoff(x, y).launch(grid=1, block=2 * WARP)


def run():
    x = np.arange(ROUNDS * WARP, dtype=np.float32)
    y = np.zeros_like(x)
    main(x, y)
    return np.array_equal(y.reshape(ROUNDS, -1), x.reshape(ROUNDS, -1)[:, ::-1])
