"""Times calls that alternate in one CUDA graph: each after a flush of the L2 cache, or back to back on other operands.

For the benchmarks here. What a call allocates belongs to the graph.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

import torch

from kiln.hardware import driver
from kiln.measure.timers import GpuTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Call = Callable[[], Any]

_TURN_US, _TURNS = 3e4, (5, 25)
"""Microseconds of all turns of a graph, and how many there are at least and at most."""
_FLUSH_US = 40.0
_RUN_US, _RUN_CALLS = 300.0, (2, 16)
"""Microseconds of calls back to back, and how many these are."""
_FEW = 8
"""With fewer turns than this the first replay, at other clocks, does not count."""


def _bounded(value: float, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], int(value)))


def _rough_us(calls: Mapping[Any, Call], stream: int) -> dict[Any, float]:
    """Return about how long calls take; what they set up for a stream is not captured."""
    start, end, found = driver.Event(), driver.Event(), {}
    for name, call in calls.items():
        call()
        start.record(stream)
        call()
        end.record(stream)
        driver.synchronize(stream)
        found[name] = end.microseconds_since(start)
    return found


def _replayed(enqueue: Call, turns: int, events: dict[Any, list[Any]], stream: int) -> dict[Any, float]:
    """Return the median microseconds between the events of a graph, by names."""
    graph = torch.cuda.CUDAGraph()
    driver.synchronize_device()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        enqueue()
    finally:
        graph.capture_end()
    times: dict[Any, list[float]] = {name: [] for name in events}
    for replay in range(2):
        graph.replay()
        driver.synchronize(stream)
        for name, pairs in events.items() if replay or turns > _FEW else ():
            times[name] += [end.microseconds_since(start) for start, end in pairs]
    return {name: statistics.median(own) for name, own in times.items()}


def cold(calls: Mapping[Any, Call]) -> dict[Any, float]:
    """Return the median microseconds of calls, each after a flush of the L2 cache, in a new order each turn."""
    timer, events = GpuTimer.of_current_device(), {name: list[Any]() for name in calls}
    with timer.side_stream() as stream:
        timer.flush(stream)
        turns = _bounded(_TURN_US / sum(us + _FLUSH_US for us in _rough_us(calls, stream).values()), _TURNS)

        def enqueue() -> None:
            chance = random.Random(0)
            for _ in range(turns):
                for name in chance.sample(list(calls), len(calls)):
                    pair = driver.Event(), driver.Event()
                    timer.flush(stream)
                    pair[0].record_in_graph(stream)
                    calls[name]()
                    pair[1].record_in_graph(stream)
                    events[name].append(pair)

        return _replayed(enqueue, turns, events, stream)


def back_to_back(calls: Mapping[Any, Sequence[Call]]) -> dict[Any, float]:
    """Return the median microseconds of a call among others of its kind, back to back, each on its own operands."""
    timer, events = GpuTimer.of_current_device(), {name: list[Any]() for name in calls}
    with timer.side_stream() as stream:
        for own in calls.values():
            own[-1]()
        rough = _rough_us({name: own[0] for name, own in calls.items()}, stream)
        count = _bounded(_RUN_US / min(rough.values()), _RUN_CALLS)
        turns = _bounded(_TURN_US / (count + 1) / sum(rough.values()), (3, _TURNS[1]))

        def enqueue() -> None:
            chance, number = random.Random(0), 0
            for _ in range(turns):
                for name in chance.sample(list(calls), len(calls)):
                    pair = driver.Event(), driver.Event()
                    own = calls[name]
                    for i in range(count + 1):  # the first is not timed
                        own[number % len(own)]()
                        number += 1
                        if i in (0, count):
                            pair[i == count].record_in_graph(stream)
                    events[name].append(pair)

        return {name: us / count for name, us in _replayed(enqueue, turns, events, stream).items()}
