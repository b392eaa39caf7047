"""A warp feeds a ring of two buffers by bulk copies that bring their bytes to an mbarrier; another warp reads them."""

import numpy as np

from kiln import Float32, Int32, Int64, cute
from kiln.dialects import nvgpu

WARP = 32
STAGES = 2
TILES = 6
BYTES = WARP * 4


@cute.jit
def bulk_load(target, source, bytes_, mbarrier):
    nvgpu.async_copy.bulk_load(target.ir_value(), source.ir_value(), Int32(bytes_).ir_value(), mbarrier.ir_value())


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    memory = cute.arch.alloc_smem(Float32, STAGES * WARP, 128)
    buffers = cute.make_tensor(memory, cute.make_layout((WARP, STAGES)))
    full = cute.arch.alloc_smem(Int64, STAGES)
    empty = cute.arch.alloc_smem(Int64, STAGES)
    if t == 0:
        for stage in range(STAGES):
            cute.arch.mbarrier_init(full + stage, 1)
            cute.arch.mbarrier_init(empty + stage, WARP)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 0:
        if lane == 0:
            for tile in range(TILES):
                stage = tile % STAGES
                cute.arch.mbarrier_wait(empty + stage, (tile // STAGES % 2) ^ 1)
                cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
                bulk_load(memory + stage * WARP, x.iterator + tile * WARP, BYTES, full + stage)
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
    memory = np.zeros(TILES * WARP + 4, np.float32)
    x = memory[(-memory.ctypes.data // 4) % 4 :][: TILES * WARP]  # bulk copies need 16-byte addresses
    x[:] = np.random.default_rng(6).integers(0, 100, TILES * WARP)
    y = np.zeros(WARP, np.float32)
    main(x, y)
    return np.array_equal(y, x.reshape(TILES, -1).sum(0)[::-1])
