"""A warp that produces tiles and one that consumes them, through a ring of buffers with mbarriers."""

import numpy as np

from kiln import Float32, Int64, cute

WARP = 32
STAGES = 2
TILES = 6


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    buffers = cute.make_tensor(cute.arch.alloc_smem(Float32, STAGES * WARP), cute.make_layout((WARP, STAGES)))
    full = cute.arch.alloc_smem(Int64, STAGES)
    empty = cute.arch.alloc_smem(Int64, STAGES)
    if t == 0:
        for stage in range(STAGES):
            cute.arch.mbarrier_init(full + stage, WARP)
            cute.arch.mbarrier_init(empty + stage, WARP)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        for tile in range(TILES):
            stage = tile % STAGES
            cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
            buffers[lane, stage] = x[tile * WARP + lane]
            cute.arch.mbarrier_arrive(full + stage)
    else:
        total = Float32(0.0)
        for tile in range(TILES):
            stage = tile % STAGES
            cute.arch.mbarrier_wait(full + stage, tile // STAGES % 2)
            total += buffers[WARP - 1 - lane, stage]
            cute.arch.mbarrier_arrive(empty + stage)
        y[lane] = total


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=2 * WARP)


def run():
    x = np.random.default_rng(4).integers(0, 100, TILES * WARP).astype(np.float32)
    y = np.zeros(WARP, np.float32)
    main(x, y)
    return np.array_equal(y, x.reshape(TILES, -1).sum(0)[::-1])
