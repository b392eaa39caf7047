"""Two warps take turns to append to a list in shared memory, then hand it to a third one by a named barrier."""

import numpy as np

from kiln import Int32, cute, pipeline, utils

WARP = 32
ROUNDS = 3


@cute.kernel
def turns(y: cute.Tensor):
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    smem = utils.SmemAllocator()
    items = smem.allocate_tensor(Int32, cute.make_layout(2 * ROUNDS), 16)
    counter = smem.allocate_tensor(Int32, cute.make_layout(1), 16)
    if warp == 0 and lane == 0:
        counter[0] = 0
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARP)
    order = pipeline.PipelineOrder.create(depth=1, length=2, group_id=warp % 2, producer_group=group)
    done = pipeline.NamedBarrier(barrier_id=3, num_threads=3 * WARP)
    if warp < 2:
        for i in range(Int32(ROUNDS)):
            order.wait()
            if lane == 0:
                items[counter[0]] = warp * 10 + i
                counter[0] = counter[0] + 1
            cute.arch.sync_warp()
            order.arrive()
        done.arrive()
    else:
        done.arrive_and_wait()
        if lane < 2 * ROUNDS:
            y[lane] = items[lane]


@cute.jit
def main(y: cute.Tensor):
    turns(y).launch(grid=1, block=3 * WARP)


def run():
    y = np.zeros(2 * ROUNDS, np.int32)
    main(y)
    return y.tolist() == [0, 10, 1, 11, 2, 12]
