"""Kernels of accesses, barriers, mbarriers, fences and asynchronous copies, and what they did when they ran.

A kernel is a sequence of steps, each by one thread or by several. Carried out one after the other no step waits for a
later one, so no schedule deadlocks. Every write has another value, so a read tells which one it saw.
"""

from __future__ import annotations

import dataclasses
import functools
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
STRIDE = 256
"""Words from one cell to the next: two cells are in what a WGMMA reads as A."""
MOST_EVENTS = 800
SHAPES = {
    "cta": (1, 64, 1),
    "grid": (2, 64, 1),
    "cluster": (2, 64, 2),
    "clusters": (4, 64, 2),
    "warpgroup": (1, 128, 1),
}
"""CTAs, threads of a CTA and CTAs of a cluster."""
HEAD = """\
from kiln import Int32, Int64, Float32, Boolean, cute
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.dialects.nvgpu import wgmma


@cute.kernel
def kernel(x: cute.Tensor, seen: cute.Tensor):
    t, _, _ = arch.thread_idx()
    b, _, _ = arch.block_idx()
    s = arch.alloc_smem(Int32, {words}, 1024)
    m = arch.alloc_smem(Int64, {mbarriers})
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
wgmma.wgmma(sums.iterator.ir_value(), a{cell}.ir_value(), w.ir_value(), Boolean(False).ir_value(), n=8, k=16,\
 a_type="f16", b_type="f16", a_major="k", b_major="k")
"""
PROXY_FENCES = {"async.shared": ("shared",), "async.global": ("global",), "async": ("shared", "global")}
Doers = tuple[list[Thread], str]
"""Threads that do a step, and the condition that holds for them."""


class Kernel:
    """A kernel, its text and what its threads do."""

    cells = range(3)
    flags = range(3, 5)
    operands: tuple[int, ...] = (0, 2)
    """The first of each two cells that WGMMAs read."""
    counts: Sequence[int] = ()
    """Of arrivals, for each mbarrier of a CTA."""

    def __init__(self, seed: int, shape: str) -> None:
        self.numbers = random.Random(f"{seed} {shape}")
        self.shape = shape
        self.ctas, self.per_cta, self.cluster = SHAPES[shape]
        self.lines: list[str] = []
        self.events: list[Event] = []
        self.event_of_line: dict[int, int] = {}
        self.active = [0, 1, 32, 33] if shape != "warpgroup" else [0, 1, 32, 64, 96]
        self.threads = [Thread(cta, number) for cta in range(self.ctas) for number in self.active]
        self.phases: dict[object, int] = {}
        self.next_barrier = [2] * self.ctas
        self.cluster_waits: set[int] = set()
        """Clusters that have arrived at their barrier."""
        self.async_proxy = shape == "warpgroup" or self.numbers.random() < 0.5

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

    def begin(self) -> None:
        last = max(*self.cells, *self.flags) + 1
        self.words = (last + 3) * STRIDE
        self.lines = HEAD.format(words=self.words, mbarriers=len(self.counts)).splitlines()
        if self.cluster > 1:
            self.add("r = arch.map_dsmem_ptr(s, 1 - b % 2)")
        if self.async_proxy:
            self.add("load = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Int32)")
            self.add("save = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Int32)")
        self.add("copy = cute.make_copy_atom(cpasync.CopyG2SOp(), Int32, num_bits_per_copy=128)")
        if self.shape == "warpgroup":
            self.add("sums = cute.make_rmem_tensor(4, Float32)")
            place = f"(s + {(last + 1) * STRIDE}).ir_value()"
            self.add(f"w = Int64(wgmma.matrix_descriptor({place}, 128, 128, 'none'))")
            for cell in self.operands:
                place = f"(s + {cell * STRIDE}).ir_value()"
                self.add(f"a{cell} = Int64(wgmma.matrix_descriptor({place}, 1024, 128, 'none'))")
        self.add(f"for i in range({last}):\n    (s + i * {STRIDE}).store(Int32(0))", "t == 0")
        inits = [f"arch.mbarrier_init(m + {index}, {count})" for index, count in enumerate(self.counts)]
        self.add("\n".join([*inits, "arch.mbarrier_init_fence()"]), "t == 0")
        self._sync_everybody()

    def _sync_everybody(self) -> None:
        self.add("arch.cluster_arrive()\narch.cluster_wait()" if self.cluster > 1 else "arch.sync_threads()")

    def end(self) -> None:
        for cluster in sorted(self.cluster_waits):
            self.cluster_wait(cluster)
        self._sync_everybody()
        cluster = (self.cluster, 1, 1) if self.cluster > 1 else None
        self.lines += TAIL.format(ctas=self.ctas, threads=self.per_cta, cluster=cluster).splitlines()

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    # -- threads ----------------------------------------------------------------------------------------------------------

    def are_near(self, one: int, other: int) -> bool:
        """Whether two CTAs are in one cluster."""
        return one // self.cluster == other // self.cluster

    def everybody(self, cta: int) -> list[Thread]:
        """The threads of a CTA that do something, and one that stands for the others."""
        return [*(thread for thread in self.threads if thread.cta == cta), Thread(cta, -1)]

    def warp(self, cta: int, warp: int) -> list[Thread]:
        others = Thread(cta, -2 - warp)
        return [*(thread for thread in self.threads if thread.cta == cta and thread.number // 32 == warp), others]

    def one(self, thread: Thread) -> Doers:
        return [thread], self.by(thread)

    def all_of(self, cta: int) -> Doers:
        return self.everybody(cta), self.in_cta(cta) if self.ctas > 1 else ""

    def some_or_all(self, thread: Thread) -> Doers:
        return self.one(thread) if self.numbers.random() < 0.5 else self.all_of(thread.cta)

    def phase(self, barrier: object) -> tuple[object, ...]:
        self.phases[barrier] = self.phases.get(barrier, 0) + 1
        return (barrier, self.phases[barrier])

    # -- steps ------------------------------------------------------------------------------------------------------------

    def plain(self, thread: Thread, cell: Cell, writes: bool) -> None:
        event = len(self.events)
        self.events.append(Access(thread, cell, not writes, writes))
        place = f"({self.pointer(thread, cell)})"
        text = f"{place}.store(Int32({event + 1}))" if writes else f"seen[{event}] = {place}.load()"
        self.add(text, self.by(thread), event)

    def strong(self, thread: Thread, cell: Cell, how: str, sem: str, scope: str, spins: bool = False) -> None:
        """A load, which may spin until there was a store, a store or an update."""
        event = len(self.events)
        self.events.append(Access(thread, cell, how != "store", how != "load", scope, sem))
        place = self.pointer(thread, cell)
        order = f'sem="{sem}", scope="{scope}"'
        value = f"arch.load({place}, Int32, {order})"
        text = f"seen[{event}] = {value}"
        if spins:
            text = SPIN.format(name=f"v{event}", value=value) + f"seen[{event}] = v{event}"
        elif how == "store":
            text = f"arch.store({place}, Int32({event + 1}), {order})"
        elif how == "update":
            text = f"seen[{event}] = arch.atomic_exch({place}, Int32({event + 1}), {order})"
        self.add(text, self.by(thread), event)

    def fence(self, doers: Doers, scope: str, sequential: bool = False) -> None:
        self.events += [Fence(thread, scope, sequential) for thread in doers[0]]
        self.add(f'arch.inline_ptx("fence.sc.{scope};")' if sequential else f"arch.fence_acq_rel_{scope}()", doers[1])

    def proxy_fence(self, doers: Doers, name: str) -> None:
        self.events += [ProxyFence(thread, PROXY_FENCES[name]) for thread in doers[0]]
        self.add(f'arch.fence_proxy("{name}"{", space=" + repr("cta") if name == "async.shared" else ""})', doers[1])

    def sync(self, cta: int) -> None:
        doers = self.all_of(cta)
        phase = self.phase(("block", cta))
        self.events += [Barrier(thread, phase) for thread in doers[0]]
        self.add("arch.sync_threads()", doers[1])

    def named(self, cta: int, number: int, warp: int, waits: bool) -> None:
        """A warp comes to a named barrier of 64 threads."""
        phase = ("named", cta, number)
        self.events += [Barrier(thread, phase, True, waits) for thread in self.warp(cta, warp)]
        text = f"arch.{'barrier' if waits else 'barrier_arrive'}(barrier_id={number}, number_of_threads=64)"
        self.add(text, self.in_cta(cta, f"t // 32 == {warp}"))

    def lanes(self, cta: int, warp: int, all_of_it: bool) -> None:
        """A meeting of a warp, or of its first two lanes."""
        phase = self.phase(("warp", cta, warp, all_of_it))
        threads = self.warp(cta, warp)
        if all_of_it:
            self.add("arch.sync_warp()", self.in_cta(cta, f"t // 32 == {warp}"))
        else:
            threads = threads[:2]
            self.add("arch.sync_warp(3)", self.in_cta(cta, f"(t // 32 == {warp}) & (t % 32 < 2)"))
        self.events += [Barrier(thread, phase) for thread in threads]

    def _of_cluster(self, cluster: int) -> Doers:
        ctas = range(cluster * self.cluster, (cluster + 1) * self.cluster)
        when = "" if self.cluster == self.ctas else f"b // {self.cluster} == {cluster}"
        return [thread for cta in ctas for thread in self.everybody(cta)], when

    def cluster_arrive(self, cluster: int, relaxed: bool = False) -> None:
        threads, when = self._of_cluster(cluster)
        phase = self.phase(("cluster", cluster))
        self.events += [Barrier(thread, phase, True, False, relaxed, in_cluster=True) for thread in threads]
        self.add("arch.cluster_arrive_relaxed()" if relaxed else "arch.cluster_arrive()", when)
        self.cluster_waits.add(cluster)

    def cluster_wait(self, cluster: int) -> None:
        threads, when = self._of_cluster(cluster)
        phase = (("cluster", cluster), self.phases["cluster", cluster])
        self.events += [Barrier(thread, phase, False, True, in_cluster=True) for thread in threads]
        self.add("arch.cluster_wait()", when)
        self.cluster_waits.discard(cluster)

    def arrive(self, thread: Thread, m: Cell, phase: int, scope: str = "cluster", relaxed: bool = False) -> None:
        self.events.append(Arrive(thread, m, phase, scope, relaxed))
        rank = None if thread.cta == m.cta else m.cta % self.cluster
        how = f'{rank}, relaxed={relaxed}, scope="{scope}"'
        self.add(f"arch.mbarrier_arrive(m + {m.index}, {how})", self.by(thread))

    def copies_arrive(self, thread: Thread, m: Cell, phase: int) -> None:
        self.events.append(Arrive(thread, m, phase, after_copies=True))
        self.add(f"arch.cp_async_mbarrier_arrive_noinc(m + {m.index})", self.by(thread))

    def wait(self, thread: Thread, m: Cell, phase: int, relaxed: bool = False) -> None:
        event = len(self.events)
        self.events.append(Wait(thread, m, phase, relaxed))
        text = f"arch.mbarrier_wait(m + {m.index}, {phase % 2})"
        if relaxed:
            text = SPIN.format(name=f"v{event}", value=RELAXED_WAIT.format(parity=phase % 2, index=m.index))
        self.add(text, self.by(thread))

    def load_bytes(self, thread: Thread, m: Cell, phase: int, source: Cell, target: Cell, scope: str = "cta") -> None:
        """An arrival that expects the bytes of a bulk load, and the load."""
        self.events.append(Arrive(thread, m, phase, scope))
        self.add(f'arch.mbarrier_arrive_and_expect_tx(m + {m.index}, 16, scope="{scope}")', self.by(thread))
        event = len(self.events)
        self.events.append(Issue(thread, "bulk load", (source,), (target,), m, phase))
        tiles = self._tiles(thread, source, target)
        self.add(f"cute.copy(load, {tiles}, mbar_ptr=m + {m.index})", self.by(thread), event)

    def _tiles(self, thread: Thread, *cells: Cell) -> str:
        return ", ".join(f"cute.make_tensor({self.pointer(thread, cell)}, 4)" for cell in cells)

    def copy(self, thread: Thread, engine: str, source: Cell, target: Cell) -> None:
        """A `cp.async`, or a bulk store."""
        event = len(self.events)
        self.events.append(Issue(thread, engine, (source,), (target,)))
        atom = "copy" if engine == "cp.async" else "save"
        self.add(f"cute.copy({atom}, {self._tiles(thread, source, target)})", self.by(thread), event)

    def commit(self, thread: Thread, engine: str) -> None:
        """Commit what a thread has issued; WGMMAs are committed by all threads."""
        if engine == "wgmma":
            self.events += [Commit(each, engine) for each in self.everybody(thread.cta)]
            self.add("wgmma.wgmma_commit()")
            return
        self.events.append(Commit(thread, engine))
        self.add(f"arch.cp_async{'_bulk' if engine == 'bulk store' else ''}_commit_group()", self.by(thread))

    def await_groups(self, thread: Thread, engine: str, left: int, reads_only: bool = False) -> None:
        if engine == "wgmma":
            self.events += [Await(each, engine, left) for each in self.everybody(thread.cta)]
            self.add(f"wgmma.wgmma_wait({left})")
            return
        self.events.append(Await(thread, engine, left, reads_only))
        text = f"arch.cp_async_wait_group({left})"
        if engine == "bulk store":
            text = f"arch.cp_async_bulk_wait_group({left}, read={reads_only})"
        self.add(text, self.by(thread))

    def wgmma(self, cell: int) -> None:
        """A WGMMA that reads a cell and the next one, issued by the first thread of each warp."""
        event = len(self.events)
        cells = (Cell("shared", 0, cell), Cell("shared", 0, cell + 1))
        leaders = [thread for thread in self.threads if thread.number % 32 == 0]
        self.events += [Issue(thread, "wgmma", cells, together=event) for thread in leaders]
        self.add(WGMMA.format(cell=cell), event=event)

    # -- runs -------------------------------------------------------------------------------------------------------------

    def load(self, folder: Path) -> Callable[..., None]:
        path = folder / f"program_{self.numbers.randrange(1 << 32)}.py"
        path.write_text(self.text)
        namespace: dict[str, Any] = {"__name__": path.stem}
        exec(compile(self.text, str(path), "exec"), namespace)  # noqa: S102
        return namespace["main"]

    def run(self, main: Callable[..., None], schedule: int) -> tuple[list[Event], list[Any]]:
        """Run the kernel under a schedule; what happened, and what the sanitizer found."""
        x = np.zeros(self.words, np.int32)
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


Races = dict[tuple[int, int, Cell], set[str]]


@functools.lru_cache(maxsize=1024)
def judged(events: tuple[Event, ...], cluster: int, patterns: bool = True) -> tuple[definition.Order, Races]:
    """The order of an execution, and its races."""
    order = definition.Order(events, cluster, patterns)
    return order, order.races()


def differences(kernel: Kernel, events: Sequence[Event], findings: Sequence[Any]) -> list[str]:
    """What the sanitizer found that is no race by the definition, and cells with races of which it found none."""
    order, races = judged(tuple(events), kernel.cluster)
    wrong: list[str] = []
    found: set[Cell] = set()
    for finding in findings:
        cells = cells_of(kernel, finding, races)
        if not cells:  # the detector does not know all patterns
            cells = cells_of(kernel, finding, judged(tuple(events), kernel.cluster, patterns=False)[1])
        if not cells:
            pair = [kernel.event_of_line.get(span.line) for span in (finding.span, finding.other_span)]
            wrong.append(f"{finding.rule} between {pair}, not by the definition: {finding.message}")
        found |= cells
    for (one, other, cell), why in races.items():
        if cell not in found and not is_forgotten(order, one, other, cell):
            wrong.append(f"nothing found at {cell}, where {one} and {other} race: {why}")
    return wrong


def cells_of(kernel: Kernel, finding: Any, races: Races) -> set[Cell]:
    """The cells where the two events of a finding race for its reason."""
    pair = sorted(kernel.event_of_line.get(span.line, -1) for span in (finding.span, finding.other_span))
    rule = finding.rule if finding.rule in ("proxy", "scope") else "unordered"
    return {cell for (one, other, cell), why in races.items() if [one, other] == pair and rule in why}


def is_forgotten(order: definition.Order, one: int, other: int, cell: Cell) -> bool:
    """Whether the detector may forget a plain access of two when it comes to the other, a strong one.

    It does so at a strong write that is ordered after the plain access, and that does not race with the other.
    """
    touches = [touch for touch in order.touches() if touch.cell == cell]
    strong = [touch for touch in touches if touch.scope and touch.writes and touch.event not in (one, other)]
    plain = [touch for touch in touches if touch.event in (one, other) and not touch.scope]
    return len(plain) == 1 and any(order.ordered(plain[0], touch, touch.event) for touch in strong)
