"""Pipelines and their states are derived from: frozen dataclasses with more fields, states that advance otherwise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import kiln
from kiln import Int32, cute, pipeline
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync, tcgen05
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@pytest.fixture
def _blackwell(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")


class Jumping(pipeline.PipelineState):
    def jump(self, count):
        self._count += Int32(count)
        reached = self._index + Int32(count)
        self._phase ^= reached // self.stages
        self._index = reached % self.stages

    def __new_from_mlir_values__(self, values):
        return Jumping(self.stages, Int32(values[0]), Int32(values[1]), Int32(values[2]))


class Plain(pipeline.PipelineState):
    """A class without protocols of its own stays what it is."""


@pytest.mark.parametrize("stages", [3, 4])
def test_states(stages):
    @cute.kernel
    def kernel(out: cute.Tensor, n: Int32):
        state, plain = Jumping(stages, Int32(0), Int32(0), Int32(0)), Plain(stages, 0, 0, 0)
        whole = pipeline.PipelineState(stages, 0, 0, 0)
        for _ in range(n):
            state.jump(1)
            plain.advance()
            whole._index, whole._phase = whole._index + 0, whole._phase ^ 1
        assert type(plain) is Plain and type(state) is Jumping
        absent = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 0)
        assert absent.stages == 0
        bare = pipeline.PipelineState(stages=0, count=Int32(0), index=n, phase=n & 1)
        out[0], out[1], out[2] = state.index, state.phase, state.count
        out[3], out[4], out[5] = plain.index, plain.phase, plain.count
        out[6], out[7], out[8] = bare.index, bare.phase, whole.phase

    @cute.jit
    def f(out: cute.Tensor, n: Int32):
        kernel(out, n).launch(grid=1, block=1)

    out = np.zeros(9, np.int32)
    f(from_dlpack(out), 5)
    place = [5 % stages, 5 // stages & 1, 5]
    assert out.tolist() == [*place, *place, 5, 1, 1]


@dataclasses.dataclass(frozen=True)
class Mine(pipeline.PipelineAsync):
    peers: int

    @staticmethod
    def make(storage, stages):
        side = (pipeline.PipelineOp.AsyncThread, pipeline.CooperativeGroup(pipeline.Agent.Thread, 32))
        full = pipeline.PipelineAsync._make_sync_object(storage, stages, side, name="mine", phase="full")
        empty = pipeline.PipelineAsync._make_sync_object(storage + stages, stages, side)
        return Mine(full, empty, stages, None, None, 2)


def test_a_pipeline_with_one_more_field():
    assert [f.name for f in dataclasses.fields(Mine)] == [
        "sync_object_full", "sync_object_empty", "num_stages", "producer_mask", "consumer_mask", "peers",
    ]  # fmt: skip

    @cute.kernel
    def kernel(out: cute.Tensor, n: Int32):
        pipe = Mine.make(kiln.utils.SmemAllocator().allocate_array(kiln.Int64, 4), 2)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
        for _ in range(n):  # it crosses the loop's region
            pipe.producer_acquire(state)
            state.advance()
            assert type(pipe) is Mine and pipe.peers == 2
        out[0] = state.count

    @cute.jit
    def f(out: cute.Tensor, n: Int32):
        kernel(out, n).launch(grid=1, block=32)

    out = np.zeros(1, np.int32)
    f(from_dlpack(out), 2)
    assert out[0] == 2


@pytest.mark.usefixtures("_blackwell")
def test_mbarriers_that_a_program_makes_itself():
    """Each kind of arrival completes phases of an array whose constructor initialises the mbarriers."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        thread = arch.thread_idx()[0]
        smem = kiln.utils.SmemAllocator()
        storage, shared = (
            smem.allocate_array(kiln.Int64, 4),
            smem.allocate_tensor(kiln.Float32, cute.make_layout(128), 16),
        )
        one, threads = (pipeline.CooperativeGroup(pipeline.Agent.Thread, n) for n in (1, 32))
        mma = pipeline.MbarrierArray(storage, num_stages=1, agent=(pipeline.PipelineOp.TCGen05Mma, one))
        copied = pipeline.MbarrierArray(
            barrier_storage=storage + 1, num_stages=2, agent=(pipeline.PipelineOp.AsyncThread, threads)
        )
        bytes_too = pipeline.MbarrierArray(storage + 3, 1, (pipeline.PipelineOp.TmaLoad, one), tx_count=16)
        assert (mma.arrive_count, copied.arrive_count, bytes_too.tx_count) == (1, 32, 16)
        pipeline.pipeline_init_wait()
        for phase in range(2):
            mma.arrive(0, None, tcgen05.CtaGroup.ONE)
            mma.wait(0, phase)
        mma.arrive_tcgen05mma(0)
        mma.wait(0, 0)
        copy = cute.make_copy_atom(cpasync.CopyG2SOp(), kiln.Float32, num_bits_per_copy=128)
        mine = cute.make_layout(4)
        cute.copy(
            copy, cute.make_tensor(x.iterator + 4 * thread, mine), cute.make_tensor(shared.iterator + 4 * thread, mine)
        )
        copied.arrive_cp_async_mbarrier(1)
        copied.wait(1, 0)
        copied.recast_to_new_op_type(pipeline.PipelineOp.AsyncLoad).arrive(1)
        copied.wait(1, 1)
        copied.arrive_mbarrier(0)
        copied.wait(0, 0)
        for i in range(4):
            out[thread + 32 * i] = shared[127 - thread - 32 * i]

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        kernel(x, out).launch(grid=1, block=32)

    memory = np.zeros((2, 128 + 4), np.float32)
    x, out = (row[(-row.ctypes.data // 4) % 4 :][:128] for row in memory)
    x[:] = np.arange(128)
    with kiln.sanitize():
        f(from_dlpack(x, assumed_align=16), from_dlpack(out, assumed_align=16))
    np.testing.assert_array_equal(out, x[::-1])


def test_arrays_of_mbarriers_refuse_other_agents():
    @cute.kernel
    def kernel(case: kiln.Constexpr):
        storage, group = arch.alloc_smem(kiln.Int64, 1), pipeline.CooperativeGroup(pipeline.Agent.Thread)
        if kiln.const_expr(case == 0):
            pipeline.MbarrierArray(storage, 1, (pipeline.PipelineOp.TmaStore, group))
        else:
            pipeline.MbarrierArray(storage, 1, (pipeline.PipelineOp.AsyncThread, group)).arrive_and_drop()

    @cute.jit
    def f(case: kiln.Constexpr):
        kernel(case).launch(grid=1, block=32)

    for case, says in enumerate(("TmaStore arrive at no mbarrier", "MbarrierArray cannot drop an agent")):
        with pytest.raises(kiln.DSLUserCodeError, match=says):
            f(case)


FIELDS = {
    "PipelineCpAsync": "",
    "PipelineTmaAsync": "is_signaling_thread",
    "PipelineClcFetchAsync": "is_signaling_thread",
    "PipelineTmaUmma": "is_leader_cta cta_group",
    "PipelineUmmaAsync": "cta_group",
    "PipelineAsyncUmma": "cta_group",
    "PipelineTmaStore": "",
}


def test_a_field_of_a_derived_pipeline_may_be_required():
    inherited = [f.name for f in dataclasses.fields(pipeline.PipelineAsync)]
    for name, own in FIELDS.items():
        derived = dataclasses.make_dataclass("Mine", [("extra", int)], bases=(getattr(pipeline, name),), frozen=True)
        assert [f.name for f in dataclasses.fields(derived)] == [*inherited, *own.split(), "extra"]
    both = dataclasses.fields(pipeline.PipelineTmaMultiConsumersAsync)
    assert [f.name for f in both if f.default is dataclasses.MISSING][len(inherited) :] == [
        "is_leader_cta", "sync_object_empty_umma", "sync_object_empty_async", "cta_group",
    ]  # fmt: skip


TILE, TILES = 64, 6


def test_one_elected_thread_releases_for_its_warp():
    """The barrier of the warp is the program's then: the release has none of its own, at which 31 threads would be missed."""

    @cute.kernel
    def kernel(atom: cute.CopyAtom, places: cute.Tensor, out: cute.Tensor):
        thread, warp = arch.thread_idx()[0], arch.make_warp_uniform(arch.warp_idx())
        smem = kiln.utils.SmemAllocator()
        ring = smem.allocate_tensor(kiln.Float32, cute.make_layout((TILE, 2)), 128)
        pipe = pipeline.PipelineTmaAsync.create(
            num_stages=2, producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2), tx_count=TILE * 4,
        )  # fmt: skip
        s, g = cpasync.tma_partition(atom, 0, cute.make_layout(1), ring, cute.local_tile(places, (TILE,), (None,)))
        if warp == 0:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
            for i in range(TILES):
                pipe.producer_acquire(state)
                cute.copy(atom, g[None, i], s[None, state.index], tma_bar_ptr=pipe.producer_get_barrier(state))
                state.advance()
            pipe.producer_tail(state)
        else:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 2)
            for i in range(TILES):
                pipe.consumer_wait(state)
                out[i * TILE + thread - 32] = ring[thread - 32, state.index] + 1
                arch.sync_warp()
                with arch.elect_one():
                    pipe.consumer_release(state)
                state.advance()

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        atom, places = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), x, cute.make_layout((TILE,)), (TILE,)
        )
        kernel(atom, places, out).launch(grid=1, block=96)

    memory = np.zeros((2, TILE * TILES + 4), np.float32)
    x, out = (row[(-row.ctypes.data // 4) % 4 :][: TILE * TILES] for row in memory)
    x[:] = np.arange(TILE * TILES)
    f(from_dlpack(x, assumed_align=16), from_dlpack(out, assumed_align=16))
    np.testing.assert_array_equal(out, x + 1)


class Mixin:
    pass


@pytest.mark.parametrize(
    "base",
    [
        pipeline.PipelineAsync, pipeline.PipelineAsyncUmma, pipeline.PipelineClcFetchAsync, pipeline.PipelineCpAsync,
        pipeline.PipelineOrder, pipeline.PipelineState, pipeline.PipelineTmaAsync,
        pipeline.PipelineTmaMultiConsumersAsync, pipeline.PipelineTmaStore, pipeline.PipelineTmaUmma,
        pipeline.PipelineUmmaAsync, pipeline.NamedBarrier,
    ],
)  # fmt: skip
def test_a_pipeline_becomes_one_of_a_class_with_a_mixin(base):
    derived = type("Derived", (Mixin, base), {})
    made = object.__new__(base)
    object.__setattr__(made, "__class__", derived)
    assert type(made) is derived
