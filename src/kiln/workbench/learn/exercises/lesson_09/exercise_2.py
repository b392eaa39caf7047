"""Exercise 2 of lesson 9: the consumer of a pipeline adds up the rows that the producer brings."""

import kiln.cute as cute
from kiln import Float32, Int64, pipeline, utils

STAGES = 2


@cute.kernel
def column_totals_kernel(x: cute.Tensor, y: cute.Tensor):
    """y[lane] = the sum of column 31 - lane of x, a matrix of 32 columns. Warp 0 loads rows, warp 1 adds them up."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = cute.arch.lane_idx()
    smem = utils.SmemAllocator()
    barriers = smem.allocate_array(Int64, 2 * STAGES)
    buffers = smem.allocate_tensor(Float32, cute.make_layout((32, STAGES)), 128)
    one_warp = pipeline.CooperativeGroup(pipeline.Agent.Thread, 32)
    producer, consumer = pipeline.PipelineAsync.create(
        num_stages=STAGES, producer_group=one_warp, consumer_group=one_warp, barrier_storage=barriers
    ).make_participants()
    if warp == 0:
        for row in range(x.shape[0]):
            stage = producer.acquire_and_advance()
            buffers[lane, stage.index] = x[row, lane]
            stage.commit()
        producer.tail()
    else:
        total = Float32(0)
        # TODO: for each row wait for a full buffer, add buffers[31 - lane, its index] to total, and give it back
        for _ in range(x.shape[0]):
            stage = consumer.wait_and_advance()
            total += buffers[31 - lane, stage.index]
            stage.release()
        # END
        y[lane] = total


@cute.jit
def column_totals(x: cute.Tensor, y: cute.Tensor):
    column_totals_kernel(x, y).launch(grid=1, block=64)
