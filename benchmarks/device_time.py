"""Times of a GPU alone, and data to time it with, for the benchmarks beside this file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def device_us(call: Callable[[], object], calls: int = 10, replays: int = 7, pause: float = 0.0) -> float:
    """Microseconds of a call on the device: the least of some replays of a CUDA graph of calls, each after a pause."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    best = float("inf")
    for _ in range(replays):
        time.sleep(pause)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / calls)
    return best


def refuse_constants(*data: torch.Tensor) -> None:
    """Constant data runs faster than any other, and proves nothing."""
    for x in data:
        if x.float().std() < 0.1:
            raise SystemExit("the data of a benchmark is constant")
