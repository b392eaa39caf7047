"""Random kernels of messages: a thread accesses a cell, a chain of links leads to another thread, which accesses it, too.

Each link orders two threads: by a flag, an mbarrier, a barrier, or the bytes of a copy. A message is right, or one of its
parts is broken: a scope too narrow, a relaxed access, another phase, group or space, too early or too late, or left out.
So whether the two accesses race depends on that part alone. Where steps know nothing of each other
(`memory_order_programs.py`), it seldom depends on any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from memory_order_definition import PROXY_OF_ENGINE, SCOPES, Cell, Thread
from memory_order_kernels import PROXY_FENCES, Doers, Kernel

MESSAGES = 6
Steps = list[Callable[[], None]]


class Link(NamedTuple):
    """What a thread does, and what another one does later to be ordered after it."""

    publish: Steps
    observe: Steps


class Messages(Kernel):
    """A kernel of messages, one after the other."""

    cells = range(2 * MESSAGES + 1)
    flags = range(2 * MESSAGES + 1, 6 * MESSAGES + 1)
    operands = tuple(range(0, 2 * MESSAGES, 2))
    counts = (1, 2) * 12

    def __init__(self, seed: int, shape: str) -> None:
        super().__init__(seed, shape)
        self.next_flag = iter(self.flags)
        self.next_mbarrier = {count: iter(range(count - 1, len(self.counts), 2)) for count in (1, 2)}
        self.cell: Cell | None = None
        """Of the message before."""
        self.begin()
        for number in range(MESSAGES):
            self.scratch = 2 * number + 1
            self._message(2 * number)
        self.end()

    def choice(self, *choices: Any) -> Any:
        return self.numbers.choice(choices)

    def includes(self, scope: str, one: Thread, other: Thread) -> bool:
        if scope == "cta":
            return one.cta == other.cta
        return scope != "cluster" or self.are_near(one.cta, other.cta)

    def scope(self, one: Thread, other: Thread, weak: bool) -> str:
        """A scope that includes both threads; if `weak` one that does not, if there is one."""
        narrow = [scope for scope in SCOPES if not self.includes(scope, one, other)]
        return self.choice(*(narrow if weak and narrow else [scope for scope in SCOPES if scope not in narrow]))

    # -- messages ---------------------------------------------------------------------------------------------------------

    def _message(self, index: int) -> None:
        first, last = self.choice(*self.threads), self.choice(*self.threads)
        cell, (engine, writes), (last_engine, last_writes) = self._accesses(first, last, index)
        path = [first, *(self.choice(*self.threads) for _ in range(self.choice(0, 0, 1, 1, 2))), last]
        by_mbarrier = engine == "bulk load" or (engine == "cp.async" and self.choice(True, False))
        if by_mbarrier:
            path.insert(1, self.choice(*(thread for thread in self.threads if thread.cta == first.cta)))
        if last_engine == "wgmma":  # all warps have to be ordered
            path.insert(-1, self.choice(*self.threads))
        path = [thread for i, thread in enumerate(path) if i < 2 or thread != path[i - 1] or last_engine == "wgmma"]
        if first == path[1] and len(path) == 2 and not by_mbarrier and last_engine != "wgmma":
            path = [first]
        crosses = writes and PROXY_OF_ENGINE.get(engine, "generic") == "generic"
        crosses = crosses and PROXY_OF_ENGINE.get(last_engine) == "async"
        parts = [
            *range(len(path) - 1),
            *["fence"] * (2 * crosses),
            *["first"] * (2 * (engine != "" and not by_mbarrier)),
        ]
        broken = self.choice(*parts) if parts and self.numbers.random() < 0.7 else None
        how = self.choice("weak", "weak", "weak", "early", "late", "left out")

        groups: dict[object, Steps] = {
            "first": self._first(first, cell, engine, writes, by_mbarrier, broken == "first")
        }
        fence = self.numbers.randrange(len(path)) if crosses else -1
        for i, thread in enumerate(path):
            if i == fence:
                doers = self.some_or_all(thread) if last_engine != "wgmma" else self.all_of(thread.cta)
                groups["fence"] = [
                    functools.partial(self._proxy_fence, doers, cell, (broken, how) == ("fence", "weak"))
                ]
            if i + 1 < len(path):
                weak = (broken, how) == (i, "weak")
                of_wgmma = i + 2 == len(path) and last_engine == "wgmma"  # if weak, the first warp alone is ordered
                if i == 0 and by_mbarrier:
                    link = self._by_mbarrier(thread, path[1], cell, engine, writes, weak)
                elif of_wgmma and (not weak or thread == self.threads[0]):
                    link = Link([], [functools.partial(self.sync, thread.cta)])
                else:
                    link = self._link(thread, self.threads[0] if of_wgmma else path[i + 1], weak and not of_wgmma)
                groups[i, "publish"] = link.publish
                groups[i, "observe"] = link.observe
        groups["last"] = [functools.partial(self._last, last, cell, last_engine, last_writes)]
        keys = [key for key, steps in groups.items() if steps]
        if how != "weak" and broken not in (None, "first"):
            self._misplace(keys, broken, how)
        for key in keys:
            for step in groups[key]:
                step()

    def _misplace(self, keys: list[object], broken: object, how: str) -> None:
        """Exchange what belongs to a part with what comes before or after it, or leave it out."""
        own = [i for i, key in enumerate(keys) if key in (broken, (broken, "publish"), (broken, "observe"))]
        if how == "left out":
            del keys[own[0] : own[-1] + 1]
        elif how == "early" and own[0] > 0:
            keys[own[0] - 1], keys[own[0]] = keys[own[0]], keys[own[0] - 1]
        elif how == "late":
            keys[own[-1] + 1], keys[own[-1]] = keys[own[-1]], keys[own[-1] + 1]

    def _accesses(self, first: Thread, last: Thread, index: int) -> tuple[Cell, tuple[str, bool], tuple[str, bool]]:
        """A cell, and how two threads access it: by which engine, and whether they write."""
        cells = [Cell("shared", first.cta, index), Cell("shared", last.cta, index), Cell("global", 0, index)]
        if self.cell is not None and self.numbers.random() < 0.25:
            cells = [self.cell]
        ways = [
            (cell, one, other)
            for cell in cells
            for one in self._ways(first, cell)
            for other in self._ways(last, cell)
            if one[1] or other[1]
        ]
        if not ways:
            self.cell = None
            return self._accesses(first, last, index)
        accesses = self.choice(*ways)
        self.cell = accesses[0]
        return accesses

    def _ways(self, thread: Thread, cell: Cell) -> list[tuple[str, bool]]:
        if cell.space == "shared" and not self.are_near(thread.cta, cell.cta):
            return []
        ways = [("", False), ("", True)]
        own = cell.space == "shared" and cell.cta == thread.cta
        if own or cell.space == "global":
            ways.append(("cp.async", own))
            if self.async_proxy:
                ways += [("bulk load", own), ("bulk store", not own)]
        if own and self.shape == "warpgroup":
            ways += [("wgmma", False)] * 2
        return ways

    # -- accesses ---------------------------------------------------------------------------------------------------------

    def _issue(self, thread: Thread, engine: str, cell: Cell, writes: bool) -> None:
        """Access a cell by an engine that copies from one never written, or to one of this message."""
        if engine == "wgmma":
            self.wgmma(cell.index)
            return
        other = (
            Cell("global", 0, self.cells[-1]) if engine == "cp.async" else Cell("shared", thread.cta, self.cells[-1])
        )
        if not writes:
            other = Cell("global" if cell.space == "shared" else "shared", 0, self.scratch)
            other = other._replace(cta=thread.cta if other.space == "shared" else 0)
        self.copy(thread, engine, *((other, cell) if writes else (cell, other)))

    def _access(self, thread: Thread, cell: Cell, writes: bool) -> None:
        if self.numbers.random() < 0.85:
            self.plain(thread, cell, writes)
        else:
            how = self.choice("store", "update") if writes else "load"
            self.strong(thread, cell, how, "relaxed", self.choice(*SCOPES))

    def _first(self, thread: Thread, cell: Cell, engine: str, writes: bool, by_mbarrier: bool, weak: bool) -> Steps:
        """The first access, and a wait for it if it belongs to a group."""
        if engine == "bulk load":
            return []
        if not engine:
            return [functools.partial(self._access, thread, cell, writes)]
        if by_mbarrier:
            return [functools.partial(self._issue, thread, engine, cell, writes)]
        younger = self.choice(0, 0, 1, 2)
        left = self.numbers.randint(0, younger)
        reads_only = engine == "bulk store" and not writes and self.choice(True, False)
        issue = functools.partial(self._issue, thread, engine, cell, writes)
        commit = functools.partial(self.commit, thread, engine)
        wait = functools.partial(self.await_groups, thread, engine)
        older = [commit] * self.choice(0, 0, 1)
        right = [*older, issue, commit, *[commit] * younger, functools.partial(wait, left, reads_only)]
        if not weak:
            return right
        ways: list[Steps] = [
            [*older, issue, commit, *[commit] * younger, functools.partial(wait, younger + 1, reads_only)],
            [*older, issue, *[commit] * younger, functools.partial(wait, younger, reads_only)],
            [*older, commit, issue, *[commit] * younger, functools.partial(wait, younger, reads_only)],
            [*older, issue, functools.partial(wait, 0, reads_only), commit],
            right[:-1],
        ]
        if engine == "bulk store" and writes:
            ways += [[*right[:-1], functools.partial(wait, left, True)]] * 3
        return self.choice(*ways)

    def _last(self, thread: Thread, cell: Cell, engine: str, writes: bool) -> None:
        if not engine:
            self._access(thread, cell, writes)
        elif engine == "bulk load":
            m = self._mbarrier(thread.cta, 1)
            self.load_bytes(thread, m, 0, *self._source_and_target(thread, cell, writes))
        else:
            self._issue(thread, engine, cell, writes)

    def _source_and_target(self, thread: Thread, cell: Cell, writes: bool) -> tuple[Cell, Cell]:
        if writes:
            return Cell("global", 0, self.cells[-1]), cell
        return cell, Cell("shared", thread.cta, self.scratch)

    def _proxy_fence(self, doers: Doers, cell: Cell, weak: bool) -> None:
        names = [name for name, spaces in PROXY_FENCES.items() if (cell.space in spaces) != weak]
        self.proxy_fence(doers, self.choice(*names))

    # -- links ------------------------------------------------------------------------------------------------------------

    def _link(self, one: Thread, other: Thread, weak: bool) -> Link:
        """A link from one thread to another; if `weak` one that does not order them, where there is such a one."""
        near = self.are_near(one.cta, other.cta)
        kinds = []
        if one.cta == other.cta:
            kinds.append(self._block)
            if one.number // 32 != other.number // 32 and self.next_barrier[one.cta] <= 15:
                kinds += [self._named, self._named]
            elif one != other and one.number // 32 == other.number // 32:
                kinds += [self._lanes, self._lanes]
        if one != other:
            kinds += [self._flag, self._flag, self._flag, *[self._fenced_flag] * (1 + weak)]
            kinds += [self._mbarrier_link] * ((5 + 5 * weak) * near)
        if near and self.cluster > 1:
            kinds += [self._cluster] * 3
        return self.choice(*kinds)(one, other, weak)

    def _block(self, one: Thread, other: Thread, weak: bool) -> Link:
        return Link([], [] if weak else [functools.partial(self.sync, one.cta)])

    def _lanes(self, one: Thread, other: Thread, weak: bool) -> Link:
        first_two = one.number % 32 < 2 and other.number % 32 < 2
        all_of_it = not first_two or self.choice(True, False)
        return Link([], [] if weak else [functools.partial(self.lanes, one.cta, one.number // 32, all_of_it)])

    def _named(self, one: Thread, other: Thread, weak: bool) -> Link:
        number = self.next_barrier[one.cta]
        self.next_barrier[one.cta] += 1
        arrive, wait = (functools.partial(self.named, one.cta, number, thread.number // 32) for thread in (one, other))
        if weak:  # the other way round
            return Link([], [functools.partial(wait, False), functools.partial(arrive, True)])
        if self.choice(True, False):
            return Link([functools.partial(arrive, False)], [functools.partial(wait, True)])
        return Link([], [functools.partial(arrive, True), functools.partial(wait, True)])

    def _cluster(self, one: Thread, other: Thread, weak: bool) -> Link:
        cluster = one.cta // self.cluster
        fences: Steps = []
        relaxed = weak or self.choice(True, False)
        if relaxed:
            scope = "cta" if weak else self.choice("cluster", "gpu")
            fences = [] if weak and self.choice(True, False) else [functools.partial(self.fence, self.one(one), scope)]

        def arrive() -> None:
            if cluster in self.cluster_waits:
                self.cluster_wait(cluster)
            self.cluster_arrive(cluster, relaxed)

        def wait() -> None:
            if cluster in self.cluster_waits:
                self.cluster_wait(cluster)

        return Link([*fences, arrive], [wait])

    def _mbarrier(self, cta: int, count: int) -> Cell:
        return Cell("shared", cta, next(self.next_mbarrier[count]))

    def _mbarrier_link(self, one: Thread, other: Thread, weak: bool) -> Link:
        """An mbarrier of the waiting thread's CTA, at which that thread arrives, too, if `count` is 2."""
        count = self.choice(1, 2)
        m = self._mbarrier(other.cta, count)
        remote = one.cta != other.cta
        scope = "cluster" if remote else self.choice("cta", "cluster") if self.cluster > 1 else "cta"
        fails = self.choice("arrival", "wait", *["scope"] * (6 * remote), *["phase"] * (2 * count)) if weak else ""
        if fails == "scope":
            publish = [functools.partial(self.arrive, one, m, 0, "cta")]
            return Link(
                publish,
                [
                    *[functools.partial(self.arrive, other, m, 0)] * (count - 1),
                    functools.partial(self.wait, other, m, 0),
                ],
            )
        phase = self.choice(0, 1, 2) if count == 2 and not remote else 0
        before: Steps = []
        for round_ in range(phase):
            for thread in (one, other):
                before.append(functools.partial(self.arrive, thread, m, round_, scope))
            for thread in (one, other):
                before.append(functools.partial(self.wait, thread, m, round_))
        arrival = functools.partial(self.arrive, other, m, phase, scope)
        publish = self._relaxed_or_not(
            functools.partial(self.arrive, one, m, phase, scope), one, scope, fails == "arrival"
        )
        for step in before + [arrival] * (count == 2 and fails != "phase"):
            step()
        if fails == "phase":  # the phase before, which is complete; this one is not until the other thread has arrived
            after = [arrival] * (count == 2)
            return Link(publish, [functools.partial(self.wait, other, m, phase - 1), *after] if count == 2 else [])
        wait = functools.partial(self.wait, other, m, phase)
        return Link(publish, self._relaxed_or_not(wait, other, scope, fails == "wait", acquires=True))

    def _relaxed_or_not(
        self, step: Callable[..., None], thread: Thread, scope: str, weak: bool, acquires: bool = False
    ) -> Steps:
        """A step that releases or acquires, or a relaxed one with a fence, which is missing or too narrow if `weak`."""
        if not weak and self.numbers.random() < 0.6:
            return [step]
        steps: Steps = [functools.partial(step, relaxed=True)]
        wide = self.choice(*SCOPES[SCOPES.index(scope) : 3])
        if weak:
            if acquires or scope == "cta" or self.choice(True, False):
                return steps
            wide = "cta"
        fence = functools.partial(self.fence, self.one(thread), wide)
        return [*steps, fence] if acquires else [fence, *steps]

    def _by_mbarrier(self, one: Thread, other: Thread, cell: Cell, engine: str, writes: bool, weak: bool) -> Link:
        """The bytes of a bulk load that accesses the cell, or an arrival after a `cp.async` that does.

        The wait if `weak` is relaxed, or for the phase before.
        """
        m = self._mbarrier(one.cta, 2)
        phase = self.choice(0, 0, 1) if engine == "bulk load" else 0
        if phase == 1:
            self.arrive(other, m, 0)
            self.load_bytes(one, m, 0, Cell("global", 0, self.cells[-1]), Cell("shared", one.cta, self.scratch))
            self.wait(one, m, 0)
            self.wait(other, m, 0)
        publish = functools.partial(self.copies_arrive, one, m, 0)
        if engine == "bulk load":
            publish = functools.partial(self.load_bytes, one, m, phase, *self._source_and_target(one, cell, writes))
        arrival = functools.partial(self.arrive, other, m, phase)
        if weak and self.choice(True, False):
            return Link([publish], [functools.partial(self.wait, other, m, phase - 1), arrival])
        arrival()
        wait = functools.partial(self.wait, other, m, phase)
        return Link([publish], self._relaxed_or_not(wait, other, "cta", weak, acquires=True))

    def _flag_cell(self, one: Thread, other: Thread) -> Cell:
        cells = [Cell("global", 0, 0)]
        if self.are_near(one.cta, other.cta):
            cells += [Cell("shared", one.cta, 0), Cell("shared", other.cta, 0)]
        return self.choice(*cells)._replace(index=next(self.next_flag))

    def _flag(self, one: Thread, other: Thread, weak: bool) -> Link:
        flag = self._flag_cell(one, other)
        fails = self.choice("release", "acquire", "both", "update") if weak else ""
        publish = self._release(one, other, flag, fails in ("release", "both"))
        between: Steps = []
        if fails == "update" or self.numbers.random() < 0.2:  # of a third thread, which continues what was released
            by = self.choice(*(thread for thread in self.threads if self._can_update(thread, one, other, flag)))
            how = self.choice("store", "update") if fails else "update"
            scope = self.scope(one, other, bool(fails) and how == "update")
            between = [
                functools.partial(self.strong, by, flag, "load", "relaxed", scope, True),
                functools.partial(self.strong, by, flag, how, "relaxed", scope),
            ]
        return Link([*publish, *between], self._acquire(one, other, flag, fails in ("acquire", "both")))

    def _can_update(self, thread: Thread, one: Thread, other: Thread, flag: Cell) -> bool:
        return thread.cta in (one.cta, other.cta) and (flag.space == "global" or self.are_near(thread.cta, flag.cta))

    def _release(self, one: Thread, other: Thread, flag: Cell, weak: bool) -> Steps:
        """Set a flag for another thread."""
        how = self.choice("store", "update")
        fenced = self.choice(True, False)
        narrow = weak and self.choice(True, False)  # else it does not release, or the fence is too late
        scope = self.scope(one, other, narrow)
        sem = (
            "relaxed"
            if fenced or (weak and not narrow)
            else self.choice(*["release"] * 2, *["acq_rel"] * (how == "update"))
        )
        store = functools.partial(self.strong, one, flag, how, sem, scope)
        if not fenced:
            return [store]
        wide = self.scope(one, other, False)
        fence = functools.partial(self.fence, self.one(one), min(wide, "gpu", key=SCOPES.index))
        if narrow and self.choice(True, False):
            store = functools.partial(self.strong, one, flag, how, sem, wide)
            fence = functools.partial(self.fence, self.one(one), min(scope, "gpu", key=SCOPES.index))
        return [store, fence] if weak and not narrow else [fence, store]

    def _acquire(self, one: Thread, other: Thread, flag: Cell, weak: bool) -> Steps:
        """Wait until a flag is set."""
        way = self.choice("load", "load", "fence", "fence", "update")
        narrow = weak and self.choice(True, False)
        scope = self.scope(one, other, narrow)
        if way == "load":
            sem = "relaxed" if weak and not narrow else "acquire"
            return [functools.partial(self.strong, other, flag, "load", sem, scope, True)]
        load = functools.partial(self.strong, other, flag, "load", "relaxed", scope, True)
        if weak and not narrow:
            return [load]
        if way == "update":
            sem = self.choice("acquire", "acq_rel")
            return [load, functools.partial(self.strong, other, flag, "update", sem, scope)]
        fence = functools.partial(self.fence, self.one(other), min(scope, "gpu", key=SCOPES.index))
        if narrow:
            load = functools.partial(self.strong, other, flag, "load", "relaxed", self.scope(one, other, False), True)
        return [load, fence]

    def _fenced_flag(self, one: Thread, other: Thread, weak: bool) -> Link:
        """The threads of a CTA fence and meet, and one of them sets a flag."""
        flag = self._flag_cell(one, other)
        fails = self.choice("fence", "some", "some", "access", "access", "scope") if weak else ""
        scope = self.scope(one, other, fails == "scope")
        doers = self.all_of(one.cta)
        if fails == "some":
            absent = self.choice(*self.everybody(one.cta)[:-1])
            doers = [thread for thread in doers[0] if thread != absent], self.in_cta(one.cta, f"t != {absent.number}")
        access = functools.partial(self.plain, one, Cell("shared", one.cta, self.cells[-1]), False)
        by = self.choice(*(thread for thread in self.threads if thread.cta == one.cta))
        publish: Steps = [
            functools.partial(self.fence, doers, min(scope, "gpu", key=SCOPES.index), fails != "fence"),
            *[access] * (fails == "access"),
            functools.partial(self.sync, one.cta),
            functools.partial(self.strong, by, flag, "store", "relaxed", self.scope(one, other, False)),
        ]
        return Link(publish, self._acquire(one, other, flag, False))
