"""Timers: what is put on a stream in which order, with a stand-in for libcuda; this machine's clock; copies in turn."""

from __future__ import annotations

import gc
import types
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import hardware
from kiln.hardware import devices, driver
from kiln.measure import timers


class Cuda:
    """Notes what is put on streams; what goes to a captured stream is in its graph."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.capturing = False
        self.nodes = 0
        self.made = 0

    def launch(self, name: str, captured: bool = True) -> None:
        if self.capturing and captured:
            self.nodes += 1
        self.done.append(name)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return lambda *arguments: self.answer(name, arguments)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name in ("cuEventCreate", "cuStreamCreate", "cuMemAlloc_v2", "cuGraphInstantiateWithFlags"):
            self.made += 1
            arguments[0]._obj.value = self.made
        elif name in ("cuEventRecord", "cuEventRecordWithFlags"):
            self.launch("external" if name.endswith("Flags") else "event")
        elif name == "cuEventElapsedTime":
            arguments[0]._obj.value = 0.002
        elif name == "cuStreamBeginCapture_v2":
            self.capturing = True
        elif name == "cuStreamEndCapture":
            self.capturing = False
        elif name == "cuStreamGetCaptureInfo_v2":
            arguments[3]._obj.value = 1
        elif name == "cuGraphGetNodes":
            arguments[2]._obj.value = self.nodes
        elif name == "cuGraphLaunch":
            self.launch("graph")
        elif name == "cuCtxGetCurrent":
            arguments[0]._obj.value = 1
        return 0


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    kernels = types.SimpleNamespace(
        BLOCK_BYTES=1 << 10, LINES=4, LINE_BYTES=64,
        flush=lambda address, size, stream: found.launch(f"flush {size}"),
        empty=lambda stream: found.launch("empty"),
        probe=lambda address, stream: found.launch("probe"),
        spin=lambda us, stream: found.launch("spin"),
    )  # fmt: skip
    driver._initialized.cache_clear()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(timers, "_torch", lambda: None)
    monkeypatch.setattr(hardware, "measuring_kernels", lambda: kernels)
    monkeypatch.setattr(timers.current, "device", lambda number: devices.device_of("sm_80"))
    yield found
    gc.collect()  # events are given back to the stand-in
    driver._initialized.cache_clear()


def test_a_graph_is_flush_event_call_event(cuda):
    timer = timers.GpuTimer(0)
    batch = timer.prepare(lambda: cuda.launch("call"), 2, "cold")
    flush = f"flush {80 << 20}"
    assert batch.protocol == "graph-flush/1" and not batch.flags
    assert cuda.done[-8:] == [flush, "external", "call", "external"] * 2
    assert batch.run() == pytest.approx([2.0, 2.0]) and cuda.done[-1] == "graph"
    timer.prepare(lambda: cuda.launch("call"), 1, "warm")
    assert cuda.done[-3:] == ["external", "call", "external"]
    assert timer.floor("cold") == timer.floor("cold") == pytest.approx(2.0)
    assert timer.flags("cold") == ["flush-failed"], "accesses that take as long after a flush as without one"
    assert timer.flags("warm") == []


def test_what_no_graph_can_hold_runs_on_a_stream_held_back(cuda):
    timer = timers.GpuTimer(0)
    batch: Any = timer.prepare(lambda: cuda.launch("call", captured=False), 2, "warm")
    assert batch.protocol == "stream-warm/1" and isinstance(batch.why, timers.NotCaptured)
    assert not cuda.capturing
    cuda.done.clear()
    assert batch.run() == pytest.approx([2.0, 2.0])
    assert cuda.done == ["spin", *["event", "call", "event"] * 2]

    def refuses() -> None:
        if cuda.capturing:
            raise RuntimeError("cudaMalloc while a stream is captured")
        cuda.launch("call")

    assert timer.prepare(refuses, 1, "cold").protocol == "stream-flush/1"


def test_a_graph_without_some_of_the_launches_is_none(cuda, monkeypatch):
    """A kernel of ours on the default stream, beside one that is captured."""
    counted = [0]
    monkeypatch.setattr(driver, "launches", lambda: counted[0])

    def both(captured: bool) -> None:
        counted[0] += 2
        cuda.launch("one")
        cuda.launch("other", captured=captured)

    timer = timers.GpuTimer(0)
    assert timer.prepare(lambda: both(True), 1, "warm").protocol == "graph-warm/1"
    batch: Any = timer.prepare(lambda: both(False), 1, "warm")
    assert batch.protocol == "stream-warm/1" and "1 of 2 launches" in str(batch.why)


def test_on_the_cpu_target_it_is_the_time_on_the_wall():
    with kiln.target("cpu"):
        timer = timers.timer()
    batch = timer.prepare(lambda: None, 3, "cold")
    assert batch.protocol == "cpu-wall" and len(batch.run()) == 3 and min(batch.run()) >= 0


def test_arguments_in_turn(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_86")
    seen: list[int] = []
    call = timers.rotated(lambda a, n: seen.append(id(a)), (np.zeros(3 << 18, np.int32), 3))
    for _ in range(16):
        call()
    assert len(set(seen)) == 8 and seen[:8] == seen[8:], "6 * 3 MiB are three times 6 MiB; one more, and the first"
    with pytest.raises(kiln.DSLRuntimeError, match="needs the arrays as arguments"):
        timers.rotated(print, (3,))
