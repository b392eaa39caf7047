"""Predictions: how long a call's kernels take on a GPU, where their warps wait, and how busy each unit is.

for one in predict(lambda: main(x, y)):
    print(one.kernel, one.burst.us, one.limiter)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..base_dsl.diagnostics import DSLRuntimeError, error
from ..base_dsl.target import get_target
from ..hardware import current, devices, sass
from ..hardware.occupancy import Occupancy, occupancy
from ..targets.cpu.event_recorder import Kind
from ..targets.nvidia import codegen
from ..testing import dry_run
from . import chip, units
from .costs import SUB_CORES, Accesses
from .rates import Rates, sustained_mhz, tensor_mhz
from .recording import Launch, Recording, Warp
from .sm import Slice, Sm

if TYPE_CHECKING:
    from ..base_dsl.diagnostics import Span
    from ..hardware.devices import Model
    from ..hardware.warp_accesses import WarpAccess
    from ..targets.nvidia.dry_run import DryLaunch
    from .costs import Memory


SAMPLED = 2
"""The clusters of a launch that run on the CPU target: the first, and the one in the middle of the grid."""
MISS = 0.12
"""The relative error that a prediction may have, as the report of `benchmarks/clock.py` shows."""
WARP = 32


@dataclasses.dataclass(frozen=True)
class Time:
    """A predicted time in microseconds, its interval, and the clock that it holds at."""

    us: float
    low: float
    high: float
    mhz: float


@dataclasses.dataclass(frozen=True)
class Stall:
    """The waits of warps at one line: what they wait for, and the cycles of a warp in the steady state."""

    span: Span | None
    what: str
    share: float
    """The part of those warps' time."""
    warps: tuple[int, ...]
    cause: str
    """What usually ended the wait, such as "bulk load" or "warp 8"."""
    hits: int = 0
    """The waits."""
    cycles: float = 0.0
    """Cycles of a wait, on average."""


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """A change of a unit or of the launch, and the cycles that the simulation then takes."""

    change: str
    cycles: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a launch is predicted to take on a GPU, and why."""

    kernel: str
    device: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    ctas_per_sm: int
    waves: float
    cycles: float
    burst: Time
    """At the GPU's highest clock."""
    sustained: Time
    """At the clock that its power limit allows when launches follow each other for long."""
    limiter: str
    """The busiest unit."""
    busy: dict[str, float]
    """How much of the time each unit is busy, busiest first."""
    stalls: tuple[Stall, ...]
    slices: tuple[Slice, ...]
    what_ifs: tuple[WhatIf, ...]
    flags: tuple[str, ...]
    """What makes the prediction less sure: "not calibrated: ...", "extrapolated: ...", "coarse: ..."."""
    launch_us: float = 0.0
    """What the launch takes of the time."""
    arch: str = ""


def predict(
    call: Callable[[], object],
    device: str | None = None,
    mhz: float | None = None,
    what_if: bool = True,
    cold: bool = False,
    progress: Callable[[str], object] = lambda phase: None,
) -> list[Prediction]:
    """Return the predictions of the kernels that a call launches, in order. It needs no GPU.

    Args:
        call: runs on the CPU target for some CTAs of each launch, and is compiled for the GPU.
        device: the GPU's name in the table of devices; by default the one that represents the current architecture.
        mhz: the clock of the SMs that the driver would say; by default the burst and sustained clocks of the GPU.
        what_if: whether the launch is simulated again with other units.
        cold: whether the call finds nothing of its data in the L2 cache.
        progress: is called with the name of each phase that begins.
    """
    model = _model(device)
    of = units.of(model.name)
    progress("recording")
    with Recording(SAMPLED) as recording:
        call()
    progress("compiling")
    with dry_run(model.architectures[0]) as launches:
        call()
    return [
        _predicted(
            _Launched(
                recorded,
                dry,
                [a for a in recording.accesses if a.kernel == dry.kernel],
                model,
                of,
                cold,
                dry is launches[0],
            ),
            mhz,
            what_if,
            progress,
        )
        for recorded, dry in zip(_matched(recording.launches, launches), launches, strict=True)
    ]


def _matched(recorded: Sequence[Launch], launches: Sequence[DryLaunch]) -> list[Launch]:
    """Return the recorded launch of each compiled one. A kernel of which nothing is recorded has warps without events."""
    left = list(recorded)
    matched: list[Launch] = []
    for dry in launches:
        if left and left[0].kernel == dry.kernel:
            matched.append(left.pop(0))
        else:
            warps = range(-(-math.prod(dry.block) // WARP))
            ctas = range(min(math.prod(dry.grid), SAMPLED * math.prod(dry.cluster)))
            matched.append(Launch(dry.kernel, [Warp(cta, number, []) for cta in ctas for number in warps]))
    if left:
        raise error(
            DSLRuntimeError,
            f"the call launched {left[0].kernel} on the CPU target, and another kernel when it was compiled",
            hint="give both the same problem and config",
        )
    return matched


DEFAULTS = {(9, 0): "H200", (10, 0): "B200"}
"""The GPU that is meant where none is named, by the compute capability that programs are compiled for."""


def _model(name: str | None) -> Model:
    if name is None:
        architecture = current.architecture(target=get_target("nvidia"))
        capability = architecture.generation.major, architecture.generation.minor
        if capability not in DEFAULTS:
            raise error(
                DSLRuntimeError,
                f"nothing is known of the units of a GPU of {architecture.name}",
                hint="the clock knows " + ", ".join(DEFAULTS.values()),
            )
        name = DEFAULTS[capability]
    row = devices.model_of(name)
    if row is None:
        near = ", ".join(devices.near_names(name)) or ", ".join(DEFAULTS.values())
        raise error(DSLRuntimeError, f"no device is called {name!r}", hint=f"there are: {near}")
    return row


@dataclasses.dataclass(frozen=True)
class _Launched:
    """A launch as it was recorded and compiled, and the GPU that it is predicted on."""

    recorded: Launch
    dry: DryLaunch
    accesses: list[WarpAccess]
    device: Model
    of: units.Units
    cold: bool
    first: bool
    """Whether it is the first launch of the call."""

    @functools.cached_property
    def code(self) -> sass.Code:
        return sass.kernels(codegen.disassemble(self.dry.artifacts["cubin"], "-g -c -hex"))[self.dry.kernel]

    @functools.cached_property
    def occupancy(self) -> Occupancy:
        used = self.dry.resources
        shared = used.static_smem + self.dry.smem
        return occupancy(
            self.dry.arch, math.prod(self.dry.block), used.registers, shared, used.barriers, used.tmem_columns
        )

    @property
    def ctas(self) -> int:
        return math.prod(self.dry.grid)

    @property
    def size(self) -> int:
        """The CTAs of a cluster."""
        return math.prod(self.dry.cluster)

    @property
    def at_once(self) -> int:
        """The clusters that the GPU runs at a time."""
        return self.device.sm_count * self.occupancy.blocks // self.size

    @property
    def busy_sms(self) -> float:
        """The SMs that share the memory, as if each had as many CTAs as the one with the most: the others end earlier."""
        return self.ctas / -(-self.ctas // self.device.sm_count)

    @property
    def multiplies(self) -> bool:
        """Whether tensor cores run on their own, beside what warps do."""
        events = (event for warp in self.recorded.warps for event in warp.events)
        return any(
            each.site.kind is Kind.WGMMA or (each.site.kind is Kind.TENSOR and each.site.detail == "mma")
            for each in events
        )

    def has(self, kind: Kind) -> bool:
        """Whether a warp did something of a kind."""
        return any(event.site.kind is kind for warp in self.recorded.warps for event in warp.events)

    def memory(self) -> Memory:
        moved = chip.traffic(self.recorded, self.accesses, self.ctas, self.size)
        return chip.memory_of(moved, self.device.l2_bytes, self.cold)

    def rates(self, mhz: float) -> Rates:
        return Rates.measured(self.of, self.device, mhz, self.busy_sms)

    def simulated(self, rates: Rates) -> tuple[chip.Simulated, float]:
        """Return the simulation, and the part of the events that was found in the machine code."""
        memory = self.memory()
        count = self.ctas // self.size
        takes_more = self.has(Kind.REQUEST)  # those that run take the work of those that have not started
        balanced = takes_more or chip.is_dynamic(self.recorded)

        def ran(rates: Rates) -> tuple[chip.Simulated, float]:
            walked = chip.walked(self.recorded, self.code, rates, Accesses(self.accesses), memory, self.size)
            places = min(count, self.at_once) if takes_more else count, self.at_once, self.occupancy.blocks
            return chip.launch_cycles(walked, rates, memory, *places, balanced), walked.matched

        shared, matched = ran(rates)
        alone = dataclasses.replace(rates, dram_bytes=rates.tma_port, l2_bytes=rates.tma_port)
        latency = rates.tma_latency + rates.dram_latency
        return chip.saturated(shared, lambda: ran(alone)[0], latency), matched

    def time(self, cycles: float, rates: Rates, mhz: float, miss: float = MISS) -> Time:
        """Return the time of some cycles where the SMs have a clock."""
        us = (cycles + rates.drain) / mhz + (rates.launch_us if self.first else rates.next_launch_us)
        return Time(us, us / (1 + miss), us * (1 + miss), mhz)


def _predicted(launched: _Launched, mhz: float | None, what_if: bool, progress: Callable[[str], object]) -> Prediction:
    dry = launched.dry
    device = launched.device
    of = launched.of
    progress(f"simulating {dry.kernel}")
    driver_mhz = mhz or device.most_mhz or of.sm_mhz
    multiplies = launched.multiplies
    rates = launched.rates(driver_mhz)
    ran, matched = launched.simulated(rates)
    busy = _busy(ran.sm)
    bounds = _bounds(launched, driver_mhz) if not of.is_measured else None
    burst = launched.time(ran.cycles, rates, tensor_mhz(of, device, driver_mhz) if multiplies else driver_mhz)
    sustained = burst
    flags: list[str] = []
    if multiplies and mhz is None:
        share = busy.get("tensor", 0.0)
        sustained = launched.time(ran.cycles, rates, sustained_mhz(of, device, share), 2 * MISS)
        flags.append("not calibrated: the power that copies take, which lowers the sustained clock")
        if bounds is not None:
            clocks_ = [sustained_mhz(each, device, share) for each in (of.at_best(), of.at_worst())]
            sustained = _within(launched, sustained, bounds, clocks_)
    if bounds is not None:
        flags.append(f"not calibrated: the units of {device.name}, of which most are published or assumed")
        clocks_ = [
            tensor_mhz(each, device, driver_mhz) if multiplies else driver_mhz for each in (of.at_best(), of.at_worst())
        ]
        burst = _within(launched, burst, bounds, clocks_)
        sustained = sustained if sustained.mhz != burst.mhz else burst
    if matched < 1:
        flags.append(f"ambiguous: {1 - matched:.0%} of the events were not found in the machine code")
    if ran.extrapolated > 0.01:
        flags.append(f"extrapolated: {ran.extrapolated:.0%} of the time was not simulated")
    if chip.is_dynamic(launched.recorded) or launched.has(Kind.REQUEST):
        flags.append("not modelled: the order in which CTAs take tiles")
    changes: list[WhatIf] = []
    for change, other in _changes(rates, busy) if what_if else ():
        progress(f"what if {change}")
        changes.append(WhatIf(change, launched.simulated(other)[0].cycles))
    return Prediction(
        kernel=dry.kernel,
        device=device.name,
        grid=tuple(dry.grid),
        block=tuple(dry.block),
        cluster=tuple(dry.cluster),
        ctas_per_sm=launched.occupancy.blocks,
        waves=launched.ctas / launched.size / launched.at_once,
        cycles=ran.cycles,
        burst=burst,
        sustained=sustained,
        limiter=next(iter(busy), ""),
        busy=busy,
        stalls=_stalls(ran.sm),
        slices=tuple(ran.sm.slices),
        what_ifs=tuple(changes),
        flags=tuple(flags),
        launch_us=rates.launch_us if launched.first else rates.next_launch_us,
        arch=dry.arch,
    )


def _bounds(launched: _Launched, mhz: float) -> list[tuple[float, Rates]]:
    """Return the cycles, and the rates, if all units were as fast and as slow as they may be."""
    bounds: list[tuple[float, Rates]] = []
    for of in (launched.of.at_best(), launched.of.at_worst()):
        other = dataclasses.replace(launched, of=of)
        rates = other.rates(mhz)
        bounds.append((other.simulated(rates)[0].cycles, rates))
    return bounds


def _within(launched: _Launched, time: Time, bounds: list[tuple[float, Rates]], mhz: Sequence[float]) -> Time:
    """Return a time whose interval is as wide as the units are unsure."""
    best, worst = (launched.time(cycles, rates, clock) for (cycles, rates), clock in zip(bounds, mhz, strict=True))
    return dataclasses.replace(time, low=min(time.low, best.low), high=max(time.high, worst.high))


def _changes(rates: Rates, busy: dict[str, float]) -> Iterator[tuple[str, Rates]]:
    """Yield what may be changed of the units that a kernel uses, in words and as rates."""
    if busy.get("tensor"):
        halved = {n: cycles / 2 for n, cycles in rates.mma_rows.items()}
        yield "MMAs twice as fast", dataclasses.replace(rates, mma_rows=halved, umma_rows=rates.umma_at_twice())
        if busy.get("fma", 0.0) > 0.1:
            yield "arithmetic took nothing of the tensor cores", dataclasses.replace(rates, mma_stolen=0.0)
    if busy.get("tma load"):
        yield (
            "copies had half the latency",
            dataclasses.replace(rates, tma_latency=rates.tma_latency / 2, dram_latency=rates.dram_latency / 2),
        )
        yield (
            "copies twice as fast",
            dataclasses.replace(
                rates, tma_port=2 * rates.tma_port, l2_bytes=2 * rates.l2_bytes, dram_bytes=2 * rates.dram_bytes
            ),
        )
    if busy.get("dram", 0.0) > 0.3:
        yield "DRAM twice as fast", dataclasses.replace(rates, dram_sector=rates.dram_sector / 2)
    elif busy.get("l2 write", 0.0) > 0.1:
        yield (
            "stores of threads twice as fast",
            dataclasses.replace(rates, store_sector=rates.store_sector / 2, partial_sector=rates.partial_sector / 2),
        )


def _busy(sm: Sm) -> dict[str, float]:
    """Return the part of the time that each unit of an SM is busy, busiest first; the first CTA of the cluster counts.

    The time ends when the last request is served, which may be after the last warp has ended.
    """
    rank = min(sm.cores)
    engines = [sm.umma[rank], sm.ports[rank], sm.stores[rank], sm.dram[rank], sm.l2[rank]]
    engines += [core.tensor for core in sm.cores[rank]]
    cycles = max(*(state.last for state in sm.states), *(engine.free for engine in engines))
    units_: dict[str, float] = {}
    for core in sm.cores[rank]:
        for pipe, taken in core.busy.items():
            units_[pipe] = units_.get(pipe, 0.0) + taken / SUB_CORES
    tensor = sum(core.tensor.busy for core in sm.cores[rank]) / SUB_CORES
    units_["tensor"] = units_.get("tensor", 0.0) + tensor + sm.umma[rank].busy
    units_["tma load"] = sm.ports[rank].busy
    units_["tma store"] = sm.stores[rank].busy
    units_["dram"] = sm.dram[rank].busy if sm.queues_dram else units_.get("dram", 0.0)
    units_["l2 read"] = units_.get("l2 read", 0.0) + sm.l2[rank].busy
    shares = {unit: taken / max(1.0, cycles) for unit, taken in units_.items() if taken}
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _stalls(sm: Sm) -> tuple[Stall, ...]:
    """Return the waits of the simulated warps by line, longest first."""
    spans = {state.warp.number: 0.0 for state in sm.states}
    for state in sm.states:
        spans[state.warp.number] += state.last - state.began
    stalls: list[Stall] = []
    for (what, span), waited in sm.waited.items():
        total = sum(spans[warp] for warp in waited.warps)
        engine, warp = max(waited.causes, key=waited.causes.__getitem__, default=("", None))
        cause = engine or ("" if warp is None else f"warp {warp}")
        share = waited.cycles / max(1.0, total)
        warps = tuple(sorted(waited.warps))
        stalls.append(Stall(span, what, share, warps, cause, waited.count, waited.cycles / waited.count))
    return tuple(sorted(stalls, key=lambda stall: -stall.share))
