"""Traces of kernels: files keep all of a trace, and Perfetto gets slices that are nested or apart."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kiln import DSLUserCodeValueError
from kiln.measure.trace_format import FORMAT, Edge, Event, Trace, dumps, event_name, loads, to_chrome


def example(**fields) -> Trace:
    """Return a trace of two CTAs: a producer, a consumer, copies that overlap."""
    trace = Trace("gemm", grid=(2, 1, 1), block=(160, 1, 1), **fields)
    for block in range(2):
        producer = trace.track(block, 4, role="producer", sm=block + 7)
        consumer = trace.track(block, 0)
        copies = trace.track(block, engine="bulk load")
        for stage in range(3):
            trace.add(producer, "tma_load", 10 * stage, 10 * stage + 4, kind="issue", line="gemm.py:61")
            copy = trace.add(copies, "tma_load", 10 * stage + 4, 10 * stage + 90, kind="work", bytes=4096)
            wait = trace.add(consumer, "mbarrier_wait", 90 + 10 * stage, 95 + 10 * stage, kind="wait")
            trace.link(copy, wait)
        trace.add(producer, "done", 40, kind="mark", payload=7)
    return trace


def test_files_keep_everything():
    traces = [example(clock_mhz=1755.0, mark_cycles=18.5, device="NVIDIA H200", lost=3), example(source="ordered")]
    traces[1].notes.append("a note")
    text = dumps(traces)
    assert loads(text) == traces
    assert loads(text.encode()) == traces
    data = json.loads(text)
    assert data["format"] == FORMAT and [each["unit"] for each in data["launches"]] == ["cycles", "steps"]
    assert len(data["launches"][0]["sites"]) == 4


def test_a_track_is_added_once():
    trace = Trace("k")
    indices = [trace.track(0, 1), trace.track(0, 1, role="later"), trace.track(0, 1, "wgmma"), trace.track(1, 1)]
    assert indices == [0, 0, 1, 2]
    assert [track.name for track in trace.tracks] == ["warp 1", "wgmma warp 1", "warp 1"]
    trace.tracks.append(dataclasses.replace(trace.tracks[0], block=5))
    assert trace.track(5, 1) == 3


def test_events_of_a_track_are_in_order():
    trace = Trace("k")
    track = trace.track(0, 0)
    for begin, end in ((5, 6), (0, 2), (0, 9)):
        trace.add(track, f"{begin}-{end}", begin, end, kind="range")
    assert [event.name for event in trace.on(track)] == ["0-9", "0-2", "5-6"]


def slices(chrome):
    return [each for each in chrome["traceEvents"] if each["ph"] == "X"]


def test_perfetto_gets_a_thread_for_each_overlap():
    trace = example()
    shown = to_chrome([trace])
    for thread in {(each["pid"], each["tid"]) for each in slices(shown)}:
        own = [(each["ts"], each["ts"] + each["dur"]) for each in slices(shown) if (each["pid"], each["tid"]) == thread]
        for one in own:
            for other in own:
                apart = one[1] <= other[0] or other[1] <= one[0]
                nested = one[0] <= other[0] <= other[1] <= one[1] or other[0] <= one[0] <= one[1] <= other[1]
                assert apart or nested
    names = [
        each["args"]["name"] for each in shown["traceEvents"] if each["name"] == "thread_name" and each["pid"] == 0
    ]
    assert names == ["bulk load"] * 3 + ["warp 0", "warp 4 (producer)"]
    assert shown["otherData"]["unit"] == "cycles"


def test_arrows_lead_into_the_slices_they_link():
    shown = to_chrome([example(clock_mhz=2000.0)])
    ends = {phase: [each for each in shown["traceEvents"] if each["ph"] == phase] for phase in "sf"}
    assert len(ends["s"]) == len(ends["f"]) == 6
    for phase, name in (("s", "tma_load"), ("f", "mbarrier_wait")):
        for arrow in ends[phase]:
            (slice_,) = [
                each
                for each in slices(shown)
                if (each["pid"], each["tid"]) == (arrow["pid"], arrow["tid"])
                and each["ts"] <= arrow["ts"] < each["ts"] + each["dur"]
            ]
            assert slice_["name"] == name
    assert shown["otherData"]["unit"] == "microseconds"
    assert {round(2000 * each["dur"], 3) for each in slices(shown)} == {0, 4, 5, 86}


def test_two_traces_of_a_kernel_stand_side_by_side():
    shown = to_chrome([example(clock_mhz=1000.0), example(source="predicted", clock_mhz=1500.0)])
    names = {each["args"]["name"]: each["pid"] for each in shown["traceEvents"] if each["name"] == "process_name"}
    assert [names[name] for name in sorted(names)] == [0, 1, 2, 3]
    assert sorted(names)[0] == "gemm: block 0 on SM 7 (measured)"
    assert len({(each["id"], each["ph"]) for each in shown["traceEvents"] if "id" in each}) == 24


def test_names_of_events_are_those_of_operations():
    assert event_name("cute_nvgpu.mbarrier_wait") == "mbarrier_wait"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda trace: trace.events.append(Event(9, "x", 0, 1, "wait")), "event 20 .x. is on track 9 of 6"),
        (lambda trace: trace.events.append(Event(0, "x", 0, 1, "pause")), "is a 'pause'"),
        (lambda trace: trace.events.append(Event(0, "x", 5, 1, "wait")), "ends at 1, before it begins at 5"),
        (lambda trace: trace.edges.append(Edge(0, 99)), "from event 0 to 99 of 20"),
        (lambda trace: trace.tracks.append(trace.tracks[0]), "two tracks 'warp 4"),
        (lambda trace: setattr(trace, "source", "guessed"), "'guessed'"),
    ],
)
def test_bad_traces_are_refused(spoil, says):
    trace = example()
    spoil(trace)
    with pytest.raises(DSLUserCodeValueError, match=says):
        dumps([trace])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "this is no trace"),
        ("[]", "the format of this file is None"),
        ('{"format": "kiln.trace/9"}', "is 'kiln.trace/9'"),
        (f'{{"format": "{FORMAT}", "launches": [{{"kernel": "k"}}]}}', "KeyError: 'source'"),
    ],
)
def test_bad_files_are_refused(text, says):
    with pytest.raises(DSLUserCodeValueError, match=says):
        loads(text)
