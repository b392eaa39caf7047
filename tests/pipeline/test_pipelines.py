"""Pipelines on the CPU target: data arrive in order through any number of buffers, by every way to wait."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

ROUNDS = 7


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def group(threads: int) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, threads)


def run(kernel, x: np.ndarray, threads: int = 64) -> np.ndarray:
    out = np.zeros_like(x)

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        kernel(x, out).launch(grid=(1, 1, 1), block=(threads, 1, 1))

    f(from_dlpack(x, assumed_align=16), from_dlpack(out, assumed_align=16))
    return out


def sample() -> np.ndarray:
    return np.arange(ROUNDS * 32, dtype=np.int32).reshape(ROUNDS, 32)


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_participants(stages):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Int32, cute.make_layout((stages, 32)), 16)
        producer, consumer = pipeline.PipelineAsync.create(
            num_stages=stages, producer_group=group(32), consumer_group=group(32)
        ).make_participants()
        if warp == 0:
            for i in range(kiln.Int32(ROUNDS)):
                handle = producer.acquire_and_advance()
                ring[handle.index, lane] = x[i, lane]
                handle.commit()
            producer.tail()
        else:
            for i in range(kiln.Int32(ROUNDS)):
                handle = consumer.wait_and_advance()
                out[handle.count, lane] = ring[handle.index, 31 - lane]
                handle.release()

    np.testing.assert_array_equal(run(kernel, sample()), sample()[:, ::-1])


@pytest.mark.parametrize("stages", [1, 3])
def test_states_and_tokens(stages):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        smem = kiln.utils.SmemAllocator()
        barriers = smem.allocate_array(kiln.Int64, 2 * stages)
        ring = smem.allocate_tensor(kiln.Int32, cute.make_layout((stages, 32)), 16)
        pipe = pipeline.PipelineAsync.create(
            num_stages=stages,
            producer_group=group(32),
            consumer_group=group(32),
            barrier_storage=barriers,
            defer_sync=True,
        )
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        if warp == 0:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, stages)
            for i in range(kiln.Int32(ROUNDS)):
                token = pipe.producer_try_acquire(state)
                pipe.producer_acquire(state, token)
                ring[state.index, lane] = x[i, lane]
                pipe.producer_commit(state)
                state.advance()
            pipe.producer_tail(state)
        else:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, stages)
            for _ in range(kiln.Int32(ROUNDS)):
                token = pipe.consumer_try_wait(state)
                pipe.consumer_wait(state, token)
                out[state.count, lane] = ring[state.index, 31 - lane]
                pipe.consumer_release(state)
                state.advance()

    np.testing.assert_array_equal(run(kernel, sample()), sample()[:, ::-1])


def test_asynchronous_copies_fill_the_buffers():
    stages = 3

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        smem = kiln.utils.SmemAllocator()
        ring = smem.allocate_tensor(kiln.Int32, cute.make_layout((32, stages)), 16)
        pipe = pipeline.PipelineCpAsync.create(
            num_stages=stages,
            producer_group=group(32),
            consumer_group=group(32),
            barrier_storage=smem.allocate_array(kiln.Int64, 2 * stages),
        )
        producer, consumer = pipe.make_participants()
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), kiln.Int32, num_bits_per_copy=32)
        if warp == 0:
            for i in range(kiln.Int32(ROUNDS)):
                handle = producer.acquire_and_advance()
                source, place = cute.local_tile(x[i, None], (1,), (lane,)), ring[None, handle.index]
                cute.copy(atom, source, cute.local_tile(place, (1,), (lane,)))
                handle.commit()
            producer.tail()
        else:
            for i in range(kiln.Int32(ROUNDS)):
                handle = consumer.wait_and_advance()
                out[i, lane] = ring[31 - lane, handle.index]
                handle.release()

    np.testing.assert_array_equal(run(kernel, sample()), sample()[:, ::-1])


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
def test_states_go_round(stages):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        if arch.thread_idx()[0] == 0:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, stages)
            for i in range(kiln.Int32(8)):
                out[0, i] = state.count * 100 + state.index * 10 + state.phase
                state.advance()
            state.reverse()
            copy = state.clone()
            copy.advance(5)
            copy.reset_count()
            out[1, 0] = state.count * 100 + state.index * 10 + state.phase
            out[1, 1] = copy.count * 100 + copy.index * 10 + copy.phase
            given = pipeline.PipelineState(stages, 7, x[0, stages - 1], x[0, 1])
            given.advance(x[0, 4])
            out[1, 2] = given.count * 100 + given.index * 10 + given.phase

    out = run(kernel, sample(), 32)
    expected = [100 * i + 10 * (i % stages) + (1 - i // stages % 2) for i in range(8)]
    assert list(out[0, :8]) == expected
    assert out[1, 0] == expected[7]
    assert out[1, 1] == 10 * (12 % stages) + (1 - 12 // stages % 2)
    assert out[1, 2] == 1100 + 10 * ((stages + 3) % stages) + (1 - (stages + 3) // stages % 2)


def test_groups_take_turns():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        counter = kiln.utils.SmemAllocator().allocate_tensor(kiln.Int32, cute.make_layout(1), 16)
        counter[0] = 0
        order = pipeline.PipelineOrder.create(depth=1, length=2, group_id=warp, producer_group=group(32))
        for i in range(kiln.Int32(3)):
            order.wait()
            if lane == 0:
                out[0, counter[0]] = warp * 10 + i
                counter[0] = counter[0] + 1
            arch.sync_warp()
            order.arrive()

    out = run(kernel, sample())
    assert list(out[0, :6]) == [0, 10, 1, 11, 2, 12]


def test_named_barriers():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        data = kiln.utils.SmemAllocator().allocate_tensor(kiln.Int32, cute.make_layout(32), 16)
        barrier = pipeline.NamedBarrier(barrier_id=3, num_threads=64)
        if warp == 0:
            data[lane] = x[0, lane]
            barrier.arrive()
        else:
            barrier.arrive_and_wait()
            out[0, lane] = data[31 - lane]

    np.testing.assert_array_equal(run(kernel, sample())[0], sample()[0, ::-1])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, -1),
            "num_stages of a pipeline is -1",
        ),
        (lambda: pipeline.make_pipeline_state(cast("Any", "producer"), 2), "PipelineUserType"),
        (lambda: pipeline.NamedBarrier(16, 32), "0 to 15"),
        (
            lambda: pipeline.CooperativeGroup(pipeline.Agent.ThreadBlock, 1),
            "agent of a CooperativeGroup is 'ThreadBlock'",
        ),
        (lambda: pipeline.CooperativeGroup(pipeline.Agent.Thread, 0), "0 threads"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused(make, says):
    with pytest.raises(Exception, match=says):
        make()
