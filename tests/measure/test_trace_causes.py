"""What follows from the records of warps: how long engines were at work, and what ended waits."""

from __future__ import annotations

import pytest

from kiln.measure.trace_causes import add_causes
from kiln.measure.trace_format import Trace


def edges_of(trace):
    return [(trace.events[edge.source].name, trace.events[edge.target].name) for edge in trace.edges]


def works_of(trace):
    return [(trace.tracks[event.track].name, event.begin, event.end) for event in trace.events if event.kind == "work"]


def test_groups_complete_in_order():
    trace = Trace("k")
    for warp in (4, 5):
        track = trace.track(0, warp)
        for begin in (0, 10, 20):
            trace.add(track, "wgmma", begin, begin + 2, kind="issue", engine="wgmma")
        trace.add(track, "wgmma_wait", 23, 40, kind="wait", engine="wgmma", left=1)
        trace.add(track, "wgmma_wait", 41, 60, kind="wait", engine="wgmma", left=0)
    add_causes(trace)
    # one row for the warpgroup, whose first warp is 4
    assert works_of(trace) == [("wgmma warp 4", 0, 40), ("wgmma warp 4", 10, 40), ("wgmma warp 4", 20, 60)]
    assert edges_of(trace) == [("wgmma", "wgmma_wait")] * 3
    trace.check()


def test_copies_are_complete_when_a_wait_at_their_mbarrier_has_ended():
    trace = Trace("k")
    producer, consumer = trace.track(0, 0), trace.track(0, 1)
    other = trace.track(1, 1)
    trace.add(consumer, "mbarrier_wait", 0, 5, kind="wait", mbarrier=8)  # of the phase before
    trace.add(producer, "tma_load", 10, 12, kind="issue", mbarrier=8, engine="bulk load")
    trace.add(producer, "tma_load", 12, 14, kind="issue", mbarrier=16, engine="bulk load")
    trace.add(consumer, "mbarrier_wait", 6, 100, kind="wait", mbarrier=8)
    trace.add(other, "mbarrier_wait", 6, 50, kind="wait", mbarrier=8)  # another CTA's
    add_causes(trace)
    assert works_of(trace) == [("bulk load", 10, 100)]  # nobody waited for the other copy
    (edge,) = trace.edges
    assert (trace.events[edge.source].kind, edge.target) == ("work", 3)


def test_operations_that_are_committed_to_an_mbarrier_end_with_a_wait_there():
    trace = Trace("k")
    mma, epilogue = trace.track(0, 0), trace.track(0, 4)
    for begin in (0, 10):
        trace.add(mma, "tcgen05_mma", begin, begin + 5, kind="issue", engine="tcgen05.mma")
    trace.add(mma, "tcgen05_commit", 16, kind="arrive", engine="tcgen05.mma", mbarrier=64)
    trace.add(mma, "tcgen05_mma", 20, 25, kind="issue", engine="tcgen05.mma")
    trace.add(mma, "cp_async", 30, 35, kind="issue", engine="cp.async")
    trace.add(mma, "cp_async_wait", 36, 50, kind="wait", engine="cp.async", left=0)
    trace.add(epilogue, "mbarrier_wait", 2, 90, kind="wait", mbarrier=64)
    add_causes(trace)
    assert works_of(trace) == [("tcgen05.mma", 0, 90), ("tcgen05.mma", 10, 90), ("cp.async", 30, 50)]
    assert trace.tracks[mma].role == ""


def test_the_last_arrival_of_another_warp_ends_a_wait():
    trace = Trace("k")
    waiting, one, two = (trace.track(0, warp) for warp in range(3))
    wait = trace.add(waiting, "mbarrier_wait", 10, 50, kind="wait", mbarrier=8)
    for track, at in ((one, 5), (one, 20), (two, 45), (two, 60), (waiting, 49)):
        trace.add(track, f"arrive {at}", at, kind="arrive", mbarrier=8)
    add_causes(trace)
    assert edges_of(trace) == [("arrive 45", "mbarrier_wait")]
    assert trace.edges[0].target == wait


def test_a_wait_for_what_was_there_has_no_cause():
    trace = Trace("k")
    trace.add(trace.track(0, 1), "mbarrier_arrive", 5, kind="arrive", mbarrier=8)
    trace.add(trace.track(0, 0), "mbarrier_wait", 10, 12, kind="wait", mbarrier=8)
    add_causes(trace)
    assert not trace.edges


def test_who_comes_last_to_a_barrier_opens_it():
    trace = Trace("k")
    tracks = [trace.track(0, warp) for warp in range(3)]
    for round_, last in ((0, 2), (100, 0)):
        for warp, track in enumerate(tracks):
            trace.add(track, f"{warp}", round_ + (30 if warp == last else warp), round_ + 40, kind="wait", barrier=1)
    trace.add(tracks[0], "alone", 200, 210, kind="wait", barrier=2)
    add_causes(trace)
    assert edges_of(trace) == [("2", "0"), ("2", "1"), ("0", "1"), ("0", "2")]


@pytest.mark.parametrize("recorded", [(0, 1), (0,)])
def test_a_cluster_waits_for_the_last_of_its_ctas(recorded):
    trace = Trace("k", grid=(4, 1, 1), cluster=(2, 1, 1))
    for block in (*recorded, 2):
        track = trace.track(block, 0)
        for start in (0, 100):
            trace.add(track, f"arrive {block}", start + 10 * block, kind="arrive", barrier="cluster")
            trace.add(track, f"wait {block}", start + 20, start + 40, kind="wait", barrier="cluster")
    add_causes(trace)
    assert edges_of(trace) == ([("arrive 1", "wait 0")] * 2 if len(recorded) == 2 else [])


def test_warps_are_called_by_what_they_do():
    trace = Trace("k")
    kinds = (("issue", "bulk load"), ("wait", "wgmma"), ("wait", "bulk store"), ("arrive", ""))
    for warp, (kind, engine) in enumerate(kinds):
        trace.add(trace.track(0, warp), "x", 0, 1, kind=kind, **({"engine": engine} if engine else {}))
    both = trace.track(0, 4)
    for name, engine in (("wgmma", "wgmma"), ("tma_load", "bulk load")):
        trace.add(both, name, 0, 1, kind="issue", engine=engine)
    add_causes(trace)
    assert [track.role for track in trace.tracks[:5]] == ["producer", "consumer", "epilogue", "", ""]


def test_barriers_that_warps_come_to_differently_often_have_no_edges():
    trace = Trace("k")
    for warp, times in ((0, 2), (1, 1)):
        track = trace.track(0, warp)
        for number in range(times):
            trace.add(track, "barrier", 10 * number + warp, 10 * number + 8, kind="wait", barrier=0)
    add_causes(trace)
    assert not trace.edges
