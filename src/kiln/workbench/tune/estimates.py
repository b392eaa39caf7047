"""Orders configs by their estimated time, from what the compiler made of them.

The estimate orders and does nothing else: it never excludes a config.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...hardware.occupancy import occupancy

if TYPE_CHECKING:
    from ...hardware.devices import Device

ENOUGH_OCCUPANCY = 0.25
"""More warps than this fraction hide no more latency."""
_NEXT_LAUNCH = 2.0
"""Microseconds that every launch after the first adds."""


@dataclass(frozen=True)
class Estimate:
    """A time by which configs are ordered; a factor if the problem's least time is unknown. `no_fit` says why the config
    cannot run."""

    us: float
    spills: int = 0
    no_fit: str = ""
    least_us: float | None = None
    """The roofline's time for the busiest SM, which is no estimate but a bound; None if it is unknown."""


def launch_facts(launch: Any) -> dict[str, Any]:
    """Return what is kept of a launch of a dry run, as JSON."""
    used = launch.resources
    return {
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "smem": launch.smem + used.static_smem,
        "registers": used.registers,
        "spills": used.spill_stores + used.spill_loads,
        "local": used.stack,
        "barriers": used.barriers,
        "columns": used.tmem_columns,
    }


def estimate(launches: Sequence[Mapping[str, Any]], device: Device, floor: float | None = None) -> Estimate:
    """Estimate the time of one call with these launches, for a problem that takes at least `floor` microseconds.

    It grows with the work of the busiest SM relative to the average one, and if too few warps are resident to hide
    latency. Launches share the time by their threads.
    """
    total = sum(math.prod(launch["grid"]) * math.prod(launch["block"]) for launch in launches)
    factor = 0.0
    busy = 0.0
    spills = 0
    for launch in launches:
        blocks = math.prod(launch["grid"])
        threads = math.prod(launch["block"])
        used = launch["registers"], launch["smem"], launch["barriers"], launch.get("columns", 0)
        fit = occupancy(device.generation, max(threads, 1), *used)
        if not fit.blocks:
            return Estimate(float("inf"), 0, _why_not(launch, threads, fit.limiter, device))
        spills += launch["spills"]
        if not blocks:
            continue
        busiest = -(-blocks // device.sm_count)
        resident = min(busiest, fit.blocks) * -(-threads // 32) / fit.most_warps
        share = blocks * threads / total
        of_busiest = share * busiest * device.sm_count / blocks
        busy = busy + of_busiest
        factor = factor + of_busiest / min(1.0, resident / ENOUGH_OCCUPANCY)
    us = (floor or 1.0) * (factor or 1.0) + _NEXT_LAUNCH * max(0, len(launches) - 1)
    return Estimate(us, spills, least_us=floor and floor * (busy or 1.0))


def _why_not(launch: Mapping[str, object], threads: int, limiter: str, device: Device) -> str:
    takes = f"{threads} threads, {launch['registers']} registers each, {launch['smem']} bytes of shared memory"
    return f"a block of {launch['kernel']} ({takes}) does not fit on {device.name}: {limiter}"


def order(estimates: Iterable[tuple[int, Estimate | None]]) -> list[int]:
    """Return indices in the order to measure them: spilling configs after others, unknown ones last."""

    def rank(item: tuple[int, Estimate | None]) -> tuple[int, float, int]:
        place, estimate = item
        if estimate is None:
            return (2, 0.0, place)
        return (1 if estimate.spills else 0, estimate.us, place)

    return [place for place, _ in sorted(estimates, key=rank)]
