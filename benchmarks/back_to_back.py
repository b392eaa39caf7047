"""Sustained timing: calls alternate, each back to back, with clock, power and temperature. For the benchmarks here."""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kiln.hardware import driver, nvml

if TYPE_CHECKING:
    from collections.abc import Callable

_GRAPH = 10.0
"""Milliseconds of calls that are launched at once."""


class Work(NamedTuple):
    """A call, made on the current stream, and its multiplications and additions."""

    call: Callable[[], Any]
    flops: float


class Seen(NamedTuple):
    """Microseconds of a call, and clock, power and temperature while it ran. Watts come from NVML's energy counter."""

    us: float
    mhz: float
    watts: float
    celsius: float
    reasons: int
    """Why the clock was no higher, as NVML's bits: 0x4 is the power limit."""


class Turns:
    """A call as a CUDA graph of many, and its measurements, one per round."""

    def __init__(self, work: Work) -> None:
        self.work = work  # kept: the graph reads its arrays
        self.flops, self.seen = work.flops, list[Seen]()
        self.gpu = nvml.Gpu(driver.uuid(driver.current_device()))
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                work.call()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work.call()
            end.record()
            end.synchronize()
            self.calls = max(1, min(4000, round(_GRAPH / max(0.002, begin.elapsed_time(end)))))
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                for _ in range(self.calls):
                    work.call()

    def run(self, seconds: float) -> None:
        """Run for some seconds, of which the last half counts."""
        begun, events, first = time.perf_counter(), list[Any](), 0
        energy, readings = list[tuple[float, float]](), list[nvml.Reading]()
        with torch.cuda.stream(self.stream):
            while (now := time.perf_counter() - begun) < seconds or len(events) < first + 3:
                self.graph.replay()
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                events.append(event)
                late = now >= seconds / 2
                first = first if late else len(events)
                if late:
                    readings.append(self.gpu.reading())
                while len(events) > 2 and not events[-3].query():  # two graphs are always under way
                    if late:
                        energy.append((time.perf_counter(), self.gpu.joules() or 0.0))
                    time.sleep(5e-4)
            torch.cuda.synchronize()
        us = events[first].elapsed_time(events[-1]) * 1e3 / (self.calls * (len(events) - 1 - first))
        steps = [b for a, b in itertools.pairwise(energy) if a[1] != b[1]]  # of the counter
        watts = (steps[-1][1] - steps[0][1]) / (steps[-1][0] - steps[0][0]) if len(steps) > 1 else 0.0
        mhz, celsius = (statistics.median(getattr(x, name) or 0 for x in readings) for name in ("sm_mhz", "celsius"))
        self.seen.append(Seen(us, mhz, watts, celsius, functools.reduce(int.__or__, (x.reasons for x in readings))))

    @property
    def middle(self) -> Seen:
        """Return the medians of the rounds."""
        us, mhz, watts, celsius = (statistics.median(x[i] for x in self.seen) for i in range(4))
        return Seen(us, mhz, watts, celsius, functools.reduce(int.__or__, (x.reasons for x in self.seen)))

    @property
    def speed(self) -> float:
        """TFLOP/s."""
        return self.flops / self.middle.us * 1e-6

    @property
    def spread(self) -> tuple[float, float]:
        """Return TFLOP/s of the slowest and of the fastest round."""
        times = [x.us for x in self.seen]
        return self.flops / max(times) * 1e-6, self.flops / min(times) * 1e-6


def in_turns(works: dict[str, Work], rounds: int, seconds: float) -> dict[str, Turns]:
    """Run all works one after the other without a pause, `rounds` times; every other round backwards."""
    found = {name: Turns(work) for name, work in works.items()}
    for number in range(rounds):
        for name in list(works)[:: 1 if number % 2 == 0 else -1]:
            found[name].run(seconds)
    return found
