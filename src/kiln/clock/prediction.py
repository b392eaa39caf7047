"""Predictions: how long a call's kernels take on a GPU, where their warps wait, and how busy each unit is.

for one in predict(lambda: main(x, y)):
    print(one.kernel, one.burst.us, one.limiter)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..base_dsl.diagnostics import DSLRuntimeError, error
from ..base_dsl.target import get_target
from ..hardware import current, devices, sass
from ..hardware.occupancy import occupancy
from ..targets.nvidia import codegen
from ..testing import dry_run
from . import sm, units
from .recording import Launch, Recording

if TYPE_CHECKING:
    from ..base_dsl.diagnostics import Span
    from ..hardware.devices import Model
    from ..hardware.warp_accesses import WarpAccess
    from ..targets.nvidia.dry_run import DryLaunch


@dataclasses.dataclass(frozen=True)
class Time:
    """A predicted time in microseconds, its interval, and the clock that it holds at."""

    us: float
    low: float
    high: float
    mhz: float


@dataclasses.dataclass(frozen=True)
class Slice:
    """What a warp or an engine of the simulated SM did for a while; times are cycles of the SM since the launch."""

    cta: int
    """The number of the CTA among those that were simulated."""
    track: str
    """A warp such as "warp 4", or an engine: "tensor", "tma load", "tma store"."""
    name: str
    """What was done: "mma", "wait mbarrier", "load", ..."""
    begin: float
    end: float
    span: Span | None = None
    """The line of the program."""
    cause: int | None = None
    """The slice, by its number, whose end let this one end: the copy or the warp that a wait was for."""


@dataclasses.dataclass(frozen=True)
class Stall:
    """The waits of warps at one line: what they wait for, and the cycles of a warp in the steady state."""

    span: Span | None
    what: str
    share: float
    """The part of the warp's time."""
    warps: tuple[int, ...]
    cause: str
    """What usually ended the wait, such as "tma load" or "warp 8"."""


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


def predict(
    call: Callable[[], object], device: str | None = None, mhz: float | None = None, what_if: bool = True
) -> list[Prediction]:
    """Return the predictions of the kernels that a call launches, in order. It needs no GPU.

    Args:
        call: runs on the CPU target for some CTAs of each launch, and is compiled for the GPU.
        device: the GPU's name in the table of devices; by default the first of the current architecture that has units.
        mhz: the clock of the SMs; by default the burst and sustained clocks of the GPU.
        what_if: whether the launch is simulated again with other units.
    """
    of = _model(device)
    rates = sm.Rates.measured(units.of(of.name))
    with Recording(1) as recording:
        call()
    with dry_run(of.architectures[0]) as launches:
        call()
    if len(launches) != len(recording.launches):
        raise error(
            DSLRuntimeError,
            f"the call launched {len(recording.launches)} kernels on the CPU target, {len(launches)} on {of.name}",
            hint="give both the same problem and config",
        )
    return [
        _predicted(recorded, dry, recording.accesses, of, rates, mhz, what_if)
        for recorded, dry in zip(recording.launches, launches, strict=True)
    ]


DEFAULTS = {9: "H200", 10: "B200"}
"""The GPU that is meant where none is named, by the generation that programs are compiled for."""


def _model(name: str | None) -> Model:
    if name is None:
        architecture = current.architecture(target=get_target("nvidia"))
        major = architecture.generation.major
        if major not in DEFAULTS:
            raise error(
                DSLRuntimeError,
                f"nothing is known of the units of a GPU of {architecture.name}",
                hint="the clock knows " + ", ".join(DEFAULTS.values()),
            )
        name = DEFAULTS[major]
    row = devices.model_of(name)
    if row is None:
        near = ", ".join(devices.near_names(name)) or ", ".join(DEFAULTS.values())
        raise error(DSLRuntimeError, f"no device is called {name!r}", hint=f"there are: {near}")
    return row


def _predicted(
    recorded: Launch,
    dry: DryLaunch,
    accesses: Sequence[WarpAccess],
    device: Model,
    rates: sm.Rates,
    mhz: float | None,
    what_if: bool,
) -> Prediction:
    code = sass.kernels(codegen.disassemble(dry.artifacts["cubin"], "-g -c -hex"))[dry.kernel]
    used = dry.resources
    shared = used.static_smem + dry.smem
    threads = math.prod(dry.block)
    runs = occupancy(dry.arch, threads, used.registers, shared, used.barriers, used.tmem_columns)
    size = math.prod(dry.cluster)
    at_once = device.sm_count * runs.blocks // size
    clusters = math.prod(dry.grid) // size
    result = sm.predict(recorded, code, accesses, clusters, at_once, runs.blocks, rates)
    at = mhz or device.most_mhz or 1000.0
    us = result.cycles / at
    time = Time(us, 0.85 * us, 1.15 * us, at)
    return Prediction(
        dry.kernel,
        device.name,
        tuple(dry.grid),
        tuple(dry.block),
        tuple(dry.cluster),
        runs.blocks,
        clusters / at_once,
        result.cycles,
        time,
        time,
        "",
        {},
        (),
        (),
        (),
        (),
    )
