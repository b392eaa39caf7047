"""Rooflines: the time that a config is expected to take, by what it is spent on.

Times are in microseconds, sizes in bytes, rates in TFLOP/s and TB/s.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..tuned import coefficients

if TYPE_CHECKING:
    from .devices import Device

LAUNCH_US = 2.0
"""Microseconds of an empty launch on an H200."""


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The expected time of a config: units of the GPU that work at the same time, and phases before and after them.

    Names of units are those of `lower_bounds` where they are the same: "tensor cores", "memory" (DRAM), "arithmetic";
    others are "L2 cache", "shared memory", and what a model names besides.
    """

    units: dict[str, float]
    """The time that each unit takes if no other one holds it up."""
    phases: dict[str, float] = dataclasses.field(default_factory=dict)
    """What is not hidden behind the units: launch, prologue, epilogue, other kernels."""
    joined: float | None = None
    """The time in which all units are done, where a model says more than the slowest one's: see `norm`."""

    @property
    def us(self) -> float:
        """The time of all."""
        joined = max(self.units.values(), default=0.0) if self.joined is None else self.joined
        return sum(self.phases.values()) + joined

    @property
    def terms(self) -> dict[str, float]:
        """The units and the phases."""
        return {**self.units, **self.phases}

    def then(self, phases: dict[str, float]) -> Roofline:
        """Return the time with further phases."""
        return dataclasses.replace(self, phases={**self.phases, **phases})


def us(amount: float, rate: float) -> float:
    """Return the microseconds of operations at a rate in TFLOP/s, or of bytes at one in TB/s."""
    return amount / (rate * 1e6)


def norm(exponent: int, *times: float) -> float:
    """Return the time of what overlaps: little more than the longest, and more where several are near it."""
    return sum(time**exponent for time in times) ** (1 / exponent)


def copy_tbps(device: Device) -> float:
    """Return the bytes that a copy reads and writes, in TB/s: 88 % of what is stated."""
    return coefficients("memory", device)["copy_dram_tbps"]


def memory_bound(problem: Any, device: Device) -> Roofline:
    """Return the time of a problem whose least memory traffic is all that takes time."""
    return Roofline({"memory": us(problem.bytes, copy_tbps(device))}, {"launch": LAUNCH_US})


def lower_bounds(problem: Any, device: Device) -> dict[str, float]:
    """Return the microseconds that each unit of a device needs at least, whatever the config.

    Memory moves every element once at copy bandwidth; tensor cores, or else f32 arithmetic, do the definition's
    operations at the stated peak. Units with unknown peaks are left out.
    """
    bounds = memory_bound(problem, device).terms
    peak = device.model and device.model.tflops.get(problem.mma_dtype or "f32")
    if peak:
        bounds["tensor cores" if problem.mma_dtype else "arithmetic"] = us(problem.flops, peak)
    return bounds
