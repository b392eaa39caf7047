"""A pipeline with states: one warp fills three buffers in turn, another one reads each backwards."""

import numpy as np

from kiln import Int32, Int64, cute, pipeline, utils

WARP = 32
STAGES = 3
ROUNDS = 7


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    smem = utils.SmemAllocator()
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    buffers = smem.allocate_tensor(Int32, cute.make_layout((STAGES, WARP)), 16)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    pipe = pipeline.PipelineAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, barrier_storage=barriers, defer_sync=True
    )
    pipeline.pipeline_init_arrive()
    pipeline.pipeline_init_wait()
    if warp == 0:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for i in range(Int32(ROUNDS)):
            token = pipe.producer_try_acquire(state)
            pipe.producer_acquire(state, token)
            buffers[state.index, lane] = x[i, lane]
            pipe.producer_commit(state)
            state.advance()
        pipe.producer_tail(state)
    else:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for i in range(Int32(ROUNDS)):
            pipe.consumer_wait(state)
            y[i, lane] = buffers[state.index, 31 - lane]
            pipe.consumer_release(state)
            state.advance()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=2 * WARP)


def run():
    x = np.arange(ROUNDS * WARP, dtype=np.int32).reshape(ROUNDS, WARP)
    y = np.zeros_like(x)
    main(x, y)
    return np.array_equal(y, x[:, ::-1])
