"""Threads write a tile; one of them stores it to global memory by bulk copies, twice through the same buffer."""

import numpy as np

from kiln import Float32, Int32, cute, range_constexpr
from kiln.dialects import nvgpu

THREADS = 64
BYTES = THREADS * 4


@cute.jit
def bulk_store(target, source, bytes_):
    nvgpu.async_copy.bulk_store(target.ir_value(), source.ir_value(), Int32(bytes_).ir_value())


@cute.kernel
def stores(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, THREADS, 128)
    tile = cute.make_tensor(memory, cute.make_layout(THREADS))
    for i in range_constexpr(2):
        tile[t] = x[i * THREADS + t] * 2.0
        cute.arch.fence_view_async_shared()
        cute.arch.sync_threads()
        if t == 0:
            bulk_store(y.iterator + i * THREADS, memory, BYTES)
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.sync_threads()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    stores(x, y).launch(grid=1, block=THREADS)


def run():
    x = np.arange(2 * THREADS, dtype=np.float32)
    memory = np.zeros(2 * THREADS + 4, np.float32)
    y = memory[(-memory.ctypes.data // 4) % 4 :][: 2 * THREADS]
    main(x, y)
    return np.array_equal(y, 2 * x)
