"""The chip around an SM: what a launch reads and writes, how much of it comes from DRAM, and how CTAs follow each other on all SMs."""

from __future__ import annotations

import dataclasses
import heapq
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..hardware.warp_accesses import GlobalAccess, WarpAccess
from ..targets.cpu.event_recorder import HANDS_OUT, Kind
from .costs import Accesses, Costs, Memory
from .rates import SECTOR
from .sm import Sm
from .walk import Map, Segment, anchor_of

if TYPE_CHECKING:
    from ..hardware.sass import Code
    from ..targets.cpu.event_recorder import EventSite
    from .costs import Cost
    from .rates import Rates
    from .recording import Event, Launch, Warp

WARP = 32
L2_USED = 0.8
"""The part of the L2 cache that data survive in from one launch to the next."""
MOST_SHARED = 8.0
"""The CTAs of which several load the same boxes at about the same time, at most."""
SAME = 0.02
"""CTAs whose numbers of events differ by less are alike."""
LEAST_ASKED = 0.5
"""The part of its time that DRAM works at least where it may be what bounds a launch."""
ROUNDS = 2
"""The CTAs that are simulated in each place of an SM, one after another; further ones take as long as the last."""
MOST_STEPS = 40_000
"""The steps of warps that are simulated."""


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The bytes that a launch moves between SMs and L2 cache, and those of them that differ."""

    loaded: float
    loaded_once: float
    stored: float
    clipped: float = 1.0
    """The part of what is stored that lies in the tensors."""


def traffic(launch: Launch, accesses: Iterable[WarpAccess], ctas: int, size: int = 1) -> Traffic:
    """Return the traffic of a launch, scaled from its recorded CTAs."""
    scale = ctas / max(1, len(launch.blocks))
    clusters = len(launch.blocks) // size
    # They are spread evenly, from the first on: behind the last comes as much again.
    reached = clusters / (clusters - 1) if clusters > 1 else math.inf
    boxes: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    stores: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    copies: dict[EventSite, list[int]] = defaultdict(lambda: [0, 1 << 63, 0])
    stored = 0.0
    for warp in launch.warps:
        for event in warp.events:
            if event.site.kind is Kind.COPY:
                entry = copies[event.site]
                entry[0] += event.values[0] * event.mask.bit_count()
                entry[1] = min(entry[1], event.values[2])
                entry[2] = max(entry[2], event.values[2] + WARP * event.values[0])
            elif event.site.kind is Kind.BOX and event.site.detail == "load":
                boxes[event.values[0]][0] += event.values[4] * scale
                boxes[event.values[0]][1] = float(event.values[8])
            elif event.site.kind is Kind.BOX:
                stores[event.values[0]][0] += event.values[4] * scale
                stores[event.values[0]][1] = float(event.values[8]) if event.site.detail == "store" else math.inf
    loads = list(boxes.values())
    loads += [[total * scale, (high - low) * reached] for total, low, high in copies.values()]
    for one in accesses:
        # copies are among the events
        if isinstance(one, GlobalAccess) and one.kernel == launch.kernel and one.operation != "cp.async":
            if one.operation == "st":
                stored += one.served * SECTOR * scale
            else:
                loads.append([one.served * SECTOR * scale, one.reach * reached])
    boxed = sum(total for total, _ in stores.values())
    inside = sum(map(min, stores.values()))
    clipped = (stored + inside) / max(1.0, stored + boxed)
    return Traffic(sum(total for total, _ in loads), sum(map(min, loads)), stored + inside, clipped)


def memory_of(moved: Traffic, l2_bytes: int, cold: bool) -> Memory:
    """Return where the data of a launch are; without `cold` it follows others with the same data."""
    # Both halves of the L2 cache keep what SMs on both sides read.
    reused = moved.loaded / max(1.0, moved.loaded_once)
    footprint = moved.loaded_once * min(2.0, max(1.0, reused)) + moved.stored
    fits = footprint <= L2_USED * l2_bytes
    missed = 0.0 if fits and not cold else 1.0 / max(1.0, reused)
    written = 0.0 if fits else moved.clipped
    read = missed * moved.loaded
    part = read / max(1.0, read + (0.0 if fits else moved.stored))
    shared = max(1.0, min(MOST_SHARED, reused))
    return Memory(missed, min(1.0, missed * shared), 1.0 / shared, written, 4 * part * (1 - part) if written else 0.0)


Steps = list[tuple[int, "Warp", "list[tuple[Cost, Event | None]]"]]
"""Warps, each with the rank of its CTA in the cluster, and what it does."""


def is_dynamic(launch: Launch) -> bool:
    """Return whether tiles are handed out while a launch runs."""
    return any(event.site.detail == HANDS_OUT for warp in launch.warps for event in warp.events)


@dataclasses.dataclass(frozen=True)
class Walked:
    """The warps of recorded clusters, as steps; the costs and how much of the ways was found."""

    clusters: list[Steps]
    matched: float
    """The part of the events that was found in the machine code."""
    loops: int
    """Loops of which the trips follow from what they access."""


def walked(launch: Launch, code: Code, rates: Rates, accesses: Accesses, memory: Memory, size: int) -> Walked:
    """Return the steps of the recorded clusters of `size` CTAs."""
    costs = Costs(code, rates, accesses, memory)
    ways = Map(code, lambda one: bool(accesses.moved(GlobalAccess, one.place)))
    walks = [(warp, ways.walk(warp.events)) for warp in launch.warps]
    costs.count_trips([segment for _, walk in walks for segment in walk.segments], ways.loops())
    clusters: dict[int, Steps] = defaultdict(list)
    blocks = launch.blocks
    for warp, walk in walks:
        segments = iter(walk.segments)
        steps: list[tuple[Cost, Event | None]] = []
        for event in warp.events:
            is_anchor = anchor_of(event) is not None
            steps.append((costs.of(next(segments, Segment(())), False) if is_anchor else costs.nothing, event))
        if (last := next(segments, None)) is not None:
            steps.append((costs.of(last, True), None))
        number = blocks.index(warp.block)
        clusters[number // size].append((number % size, warp, steps))
    events = sum(len(walk.events) for _, walk in walks)
    matched = sum(walk.matched for _, walk in walks) / events if events else 1.0
    return Walked([clusters[each] for each in sorted(clusters)], matched, len(costs.trips))


def starts_of(steps: Steps) -> dict[int, int]:
    """Return the address of the first mbarrier of each CTA of a cluster."""
    starts: dict[int, int] = {}
    for rank, warp, _ in steps:
        first = next((event.values[0] for event in warp.events if event.site.kind is Kind.MBARRIER_INIT), None)
        if first is not None:
            starts.setdefault(rank, first)
    return starts


@dataclasses.dataclass(frozen=True)
class Simulated:
    """An SM that ran copies of a cluster: the cycles of all, of which some are extrapolated, and what a further copy takes."""

    sm: Sm
    cycles: float
    extrapolated: float
    further: float
    dram: float = 0.0
    """Those of them in which the SM's part of DRAM works for copies."""


def simulated(steps: Steps, rates: Rates, memory: Memory, own: int, resident: int) -> Simulated:
    """Simulate an SM that runs `own` clusters, `resident` at a time.

    Long clusters are cut short: what is left takes as long as the second half of what was simulated.
    """
    size = sum(len(each) for _, _, each in steps)
    copies = max(1, min(own, ROUNDS * resident, max(resident, MOST_STEPS // max(1, size))))
    kept = min(1.0, MOST_STEPS / (copies * size))
    sm = Sm(rates, memory)
    sm.starts = starts_of(steps)
    ran = sm.run(steps, copies, resident, round(kept * copies * size) if kept < 1.0 else None)
    rest = (ran - sm.halfway) * 2 * (1.0 / kept - 1.0) if kept < 1.0 else 0.0
    cycles = ran + rest
    ends = sorted(sm.ends)
    further = (ends[-1] - ends[-1 - resident]) / resident if len(ends) > resident and kept == 1.0 else cycles / copies
    dram = max(each.busy for each in sm.dram.values()) / (kept * copies)
    whole = max(cycles + max(further, dram) * (own - copies), dram * own)
    return Simulated(sm, whole, 1.0 - ran / whole, max(further, dram), dram * own)


def saturated(ran: Simulated, alone: Callable[[], Simulated], latency: float) -> Simulated:
    """Return a launch as DRAM bounds it, if its SMs would ask for more than DRAM gives.

    They were simulated with equal parts of DRAM. While some wait for its latency, others get more: then it never rests. `alone` simulates
    an SM that has DRAM to itself.
    """
    if not LEAST_ASKED * ran.cycles < ran.dram < ran.cycles or alone().cycles > ran.dram:
        return ran
    return dataclasses.replace(ran, cycles=min(ran.cycles, ran.dram + latency))


def launch_cycles(
    walked: Walked, rates: Rates, memory: Memory, count: int, at_once: int, resident: int, balanced: bool
) -> Simulated:
    """Return the cycles of a launch of `count` clusters, of which the GPU runs `at_once`, and an SM `resident` CTAs, at a time.

    Where tiles are handed out while it runs, all clusters end at about the same time.
    """
    clusters = walked.clusters
    sizes = [sum(len(steps) for _, _, steps in each) for each in clusters]
    longest = max(range(len(clusters)), key=sizes.__getitem__)
    own = -(-count * resident // at_once)  # of an SM
    if balanced:
        each = [simulated(cluster, rates, memory, resident, resident) for cluster in clusters]
        return dataclasses.replace(each[longest], cycles=statistics.mean(one.cycles for one in each))
    if max(sizes) - min(sizes) <= SAME * max(sizes):
        return simulated(clusters[longest], rates, memory, own, resident)
    runs = [simulated(each, rates, memory, 2 * resident, resident) for each in clusters]
    free = [0.0] * min(count, at_once)
    for number in range(count):
        place = number * (len(clusters) - 1) / max(1, count - 1)
        low = math.floor(place)
        high = min(low + 1, len(clusters) - 1)
        takes = [runs[each].further * resident for each in (low, high)]
        heapq.heapreplace(free, free[0] + takes[0] + (takes[1] - takes[0]) * (place - low))
    one = runs[longest]
    return dataclasses.replace(one, cycles=max(free), extrapolated=max(0.0, 1.0 - one.cycles / max(free)))
