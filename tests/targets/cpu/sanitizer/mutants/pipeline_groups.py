"""All threads of a block fill a ring of buffers with asynchronous copies, and use it, in groups that are counted."""

import numpy as np

from kiln import Int32, cute, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

THREADS = 64
STAGES = 3
ROUNDS = 7


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    thread = cute.arch.thread_idx()[0]
    buffers = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout((THREADS, STAGES)), 16)
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=32)
    producer, consumer = pipeline.PipelineCpAsyncGroups.create(num_stages=STAGES).make_participants()
    source, target = cute.local_tile(x, (1, ROUNDS), (thread, 0)), cute.local_tile(buffers, (1, STAGES), (thread, 0))
    for i in range_constexpr(STAGES - 1):
        buffer = producer.acquire_and_advance()
        cute.copy(atom, source[None, i], target[None, buffer.index])
        buffer.commit()
    for i in range(Int32(ROUNDS)):
        buffer = consumer.wait_and_advance()
        if i + STAGES - 1 < ROUNDS:
            cute.copy(atom, source[None, i + STAGES - 1], target[None, producer.current_handle().index])
        producer.commit()
        producer.advance()
        y[thread, i] = buffers[THREADS - 1 - thread, buffer.index]
    producer.tail()
    cute.arch.sync_threads()
    buffers[thread, 0] = y[thread, 0]  # the memory is used for something else


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=THREADS)


def run():
    x = np.arange(ROUNDS * THREADS, dtype=np.int32).reshape(ROUNDS, THREADS)
    y = np.zeros_like(x)
    main(from_dlpack(x.T), from_dlpack(y.T))
    return np.array_equal(y, x[:, ::-1])
