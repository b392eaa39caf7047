"""What a trace tells: its critical path, and how full the stages of its pipelines are."""

from __future__ import annotations

import pytest
from made_traces import gemm

from kiln.measure.trace_format import Trace
from kiln.measure.trace_reading import INSTRUCTIONS, critical_path, pipelines, shares


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_steps_of_the_critical_path_are_the_whole_time(stages):
    trace = gemm(stages)
    path = critical_path(trace)
    assert path[0].begin == 0 and path[-1].end == max(event.end for event in trace.events)
    assert all(one.end == other.begin for one, other in zip(path, path[1:]))
    parts = shares(trace, path)
    assert sum(one.share for one in parts) == pytest.approx(1) and parts == sorted(parts, key=lambda one: -one.cycles)


def test_the_critical_path_says_what_a_gemm_waits_for():
    """With one stage every copy is on the path, and the MMAs after it; with many, and slow MMAs, the MMAs alone."""
    alone = {(one.what, one.where): one for one in shares(gemm(1), critical_path(gemm(1)))}
    assert alone["tma_load", "bulk load"].line == "step.py:6" and alone["tma_load", "bulk load"].cycles == 12 * 700
    many = gemm(6, steps=30, load=300, mma=900)
    largest = shares(many, critical_path(many))[0]
    assert (largest.what, largest.where, largest.line) == ("wgmma", "wgmma", "step.py:10") and largest.share > 0.85


def test_an_engine_that_is_busy_is_followed_to_the_operation_before():
    trace = Trace("k")
    warp, engine = trace.track(0, 0), trace.track(0, engine="bulk load")
    issues = [trace.add(warp, "tma_load", at, at + 10, kind="issue") for at in (0, 10)]
    first, second = (trace.add(engine, "tma_load", begin, begin + 500, kind="work") for begin in (10, 510))
    trace.link(issues[0], first)
    trace.link(issues[1], second)
    trace.link(second, trace.add(warp, "mbarrier_wait", 20, 1030, kind="wait"))
    path = critical_path(trace)
    assert [(one.what, one.end - one.begin) for one in path] == [
        ("tma_load", 10),
        ("tma_load", 500),
        ("tma_load", 500),
        ("mbarrier_wait", 20),
    ]


def test_a_tensor_core_that_two_warpgroups_share_is_one_engine():
    trace = Trace("k")
    for step in range(6):
        warp = 4 * (step % 2)
        issue = trace.add(trace.track(0, warp), "wgmma", step, step + 1, kind="issue")
        work = trace.add(trace.track(0, warp, "wgmma"), "wgmma", 10 + 100 * step, 110 + 100 * step, kind="work")
        trace.link(issue, work)
    trace.link(work, trace.add(trace.track(0, 4), "wgmma_wait", 6, 640, kind="wait"))
    path = critical_path(trace)
    assert sum(one.end - one.begin for one in path if one.what == "wgmma") == pytest.approx(601)


def test_what_a_warp_does_after_its_last_event_is_on_the_path():
    trace = gemm(2)
    warp = trace.track(0, 5)
    end = max(event.end for event in trace.events)
    trace.add(warp, "warp", 0, end + 5000, kind="run")
    last = critical_path(trace)[-1]
    assert (last.track, last.what, last.end) == (warp, INSTRUCTIONS, end + 5000) and last.end - last.begin > 5000


def test_a_trace_without_edges_or_events_has_a_path_too():
    trace = Trace("k")
    assert critical_path(trace) == [] and pipelines(trace) == []
    warp = trace.track(0, 0)
    trace.add(warp, "warp", 0, 100, kind="run")
    trace.add(warp, "barrier", 20, 60, kind="wait", line="k.py:3")
    trace.add(warp, "barrier", 80, 100, kind="wait", line="k.py:5")
    assert [(one.what, one.begin, one.end) for one in critical_path(trace)] == [
        (INSTRUCTIONS, 0, 20),
        ("barrier", 20, 60),
        (INSTRUCTIONS, 60, 80),
        ("barrier", 80, 100),
    ]


def test_a_pipeline_is_filled_needed_and_released():
    (one,) = pipelines(gemm(3))
    assert (one.block, one.lines, one.stages, len(one.fills)) == (0, ("step.py:6",), 3, 12)
    assert [each.stage for each in one.fills] == [0, 1, 2] * 4
    for each in one.fills:
        assert each.begin < each.landed <= each.released and each.needed <= each.released
    for earlier, later in zip(one.fills, one.fills[3:]):  # the stage's next fill begins after the consumer's arrival
        assert earlier.released <= later.begin - 40
    assert [each.landed - each.begin for each in one.fills[:3]] == [730, 850, 970]  # 150 cycles of the engine each


def test_more_stages_make_data_early():
    early = [pipelines(gemm(stages, steps=24, mma=300))[0] for stages in (1, 2, 4)]
    assert early[0].early < early[1].early < early[2].early
    assert early[0].late > early[1].late > early[2].late and early[0].early < 0 < early[2].early
    assert 0 <= early[0].empty < 1
