"""The units of an SM in the simulation: engines with queues, tensor cores, and sub-cores whose pipes warps share."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from .costs import SUB_CORES, Cost

if TYPE_CHECKING:
    from .sm import Sm


class Engine:
    """A unit that serves one request after another."""

    def __init__(self) -> None:
        self.free = 0.0
        self.busy = 0.0

    def serve(self, now: float, cycles: float) -> float:
        """Return when a request is served."""
        self.free = max(self.free, now) + cycles
        self.busy += cycles
        return self.free


class TensorCore(Engine):
    """The tensor core of a sub-core, which loses time to other instructions while it has MMAs to do."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Ending] = []

    def lose(self, now: float, cycles: float) -> None:
        """Let all that has not ended end later."""
        self.free += cycles
        self.pending = [one for one in self.pending if one.done > now]
        for one in self.pending:
            one.done += cycles


@dataclasses.dataclass
class Ending:
    """When asynchronous operations of a group end: their sources are read, all is done; the last one's slice."""

    read: float = 0.0
    done: float = 0.0
    cause: int | None = None


@dataclasses.dataclass
class Running:
    """A segment that a warp runs."""

    left: float
    cost: Cost
    then: Callable[[float], None]
    rate: float = 1.0


SHARED = ("lsu", "tmem", "l2 read", "l2 write", "dram")
"""Pipes that an SM has once; one sub-core may use them alone."""


class SubCore:
    """The warps of a sub-core that run segments, at the rates that its pipes leave them."""

    def __init__(self, sm: Sm, rank: int) -> None:
        self.sm = sm
        self.rank = rank
        self.shared: dict[str, float] = {}
        """What it asks of the pipes that all sub-cores share."""
        self.is_slowed = False
        """Whether they slow it down."""
        self.tensor = TensorCore()
        self.active: list[Running] = []
        self.last = 0.0
        self.version = 0
        self.busy: dict[str, float] = defaultdict(float)

    def run(self, now: float, cost: Cost, then: Callable[[float], None]) -> None:
        """Run a segment, and call `then` at its end."""
        self._progress(now)
        self.active.append(Running(cost.alone, cost, then))
        self._plan(now)

    def _progress(self, now: float) -> None:
        passed = now - self.last
        self.last = now
        if passed <= 0:
            return
        stolen = 0.0
        for one in self.active:
            one.left -= passed * one.rate
            stolen += one.cost.pipes.get("fma", 0.0) * passed * one.rate / one.cost.alone
        beside = min(1.0, max(0.0, self.tensor.free - (now - passed)) / passed)
        if stolen and beside:
            self.tensor.lose(now - passed, stolen * beside * self.sm.rates.mma_stolen)

    def _plan(self, now: float, spreads: bool = True) -> None:
        """Set the rates of what runs, also on other sub-cores where a pipe that all share is overloaded."""
        load: dict[str, float] = defaultdict(float)
        for one in self.active:
            for pipe, cycles in one.cost.pipes.items():
                load[pipe] += cycles / one.cost.alone
        if self.tensor.free > now:
            for pipe, factor in self.sm.rates.beside_mma.items():
                load[pipe] *= factor
        if self.sm.queues_dram:
            load.pop("dram", None)
        asked = {pipe: load[pipe] for pipe in SHARED if pipe in load}
        changed = asked != self.shared
        self.shared = asked
        others = [core for core in self.sm.cores[self.rank] if core is not self]
        self.is_slowed = False
        for pipe, own in asked.items():
            load[pipe] = (own + sum(core.shared.get(pipe, 0.0) for core in others)) / SUB_CORES
            self.is_slowed |= load[pipe] > 1.0
        for one in self.active:
            one.rate = 1.0 / max([1.0, *(load[pipe] for pipe in one.cost.pipes if pipe in load)])
        self.version += 1
        if self.active:
            version = self.version
            end = min(one.left / one.rate for one in self.active)
            self.sm.at(now + max(0.0, end), lambda time: self._finish(time, version))
        if spreads and changed:
            for core in others:
                if core.active and (self.is_slowed or core.is_slowed):
                    core._progress(now)
                    core._plan(now, spreads=False)

    def _finish(self, now: float, version: int) -> None:
        if version != self.version:
            return
        self._progress(now)
        finished = [one for one in self.active if one.left <= 1e-6]
        self.active = [one for one in self.active if one.left > 1e-6]
        for one in finished:
            for pipe, cycles in one.cost.pipes.items():
                self.busy[pipe] += cycles
            if self.sm.queues_dram and "dram" in one.cost.pipes:
                self.sm.dram[self.rank].serve(now, one.cost.pipes["dram"] / SUB_CORES)
        self._plan(now)
        for one in finished:
            one.then(now)
