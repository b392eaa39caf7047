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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..hardware import sass
from ..hardware.warp_accesses import GlobalAccess, SharedAccess, WarpAccess
from ..targets.cpu.event_recorder import Kind
from .walk import WGMMA_ENGINE, Map, Segment, anchor_of

if TYPE_CHECKING:
    from ..hardware.sass import Code
    from .recording import Event, Launch, Warp
    from .units import Units

SUB_CORES = 4


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the units take, in cycles."""

    mma_rows: dict[int, float] = dataclasses.field(
        default_factory=lambda: {8: 18.9, 16: 20.7, 32: 24.7, 64: 32.8, 96: 48.7, 128: 65.0, 192: 97.1, 256: 129.3}
    )
    """Cycles of an MMA of 64 x n x 16, by n."""
    mma_latency: float = 32.0
    """What an MMA takes beyond that until its accumulators can be read."""
    tma_issue: float = 48.0
    tma_latency: float = 700.0
    tma_bytes: float = 60.0
    """Bytes that an SM gets from the L2 cache in a cycle while all do."""
    store_latency: float = 700.0
    store_bytes: float = 40.0
    arrive: float = 20.0
    wake: float = 40.0
    """From the last arrival until a waiting warp goes on."""
    barrier: float = 25.0
    cluster: float = 300.0
    start: float = 900.0
    """From the launch of a CTA until its first instruction, and from its last until the next CTA's."""
    sector: float = 1.0
    """Cycles of the path to the L2 cache for a sector of 32 bytes that a warp reads or writes."""

    @classmethod
    def measured(cls, units: Units) -> Rates:
        """Return the rates that a GPU's units say; those of copies are guesses still."""
        rows = units.matching(r"wgmma f16 n(\d+) smem, groups of 4, wait 1")
        mmas = {int(n): quantity.value for (n,), quantity in rows.items()}
        arrive = units["mbarrier arrive, 1 warps"].value
        return cls(
            mma_rows=mmas,
            mma_latency=units["wgmma f16 n256 smem, groups of 1, wait 0"].value - mmas[256],
            arrive=arrive,
            wake=units["hand over, mbarrier"].value - arrive,
            barrier=units["sync_threads, 4 warps"].value,
            cluster=units["cluster barrier, 2 ctas"].value,
        )

    def mma(self, n: int) -> float:
        """Return the cycles of an MMA whose K has 32 bytes."""
        measured = sorted(self.mma_rows)
        for low, high in itertools.pairwise(measured):
            if low <= n <= high:
                part = (n - low) / (high - low)
                return self.mma_rows[low] * (1 - part) + self.mma_rows[high] * part
        return self.mma_rows[measured[-1]] * n / measured[-1]


LATENCY = (
    (r"LDS|LDSM", 30.0),
    (r"LDG|LD\b", 700.0),
    (r"ATOM|RED", 700.0),
    (r"LDL", 40.0),
    (r"MUFU", 24.0),
    (r"S2R|S2UR|CS2R", 25.0),
    (r"LDC|ULDC", 40.0),
    (r"SHFL|VOTE|MATCH|REDUX", 25.0),
    (r"R2UR", 12.0),
    (r"POPC|FLO|BREV|I2F|F2I|F2F", 18.0),
    (r"HMMA|IMMA|QMMA|DMMA", 33.0),
)
"""Cycles until a result is there, of instructions whose scoreboard says when."""
INTERVAL = (
    (r"MUFU|F2I|I2F|F2F|POPC|FLO|BREV", "mufu", 8.0),
    (r"FFMA|FADD|FMUL|FFMA2|FADD2|FMUL2|IMAD|HFMA2|HADD2|HMUL2", "fma", 1.0),
    (r"HMMA", "tensor", 16.0),
    (r"DFMA|DADD|DMUL", "fp64", 2.0),
    (r"STSM|LDSM", "lsu", 16.0),
    (r"LDS\.128|STS\.128|LDG\S*\.128|STG\S*\.128", "lsu", 16.0),
    (r"LDS\.64|STS\.64|LDG\S*\.64|STG\S*\.64", "lsu", 8.0),
    (r"LDS|STS|LDG|STG|SHFL|ATOMS|LDL|STL|RED|ATOMG|LDGSTS", "lsu", 4.0),
    (r"I|LOP3|SHF|PRMT|SEL|FSEL|FSETP|FMNMX|ISETP|LEA|MOV|F2FP|VIADD|PLOP3|FSET|SGXT|P2R|R2P|BMSK|VIMNMX", "alu", 2.0),
)
"""The pipe of a sub-core that takes an instruction, and the cycles until it takes the next; the LSU is the SM's, for four of them."""
_COMPILED = (
    tuple((re.compile(pattern), value) for pattern, value in LATENCY),
    tuple((re.compile(pattern), pipe, value) for pattern, pipe, value in INTERVAL),
)


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a segment takes: cycles of a warp alone, and cycles of each pipe."""

    alone: float
    pipes: dict[str, float]


class Served:
    """Sectors and wavefronts of an access, averages by source line; where a line has none, as if nothing were lost."""

    def __init__(self, accesses: Iterable[WarpAccess]) -> None:
        totals: dict[tuple[type, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in accesses:
            if one.span is not None:
                entry = totals[type(one), one.span.filename, one.span.line]
                entry[0] += one.served
                entry[1] += one.ideal
                entry[2] += one.accesses
        self._lost = {key: served / max(1, ideal) for key, (served, ideal, _) in totals.items()}

    def factor(self, kind: type, place: tuple[str, int]) -> float:
        """Return by how much more is served than would be without conflicts or gaps."""
        return self._lost.get((kind, *place), 1.0)


def cost_of(code: Code, segment: Segment, without_last: bool, rates: Rates, served: Served) -> Cost:
    """Return the cost of a segment; its last instruction may be an anchor, which has a cost of its own."""
    now = 0.0
    ready = [0.0] * 6
    pipes: dict[str, float] = defaultdict(float)
    for index in segment.instructions[:-1] if without_last else segment.instructions:
        one = code.instructions[index]
        control = one.control
        pipes["issue"] += 1.0
        for pattern, pipe, interval in _COMPILED[1]:
            if pattern.match(one.name):
                if pipe == "lsu" and re.match(r"LD[GL]|ST[GL]|LDGSTS|RED|ATOMG", one.name):
                    factor = served.factor(GlobalAccess, one.place)
                    bytes_ = 32 * sass.access_bytes(one.name)
                    pipes["gmem"] += SUB_CORES * max(1.0, bytes_ / 32) * factor * rates.sector
                elif pipe == "lsu":
                    interval *= served.factor(SharedAccess, one.place)
                pipes[pipe] += interval
                break
        if control is None:
            now += 4.0
            continue
        now = max([now, *(ready[board] for board in control.waits)])
        latency = next((value for pattern, value in _COMPILED[0] if pattern.match(one.name)), 20.0)
        if control.writes is not None:
            ready[control.writes] = max(ready[control.writes], now + latency)
        if control.reads is not None:
            ready[control.reads] = max(ready[control.reads], now + 12.0)
        now += max(1, control.stall)
    if without_last and segment.instructions:
        control = code.instructions[segment.instructions[-1]].control
        if control is not None:
            now = max([now, *(ready[board] for board in control.waits)])
    return Cost(max(now, 0.5), dict(pipes))


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


@dataclasses.dataclass
class Mbarrier:
    """Arrivals and bytes that the current phase waits for."""

    count: int = 1
    pending: int = 1
    bytes: int = 0
    phase: int = 0
    waiting: list[tuple[int, Callable[[float], None]]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class State:
    """A warp under way."""

    warp: Warp
    steps: list[tuple[Cost, Event | None]]
    cta: tuple[int, int]
    """Which of the CTAs that ran on this SM it belongs to, and its place in its cluster."""
    at: int = 0
    open_mmas: float = 0.0
    """When the last MMA that was issued ends."""
    groups: list[float] = dataclasses.field(default_factory=list)
    stores: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    pending_stores: tuple[float, float] = (0.0, 0.0)
    copies: list[float] = dataclasses.field(default_factory=list)
    pending_copies: float = 0.0
    waits: dict[str, float] = dataclasses.field(default_factory=dict)
    done: float = -1.0


class SubCore:
    """The warps of a sub-core that run segments, at the rates that its pipes leave them."""

    def __init__(self, sm: Sm) -> None:
        self.sm = sm
        self.active: dict[int, list[float | Cost | Callable[[float], None]]] = {}
        self.last = 0.0
        self.rates: dict[int, float] = {}
        self.version = 0
        self.numbers = itertools.count()
        self.busy: dict[str, float] = defaultdict(float)

    def run(self, now: float, cost: Cost, then: Callable[[float], None]) -> None:
        """Run a segment, and call `then` at its end."""
        self._progress(now)
        self.active[next(self.numbers)] = [cost.alone, cost, then]
        self._plan(now)

    def _progress(self, now: float) -> None:
        passed = now - self.last
        self.last = now
        if passed <= 0:
            return
        for number, entry in self.active.items():
            cost = entry[1]
            assert isinstance(cost, Cost)
            share = passed * self.rates.get(number, 1.0)
            entry[0] -= share  # pyright: ignore[reportOperatorIssue]
            for pipe, cycles in cost.pipes.items():
                self.busy[pipe] += cycles * share / cost.alone

    def _plan(self, now: float) -> None:
        load: dict[str, float] = defaultdict(float)
        for _, cost, _ in self.active.values():
            assert isinstance(cost, Cost)
            for pipe, cycles in cost.pipes.items():
                load[pipe] += cycles / cost.alone
        self.rates = {
            number: 1.0 / max([1.0, *(load[pipe] for pipe in entry[1].pipes)])  # pyright: ignore[reportAttributeAccessIssue]
            for number, entry in self.active.items()
        }
        self.version += 1
        if not self.active:
            return
        version = self.version
        end = min(entry[0] / self.rates[number] for number, entry in self.active.items())  # pyright: ignore[reportOperatorIssue]
        self.sm.at(now + max(0.0, end), lambda time: self._finish(time, version))

    def _finish(self, now: float, version: int) -> None:
        if version != self.version:
            return
        self._progress(now)
        done = [number for number, entry in self.active.items() if entry[0] <= 1e-6]  # pyright: ignore[reportOperatorIssue]
        finished = [self.active.pop(number)[2] for number in done]
        self._plan(now)
        for then in finished:
            then(now)  # pyright: ignore[reportCallIssue]


class Sm:
    """The SM, with the CTAs of a cluster beside each other as if each had an SM of its own."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.queue: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = itertools.count()
        self.mbarriers: dict[tuple[int, int], Mbarrier] = {}
        self.named: dict[tuple[object, int], list[Callable[[float], None]]] = defaultdict(list)
        self.arrived: dict[tuple[object, int], int] = defaultdict(int)
        self.cores: dict[int, list[SubCore]] = {}
        self.tensor: dict[int, list[Engine]] = {}
        self.tma: dict[int, Engine] = {}
        self.stores: dict[int, Engine] = {}
        self.states: list[State] = []
        self.starts: dict[int, int] = {}
        """The first mbarrier of each CTA of the cluster: other addresses of theirs differ by as much."""
        self.live: dict[object, int] = defaultdict(int)
        """The threads of each CTA."""
        self.unfinished: dict[int, int] = defaultdict(int)
        """The warps of each copy of the cluster that are not done."""
        self.copies: Iterator[int] = iter(())
        self.marks: list[tuple[float, float, object, int, str]] = []

    def at(self, time: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.queue, (time, next(self.order), action))

    def run(
        self, warps: Sequence[tuple[int, Warp, list[tuple[Cost, Event | None]]]], copies: int, resident: int
    ) -> float:
        """Run copies of a cluster, so many at a time; return when the last ends. Warps come with the rank of their CTA."""
        for rank in {rank for rank, _, _ in warps}:
            self.cores[rank] = [SubCore(self) for _ in range(SUB_CORES)]
            self.tensor[rank] = [Engine() for _ in range(SUB_CORES)]
            self.tma[rank] = Engine()
            self.stores[rank] = Engine()
        self.warps = warps
        self.copies = iter(range(copies))
        for _ in range(min(copies, resident)):
            self._start(0.0)
        while self.queue:
            time, _, action = heapq.heappop(self.queue)
            action(time)
        stuck = [state for state in self.states if state.done < 0]
        if stuck:
            places = [(state.cta, state.warp.number, state.steps[state.at][1]) for state in stuck]
            raise RuntimeError(f"warps wait for ever: {places[:4]}")
        return max(state.done for state in self.states)

    def _start(self, now: float) -> None:
        """Start the next copy of the cluster."""
        copy = next(self.copies, None)
        if copy is None:
            return
        for rank, warp, steps in self.warps:
            state = State(warp, steps, (copy, rank))
            self.states.append(state)
            self.live[state.cta] += 32
            self.unfinished[copy] += 1
            self.at(now + self.rates.start, lambda time, state=state: self._step(time, state))

    def _step(self, now: float, state: State) -> None:
        """Run the next segment of a warp."""
        if state.at >= len(state.steps):
            state.done = now
            self.unfinished[state.cta[0]] -= 1
            if not self.unfinished[state.cta[0]]:
                self._start(now)
            return
        cost, event = state.steps[state.at]
        core = self.cores[state.cta[1]][state.warp.number % SUB_CORES]

        def then(time: float) -> None:
            if event is None:
                self._next(time, state)
            else:
                self._do(time, state, event)

        core.run(now, cost, then)

    def _next(self, now: float, state: State) -> None:
        state.at += 1
        self._step(now, state)

    def _resume(self, began: float, now: float, state: State, what: str) -> None:
        if now > began + 0.5:
            self.marks.append((began, now, state.cta, state.warp.number, what))
        state.waits[what] = state.waits.get(what, 0.0) + now - began
        self.at(now, lambda time: self._next(time, state))

    def _do(self, now: float, state: State, event: Event) -> None:
        kind = event.site.kind
        rates = self.rates
        values = event.values
        lanes = event.mask.bit_count()
        if kind is Kind.MBARRIER_INIT:
            self.mbarriers[state.cta[0], values[0]] = Mbarrier(values[1], values[1])
        elif kind is Kind.ARRIVE:
            self._arrive(now + rates.arrive, (state.cta[0], values[0]), lanes * values[1], values[2])
        elif kind is Kind.WAIT:
            self._wait(now, state, values[0], values[1])
            return
        elif kind is Kind.BOX:
            self._box(now, state, event)
        elif kind is Kind.WGMMA:
            n = _mma_n(event.site.detail)
            core = self.tensor[state.cta[1]][state.warp.number % SUB_CORES]
            began = max(core.free, now)
            state.open_mmas = core.serve(now, rates.mma(n))
            self.marks.append((began, state.open_mmas, state.cta, 100 + state.warp.number % SUB_CORES, "mma"))
        elif kind is Kind.COMMIT:
            if values[0] == WGMMA_ENGINE:
                state.groups.append(state.open_mmas + rates.mma_latency)
            elif values[0] == 1:
                state.copies.append(state.pending_copies)
            else:
                state.stores.append(state.pending_stores)
        elif kind is Kind.COPY:
            done = self.tma[state.cta[1]].serve(now, lanes * values[2] / rates.tma_bytes) + rates.tma_latency
            state.pending_copies = max(state.pending_copies, done)
        elif kind is Kind.WGMMA_WAITED:
            ends = state.groups[: len(state.groups) - values[0]] if values[0] else state.groups
            self._resume(now, max([now, *ends[-1:]]), state, "wgmma")
            return
        elif kind is Kind.WAITED:
            if values[0] == 1:
                ends = state.copies[: len(state.copies) - values[1]] if values[1] else state.copies
                self._resume(now, max([now, *ends]), state, "cp.async")
            else:
                read = values[2] != 0
                pairs = state.stores[: len(state.stores) - values[1]] if values[1] else state.stores
                self._resume(now, max([now, *(pair[0] if read else pair[1] for pair in pairs)]), state, "store")
            return
        elif kind is Kind.BARRIER:
            self._barrier(now, state, event)
            return
        self._next(now, state)

    def _arrive(self, now: float, address: tuple[int, int], arrivals: int, bytes_: int) -> None:
        barrier = self.mbarriers.get(address)
        if barrier is None:
            return
        barrier.bytes += bytes_
        barrier.pending -= arrivals
        self._complete(now, barrier)

    def _landed(self, now: float, address: tuple[int, int], bytes_: int) -> None:
        barrier = self.mbarriers.get(address)
        if barrier is not None:
            barrier.bytes -= bytes_
            self._complete(now, barrier)

    def _complete(self, now: float, barrier: Mbarrier) -> None:
        if barrier.pending > 0 or barrier.bytes > 0:
            return
        barrier.phase ^= 1
        barrier.pending = barrier.count
        waiting, barrier.waiting = barrier.waiting, []
        for parity, go in waiting:
            if barrier.phase != parity:
                self.at(now + self.rates.wake, go)
            else:
                barrier.waiting.append((parity, go))

    def _wait(self, now: float, state: State, address: int, parity: int) -> None:
        barrier = self.mbarriers.get((state.cta[0], address))
        if barrier is None or barrier.phase != parity & 1:
            self.at(now + self.rates.arrive, lambda time: self._next(time, state))
            return
        barrier.waiting.append((parity & 1, lambda time: self._resume(now, time, state, "mbarrier")))

    def _box(self, now: float, state: State, event: Event) -> None:
        rates = self.rates
        _, _, mbarrier, mask, bytes_, *_ = event.values
        if event.site.detail == "load":
            service = max(rates.tma_issue, bytes_ / rates.tma_bytes)
            done = self.tma[state.cta[1]].serve(now, service) + rates.tma_latency
            self.marks.append((done - rates.tma_latency - service, done, state.cta, 110, "tma"))
            targets = [mbarrier]
            if mask != 0xFFFFFFFF:
                own = self.starts[state.cta[1]]
                targets = [mbarrier + start - own for rank, start in self.starts.items() if mask >> rank & 1]
            for target in targets:
                self.at(done, lambda time, target=target: self._landed(time, (state.cta[0], target), bytes_))
        else:
            read = self.stores[state.cta[1]].serve(now, max(rates.tma_issue, bytes_ / rates.store_bytes)) + 200.0
            state.pending_stores = (read, read + rates.store_latency)

    def _barrier(self, now: float, state: State, event: Event) -> None:
        number, threads, mode, *_ = event.values
        if number == 16:
            self._resume(now, now + self.rates.cluster, state, "cluster")
            return
        key = state.cta, number
        self.arrived[key] += 32
        go = lambda time: self._resume(now, time, state, "barrier")
        waits = mode == 1
        if waits:
            self.named[key].append(go)
        if self.arrived[key] >= (threads or self.live[state.cta]):
            self.arrived[key] = 0
            for each in self.named.pop(key, []):
                self.at(now + self.rates.barrier, each)
        if not waits:
            self._next(now, state)


def _mma_n(detail: str) -> int:
    n = re.search(r"n=(\d+)", detail)
    assert n is not None, detail
    return int(n.group(1))


@dataclasses.dataclass(frozen=True)
class Prediction:
    """How long a launch takes, and the SM that was simulated."""

    cycles: float
    sm: Sm


def steps_of(
    launch: Launch, code: Code, rates: Rates, served: Served
) -> list[tuple[int, Warp, list[tuple[Cost, Event | None]]]]:
    """Return the warps of the first cluster that was recorded, each with the rank of its CTA, and with its steps."""
    ways = Map(code)
    costs: dict[tuple[tuple[int, ...], bool], Cost] = {}

    def cost(segment: Segment, is_last: bool) -> Cost:
        key = segment.instructions, is_last
        if key not in costs:
            costs[key] = cost_of(code, segment, not is_last, rates, served)
        return costs[key]

    stepped: list[tuple[int, Warp, list[tuple[Cost, Event | None]]]] = []
    for warp in launch.warps:
        segments = iter(ways.walk(warp.events).segments)
        steps: list[tuple[Cost, Event | None]] = []
        for event in warp.events:
            if anchor_of(event) is None:
                steps.append((_NOTHING, event))
            else:
                steps.append((cost(next(segments, Segment(())), False), event))
        last = next(segments, None)
        if last is not None:
            steps.append((cost(last, True), None))
        stepped.append((launch.blocks.index(warp.block), warp, steps))
    return stepped


_NOTHING = Cost(0.01, {})


def predict(
    launch: Launch, code: Code, accesses: Iterable[WarpAccess], clusters: int, at_once: int, resident: int, rates: Rates
) -> Prediction:
    """Return the prediction of a launch of some clusters, of which a GPU runs `at_once`, and an SM `resident` CTAs, at a time."""
    warps = steps_of(launch, code, rates, Served(accesses))
    starts: dict[int, int] = {}
    for rank, warp, _ in warps:
        first = next((event.values[0] for event in warp.events if event.site.kind is Kind.MBARRIER_INIT), None)
        if first is not None:
            starts.setdefault(rank, first)
    own = -(-clusters * resident // at_once)  # of an SM

    def simulated(copies: int) -> tuple[float, Sm]:
        sm = Sm(rates)
        sm.starts = starts
        return sm.run(warps, copies, resident), sm

    most = min(own, 3 * resident)
    cycles, sm = simulated(most)
    if own > most:
        fewer, _ = simulated(most - resident)
        cycles += (cycles - fewer) * (own - most) / resident
    return Prediction(cycles, sm)
