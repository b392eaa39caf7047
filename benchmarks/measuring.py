"""Accuracy of timing on a GPU: the floor of an event, which flush empties L2, when the clock falls.

    python benchmarks/measuring.py

docs/explain/measuring.md has the answers that `kiln.measure` is built on.
"""

from __future__ import annotations

import itertools
import statistics
import time

import torch

from kiln.hardware import driver
from kiln.measure.timers import GpuTimer


def median(times: list[float]) -> float:
    return statistics.median(times)


def floors(timer: GpuTimer) -> None:
    """An empty kernel between two events; and what a kernel adds to a graph without events."""
    print("\n| empty kernel | us |\n|---|---|")
    for l2 in ("cold", "warm"):
        print(f"| graph, L2 {l2} | {timer.floor(l2):.3f} |")
    with timer.side_stream() as stream:
        for events in (False, True):
            spent = []
            for count in (100, 400):
                pairs = [(driver.Event(), driver.Event()) for _ in range(count)]

                def work(pairs=pairs, events=events, stream=stream):
                    for start, end in pairs:
                        if events:
                            start.record_in_graph(stream)
                        timer.kernels.empty(stream)
                        if events:
                            end.record_in_graph(stream)

                graph, start, end = driver.captured(stream, work), driver.Event(), driver.Event()
                own = []
                for _ in range(9):
                    start.record(stream)
                    graph()
                    end.record(stream)
                    own.append(end.microseconds_since(start))
                spent.append(median(own))
            print(f"| one more in a graph{', with two events' if events else ''} | {(spent[1] - spent[0]) / 300:.3f} |")
    stream = timer.stream()
    own = []
    for _ in range(50):
        timer.kernels.spin(100.0, stream)
        start, end = driver.Event(), driver.Event()
        start.record(stream)
        timer.kernels.empty(stream)
        end.record(stream)
        own.append(end.microseconds_since(start))
    print(f"| stream held back | {median(own):.3f} |")
    steps = sorted({round(x * 1e3) for x in own})
    print(f"steps of the clock, ns: {sorted({b - a for a, b in itertools.pairwise(steps)})[:6]}")


def flushes(timer: GpuTimer) -> None:
    """A row of accesses that wait for each other, after flushes of several kinds."""
    l2 = timer.flush_bytes // 2
    block = timer.kernels.BLOCK_BYTES
    memory = driver.Memory(8 * l2 + block)
    target = driver.Memory(timer.kernels.LINES * timer.kernels.LINE_BYTES)
    copied = [driver.Memory(16 << 20) for _ in range(2)]

    def reading(times: float):
        return lambda stream: timer.kernels.flush(memory.address, int(times * l2) // block * block, stream)

    def writing(times: float):
        data = torch.empty(int(times * l2), dtype=torch.uint8, device="cuda")
        return lambda stream: data.zero_()

    ways = {
        "none": None,
        **{f"read {x} x L2": reading(x) for x in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 8)},
        "write 2 x L2": writing(2),
    }
    print(
        f"\nL2 {l2 >> 20} MiB\n| flush | {timer.kernels.LINES} accesses, us | the worst run | copy of 16 MiB, us |\n"
        "|---|---|---|---|"
    )
    for name, flush in ways.items():
        cells = []
        for call in (
            lambda stream: timer.kernels.probe(target.address, stream),
            lambda stream: timer.kernels.copy(copied[0].address, copied[1].address, 16 << 20, stream),
        ):
            found = []
            with timer.side_stream() as stream:
                for _ in range(20):
                    timer.kernels.spin(200.0, stream)
                    call(stream)
                    if flush is not None:
                        flush(stream)
                    start, end = driver.Event(), driver.Event()
                    start.record(stream)
                    call(stream)
                    end.record(stream)
                    found.append(end.microseconds_since(start))
            cells.append((median(found), min(found)))
        print(f"| {name} | {cells[0][0]:.2f} | {cells[0][1]:.2f} | {cells[1][0]:.2f} |")


def clocks(timer: GpuTimer) -> None:
    """Measure GEMMs back to back after a second of idleness: time, clock and power by time since the start."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    read = timer.watch()._read
    torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    for idle in (1.0, 0.2, 0.02, 0.005):
        # as bursts: 5 ms of work, then idleness
        own = []
        for _ in range(12):
            time.sleep(idle)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(3):
                torch.mm(a, b, out=out)
            end.record()
            torch.cuda.synchronize()
            own.append(start.elapsed_time(end) / 3 * 1e3)
        said = read() if read else None
        print(
            f"bursts of 3 after {idle * 1e3:.0f} ms: median {median(own):.0f} us, "
            f"first {own[0]:.0f}, last {own[-1]:.0f}; {said}"
        )
    time.sleep(1.0)
    marks, events = [], [torch.cuda.Event(enable_timing=True)]
    begun = time.perf_counter()
    events[0].record()
    while time.perf_counter() - begun < 2.5:
        for _ in range(2):
            torch.mm(a, b, out=out)
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > 4:
            events[-3].synchronize()
        if read and len(marks) < (time.perf_counter() - begun) / 0.02:
            said = read()
            marks.append((time.perf_counter() - begun, said.sm_mhz, said.watts, said.reasons))
    torch.cuda.synchronize()
    at = [events[0].elapsed_time(event) for event in events]
    print("\n| ms since the start | us of a GEMM |\n|---|---|")
    for edge in (3, 6, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 500, 800, 1200, 1800, 2400):
        near = [(y - x) / 2 * 1e3 for x, y in itertools.pairwise(at) if 0.8 * edge <= y <= 1.2 * edge]
        if near:
            print(f"| {edge} | {median(near):.0f} |")
    print(
        "NVML:",
        "; ".join(f"{t * 1e3:.0f} ms {mhz} MHz {watts:.0f} W {reasons:#x}" for t, mhz, watts, reasons in marks[::5]),
    )


if __name__ == "__main__":
    timer = GpuTimer.of_current_device()
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "NVML" if timer.watch()._read else "no NVML")
    floors(timer)
    flushes(timer)
    clocks(timer)
