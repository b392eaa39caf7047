"""Threads write buffers that one of them has the copy engine store, the next while the last is still read."""

import numpy as np

from kiln import Float32, Int32, cute, pipeline, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

THREADS = 64
STAGES = 2
ROUNDS = 5


@cute.kernel
def stores(x: cute.Tensor, y: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    buffers = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((THREADS, STAGES)), 128)
    atom = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32)
    written = pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS)
    pipe = pipeline.PipelineTmaStore.create(num_stages=STAGES)
    for i in range(Int32(ROUNDS)):
        buffers[thread, i % STAGES] = x[thread, i] * 2.0
        cute.arch.fence_view_async_shared()
        written.arrive_and_wait()
        if thread == 0:
            cute.copy(atom, buffers[None, i % STAGES], y[None, i])
            pipe.producer_commit()
            pipe.producer_acquire()
        written.arrive_and_wait()
    if thread == 0:
        pipe.producer_tail()
    written.arrive_and_wait()
    buffers[thread, (ROUNDS - 1) % STAGES] = 0.0  # the memory is used for something else


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    stores(x, y).launch(grid=1, block=THREADS)


def run():
    x = np.arange(ROUNDS * THREADS, dtype=np.float32).reshape(ROUNDS, THREADS)
    memory = np.zeros(x.size + 4, np.float32)
    y = memory[(-memory.ctypes.data // 4) % 4 :][: x.size].reshape(x.shape)
    main(from_dlpack(x.T), from_dlpack(y.T, assumed_align=16))
    return np.array_equal(y, 2 * x)
