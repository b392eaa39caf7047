"""Ranges and moments in kernels: nothing without a trace, and with one when each warp came to them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import kiln
from kiln import DSLRuntimeError, DSLUserCodeTypeError, DSLUserCodeValueError, Float32, Int32, Int64, Uint8, cute
from kiln.base_dsl import kernel_trace
from kiln.cute.experimental import iket
from kiln.cute.kernel_trace import KernelTrace


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


def ranges_of(trace, track):
    return [event for event in trace.on(track) if event.kind != "run"]


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def test_ranges_compile_to_nothing_without_a_trace():
    texts = [str(cute.compile(program(marked), data()).executable.artifacts["mlir"]) for marked in (True, False)]
    assert texts[0] == texts[1]


def test_warps_say_when_their_ranges_began_and_ended():
    x = data()
    with KernelTrace("ranges") as recorded:
        program(True)(x)
    assert (x[:, :40] == 2).all() and not x[:, 40:].any()
    (trace,) = recorded.traces()
    assert [(track.block, track.warp) for track in trace.tracks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert trace.source == "ordered" and trace.grid == (2, 1, 1) and trace.block == (40, 1, 1) and not trace.lost
    for track in range(4):
        assert [event.name for event in ranges_of(trace, track)] == ["load", "store", "wait"] * 2
        run = next(event for event in trace.on(track) if event.kind == "run")
        assert all(run.begin < event.begin < event.end < run.end for event in ranges_of(trace, track))
    load, store, wait = ranges_of(trace, 3)[:3]
    assert load.end < store.begin < wait.begin < wait.end < store.end
    assert re.fullmatch(r"test_kernel_ranges\.py:\d+", load.line)
    # The second round of one warp begins when the other has come to the barrier.
    waits = [ranges_of(trace, track)[2].begin for track in (0, 1)]
    assert all(ranges_of(trace, track)[3].begin > max(waits) for track in (0, 1))


def test_a_function_that_was_called_before_is_compiled_anew():
    main = program(True)
    main(data())
    for _ in range(2):
        with KernelTrace("ranges") as recorded:
            main(data())
            main(data())
        (trace,) = recorded.traces()
        assert len(ranges_of(trace, 0)) == 6 and trace.notes == ["the last of 2 launches of this kernel"]
    x = data()
    main(x)
    assert x[0, 0] == 2
    assert not recorded.traces()[0].events[0].args


def test_what_there_is_no_room_for_is_counted():
    with KernelTrace("ranges", marks=9) as recorded:
        program(True, rounds=3)(data())
    (trace,) = recorded.traces()
    assert trace.lost == 4 * (18 - 9)
    assert [event.name for event in ranges_of(trace, 0)] == ["load", "store", "wait", "load", "store"]
    assert ranges_of(trace, 0)[-1].args == {"ends": "not seen"}


def test_only_the_chosen_ctas_and_lane_are_recorded():
    with KernelTrace("ranges", blocks=(1,), lane=9) as recorded:
        program(True)(data())
    (trace,) = recorded.traces()
    assert [(track.block, track.warp) for track in trace.tracks] == [(1, 0)]  # warp 1 has the lanes 0 to 7


@cute.kernel
def _marked(x: cute.Tensor):
    b, _, _ = cute.arch.block_idx()
    iket.mark("start", b)
    token = iket.sentinel_token("tile")
    for i in range(Int32(3)):
        iket.range_end(token)
        token = iket.range_start("tile", i)
        iket.range_push("load", Float32(1.5))
        x[0] = x[0] + 1.0
        iket.range_push("inner")
        iket.range_pop()
        iket.range_pop()
    iket.range_end(token, 7)
    for payload in (-3, 1 << 31, 0.25, True, Uint8(200), Int64(1 << 40), Int64(-1)):
        iket.mark("payload", payload)


@cute.jit
def marked(x: cute.Tensor):
    _marked(x).launch(grid=1, block=1)


def test_marks_of_iket_are_recorded():
    with KernelTrace("ranges") as recorded:
        marked(np.zeros(1, np.float32))
    (trace,) = recorded.traces()
    events = ranges_of(trace, 0)
    assert [event.args["payload"] for event in events if event.name == "start"] == [0]
    tiles = [event for event in events if event.name == "tile"]
    assert [tile.args for tile in tiles] == [{"payload": 0}, {"payload": 1}, {"payload": 2, "payload at end": 7}]
    assert all(earlier.end < later.begin for earlier, later in zip(tiles, tiles[1:], strict=False))
    loads = [event for event in events if event.name == "load"]
    assert [load.args for load in loads] == [{"payload": 1.5}] * 3
    inner = next(event for event in events if event.name == "inner")
    assert loads[0].begin < inner.begin < inner.end < loads[0].end
    payloads = [event.args["payload"] for event in events if event.name == "payload"]
    assert payloads == [-3, -(1 << 31), 0.25, True, 200, 1 << 40, -1]


def test_misuse():
    with pytest.raises(DSLUserCodeTypeError, match=r'write range\("load"\)'), cute.testing.range(3):
        pass
    with KernelTrace("ranges"), pytest.raises(DSLRuntimeError, match="open already"):
        KernelTrace("ranges").__enter__()
    assert kernel_trace.request() is None
    with cute.testing.range("outside a kernel it is nothing"):
        pass
    for settings, says in (
        ({"level": "some"}, "'some': choose ranges, waits, all"),
        ({"blocks": ()}, "name some"),
        ({"blocks": (1, 1)}, "each once"),
        ({"marks": 2}, "at least 8"),
        ({"lane": 32}, "0 to 31"),
    ):
        with pytest.raises(DSLRuntimeError, match=says):
            KernelTrace(**settings).__enter__()
    assert kernel_trace.request() is None

    @cute.kernel
    def kernel():
        iket.mark("large", 1 << 40)

    @cute.jit
    def main():
        kernel().launch(grid=1, block=1)

    with KernelTrace("ranges"), pytest.raises(DSLUserCodeValueError, match="more than 32 bits"):
        main()
