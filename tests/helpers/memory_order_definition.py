"""The memory order in plain Python: which accesses of an execution race.

Written from PTX's memory consistency model and its chapters on mbarriers, proxies and asynchronous operations, apart
from the sanitizer's detector. An execution is a list of events in which those of each thread are in program order; a
read says which write it saw. The order is a graph over events:

* Program order, and an edge for each pair that synchronizes. An access is ordered before another if a path leads from
  where it is over to where the other is issued.
* An edge is *weak* if it only says that accesses are over, and nothing about what they wrote: an arrival whose scope does
  not include those who wait, and a relaxed wait. That suffices if the earlier access is a read, or if both are through
  the async proxy: so those who read a stage let the next copy into it.
* What the generic proxy wrote the async proxy sees if the path has a proxy fence of the memory's space.
* An asynchronous operation is issued by one event, or by one in each warp of a warpgroup. It is over where a thread has
  waited for it, which says nothing about what its issuer did before. What it wrote is visible after a relaxed wait and a
  fence.

It has no tensor memory, tensor maps, non-coherent loads or overlapping launches. A wait for an mbarrier has all scopes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

SCOPES = ("cta", "cluster", "gpu", "sys")
PROXY_OF_ENGINE = {"cp.async": "generic", "bulk load": "async", "bulk store": "async", "wgmma": "async"}


class Thread(NamedTuple):
    """A thread; CTAs are counted through the grid."""

    cta: int
    number: int


class Cell(NamedTuple):
    """Some bytes that are accessed as a whole; `cta` is 0 in global memory."""

    space: Literal["shared", "global"]
    cta: int
    index: int


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that a thread does."""

    thread: Thread


@dataclasses.dataclass(frozen=True)
class Access(Event):
    """An access by a thread; it is strong (atomic) if it has a scope, and an update if it reads and writes."""

    cell: Cell
    reads: bool
    writes: bool
    scope: str = ""
    sem: str = "relaxed"
    saw: int | None = None
    """The event whose write a strong read saw; None: what was there before."""


@dataclasses.dataclass(frozen=True)
class Fence(Event):
    scope: str
    sequential: bool = False


@dataclasses.dataclass(frozen=True)
class ProxyFence(Event):
    spaces: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Barrier(Event):
    """An arrival in one phase of a barrier (of a CTA, a cluster or the lanes of a warp), a wait for it, or both."""

    phase: tuple[object, ...]
    """The barrier and the number of the phase."""
    arrives: bool = True
    waits: bool = True
    relaxed: bool = False
    in_cluster: bool = False


@dataclasses.dataclass(frozen=True)
class Arrive(Event):
    """An arrival at an mbarrier. It waits for the thread's asynchronous copies if `after_copies`, and orders them alone."""

    mbarrier: Cell
    phase: int
    scope: str = "cluster"
    relaxed: bool = False
    after_copies: bool = False


@dataclasses.dataclass(frozen=True)
class Wait(Event):
    """A thread has seen that a phase of an mbarrier is complete."""

    mbarrier: Cell
    phase: int
    relaxed: bool = False


@dataclasses.dataclass(frozen=True)
class Issue(Event):
    """A thread issues an operation to an engine; those of one warpgroup say by `together` that they issue the same."""

    engine: str
    reads: tuple[Cell, ...] = ()
    writes: tuple[Cell, ...] = ()
    mbarrier: Cell | None = None
    phase: int = 0
    """Of the mbarrier that counts its bytes."""
    together: int | None = None


@dataclasses.dataclass(frozen=True)
class Commit(Event):
    engine: str


@dataclasses.dataclass(frozen=True)
class Await(Event):
    """A wait until at most `left` groups of the thread are incomplete, or are still being read."""

    engine: str
    left: int
    reads_only: bool = False


class Touch(NamedTuple):
    """One access to one cell, by a thread or an engine."""

    event: int
    cell: Cell
    writes: bool
    proxy: str
    scope: str
    issued: tuple[int, ...]
    over: tuple[int, ...]
    """Events after which it is over."""
    visible: tuple[int, ...]
    """Those after which what it wrote is visible, too."""


class Order:
    """The order of an execution."""

    def __init__(self, events: Sequence[Event], cluster: int = 1, patterns: bool = True) -> None:
        self.events: list[Any] = list(events)
        self.cluster = cluster
        """CTAs of a cluster."""
        self.patterns = patterns
        """Whether a release is part of later relaxed writes of its thread to the cell, and an acquire of earlier reads."""
        self.strong: list[int] = [0] * len(events)
        """For each event those that it leads to by an edge, as bits."""
        self.weak: list[int] = [0] * len(events)
        for i, j in itertools.combinations(range(len(events)), 2):
            if self.events[i].thread == self.events[j].thread:
                self.strong[i] |= 1 << j
        self._barriers()
        self._mbarriers()
        self._strong_accesses()
        self.visible = closure(self.strong)
        self.reached = closure([strong | weak for strong, weak in zip(self.strong, self.weak, strict=True)])

    # -- who synchronizes -------------------------------------------------------------------------------------------------

    def includes(self, scope: str, one: Thread, other: Thread) -> bool:
        """Whether a scope of one thread includes another thread."""
        if scope == "cta":
            return one.cta == other.cta
        return scope != "cluster" or one.cta // self.cluster == other.cta // self.cluster

    def mutual(self, i: int, j: int) -> bool:
        """Whether two operations with scopes each include the other's thread, or are of one thread."""
        one, other = self.events[i], self.events[j]
        scopes = getattr(one, "scope", ""), getattr(other, "scope", "")
        if isinstance(one, Barrier):
            scopes = self._barrier_fences[i], scopes[1]
        return one.thread == other.thread or (
            self.includes(scopes[0], one.thread, other.thread) and self.includes(scopes[1], other.thread, one.thread)
        )

    def _of(self, kind: type[Event]) -> list[int]:
        return [i for i, event in enumerate(self.events) if isinstance(event, kind)]

    def _before(self, i: int, kind: type[Event]) -> list[int]:
        """Events of a kind that the thread of an event did before it."""
        return [j for j in self._of(kind) if j < i and self.events[j].thread == self.events[i].thread]

    def _after(self, i: int, kind: type[Event]) -> list[int]:
        return [j for j in self._of(kind) if j > i and self.events[j].thread == self.events[i].thread]

    def _barriers(self) -> None:
        """Arrivals synchronize with waits, relaxed ones with the fences before them.

        A barrier of a CTA or a warp is a fence if all who arrive have executed a sequentially consistent one, and have
        accessed nothing since: what CUDA promises of `__threadfence()` before `__syncthreads()`.
        """
        self._barrier_fences: dict[int, str] = {}
        for i, j in itertools.permutations(self._of(Barrier), 2):
            one, other = self.events[i], self.events[j]
            if one.phase == other.phase and one.arrives and other.waits:
                heads = [i]
                if one.relaxed:
                    heads = [f for f in self._before(i, Fence) if self.events[f].scope != "cta"]
                for head in heads:
                    self.strong[head] |= 1 << j
        fenced: dict[Thread, str] = {}
        for i, event in enumerate(self.events):
            if isinstance(event, Fence) and event.sequential:
                fenced[event.thread] = max(event.scope, fenced.get(event.thread, "cta"), key=SCOPES.index)
            elif isinstance(event, (Access, Arrive, Wait, Issue)):
                fenced.pop(event.thread, None)
            elif isinstance(event, Barrier) and not event.in_cluster:
                all_of_it = [j for j in self._of(Barrier) if self.events[j].phase == event.phase]
                if i == all_of_it[-1]:
                    arrived = [self.events[j].thread for j in all_of_it if self.events[j].arrives]
                    if all(thread in fenced for thread in arrived):
                        scope = min((fenced[thread] for thread in arrived), key=SCOPES.index)
                        for j in all_of_it:
                            if self.events[j].waits:
                                self._barrier_fences[j] = scope
                                fenced[self.events[j].thread] = scope

    def _mbarriers(self) -> None:
        """An arrival synchronizes with waits for its phase and for later ones."""
        for i in self._of(Arrive):
            arrival = self.events[i]
            if arrival.after_copies:
                continue
            needed = "cta" if arrival.thread.cta == arrival.mbarrier.cta else "cluster"
            wide = SCOPES.index(arrival.scope) >= SCOPES.index(needed)
            heads = [i]
            if arrival.relaxed:
                heads = [
                    f for f in self._before(i, Fence) if SCOPES.index(self.events[f].scope) >= SCOPES.index(needed)
                ]
                heads = heads if wide else []
            for j in self._of(Wait):
                wait = self.events[j]
                if wait.mbarrier != arrival.mbarrier or wait.phase < arrival.phase:
                    continue
                for head in heads:
                    for tail in [j, *self._after(j, Fence)]:
                        edges = self.strong if wide and (tail != j or not wait.relaxed) else self.weak
                        edges[head] |= 1 << tail

    def _strong_accesses(self) -> None:
        """A release pattern synchronizes with an acquire pattern that observes it.

        A read observes the write that it saw, and by a chain of updates those that they saw, as long as each two are
        strong and each in the other's scope.
        """
        for read in self._of(Access):
            chain = self._observed(read)
            tails = [read] if self.events[read].sem in ("acquire", "acq_rel") else []
            tails += self._after(read, Fence)
            tails += [
                j
                for j in self._after(read, Access)
                if self.patterns and self._is(j, self.events[read].cell, "reads", ("acquire", "acq_rel"))
            ]
            for write in chain:
                heads = [write] if self.events[write].sem in ("release", "acq_rel") else []
                heads += self._before(write, Fence)
                heads += [b for b in self._before(write, Barrier) if b in self._barrier_fences]
                heads += [
                    j
                    for j in self._before(write, Access)
                    if self.patterns and self._is(j, self.events[write].cell, "writes", ("release", "acq_rel"))
                ]
                for head, tail in itertools.product(heads, tails):
                    if self.mutual(head, tail):
                        self.strong[head] |= 1 << tail

    def _is(self, i: int, cell: Cell, what: str, sems: tuple[str, ...]) -> bool:
        event = self.events[i]
        return event.cell == cell and bool(event.scope) and getattr(event, what) and event.sem in sems

    def _observed(self, read: int) -> Iterator[int]:
        while self.events[read].reads and self.events[read].scope:
            write = self.events[read].saw
            if write is None or not self.events[write].scope or not self.mutual(write, read):
                return
            yield write
            read = write

    # -- which accesses race ----------------------------------------------------------------------------------------------

    def touches(self) -> list[Touch]:
        """Every access, with where it is issued and where it is over."""
        made: list[Touch] = []
        for i, event in enumerate(self.events):
            if isinstance(event, Access):
                made.append(Touch(i, event.cell, event.writes, "generic", event.scope, (i,), (i,), (i,)))
            elif isinstance(event, Issue):
                issued = tuple(
                    j for j in self._of(Issue) if j == i or None is not self.events[j].together == event.together
                )
                if i == issued[0]:
                    for cells, writes in ((event.reads, False), (event.writes, True)):
                        over = [j for issue in issued for j in self._over(issue, writes)]
                        visible = list(over)
                        for j in over:
                            if isinstance(self.events[j], Wait) and self.events[j].relaxed:
                                visible.remove(j)
                                visible += self._after(j, Fence)
                        for cell in cells:
                            proxy = PROXY_OF_ENGINE[event.engine]
                            made.append(Touch(i, cell, writes, proxy, "", issued, tuple(over), tuple(visible)))
        return made

    def _over(self, i: int, writes: bool) -> Iterator[int]:
        """Events after which an access of an operation is over: its thread has waited, or a phase is complete."""
        issue = self.events[i]
        phases = [(issue.mbarrier, issue.phase)]
        phases += [
            (self.events[j].mbarrier, self.events[j].phase)
            for j in self._after(i, Arrive)
            if issue.engine == "cp.async" and self.events[j].after_copies
        ]
        for j in self._of(Wait):
            if any(m == self.events[j].mbarrier and phase <= self.events[j].phase for m, phase in phases):
                yield j
        commits = [j for j in self._after(i, Commit) if self.events[j].engine == issue.engine]
        for j in self._of(Await):
            wait = self.events[j]
            own = wait.thread == issue.thread
            if issue.engine == "wgmma":  # the event stands for a warp
                own = wait.thread.number // 32 == issue.thread.number // 32
            if j > i and own and wait.engine == issue.engine and not (writes and wait.reads_only):
                if sum(c < j for c in commits) > wait.left:
                    yield j

    def ordered(self, one: Touch, other: Touch, issuer: int, proxies: bool = True) -> bool:
        """Whether an access is over, and visible, for an issuer of another; without `proxies` if all were by one proxy."""
        fences = [f for f in self._of(ProxyFence) if one.cell.space in self.events[f].spaces]
        crosses = proxies and one.writes and one.proxy == "generic" and other.proxy == "async"
        needs_visible = one.writes and "generic" in (one.proxy, other.proxy)
        for start in one.visible if needs_visible else one.over:
            if crosses:
                if any(self.visible[start] >> f & 1 and self.visible[f] >> issuer & 1 for f in fences):
                    return True
            elif (self.visible if needs_visible else self.reached)[start] >> issuer & 1:
                return True
        return False

    def why(self, one: Touch, other: Touch) -> set[str]:
        """Why an access is not ordered before another: for its issuers, "unordered" or "proxy"."""
        late = [issuer for issuer in other.issued if not self.ordered(one, other, issuer)]
        return {"proxy" if self.ordered(one, other, issuer, proxies=False) else "unordered" for issuer in late}

    def races(self) -> dict[tuple[int, int, Cell], set[str]]:
        """Pairs of events that race at a cell, and why: "unordered", "proxy" or "scope"."""
        found: dict[tuple[int, int, Cell], set[str]] = {}
        for one, other in itertools.combinations(self.touches(), 2):
            if one.cell != other.cell or not (one.writes or other.writes) or one.event == other.event:
                continue
            why = [self.why(one, other), self.why(other, one)]
            if not all(why):
                continue
            if one.scope and other.scope:
                if not self.mutual(one.event, other.event):
                    found[one.event, other.event, one.cell] = {"scope"}
            else:
                found[one.event, other.event, one.cell] = max(why, key=lambda reasons: "proxy" in reasons)
        return found


def closure(edges: list[int]) -> list[int]:
    """For each node the nodes that a path leads to, as bits."""
    reached = list(edges)
    for middle, _ in enumerate(reached):
        for i, found in enumerate(reached):
            if found >> middle & 1:
                reached[i] |= reached[middle]
    return reached
