"""One warp hands work tiles to the others."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Int32, cute, pipeline, range_constexpr, utils
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack

FIELDS = 3


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("by_state", [False, True])
def test_consumers_see_every_tile_in_order(stages: int, by_state: bool) -> None:
    @cute.kernel
    def kernel(out: cute.Tensor, count: Int32):
        smem = utils.SmemAllocator()
        broadcast = pipeline.WorkBroadcast.create(smem, FIELDS, consumer_warps=2, num_stages=stages)
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        sender, receiver = broadcast.pipe.make_participants()
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, stages)
            for i in range(count):
                fields = (i, 10 * i, 7 - i)
                if by_state:
                    broadcast.send_at(state, fields)
                    state.advance()
                else:
                    broadcast.send(sender, fields)
            if by_state:
                broadcast.send_at(state, (Int32(-1),))
            else:
                broadcast.send(sender, (Int32(-1),))
        else:
            stage = receiver.wait_and_advance()
            number = broadcast.read(stage.index, (0,))[0]
            while number >= 0:
                fields = broadcast.read(stage.index)
                for field in range_constexpr(FIELDS):
                    out[number, field, arch.thread_idx()[0] - 32] = fields[field]
                stage.release()
                stage = receiver.wait_and_advance()
                number = broadcast.read(stage.index, (0,))[0]

    @cute.jit
    def run(out: cute.Tensor, count: Int32):
        kernel(out, count).launch(grid=1, block=96)

    out = np.zeros((5, FIELDS, 64), np.int32)
    with kiln.target("cpu"):
        run(from_dlpack(out), Int32(5))
    numbers = np.arange(5)
    expected = np.stack([numbers, 10 * numbers, 7 - numbers], axis=1)
    np.testing.assert_array_equal(out, np.repeat(expected[:, :, None], 64, axis=2))
