"""A warp has the copy engine fill a ring of buffers: the pipeline counts the bytes."""

import numpy as np

from kiln import Float32, Int32, Int64, cute, pipeline, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

WARP = 32
STAGES = 3
ROUNDS = 7
BYTES = WARP * 4


@cute.kernel
def ring(x: cute.Tensor, y: cute.Tensor):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    smem = utils.SmemAllocator()
    buffers = smem.allocate_tensor(Float32, cute.make_layout((WARP, STAGES)), 128)
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, 2)  # a thread of each of two warps
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, tx_count=BYTES, barrier_storage=barriers
    )
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
    if warp == 0:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
        for i in range(Int32(ROUNDS)):
            pipe.producer_acquire(state)
            with cute.arch.elect_one():
                cute.copy(atom, x[None, i], buffers[None, state.index], mbar_ptr=pipe.producer_get_barrier(state))
            pipe.producer_commit(state)
            state.advance()
        pipe.producer_tail(state)
    else:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for i in range(Int32(ROUNDS)):
            pipe.consumer_wait(state)
            y[lane, i, warp - 1] = buffers[WARP - 1 - lane, state.index]
            pipe.consumer_release(state)
            state.advance()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    ring(x, y).launch(grid=1, block=3 * WARP)


def run():
    memory = np.zeros(ROUNDS * WARP + 4, np.float32)
    x = memory[(-memory.ctypes.data // 4) % 4 :][: ROUNDS * WARP].reshape(ROUNDS, WARP)
    x[:] = np.random.default_rng(6).integers(0, 100, x.shape)
    y = np.zeros((2, ROUNDS, WARP), np.float32)
    main(from_dlpack(x.T, assumed_align=16), from_dlpack(y.T))
    return np.array_equal(y, np.stack([x[:, ::-1]] * 2))
