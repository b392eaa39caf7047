"""One SM as discrete events: warps that run segments of machine code, engines that copy and multiply, barriers that they meet at.

A warp runs the segment before an event, at a rate that the pipes of its sub-core leave it, and then does what the event says. Times are
cycles of the SM.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..base_dsl.diagnostics import DSLRuntimeError, error
from ..hardware.engines import BULK_LOAD, BULK_STORE, COPY, TCGEN05, WGMMA
from ..measure.trace_format import event_name
from ..targets.cpu.event_recorder import Kind
from .costs import NOTHING, SUB_CORES, Cost
from .pipes import Ending, Engine, SubCore
from .walk import WGMMA_ENGINE

if TYPE_CHECKING:
    from ..base_dsl.diagnostics import Span
    from .costs import Memory
    from .rates import Rates
    from .recording import Event, Warp

MOST_SLICES = 20_000
"""The slices that are kept of a simulation."""
_CLUSTER_BARRIER = 16
_EVERY_CTA = 0xFFFFFFFF
_CP_ASYNC_GROUPS = 1
_ANSWER = 16
"""Bytes of an answer of cluster launch control."""
_LOADS = (Kind.COPY, Kind.BOX, Kind.BULK)


@dataclasses.dataclass(frozen=True)
class Slice:
    """What a warp or an engine of the simulated SM did for a while; times are cycles of the SM since the CTA's launch."""

    block: int
    """The number of the CTA in the grid."""
    warp: int | None
    """The warp, or the one that the engine works for."""
    engine: str
    """Empty for what a warp does itself; else the engine, by its name in `hardware/engines.py`."""
    kind: str
    """One of the kinds of `kiln.trace/1`: "wait", "issue", "arrive", "work", "run"."""
    name: str
    """The operation, as `mbarrier_wait`."""
    begin: float
    end: float
    span: Span | None = None
    """The line of the program."""
    cause: int | None = None
    """The number of the slice whose end let this one end or begin: the copy or the warp that a wait was for."""
    mbarrier: int | None = None
    bytes: int = 0


Go = Callable[[float, "int | None"], None]
"""What goes on at a time, with the number of the slice that let it."""


@dataclasses.dataclass
class Mbarrier:
    """Arrivals and bytes that the current phase waits for."""

    count: int = 1
    pending: int = 1
    bytes: int = 0
    phase: int = 0
    waiting: list[tuple[int, Go]] = dataclasses.field(default_factory=list)
    cause: int | None = None
    """The slice that completed the last phase."""


@dataclasses.dataclass
class State:
    """A warp under way."""

    warp: Warp
    steps: list[tuple[Cost, Event | None]]
    cta: tuple[int, int]
    """Which of the CTAs that ran on this SM it belongs to, and its place in its cluster."""
    began: float = 0.0
    at: int = 0
    mmas: Ending = dataclasses.field(default_factory=Ending)
    mma_groups: list[Ending] = dataclasses.field(default_factory=list)
    stores: Ending = dataclasses.field(default_factory=Ending)
    store_groups: list[Ending] = dataclasses.field(default_factory=list)
    copies: Ending = dataclasses.field(default_factory=Ending)
    umma: Ending = dataclasses.field(default_factory=Ending)
    """Of tcgen05.mma."""
    copy_groups: list[Ending] = dataclasses.field(default_factory=list)
    cluster_arrivals: int = 0
    last: float = 0.0
    """When it did something last."""
    done: float = -1.0


@dataclasses.dataclass
class Waited:
    """The waits of warps at one line."""

    cycles: float = 0.0
    count: int = 0
    warps: set[int] = dataclasses.field(default_factory=set)
    causes: dict[tuple[str, int | None], int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    """How often which engine or warp ended it."""


class Sm:
    """The SM, with the CTAs of a cluster beside each other as if each had an SM of its own."""

    def __init__(self, rates: Rates, memory: Memory) -> None:
        self.rates = rates
        self.memory = memory
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.named: dict[tuple[object, int], list[Go]] = defaultdict(list)
        self.arrived: dict[tuple[object, int], int] = defaultdict(int)
        self.cores: dict[int, list[SubCore]] = {}
        self.ports: dict[int, Engine] = {}
        self.l2: dict[int, Engine] = {}
        self.dram: dict[int, Engine] = {}
        """The part of DRAM that an SM gets."""
        self.umma: dict[int, Engine] = {}
        """The tensor cores of SMs that have tensor memory."""
        self.queues_dram = False
        """Whether engines load from there, so that what threads store queues behind and before that."""
        self.stores: dict[int, Engine] = {}
        self.states: list[State] = []
        self.starts: dict[int, int] = {}
        """The first mbarrier of each CTA of the cluster: other addresses of theirs differ by as much."""
        self.live: dict[object, int] = defaultdict(int)
        """The threads of each CTA."""
        self.cluster_threads: dict[int, int] = defaultdict(int)
        self.cluster_phases: dict[int, int] = defaultdict(int)
        self.cluster_opened: dict[int, float] = defaultdict(float)
        self.unfinished: dict[int, int] = defaultdict(int)
        """The warps of each copy of the cluster that are not done."""
        self.copies: Iterator[int] = iter(())
        self.kept = 1
        self.slices: list[Slice] = []
        self.taken_steps = 0
        self.halfway = 0.0
        """When half of all steps had been done."""
        self.half = 0
        self.waited: dict[tuple[str, Span | None], Waited] = defaultdict(Waited)
        self.missed = 0.0
        self.may_start = 0.0
        self.described: dict[tuple[int, int], float] = {}
        self.ends: list[float] = []

    def at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.queue, (time, next(self.order), action))

    def run(
        self,
        warps: Sequence[tuple[int, Warp, list[tuple[Cost, Event | None]]]],
        copies: int,
        resident: int,
        most: int | None = None,
    ) -> float:
        """Run copies of a cluster, so many at a time, for some steps at most; return when the last ends.

        Warps come with the rank of their CTA.
        """
        steps = copies * sum(len(steps) for _, _, steps in warps)
        self.half = min(steps, most or steps) // 2
        for rank in {rank for rank, _, _ in warps}:
            self.cores[rank] = [SubCore(self, rank) for _ in range(SUB_CORES)]
            self.ports[rank] = Engine()
            self.l2[rank] = Engine()
            self.dram[rank] = Engine()
            self.umma[rank] = Engine()
            self.stores[rank] = Engine()
        self.queues_dram = any(
            event is not None and event.site.kind in _LOADS for _, _, own in warps for _, event in own
        )
        self.warps = warps
        self.copies = iter(range(copies))
        self.kept = min(copies, resident)
        for _ in range(self.kept):
            self._start(0.0)
        time = 0.0
        while self.queue and (most is None or self.taken_steps < most):
            time, _, action = heapq.heappop(self.queue)
            action(time)
        if self.queue:
            return time
        stuck = [state for state in self.states if state.done < 0]
        if stuck:
            event = stuck[0].steps[stuck[0].at][1]
            raise error(
                DSLRuntimeError,
                f"in the clock's simulation {len(stuck)} warps wait for ever, such as warp {stuck[0].warp.number} of the CTA",
                hint="the clock does not model what they wait for",
                span=event.site.span if event is not None else None,
            )
        return max(state.done for state in self.states)

    # --- warps -------------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        """Start the next copy of the cluster."""
        copy = next(self.copies, None)
        if copy is None:
            return
        now = max(now, self.may_start)
        self.may_start = now + self.rates.start_interval
        for rank, warp, steps in self.warps:
            state = State(warp, steps, (copy, rank), began=now)
            self.states.append(state)
            self.live[state.cta] += 32
            self.cluster_threads[copy] += 32
            self.unfinished[copy] += 1
            self.at(now, lambda time, state=state: self._step(time, state))

    def _step(self, now: float, state: State) -> None:
        """Run the next segment of a warp."""
        if state.at >= len(state.steps):
            self._end(now, state)
            return
        cost, event = state.steps[state.at]
        if cost is NOTHING and event is not None:
            self._do(now, state, event)
            return
        core = self.cores[state.cta[1]][state.warp.number % SUB_CORES]

        def then(time: float) -> None:
            if event is None:
                self._next(time, state)
            else:
                self._do(time, state, event)

        core.run(now, cost, then)

    def _end(self, now: float, state: State) -> None:
        state.done = now
        self._slice(state, "run", "warp", state.began, now, None)
        self.unfinished[state.cta[0]] -= 1
        if not self.unfinished[state.cta[0]]:
            self.ends.append(now)
            self._start(now + self.rates.turnover)

    def _next(self, now: float, state: State) -> None:
        state.at += 1
        state.last = now
        self.taken_steps += 1
        if self.taken_steps == self.half:
            self.halfway = now
        self._step(now, state)

    def _slice(
        self,
        state: State,
        kind: str,
        name: str,
        begin: float,
        end: float,
        event: Event | None,
        cause: int | None = None,
        engine: str = "",
        mbarrier: int | None = None,
        bytes_: int = 0,
    ) -> int | None:
        """Keep a slice, if it is of one of the first CTAs; return its number."""
        if state.cta[0] >= self.kept or len(self.slices) >= MOST_SLICES:
            return None
        warp: int | None = state.warp.number
        if engine:
            warp = state.warp.number // 4 * 4 if engine == WGMMA.name else None
        span = event.site.span if event is not None else None
        one = Slice(state.warp.block, warp, engine, kind, name, begin, end, span, cause, mbarrier, bytes_)
        self.slices.append(one)
        return len(self.slices) - 1

    def _wait_over(self, began: float, now: float, state: State, event: Event, cause: int | None) -> None:
        """Let a warp go on behind a wait."""
        mbarrier = event.values[0] if event.site.kind is Kind.WAIT else None
        self._slice(state, "wait", event_name(event.site.operation), began, now, event, cause, mbarrier=mbarrier)
        entry = self.waited[event_name(event.site.operation), event.site.span]
        entry.cycles += now - began
        entry.count += 1
        entry.warps.add(state.warp.number)
        if cause is not None:
            by = self.slices[cause]
            entry.causes[by.engine, None if by.engine else by.warp] += 1
        self.at(now, lambda time: self._next(time, state))

    # --- events ------------------------------------------------------------------------------------------------------

    def _do(self, now: float, state: State, event: Event) -> None:
        kind = event.site.kind
        values = event.values
        if kind is Kind.MBARRIER_INIT:
            self.mbarriers[state.cta[0], values[0]] = Mbarrier(values[1], values[1])
        elif kind is Kind.ARRIVE:
            name = event_name(event.site.operation)
            cause = self._slice(state, "arrive", name, now, now, event, mbarrier=values[0])
            lanes = event.mask.bit_count()
            self._arrive(now + self.rates.arrive, (state.cta[0], values[0]), lanes * values[1], values[2], cause)
        elif kind is Kind.WAIT:
            self._wait(now, state, event)
            return
        elif kind is Kind.BOX:
            if event.site.detail == "load":
                self._load(now, state, event, values[2], values[3], values[4])
            else:
                self._store(now, state, event, values[4])
        elif kind is Kind.BULK:
            if values[3]:
                self._load(now, state, event, values[3], _EVERY_CTA, values[2])
            else:
                self._store(now, state, event, values[2])
        elif kind is Kind.WGMMA:
            self._mma(now, state, event)
        elif kind is Kind.COMMIT:
            if values[0] == WGMMA_ENGINE:
                state.mma_groups.append(state.mmas)
            elif values[0] == _CP_ASYNC_GROUPS:
                state.copy_groups.append(dataclasses.replace(state.copies))
            else:
                state.store_groups.append(dataclasses.replace(state.stores))
        elif kind is Kind.COPY:
            self._copy(now, state, event)
        elif kind is Kind.REQUEST:
            self._request(now, state, event)
        elif kind is Kind.TENSOR and event.site.detail == "mma":
            self._multiply(now, state, event)
        elif kind is Kind.TENSOR and event.site.detail == "commit":
            self._commit(now, state, event)
        elif kind in (Kind.WGMMA_WAITED, Kind.WAITED):
            self._groups(now, state, event)
            return
        elif kind is Kind.BARRIER:
            self._barrier(now, state, event)
            return
        elif kind is Kind.PASSED and values[0]:
            self._cluster_wait(now, state, event)
            return
        self._next(now, state)

    def _mma(self, now: float, state: State, event: Event) -> None:
        core = self.cores[state.cta[1]][state.warp.number % SUB_CORES].tensor
        began = max(core.free, now)
        end = core.serve(now, self.rates.mma(_mma_n(event.site.detail)))
        cause = state.mmas.cause
        if state.warp.number % SUB_CORES == 0:
            issued = self._slice(state, "issue", "wgmma", now, now, event)
            cause = self._slice(state, "work", "wgmma", began, end, event, issued, WGMMA.name)
        state.mmas = Ending(end, end + self.rates.mma_latency, cause)
        core.pending.append(state.mmas)

    def _multiply(self, now: float, state: State, event: Event) -> None:
        """Multiply by the tensor cores of one SM, or of the two of a pair of CTAs."""
        _, descriptor, in_memory, ctas, *_ = event.values
        rank = state.cta[1]
        engines = [self.umma[one] for one in ((rank & ~1, rank | 1) if ctas == 2 else (rank,)) if one in self.umma]
        takes = self.rates.tcgen05(ctas, umma_m(descriptor), umma_n(descriptor), bool(in_memory))
        begin = max(now, *(one.free for one in engines))
        for one in engines:
            one.serve(begin, takes.interval)
        done = begin + takes.latency
        name = event_name(event.site.operation)
        issued = self._slice(state, "issue", name, now, now, event)
        cause = self._slice(state, "work", name, begin, begin + takes.interval, event, issued, TCGEN05.name)
        state.umma = Ending(done, done, cause)

    def _commit(self, now: float, state: State, event: Event) -> None:
        """Arrive at the mbarriers of CTAs when what was issued before is multiplied."""
        mbarrier, mask, *_ = event.values
        rank = state.cta[1]
        done = max(now, state.umma.done)
        for target in [rank] if mask & _EVERY_CTA == _EVERY_CTA else [one for one in self.ports if mask >> one & 1]:
            key = state.cta[0], self._own(mbarrier, rank, target)
            self.at(done, lambda time, key=key: self._arrive(time, key, 1, 0, state.umma.cause))

    def _request(self, now: float, state: State, event: Event) -> None:
        """Ask for the work of a cluster that has not started."""
        _, mbarrier, every, *_ = event.values
        rank = state.cta[1]
        done = now + self.rates.request
        cause = self._slice(state, "issue", event_name(event.site.operation), now, now, event, mbarrier=mbarrier)
        for target in self.ports if every else [rank]:
            key = state.cta[0], self._own(mbarrier, rank, target)
            self.at(done, lambda time, key=key: self._landed(time, key, _ANSWER, cause))

    def _own(self, mbarrier: int, rank: int, target: int) -> int:
        """Return the address of a CTA's mbarrier that stands where another one's does."""
        return mbarrier + self.starts.get(target, 0) - self.starts.get(rank, 0) if self.starts else mbarrier

    def _groups(self, now: float, state: State, event: Event) -> None:
        """Wait until no more than some groups of an engine are left."""
        values = event.values
        reads = False
        if event.site.kind is Kind.WGMMA_WAITED:
            groups = state.mma_groups
            left = values[0]
        else:
            groups = state.copy_groups if values[0] == _CP_ASYNC_GROUPS else state.store_groups
            left = values[1]
            reads = groups is state.store_groups and values[2] != 0
        over = groups[: len(groups) - left] if left else groups
        last = max(over, key=lambda one: one.read if reads else one.done, default=Ending())
        if reads:
            self._wait_over(now, max(now, last.read), state, event, last.cause)
        else:
            self._until(now, now, last, state, event)

    def _until(self, began: float, now: float, last: Ending, state: State, event: Event) -> None:
        """Let a warp wait for an ending, which may be put off meanwhile."""
        if last.done <= now + 0.5:  # what is left may be stolen from for ever
            self._wait_over(began, now, state, event, last.cause)
        else:
            self.at(last.done, lambda time: self._until(began, time, last, state, event))

    def _arrive(self, now: float, key: tuple[int, int], arrivals: int, bytes_: int, cause: int | None) -> None:
        barrier = self.mbarriers.get(key)
        if barrier is not None:
            barrier.bytes += bytes_
            barrier.pending -= arrivals
            self._complete(now, barrier, cause)

    def _landed(self, now: float, key: tuple[int, int], bytes_: int, cause: int | None) -> None:
        barrier = self.mbarriers.get(key)
        if barrier is not None:
            barrier.bytes -= bytes_
            self._complete(now, barrier, cause)

    def _complete(self, now: float, barrier: Mbarrier, cause: int | None) -> None:
        if barrier.pending > 0 or barrier.bytes > 0:
            return
        barrier.phase ^= 1
        barrier.pending = barrier.count
        barrier.cause = cause
        waiting, barrier.waiting = barrier.waiting, []
        for parity, go in waiting:
            if barrier.phase != parity:
                self.at(now + self.rates.wake, lambda time, go=go: go(time, cause))
            else:
                barrier.waiting.append((parity, go))

    def _wait(self, now: float, state: State, event: Event) -> None:
        parity = event.values[1] & 1
        barrier = self.mbarriers.get((state.cta[0], event.values[0]))

        def go(time: float, cause: int | None) -> None:
            self._wait_over(now, time, state, event, cause)

        if barrier is None or barrier.phase != parity:
            go(now + self.rates.arrive, barrier.cause if barrier is not None else None)
        else:
            barrier.waiting.append((parity, go))

    def _load(self, now: float, state: State, event: Event, mbarrier: int, mask: int, bytes_: int) -> None:
        """Copy to the shared memory of one CTA of the cluster, or of those in a mask."""
        rates = self.rates
        rank = state.cta[1]
        memory = self.memory
        begin = max(self.l2[rank].free, now)
        requested = self.l2[rank].serve(now, max(rates.tma_issue, bytes_ * memory.different / rates.l2_bytes))
        requested = max(requested, self._from_dram(now, rank, bytes_))
        self.missed += memory.late
        misses = self.missed >= 1.0
        self.missed -= float(misses)
        latency = rates.tma_latency + (rates.dram_latency if misses else 0.0)
        latency = max(latency, self._described(state, event.values[0]) + rates.descriptor - now)
        issued = self._slice(
            state, "issue", event_name(event.site.operation), now, now, event, mbarrier=mbarrier, bytes_=bytes_
        )
        pairs = mask > _EVERY_CTA
        mask &= _EVERY_CTA
        ranks = [rank] if mask == _EVERY_CTA else [one for one in self.ports if mask >> one & 1]
        for target in ranks:
            done = max(requested + latency, self.ports[target].serve(begin + latency, bytes_ / rates.tma_port))
            for core in self.cores[target]:
                if core.tensor.free > now:
                    core.tensor.lose(now, rates.mma_lost * bytes_ / 1024)
            first = ~int(pairs)  # of a pair, whose mbarrier is meant
            barrier = self._own(mbarrier, rank & first, target & first)
            cause = self._slice(
                state,
                "work",
                event_name(event.site.operation),
                begin,
                done,
                event,
                issued,
                BULK_LOAD.name,
                barrier,
                bytes_,
            )
            self.at(done, lambda time, b=barrier, c=cause: self._landed(time, (state.cta[0], b), bytes_, c))

    def _from_dram(self, now: float, rank: int, bytes_: float) -> float:
        """Return when DRAM has given its part of some bytes."""
        if not self.memory.missed:
            return now
        cycles = bytes_ * self.memory.missed / self.rates.dram_bytes
        return self.dram[rank].serve(now, cycles * (1.0 + self.memory.mixed * self.rates.dram_mix))

    def _described(self, state: State, map_: int) -> float:
        """Return when the first CTA of an SM that uses a tensor map begins: kernels prefetch it there."""
        return self.described.setdefault((state.cta[1], map_), state.began)

    def _store(self, now: float, state: State, event: Event, bytes_: int) -> None:
        rates = self.rates
        rate = min(rates.store_port, rates.l2_write_bytes)
        if self.memory.written:
            mixing = 1.0 + self.memory.mixed * rates.dram_mix
            self.dram[state.cta[1]].serve(now, bytes_ * self.memory.written / rates.dram_write_bytes * mixing)
        engine = self.stores[state.cta[1]]
        begin = max(engine.free, now)
        end = engine.serve(now, max(rates.tma_issue, bytes_ / rate))
        name = event_name(event.site.operation)
        issued = self._slice(state, "issue", name, now, now, event, bytes_=bytes_)
        cause = self._slice(
            state, "work", name, begin, end + rates.store_latency, event, issued, BULK_STORE.name, None, bytes_
        )
        state.stores = Ending(end + rates.store_latency, end + rates.store_latency, cause)

    def _copy(self, now: float, state: State, event: Event) -> None:
        rates = self.rates
        bytes_ = event.mask.bit_count() * event.values[0]
        rank = state.cta[1]
        wire = bytes_ * self.memory.different / rates.l2_bytes
        end = self.l2[rank].serve(now, max(wire, bytes_ / rates.tma_port))
        end = max(end, self._from_dram(now, rank, bytes_))
        end += rates.load_latency + self.memory.late * rates.dram_latency
        cause = self._slice(
            state, "work", event_name(event.site.operation), now, end, event, None, COPY.name, None, bytes_
        )
        state.copies = Ending(max(state.copies.done, end), max(state.copies.done, end), cause)

    def _barrier(self, now: float, state: State, event: Event) -> None:
        number, threads, mode, *_ = event.values
        if number == _CLUSTER_BARRIER:
            self._cluster_arrive(now, state, event)
            self._next(now, state)
            return
        key = state.cta, number
        self.arrived[key] += 32
        cause = self._slice(state, "arrive", event_name(event.site.operation), now, now, event)

        def go(time: float, by: int | None) -> None:
            self._wait_over(now, time, state, event, by)

        waits = mode == 1
        if waits:
            self.named[key].append(go)
        expected = threads or self.live[state.cta]
        if self.arrived[key] >= expected:
            self.arrived[key] = 0
            takes = self.rates.barrier + self.rates.barrier_warp * max(0, expected // 32 - 4)
            for each in self.named.pop(key, []):
                self.at(now + takes, lambda time, each=each: each(time, cause))
        if not waits:
            self._next(now, state)

    def _cluster_arrive(self, now: float, state: State, event: Event) -> None:
        cluster = state.cta[0]
        key = cluster, _CLUSTER_BARRIER
        self.arrived[key] += 32
        state.cluster_arrivals += 1
        cause = self._slice(state, "arrive", event_name(event.site.operation), now, now, event)
        if self.arrived[key] >= self.cluster_threads[cluster]:
            self.arrived[key] = 0
            self.cluster_phases[cluster] += 1
            self.cluster_opened[cluster] = now + self.rates.cluster
            for each in self.named.pop(key, []):
                self.at(now + self.rates.cluster, lambda time, each=each: each(time, cause))

    def _cluster_wait(self, now: float, state: State, event: Event) -> None:
        cluster = state.cta[0]

        def go(time: float, by: int | None) -> None:
            self._wait_over(now, time, state, event, by)

        if self.cluster_phases[cluster] >= state.cluster_arrivals:
            opened = max(now, self.cluster_opened[cluster])
            self.at(opened, lambda time: go(time, None))
        else:
            self.named[cluster, _CLUSTER_BARRIER].append(go)


def _mma_n(detail: str) -> int:
    n = re.search(r"n=(\d+)", detail)
    assert n is not None, detail
    return int(n.group(1))


def umma_m(descriptor: int) -> int:
    """Return M of an instruction descriptor of tcgen05.mma: of both CTAs of a pair."""
    return (descriptor >> 24 & 31) << 4


def umma_n(descriptor: int) -> int:
    """Return N of an instruction descriptor of tcgen05.mma."""
    return (descriptor >> 17 & 63) << 3
