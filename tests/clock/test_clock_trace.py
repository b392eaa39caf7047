"""Predictions as traces: the same tracks, names and edges as marks in the kernel give."""

from __future__ import annotations

import dataclasses

from made_traces import gemm, prediction

from kiln.clock import known
from kiln.clock.trace import trace_of
from kiln.hardware.architectures import Arch
from kiln.measure.trace_format import dumps, loads, to_chrome


def test_a_prediction_has_the_tracks_and_names_of_a_measured_trace():
    measured, predicted = gemm(source="measured"), trace_of(prediction())
    assert (predicted.kernel, predicted.source, predicted.unit) == ("gemm_kernel", "predicted", "cycles")
    assert {(each.key, each.role) for each in predicted.tracks} == {(each.key, each.role) for each in measured.tracks}

    def seen(trace):
        return sorted(
            (trace.tracks[each.track].key, each.name, each.kind, each.line, each.begin, each.end)
            for each in trace.events
            if each.kind != "run"
        )

    assert seen(predicted) == seen(measured)
    assert len(predicted.edges) == len({each.target for each in measured.edges})
    assert loads(dumps([predicted])) == [predicted] and predicted.notes == ["not calibrated: TMA stores"]
    processes = [each["args"]["name"] for each in to_chrome([measured, predicted])["traceEvents"] if each["name"] == "process_name"]  # fmt: skip
    assert processes == ["gemm_kernel: block 0 (measured)", "gemm_kernel: block 0 (predicted)"]


def test_each_warp_has_its_life():
    trace = trace_of(prediction())
    runs = [(trace.tracks[each.track].name, each.name) for each in trace.events if each.kind == "run"]
    assert runs == [("warp 0 (producer)", "warp"), *((f"warp {n} (consumer)", "warp") for n in range(4, 8))]


def test_a_warp_that_loads_and_multiplies_has_no_role():
    own = [each for each in prediction().slices if not each.engine]
    slices = tuple(dataclasses.replace(each, warp=1, cause=None) for each in own)
    (track,) = trace_of(prediction(slices=slices)).tracks
    assert (track.warp, track.role) == (1, "")


def test_versions_name_the_units_and_depend_on_them(monkeypatch):
    version = known.version("H200")
    assert "H200 2" in version and version == known.version("H200")
    own = known.units.of("H200")
    changed = dataclasses.replace(own, quantities=dict(list(own.quantities.items())[1:]))
    monkeypatch.setattr(known.units, "of", lambda device: changed)
    assert known.version.__wrapped__("H200") != version


def test_the_clock_knows_an_h200_and_no_gpu_of_ampere():
    assert known.device_of(Arch.sm_90a) == "H200" and known.device_of(Arch.sm_80) is None
