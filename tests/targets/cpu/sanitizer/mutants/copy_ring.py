"""As `mbarrier_ring`, fed by asynchronous copies that arrive at the mbarrier when they are complete."""

import numpy as np

from kiln import Float32, Int64, cute
from kiln.cute.nvgpu import cpasync

WARP = 32
STAGES = 2
TILES = 6


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    memory = cute.arch.alloc_smem(Float32, STAGES * WARP)
    buffers = cute.make_tensor(memory, cute.make_layout((1, WARP, STAGES), stride=(1, 1, WARP)))
    source = cute.make_tensor(x.iterator, cute.make_layout((1, WARP, TILES), stride=(1, 1, WARP)))
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
            cute.copy(atom, source[None, lane, tile], buffers[None, lane, stage])
            cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
    else:
        total = Float32(0.0)
        for tile in range(TILES):
            stage = tile % STAGES
            cute.arch.mbarrier_wait(full + stage, tile // STAGES % 2)
            total += buffers[0, WARP - 1 - lane, stage]
            cute.arch.mbarrier_arrive(empty + stage)
        y[lane] = total


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=2 * WARP)


def run():
    x = np.random.default_rng(5).integers(0, 100, TILES * WARP).astype(np.float32)
    y = np.zeros(WARP, np.float32)
    main(x, y)
    return np.array_equal(y, x.reshape(TILES, -1).sum(0)[::-1])
