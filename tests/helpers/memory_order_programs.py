"""Random kernels of accesses, barriers, mbarriers, fences and asynchronous copies, whose steps know nothing of each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from memory_order_definition import Cell, Commit, Issue, Thread
from memory_order_kernels import PROXY_FENCES, Kernel


@dataclasses.dataclass
class Mbarrier:
    """An mbarrier, and how far it is when the steps so far are done."""

    cell: Cell
    members: tuple[Thread, ...]
    phase: int = 0
    arrived: set[Thread] = dataclasses.field(default_factory=set)
    waited: dict[Thread, int] = dataclasses.field(default_factory=dict)
    """The last phase that each has waited for."""


class Program(Kernel):
    """A random kernel."""

    counts = (2, 1, 3, 2)

    def __init__(self, seed: int, shape: str, steps: int = 24) -> None:
        super().__init__(seed, shape)
        self.written_flags: set[Cell] = set()
        self.mbarriers: list[Mbarrier] = []
        for cta in range(self.ctas):
            for index, count in enumerate(self.counts):
                near = [thread for thread in self.threads if self.are_near(thread.cta, cta)]
                members = self.numbers.sample(near, count)
                self.mbarriers.append(Mbarrier(Cell("shared", cta, index), tuple(members)))
        self.begin()
        for _ in range(steps):
            self._step()
        self.end()

    def _step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, self._plain), (6, self._strong), (3, self._fence), (3, self._sync), (2, self._named), (2, self._lanes),
            (4, self._arrive), (5, self._wait), (2, self._copy), (2, self._commit), (2, self._await),
        ]  # fmt: skip
        if self.cluster > 1:
            steps.append((4, self._cluster))
        if self.async_proxy:
            steps += [(4, self._proxy_fence), (3, self._save), (3, self._save_group)]
        if self.shape == "warpgroup":
            steps.append((5, self._wgmma))
        self.numbers.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()

    def _cells(self, thread: Thread, flags: bool = False) -> list[Cell]:
        ctas = [cta for cta in range(self.ctas) if self.are_near(cta, thread.cta)]
        indices = self.flags if flags else self.cells
        return [Cell("shared", cta, i) for cta in ctas for i in indices] + [Cell("global", 0, i) for i in indices]

    def _plain(self) -> None:
        thread = self.numbers.choice(self.threads)
        cell = self.numbers.choice(self._cells(thread, flags=self.numbers.random() < 0.05))
        self.plain(thread, cell, self.numbers.random() < 0.5)

    def _strong(self) -> None:
        thread = self.numbers.choice(self.threads)
        cell = self.numbers.choice(self._cells(thread, flags=self.numbers.random() < 0.9))
        how = self.numbers.choice(["load", "load", "store", "update"])
        sems = {"load": ["relaxed", "acquire"], "store": ["relaxed", "release"]}
        sem = self.numbers.choice(sems.get(how, ["relaxed", "acquire", "release", "acq_rel"]))
        scope = self.numbers.choice(
            [["cta", "gpu"], ["gpu"], ["cta", "cluster", "gpu", "sys"]][self.numbers.randrange(3)]
        )
        spins = how == "load" and cell in self.written_flags and self.numbers.random() < 0.8
        if how != "load" and cell.index in self.flags:
            self.written_flags.add(cell)
        self.strong(thread, cell, how, sem, scope, spins)

    def _fence(self) -> None:
        scope = self.numbers.choice(["cta", "cluster", "gpu", "gpu"])
        sequential = self.numbers.random() < 0.3
        self.fence(self.some_or_all(self.numbers.choice(self.threads)), scope, sequential)

    def _sync(self) -> None:
        self.sync(self.numbers.randrange(self.ctas))

    def _named(self) -> None:
        """A warp waits for itself and another one, which only arrives or waits, too."""
        cta = self.numbers.randrange(self.ctas)
        if self.next_barrier[cta] > 15:
            return
        waits = self.numbers.choice([True, True, False])
        one, other = self.numbers.sample(range(self.per_cta // 32), 2)
        self.named(cta, self.next_barrier[cta], one, waits)
        self.named(cta, self.next_barrier[cta], other, True)
        self.next_barrier[cta] += 1

    def _lanes(self) -> None:
        cta, warp = self.numbers.randrange(self.ctas), self.numbers.choice([0, 1])
        all_of_it = self.numbers.random() < 0.5
        if all_of_it or len(self.warp(cta, warp)) > 2:
            self.lanes(cta, warp, all_of_it)

    def _cluster(self) -> None:
        cluster = self.numbers.randrange(self.ctas // self.cluster)
        if cluster in self.cluster_waits:
            self.cluster_wait(cluster)
        else:
            self.cluster_arrive(cluster, self.numbers.random() < 0.4)

    def _arrive(self) -> None:
        """An arrival, by which a copy's bytes or earlier copies may be awaited."""
        ready = [
            (m, thread)
            for m in self.mbarriers
            for thread in m.members
            if thread not in m.arrived and m.waited.get(thread, -1) >= m.phase - 1
        ]
        if not ready:
            return
        m, thread = self.numbers.choice(ready)
        ways = ["plain", "plain", "relaxed"]
        if thread.cta == m.cell.cta:
            ways += ["copies"] + ["bulk"] * (3 * self.async_proxy)
        way = self.numbers.choice(ways)
        scope = self.numbers.choice(["cta", "cluster"]) if self.cluster > 1 else "cta"
        if way == "copies":
            self.copies_arrive(thread, m.cell, m.phase)
        elif way == "bulk":
            self.load_bytes(thread, m.cell, m.phase, *self._source_and_target(thread), scope)
        else:
            self.arrive(thread, m.cell, m.phase, scope, way == "relaxed")
        m.arrived.add(thread)
        if len(m.arrived) == len(m.members):
            m.phase += 1
            m.arrived.clear()

    def _source_and_target(self, thread: Thread) -> tuple[Cell, Cell]:
        """A cell of global memory and one of the thread's CTA."""
        return (
            Cell("global", 0, self.numbers.choice(self.cells)),
            Cell("shared", thread.cta, self.numbers.choice(self.cells)),
        )

    def _wait(self) -> None:
        ready = [
            (m, thread)
            for m in self.mbarriers
            for thread in m.members
            if thread.cta == m.cell.cta and m.phase > 0 and m.waited.get(thread, -1) < m.phase - 1
        ]
        if not ready:
            return
        m, thread = self.numbers.choice(ready)
        m.waited[thread] = m.phase - 1
        self.wait(thread, m.cell, m.phase - 1, self.numbers.random() < 0.25)

    def _copy(self) -> None:
        thread = self.numbers.choice(self.threads)
        self.copy(thread, "cp.async", *self._source_and_target(thread))

    def _save(self) -> None:
        thread = self.numbers.choice(self.threads)
        target, source = self._source_and_target(thread)
        self.copy(thread, "bulk store", source, target)

    def _commit(self) -> None:
        self._group("cp.async")

    def _await(self) -> None:
        self._await_group("cp.async")

    def _save_group(self) -> None:
        if self.numbers.random() < 0.5:
            self._group("bulk store")
        else:
            self._await_group("bulk store", self.numbers.random() < 0.5)

    def _group(self, engine: str) -> None:
        """Commit what a thread that has issued something has issued."""
        issuers = [event.thread for event in self.events if isinstance(event, Issue) and event.engine == engine]
        if issuers:
            self.commit(self.numbers.choice(issuers), engine)

    def _await_group(self, engine: str, reads_only: bool = False) -> None:
        committers = [event.thread for event in self.events if isinstance(event, Commit) and event.engine == engine]
        if committers:
            self.await_groups(self.numbers.choice(committers), engine, self.numbers.choice([0, 0, 1]), reads_only)

    def _proxy_fence(self) -> None:
        name = self.numbers.choice(list(PROXY_FENCES))
        self.proxy_fence(self.some_or_all(self.numbers.choice(self.threads)), name)

    def _wgmma(self) -> None:
        way = self.numbers.choice(["issue", "issue", "commit", "wait", "wait"])
        if way == "issue":
            self.wgmma(self.numbers.choice(self.operands))
        elif way == "commit":
            self.commit(self.threads[0], "wgmma")
        else:
            self.await_groups(self.threads[0], "wgmma", self.numbers.choice([0, 0, 1]))
