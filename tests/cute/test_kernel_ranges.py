"""Ranges inside kernels: nothing without a trace, and with one when each warp began and ended them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import kiln
from kiln import DSLRuntimeError, DSLUserCodeTypeError, cute
from kiln.cute import kernel_ranges
from kiln.cute.kernel_ranges import RangeTrace
from kiln.hardware import toolchain
from kiln.testing import dry_run


def program(marked: bool, rounds: int = 2):
    """A jit function whose kernel has ranges, or has not."""

    def region(name):
        return cute.testing.range(name) if marked else _nothing()

    @cute.kernel
    def ranged(x: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        for _ in range(rounds):
            with region("load"):
                a = x[b, t]
            with region("store"):
                x[b, t] = a + 1.0
                with region("wait"):
                    cute.arch.sync_threads()

    @cute.jit
    def launch(x: cute.Tensor):
        ranged(x).launch(grid=(2, 1, 1), block=(40, 1, 1))

    return launch


class _nothing:
    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


def data():
    return np.zeros((2, 64), np.float32)


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def test_ranges_compile_to_nothing_without_a_trace():
    texts = [str(cute.compile(program(marked), data()).executable.artifacts["mlir"]) for marked in (True, False)]
    assert texts[0] == texts[1]


def test_warps_say_when_their_ranges_began_and_ended():
    x = data()
    with RangeTrace() as trace:
        program(True)(x)
    assert (x[:, :40] == 2).all() and not x[:, 40:].any()
    events = trace.events()
    assert {(event.block, event.warp) for event in events} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    one = [event for event in events if (event.block, event.warp) == (1, 1)]
    marks = [f"{'' if event.begins else '/'}{event.name}" for event in one]
    assert marks == ["load", "/load", "store", "wait", "/wait", "/store"] * 2
    assert [event.time for event in one] == sorted(event.time for event in one)
    assert len({event.time for event in events}) == len(events) and trace.lost == 0
    # The second round of one warp begins when the other has come to the barrier.
    waits = {
        event.warp: event.time
        for event in reversed(events)
        if (event.block, event.name, event.begins) == (0, "wait", True)
    }
    assert [event.time for event in events if event.block == 0 and event.name == "load"][2] > max(waits.values())


def test_a_ring_keeps_the_last_events(monkeypatch):
    monkeypatch.setattr(kernel_ranges, "EVENTS", 4)
    with RangeTrace() as trace:
        program(True, rounds=3)(data())
    events = trace.events()
    assert len(events) == 16 and trace.lost == 4 * (18 - 4)
    assert [event.name for event in events[:4]] == ["store", "wait", "wait", "store"]


@pytest.mark.skipif(toolchain.find("ptxas") is None, reason="needs ptxas")
def test_marks_read_the_clock_of_a_gpu(monkeypatch):
    trace = RangeTrace()
    trace.on_host = False
    trace._address.value = 1 << 20
    monkeypatch.setattr(kernel_ranges, "_open", trace)
    with dry_run("sm_90a") as launches:
        program(True)(data())
    assert len(re.findall(r"%clock64", launches[0].artifacts["ptx"])) in (6, 12)


def test_misuse():
    with pytest.raises(DSLUserCodeTypeError, match=r'write range\("load"\)'), cute.testing.range(3):
        pass
    with RangeTrace(), pytest.raises(DSLRuntimeError, match="open already"):
        RangeTrace().__enter__()
    with cute.testing.range("outside a kernel it is nothing"):
        pass
