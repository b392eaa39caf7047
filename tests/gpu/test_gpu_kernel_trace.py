"""Traces on a GPU: results stay, times are those of the kernel, waits end with what they wait for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kiln import Int32, cute, kernels
from kiln.cute.experimental import iket
from kiln.cute.kernel_trace import KernelTrace, mark_cost
from kiln.hardware import driver
from kiln.measure.trace_format import dumps, loads

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "hopper"
LATE = 20_000


@cute.kernel
def _late(x: cute.Tensor):
    """Let warp 1 come to two barriers 20,000 cycles after warp 0."""
    shared = cute.make_tensor(cute.arch.alloc_smem(Int32, 64), cute.make_layout(64))
    thread, _, _ = cute.arch.thread_idx()
    for _ in range(Int32(4)):
        if cute.arch.warp_idx() == 1:
            with cute.testing.range("sleep"):
                start = cute.arch.clock64()
                while cute.arch.clock64() - start < LATE:
                    pass
        shared[thread] = thread
        cute.arch.sync_threads()
        x[thread] = shared[63 - thread]
        cute.arch.barrier(barrier_id=1, number_of_threads=64)


@cute.jit
def late(x: cute.Tensor):
    _late(x).launch(grid=2, block=64)


@cute.kernel
def _counted(rounds: Int32):
    for i in range(rounds):
        iket.range_push("round", i)
        iket.range_pop()


@cute.jit
def counted(rounds: Int32):
    _counted(rounds).launch(grid=300, block=64)


def kept(trace):
    (again,) = loads(dumps([trace]))
    assert again == trace
    return trace


@pytest.mark.parametrize("shared", [2048, 0])
def test_a_warp_waits_until_the_last_one_comes(shared):
    x = torch.zeros(64, dtype=torch.int32, device="cuda")
    with KernelTrace("waits", blocks=(1,), shared_bytes=shared) as recorded:
        late(x)
        (trace,) = recorded.traces()
    assert x.tolist() == list(reversed(range(64)))
    kept(trace)
    waits = [event for event in trace.on(0) if event.kind == "wait" and event.args["barrier"] == 0]
    others = [event for event in trace.on(1) if event.kind == "wait" and event.args["barrier"] == 0]
    assert len(waits) == len(others) == 4
    for wait, other in zip(waits, others, strict=True):
        assert LATE - 1000 < wait.end - wait.begin < LATE + 3000
        assert other.end - other.begin < 1000
        assert wait.end >= other.begin
    sleeps = [event for event in trace.on(1) if event.name == "sleep"]
    assert all(LATE <= event.end - event.begin < LATE + 1000 for event in sleeps)
    sources = {trace.events[edge.target].track: trace.events[edge.source].track for edge in trace.edges}
    assert sources[0] == 1


@pytest.mark.parametrize("shared", [2048, 0])
def test_many_marks_of_chosen_ctas_come_in_order(shared):
    with KernelTrace("ranges", blocks=(0, 131, 299), marks=6000, shared_bytes=shared) as recorded:
        counted(Int32(1700))
        (trace,) = recorded.traces()
    kept(trace)
    assert {track.block for track in trace.tracks} == {0, 131, 299} and len(trace.tracks) == 6 and not trace.lost
    for track in range(6):
        rounds = [event for event in trace.on(track) if event.name == "round"]
        assert [event.args["payload"] for event in rounds] == list(range(1700))
        assert all(0 <= event.end - event.begin < 10_000 for event in rounds)
    moves = [event for event in trace.events if event.name == "marks to global memory"]
    assert bool(moves) == bool(shared)


def test_marks_that_find_no_room_are_counted():
    with KernelTrace("ranges", blocks=(0,), marks=300) as recorded:
        counted(Int32(1000))
        (trace,) = recorded.traces()
    rounds = [event for event in trace.on(0) if event.name == "round"]
    assert [event.args["payload"] for event in rounds] == list(range(len(rounds)))
    assert trace.lost > 2 * 3 * 500 and len(rounds) >= 100


def test_times_of_warps_are_the_kernels():
    before = torch.cuda.Event(enable_timing=True)
    after = torch.cuda.Event(enable_timing=True)
    x = torch.zeros(64, dtype=torch.int32, device="cuda")
    with KernelTrace("ranges") as recorded:
        late(x)
        before.record()
        late(x)
        after.record()
        (trace,) = recorded.traces()
    assert trace.clock_mhz is not None
    longest = max(event.end - event.begin for event in trace.events if event.kind == "run") / trace.clock_mhz
    assert 4 * LATE / trace.clock_mhz <= longest <= before.elapsed_time(after) * 1000
    assert "the last of 2 launches" in trace.notes[0]


def test_a_mark_costs_cycles_and_no_memory_access():
    cost = mark_cost()
    assert 0 < cost.straight and 0 < cost.full and 0 <= cost.moving
    assert 0 < mark_cost(in_shared_memory=False).straight


@pytest.mark.parametrize("level", ["waits", "all"])
def test_kernels_compute_the_same_under_a_trace(level, monkeypatch):
    if driver.capability() != (9, 0):
        pytest.skip("the kernels are for sm_90a")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import step_4_roles

    a, b = (torch.randn(1024, 1024, device="cuda").half() for _ in range(2))
    q, k, v = (torch.randn(1, 1024, 4, 64, device="cuda").half() for _ in range(3))

    def example():
        c = torch.empty(1024, 1024, device="cuda", dtype=torch.float16)
        step_4_roles.gemm(a, b, c)
        return c

    for call in (example, lambda: kernels.gemm(a, b), lambda: kernels.flash_attention(q, k, v, causal=True)):
        expected = call()
        with KernelTrace(level) as recorded:
            assert torch.equal(call(), expected)
            for trace in recorded.traces():
                kept(trace)
                runs = {event.track: event for event in trace.events if event.kind == "run"}
                assert runs and not trace.lost
                for event in trace.events:
                    if event.track in runs:
                        run = runs[event.track]
                        assert run.begin <= event.begin <= event.end <= run.end
        assert torch.equal(call(), expected)
    sys.modules.pop("step_4_roles", None)
