"""Random kernels of accesses, barriers, mbarriers, fences and asynchronous copies, and what they did when they ran.

A kernel is a sequence of steps, each by one thread or by several. Carried out one after the other no step waits for a
later one, so no schedule deadlocks. Every write has another value, so a read tells which one it saw.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import memory_order_definition as definition
import numpy as np
from memory_order_definition import (
    Access,
    Arrive,
    Await,
    Barrier,
    Cell,
    Commit,
    Event,
    Fence,
    Issue,
    ProxyFence,
    Thread,
    Wait,
)

import kiln
from kiln.cute.runtime import from_dlpack
from kiln.targets.cpu.runtime import parts

INDENT = "    "
CELLS, FLAGS, MBARRIERS = range(3), range(3, 5), range(4)
STRIDE = 256
"""Words from one cell to the next: two cells are in what a WGMMA reads as A."""
MOST_EVENTS = 400
SHAPES = {"cta": (1, 64), "grid": (2, 64), "cluster": (2, 64), "warpgroup": (1, 128)}
"""CTAs and threads of a CTA."""
HEAD = """\
from kiln import Int32, Int64, Float32, Boolean, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.dialects.nvgpu import wgmma


@cute.kernel
def kernel(x: cute.Tensor, seen: cute.Tensor):
    t, _, _ = arch.thread_idx()
    b, _, _ = arch.block_idx()
    s = arch.alloc_smem(Int32, 2048, 1024)
    m = arch.alloc_smem(Int64, 4)
    g = x.iterator
"""
TAIL = """\


@cute.jit
def main(x: cute.Tensor, seen: cute.Tensor):
    kernel(x, seen).launch(grid={ctas}, block={threads}, cluster={cluster})
"""
SPIN = """\
{name} = Int32(0)
while {name} == 0:
    {name} = {value}
"""
RELAXED_WAIT = (
    'arch.inline_ptx("{{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64 p, [$1], {parity}; '
    'selp.s32 $0, 1, 0, p; }}", write_only_types=[Int32], read_only_args=[(m + {index}).toint()])'
)
WGMMA = """\
wgmma.wgmma_fence()
wgmma.wgmma(sums.iterator.ir_value(), a{operand}.ir_value(), w.ir_value(), Boolean(False).ir_value(), n=8, k=16,\
 a_type="f16", b_type="f16", a_major="k", b_major="k")
"""


@dataclasses.dataclass
class Mbarrier:
    """An mbarrier, and how far it is when the steps so far are done."""

    cell: Cell
    members: tuple[Thread, ...]
    phase: int = 0
    arrived: set[Thread] = dataclasses.field(default_factory=set)
    waited: dict[Thread, int] = dataclasses.field(default_factory=dict)
    """The last phase that each has waited for."""


class Program:
    """A random kernel."""

    def __init__(self, seed: int, shape: str, steps: int = 24) -> None:
        self.numbers = random.Random(f"{seed} {shape}")
        self.shape = shape
        self.ctas, self.per_cta = SHAPES[shape]
        self.clustered = shape == "cluster"
        self.cluster = 2 if self.clustered else 1
        self.lines: list[str] = HEAD.splitlines()
        self.events: list[Event] = []
        self.event_of_line: dict[int, int] = {}
        self.active = [0, 1, 32, 33] if shape != "warpgroup" else [0, 1, 32, 64, 96]
        self.threads = [Thread(cta, number) for cta in range(self.ctas) for number in self.active]
        self.phases: dict[object, int] = {}
        self.next_barrier = 2
        self.cluster_waits = False
        self.written_flags: set[Cell] = set()
        self.mbarriers: list[Mbarrier] = []
        for cta in range(self.ctas):
            for index in MBARRIERS:
                near = [thread for thread in self.threads if self.clustered or thread.cta == cta]
                members = self.numbers.sample(near, self.numbers.randint(1, 3))
                self.mbarriers.append(Mbarrier(Cell("shared", cta, index), tuple(members)))
        self.async_proxy = shape == "warpgroup" or self.numbers.random() < 0.5
        self._begin()
        for _ in range(steps):
            self._step()
        self._end()

    # -- text -------------------------------------------------------------------------------------------------------------

    def add(self, text: str, when: str = "", event: int | None = None) -> None:
        """Add lines, which threads execute for which a condition holds; `event` is the access there."""
        if when:
            self.lines.append(INDENT + f"if {when}:")
        for line in text.splitlines():
            self.lines.append(INDENT * (2 if when else 1) + line)
            if event is not None:
                self.event_of_line[len(self.lines)] = event

    def by(self, thread: Thread) -> str:
        return f"t == {thread.number}" if self.ctas == 1 else f"(b == {thread.cta}) & (t == {thread.number})"

    def in_cta(self, cta: int, threads: str = "") -> str:
        parts_ = [f"b == {cta}"] * (self.ctas > 1) + [threads] * bool(threads)
        return parts_[0] if len(parts_) == 1 else " & ".join(f"({part})" for part in parts_)

    def pointer(self, thread: Thread, cell: Cell) -> str:
        base = "g" if cell.space == "global" else "s" if cell.cta == thread.cta else "r"
        return f"{base} + {cell.index * STRIDE}"

    def _begin(self) -> None:
        count = {cta: [m for m in self.mbarriers if m.cell.cta == cta] for cta in range(self.ctas)}
        if self.clustered:
            self.add("r = arch.map_dsmem_ptr(s, 1 - b)")
        if self.async_proxy:
            self.add("load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Int32)")
            self.add("save = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Int32)")
        self.add("copy = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)")
        if self.shape == "warpgroup":
            self.add("sums = cute.make_rmem_tensor(4, Float32)")
            self.add("w = wgmma.matrix_descriptor((s + 1536).ir_value(), 128, 128, 'none')")
            for operand in (0, 1):
                self.add(f"a{operand} = wgmma.matrix_descriptor((s + {operand * 512}).ir_value(), 1024, 128, 'none')")
            self.add("a0, a1, w = Int64(a0), Int64(a1), Int64(w)")
        for cta in range(self.ctas):
            words = [f"(s + {i * STRIDE}).store(Int32(0))" for i in (*CELLS, *FLAGS)]
            words += [f"arch.mbarrier_init(m + {m.cell.index}, {len(m.members)})" for m in count[cta]]
            self.add("\n".join([*words, "arch.mbarrier_init_fence()"]), self.in_cta(cta, "t == 0"))
        self._sync_everybody()

    def _sync_everybody(self) -> None:
        self.add("arch.cluster_arrive()\narch.cluster_wait()" if self.clustered else "arch.sync_threads()")

    def _end(self) -> None:
        if self.cluster_waits:
            self.add("arch.cluster_wait()")
        self._sync_everybody()
        cluster = (2, 1, 1) if self.clustered else None
        self.lines += TAIL.format(ctas=self.ctas, threads=self.per_cta, cluster=cluster).splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    # -- steps ------------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (10, self._plain), (6, self._strong), (3, self._fence), (3, self._sync), (2, self._named), (2, self._lanes),
            (4, self._arrive), (5, self._wait), (2, self._copy), (2, self._commit), (2, self._await),
        ]  # fmt: skip
        if self.clustered:
            steps.append((4, self._cluster))
        if self.async_proxy:
            steps += [(4, self._proxy_fence), (3, self._save), (3, self._save_group)]
        if self.shape == "warpgroup":
            steps.append((5, self._wgmma))
        self.numbers.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()

    def _cells(self, thread: Thread, flags: bool = False) -> list[Cell]:
        ctas = range(self.ctas) if self.clustered else [thread.cta]
        indices = FLAGS if flags else CELLS
        return [Cell("shared", cta, i) for cta in ctas for i in indices] + [Cell("global", 0, i) for i in indices]

    def _everybody(self, cta: int) -> list[Thread]:
        """The threads of a CTA that do something, and one that stands for the others."""
        return [*(thread for thread in self.threads if thread.cta == cta), Thread(cta, -1)]

    def _warp(self, cta: int, warp: int) -> list[Thread]:
        others = Thread(cta, -2 - warp)
        return [*(thread for thread in self.threads if thread.cta == cta and thread.number // 32 == warp), others]

    def _phase(self, barrier: object) -> tuple[object, ...]:
        self.phases[barrier] = self.phases.get(barrier, 0) + 1
        return (barrier, self.phases[barrier])

    def _plain(self) -> None:
        thread = self.numbers.choice(self.threads)
        cell = self.numbers.choice(self._cells(thread, flags=self.numbers.random() < 0.05))
        event = len(self.events)
        writes = self.numbers.random() < 0.5
        self.events.append(Access(thread, cell, not writes, writes))
        place = f"({self.pointer(thread, cell)})"
        text = f"{place}.store(Int32({event + 1}))" if writes else f"seen[{event}] = {place}.load()"
        self.add(text, self.by(thread), event)

    def _strong(self) -> None:
        thread = self.numbers.choice(self.threads)
        cell = self.numbers.choice(self._cells(thread, flags=self.numbers.random() < 0.9))
        how = self.numbers.choice(["load", "load", "store", "update"])
        sems = {"load": ["relaxed", "acquire"], "store": ["relaxed", "release"]}
        sem = self.numbers.choice(sems.get(how, ["relaxed", "acquire", "release", "acq_rel"]))
        scope = self.numbers.choice(
            [["cta", "gpu"], ["gpu"], ["cta", "cluster", "gpu", "sys"]][self.numbers.randrange(3)]
        )
        event = len(self.events)
        self.events.append(Access(thread, cell, how != "store", how != "load", scope, sem))
        place, order = self.pointer(thread, cell), f'sem="{sem}", scope="{scope}"'
        value = f"arch.load({place}, Int32, {order})"
        text = f"seen[{event}] = {value}"
        if how == "load" and cell in self.written_flags and self.numbers.random() < 0.8:
            text = SPIN.format(name=f"v{event}", value=value) + f"seen[{event}] = v{event}"
        elif how == "store":
            text = f"arch.store({place}, Int32({event + 1}), {order})"
        elif how == "update":
            text = f"seen[{event}] = arch.atomic_exch({place}, Int32({event + 1}), {order})"
        if how != "load" and cell.index in FLAGS:
            self.written_flags.add(cell)
        self.add(text, self.by(thread), event)

    def _fence(self) -> None:
        scope = self.numbers.choice(["cta", "cluster", "gpu", "gpu"])
        sequential = self.numbers.random() < 0.3
        threads, when = self._some_or_all()
        self.events += [Fence(thread, scope, sequential) for thread in threads]
        self.add(f'arch.inline_ptx("fence.sc.{scope};")' if sequential else f"arch.fence_acq_rel_{scope}()", when)

    def _some_or_all(self) -> tuple[list[Thread], str]:
        thread = self.numbers.choice(self.threads)
        if self.numbers.random() < 0.5:
            return [thread], self.by(thread)
        return self._everybody(thread.cta), self.in_cta(thread.cta) if self.ctas > 1 else ""

    def _sync(self) -> None:
        cta = self.numbers.randrange(self.ctas)
        phase = self._phase(("block", cta))
        self.events += [Barrier(thread, phase) for thread in self._everybody(cta)]
        self.add("arch.sync_threads()", self.in_cta(cta) if self.ctas > 1 else "")

    def _named(self) -> None:
        """A warp waits for itself and another one, which only arrives or waits, too."""
        if self.next_barrier > 15:
            return
        cta = self.numbers.randrange(self.ctas)
        ways = ["barrier", self.numbers.choice(["barrier", "barrier_arrive"])]
        warps = self.numbers.sample(range(self.per_cta // 32), 2)
        phase = self._phase(("named", cta, self.next_barrier))
        for way, warp in zip(reversed(ways), warps, strict=True):
            self.events += [Barrier(thread, phase, True, way == "barrier") for thread in self._warp(cta, warp)]
            text = f"arch.{way}(barrier_id={self.next_barrier}, number_of_threads=64)"
            self.add(text, self.in_cta(cta, f"t // 32 == {warp}"))
        self.next_barrier += 1

    def _lanes(self) -> None:
        """A meeting of a warp, or of its first two lanes."""
        cta, warp = self.numbers.randrange(self.ctas), self.numbers.choice([0, 1])
        all_of_it = self.numbers.random() < 0.5
        phase = self._phase(("warp", cta, warp, all_of_it))
        threads = self._warp(cta, warp)
        if all_of_it:
            self.add("arch.sync_warp()", self.in_cta(cta, f"t // 32 == {warp}"))
        elif len(threads) < 3:
            return
        else:
            threads = threads[:2]
            self.add("arch.sync_warp(3)", self.in_cta(cta, f"(t // 32 == {warp}) & (t % 32 < 2)"))
        self.events += [Barrier(thread, phase) for thread in threads]

    def _cluster(self) -> None:
        phase = ("cluster", self.phases.setdefault("cluster", 0))
        everybody = [thread for cta in range(self.ctas) for thread in self._everybody(cta)]
        if self.cluster_waits:
            self.phases["cluster"] += 1
            self.events += [Barrier(thread, phase, False, True, in_cluster=True) for thread in everybody]
            self.add("arch.cluster_wait()")
        else:
            relaxed = self.numbers.random() < 0.4
            self.events += [Barrier(thread, phase, True, False, relaxed, in_cluster=True) for thread in everybody]
            self.add("arch.cluster_arrive_relaxed()" if relaxed else "arch.cluster_arrive()")
        self.cluster_waits = not self.cluster_waits

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
        remote = thread.cta != m.cell.cta
        ways = ["plain", "plain", "relaxed"]
        if not remote:
            ways += ["copies"] + ["bulk"] * (3 * self.async_proxy)
        way = self.numbers.choice(ways)
        place = f"m + {m.cell.index}"
        if way == "copies":
            self.events.append(Arrive(thread, m.cell, m.phase, after_copies=True))
            self.add(f"arch.cp_async_mbarrier_arrive_noinc({place})", self.by(thread))
        else:
            scope = self.numbers.choice(["cta", "cluster"]) if self.clustered else "cta"
            self.events.append(Arrive(thread, m.cell, m.phase, scope, way == "relaxed"))
            how = f'{m.cell.cta if remote else None}, relaxed={way == "relaxed"}, scope="{scope}"'
            if way == "bulk":
                self.add(f"arch.mbarrier_arrive_and_expect_tx({place}, 16, {how})", self.by(thread))
                self._load(thread, m)
            else:
                self.add(f"arch.mbarrier_arrive({place}, {how.replace(', ', ', 1, ', 1)})", self.by(thread))
        m.arrived.add(thread)
        if len(m.arrived) == len(m.members):
            m.phase += 1
            m.arrived.clear()

    def _tile(self, pointer: str) -> str:
        return f"cute.make_tensor({pointer}, 4)"

    def _load(self, thread: Thread, m: Mbarrier) -> None:
        source, target = (
            Cell("global", 0, self.numbers.choice(CELLS)),
            Cell("shared", thread.cta, self.numbers.choice(CELLS)),
        )
        event = len(self.events)
        self.events.append(Issue(thread, "bulk load", (source,), (target,), m.cell, m.phase))
        tiles = [self._tile(self.pointer(thread, cell)) for cell in (source, target)]
        self.add(f"cute.copy(load, {', '.join(tiles)}, mbar_ptr=m + {m.cell.index})", self.by(thread), event)

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
        relaxed = self.numbers.random() < 0.25
        event = len(self.events)
        self.events.append(Wait(thread, m.cell, m.phase - 1, relaxed))
        parity = (m.phase - 1) % 2
        text = f"arch.mbarrier_wait(m + {m.cell.index}, {parity})"
        if relaxed:
            text = SPIN.format(name=f"v{event}", value=RELAXED_WAIT.format(parity=parity, index=m.cell.index))
        self.add(text, self.by(thread))

    def _copy(self) -> None:
        thread = self.numbers.choice(self.threads)
        source, target = (
            Cell("global", 0, self.numbers.choice(CELLS)),
            Cell("shared", thread.cta, self.numbers.choice(CELLS)),
        )
        event = len(self.events)
        self.events.append(Issue(thread, "cp.async", (source,), (target,)))
        tiles = [self._tile(self.pointer(thread, cell)) for cell in (source, target)]
        self.add(f"cute.copy(copy, {', '.join(tiles)})", self.by(thread), event)

    def _commit(self) -> None:
        self._group("cp.async", "arch.cp_async_commit_group()")

    def _group(self, engine: str, text: str) -> None:
        """Commit what a thread that has issued something has issued."""
        issuers = [event.thread for event in self.events if isinstance(event, Issue) and event.engine == engine]
        if issuers:
            thread = self.numbers.choice(issuers)
            self.events.append(Commit(thread, engine))
            self.add(text, self.by(thread))

    def _await(self) -> None:
        self._await_group("cp.async", "arch.cp_async_wait_group({left})")

    def _await_group(self, engine: str, text: str, reads_only: bool = False) -> None:
        committers = [event.thread for event in self.events if isinstance(event, Commit) and event.engine == engine]
        if committers:
            thread, left = self.numbers.choice(committers), self.numbers.choice([0, 0, 1])
            self.events.append(Await(thread, engine, left, reads_only))
            self.add(text.format(left=left), self.by(thread))

    def _proxy_fence(self) -> None:
        name, spaces = self.numbers.choice(
            [("async.shared", ("shared",)), ("async.global", ("global",)), ("async", ("shared", "global"))]
        )
        threads, when = self._some_or_all()
        self.events += [ProxyFence(thread, spaces) for thread in threads]
        self.add(f'arch.fence_proxy("{name}"{", space=" + repr("cta") if name == "async.shared" else ""})', when)

    def _save(self) -> None:
        thread = self.numbers.choice(self.threads)
        source, target = (
            Cell("shared", thread.cta, self.numbers.choice(CELLS)),
            Cell("global", 0, self.numbers.choice(CELLS)),
        )
        event = len(self.events)
        self.events.append(Issue(thread, "bulk store", (source,), (target,)))
        tiles = [self._tile(self.pointer(thread, cell)) for cell in (source, target)]
        self.add(f"cute.copy(save, {', '.join(tiles)})", self.by(thread), event)

    def _save_group(self) -> None:
        if self.numbers.random() < 0.5:
            self._group("bulk store", "arch.cp_async_bulk_commit_group()")
        else:
            reads_only = self.numbers.random() < 0.5
            self._await_group("bulk store", f"arch.cp_async_bulk_wait_group({{left}}, read={reads_only})", reads_only)

    def _wgmma(self) -> None:
        """A WGMMA that reads two cells; its issue, commit or wait by the first thread of each warp."""
        leaders = [thread for thread in self.threads if thread.number % 32 == 0]
        way = self.numbers.choice(["issue", "issue", "commit", "wait", "wait"])
        if way == "issue":
            event, operand = len(self.events), self.numbers.choice([0, 1])
            cells = (Cell("shared", 0, 2 * operand), Cell("shared", 0, 2 * operand + 1))
            self.events += [Issue(thread, "wgmma", cells, together=event) for thread in leaders]
            self.add(WGMMA.format(operand=operand), event=event)
        elif way == "commit":
            self.events += [Commit(thread, "wgmma") for thread in self._everybody(0)]
            self.add("wgmma.wgmma_commit()")
        else:
            left = self.numbers.choice([0, 0, 1])
            self.events += [Await(thread, "wgmma", left) for thread in self._everybody(0)]
            self.add(f"wgmma.wgmma_wait({left})")

    # -- runs -------------------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> Callable[..., None]:
        path = folder / f"program_{self.numbers.randrange(1 << 32)}.py"
        path.write_text(self.text)
        namespace: dict[str, Any] = {"__name__": path.stem}
        exec(compile(self.text, str(path), "exec"), namespace)  # noqa: S102
        return namespace["main"]

    def run(self, main: Callable[..., None], schedule: int) -> tuple[list[Event], list[Any]]:
        """Run the program under a schedule; what happened, and what the sanitizer found."""
        x = np.zeros(5 * STRIDE, np.int32)
        seen = np.full(MOST_EVENTS, -1, np.int32)
        parts.set_seed(schedule)
        try:
            with kiln.sanitize("race", raises=False) as report:
                main(from_dlpack(x, assumed_align=16), seen)
        finally:
            parts.set_seed()
        events = list(self.events)
        for i, event in enumerate(events):
            if isinstance(event, Access) and event.reads and event.scope:
                saw = int(seen[i]) - 1
                source = events[saw] if 0 <= saw < len(events) else None
                if isinstance(source, Access) and source.writes and source.cell == event.cell:
                    events[i] = dataclasses.replace(event, saw=saw)
        return events, report.findings


def differences(program: Program, events: Sequence[Event], findings: Sequence[Any]) -> list[str]:
    """What the sanitizer found that is no race by the definition, and cells with races of which it found none."""
    order = definition.Order(list(events), cluster=program.cluster)
    races = order.races()
    wrong: list[str] = []
    found: set[Cell] = set()
    for finding in findings:
        pair = sorted(program.event_of_line[span.line] for span in (finding.span, finding.other_span))
        rule = finding.rule if finding.rule in ("proxy", "scope") else "unordered"
        known = {cell: why for (one, other, cell), why in races.items() if [one, other] == pair}
        cells = {cell for cell, why in known.items() if rule in why}
        if not cells:
            wrong.append(f"{finding.rule} between {pair}; the definition has {known}: {finding.message}")
        found |= cells
    for (one, other, cell), why in races.items():
        if cell not in found and not is_forgotten(order, one, other, cell):
            wrong.append(f"nothing found at {cell}, where {one} and {other} race: {why}")
    return wrong


def is_forgotten(order: definition.Order, one: int, other: int, cell: Cell) -> bool:
    """Whether the detector may forget a plain access of two when it comes to the other, a strong one.

    It does so at a strong write that is ordered after the plain access, and that does not race with the other.
    """
    touches = [touch for touch in order.touches() if touch.cell == cell]
    strong = [touch for touch in touches if touch.scope and touch.writes and touch.event not in (one, other)]
    plain = [touch for touch in touches if touch.event in (one, other) and not touch.scope]
    return len(plain) == 1 and any(order.ordered(plain[0], touch, touch.event) for touch in strong)
