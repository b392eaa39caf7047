"""A pipeline with a producer's and a consumer's side: two warps add what a third one puts into two buffers."""

import numpy as np

from kiln import Int32, cute, pipeline, utils

WARP = 32
STAGES = 2
ROUNDS = 6


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    buffers = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout((WARP, STAGES)), 16)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * WARP)
    pipe = pipeline.PipelineAsync.create(num_stages=STAGES, producer_group=filling, consumer_group=reading)
    producer, consumer = pipe.make_participants()
    if warp == 0:
        for i in range(Int32(ROUNDS)):
            handle = producer.acquire_and_advance()
            buffers[lane, handle.index] = x[i, lane]
            handle.commit()
        producer.tail()
    else:
        total = Int32(0)
        for _ in range(Int32(ROUNDS)):
            handle = consumer.wait_and_advance()
            total += buffers[(lane + warp) % WARP, handle.index]
            handle.release()
        y[warp - 1, lane] = total


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=3 * WARP)


def run():
    x = np.random.default_rng(7).integers(0, 100, (ROUNDS, WARP)).astype(np.int32)
    y = np.zeros((2, WARP), np.int32)
    main(x, y)
    total = x.sum(0)
    return np.array_equal(y, np.stack([np.roll(total, -1), np.roll(total, -2)]))
