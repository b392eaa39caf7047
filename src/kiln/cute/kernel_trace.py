"""Traces of kernels: `KernelTrace` lets compilers mark what kernels do, keeps what they record, and reads it.

with KernelTrace("waits", blocks=range(8)) as trace:
    main(x, y)
launches = trace.traces()
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import statistics
from typing import TYPE_CHECKING

from ..base_dsl import kernel_trace
from ..base_dsl.kernel_trace import LEVELS, REGION, Request
from ..base_dsl.ranges import range_constexpr
from ..base_dsl.target import get_target
from ..base_dsl.typing import Int32
from ..hardware import driver
from ..measure.trace_causes import add_causes
from .kernel_ranges import add_mark
from .kernel_records import read_kernel
from .program.dsl import DSL

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..base_dsl.kernel_trace import TracedKernel
    from ..measure.trace_format import Trace

__all__ = ["LEVELS", "KernelTrace", "MarkCost", "mark_cost"]

_NOWHERE = 1 << 20
"""The address that kernels get which are compiled where there is no GPU to run them."""


class KernelTrace(Request):
    """Records kernels that are called while it is open: they are compiled anew. The memory lives as long as this object.

    `level` is what is marked: `ranges` are what programs mark, `waits` also what threads wait for, `all` also
    arrivals, copies and MMAs. `blocks` are the numbers of the CTAs that are recorded, `marks` the most marks that are
    kept of a warp, and `lane` is the lane that makes them, by default the one that the hardware elects.
    """

    def __init__(
        self,
        level: str = "waits",
        blocks: range | tuple[int, ...] = range(8),
        marks: int = 4096,
        lane: int | None = None,
        shared_bytes: int = 2048,
    ) -> None:
        super().__init__(level, tuple(blocks), marks, lane, shared_bytes)
        self.on_host: bool = get_target().on_host
        self._host: list[ctypes.Array[ctypes.c_char]] = []
        self._device: list[int] = []
        self.cost: float | None = None
        """Cycles that a mark takes, if that was measured."""

    def __enter__(self) -> Self:
        kernel_trace.open_(self)
        return self

    def __exit__(self, *_: object) -> None:
        kernel_trace.close()

    def __del__(self) -> None:
        for address in self.__dict__.get("_device", ()):
            with contextlib.suppress(Exception):  # the driver may have gone before
                driver.function("cuMemFree_v2")(ctypes.c_uint64(address))

    def allocate(self, size: int) -> int:
        if self.on_host:
            memory = ctypes.create_string_buffer(size + REGION)
            self._host.append(memory)
            return -(-ctypes.addressof(memory) // REGION) * REGION
        if not driver.available():
            return _NOWHERE
        driver.ensure_context()
        address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        driver.clear_memory(address.value, size)
        self._device.append(address.value)
        return address.value

    def traces(self) -> list[Trace]:
        """Return what was recorded: the last launch of each kernel, with what let waits go on."""
        device = "" if self.on_host or not driver.available() else driver.device_name(driver.current_device())
        traces: list[Trace] = []
        for kernel in self.kernels:
            trace = read_kernel(kernel, self._read(kernel), self.on_host)
            if trace is not None:
                trace.device = device
                trace.mark_cycles = self.cost
                trace.launch = len(traces)
                add_causes(trace)
                traces.append(trace)
        return traces

    def _read(self, kernel: TracedKernel) -> bytes:
        size = REGION + len(kernel.blocks) * kernel.layout.warps * kernel.layout.warp_bytes
        if self.on_host:
            return ctypes.string_at(kernel.layout.address, size)
        driver.call("cuCtxSynchronize")
        return driver.read_memory(kernel.layout.address, size)


@dataclasses.dataclass(frozen=True)
class MarkCost:
    """Cycles that a mark takes the warp that makes it, from marks that follow each other."""

    straight: float
    """Of a mark after another in straight code."""
    full: float
    """Of one that looks whether there is room for more, as the last of a loop's body does, with the loop."""
    moving: float
    """Of moving a chunk of marks to global memory, divided by its marks; 0 where they go there one by one."""

    @property
    def of_a_wait(self) -> float:
        """What marks add to a wait in a loop: half of them look for room."""
        return (self.straight + self.full) / 2 + self.moving

    def __str__(self) -> str:
        each = f"{self.straight:.1f} cycles, {self.full:.1f} at the end of a loop's body"
        return f"{each}, {self.moving:.1f} for moving it to global memory"


_ROUNDS = 128
_STRAIGHT = 8


@DSL.kernel
def _marks_kernel(rounds: Int32) -> None:
    for _round in range(rounds):
        for _ in range_constexpr(_STRAIGHT):
            add_mark("mark", "moment")


@DSL.jit
def _marks(rounds: Int32) -> None:
    _marks_kernel(rounds).launch(grid=1, block=32)


def mark_cost(in_shared_memory: bool = True) -> MarkCost:
    """Measure what marks cost on the current GPU."""
    shared = 2048 if in_shared_memory else 0
    with KernelTrace("ranges", (0,), _ROUNDS * _STRAIGHT * 2, shared_bytes=shared) as trace:
        for _ in range(3):  # the first launch loads the code
            _marks(_ROUNDS)
    (result,) = trace.traces()
    marks = [event.begin for event in result.events if event.kind == "mark"]
    moves = [event for event in result.events if event.kind == "range"]
    straight: list[float] = []
    full: list[float] = []
    for number, (earlier, later) in enumerate(itertools.pairwise(marks)):
        if any(earlier <= move.begin <= later for move in moves):
            continue
        (straight if (number + 1) % _STRAIGHT else full).append(later - earlier)
    moving = statistics.median(move.end - move.begin for move in moves) if moves else 0.0
    entries = trace.kernels[0].layout.entries
    return MarkCost(statistics.median(straight), statistics.median(full), moving / entries)
