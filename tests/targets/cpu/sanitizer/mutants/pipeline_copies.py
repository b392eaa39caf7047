"""A pipeline that asynchronous copies fill: they arrive at its mbarriers when they are complete."""

import numpy as np

from kiln import Int32, Int64, cute, pipeline, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

WARP = 32
STAGES = 3
ROUNDS = 7


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    smem = utils.SmemAllocator()
    buffers = smem.allocate_tensor(Int32, cute.make_layout((WARP, STAGES)), 16)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    pipe = pipeline.PipelineCpAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, barrier_storage=barriers
    )
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=32)
    if warp == 0:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for i in range(Int32(ROUNDS)):
            pipe.producer_acquire(state)
            source, place = cute.local_tile(x[i, None], (1,), (lane,)), buffers[None, state.index]
            cute.copy(atom, source, cute.local_tile(place, (1,), (lane,)))
            pipe.producer_commit(state)
            state.advance()
        pipe.producer_tail(state)
    else:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for i in range(Int32(ROUNDS)):
            pipe.consumer_wait(state)
            y[i, lane] = buffers[31 - lane, state.index]
            pipe.consumer_release(state)
            state.advance()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=2 * WARP)


def run():
    x = np.arange(ROUNDS * WARP, dtype=np.int32).reshape(ROUNDS, WARP)
    y = np.zeros_like(x)
    main(from_dlpack(x), from_dlpack(y))
    return np.array_equal(y, x[:, ::-1])
