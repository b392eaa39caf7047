"""Marks for a trace: around what threads wait for, arrive at and hand to engines, as declarations say.

Kernels of a module get a `trace_start` at their beginning, a `trace_stop` at their end, and marks between. A target
calls `mark_kernels` before it lowers a module, if a trace is open.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from ...analysis import moments
from ...base_dsl.compiler import source_span
from ...base_dsl.kernel_trace import ENTRY, HEADER, REGION, SITES, Layout, Request, Site, TracedKernel
from ...dialects import cute
from ...dialects.declaration import attributes
from ...dialects.nvgpu.trace import TraceMark, TraceRoom, TraceStart, TraceStop
from ...hardware.limits import DYNAMIC_SMEM_ALIGNMENT, THREADS_PER_BLOCK, WARP, Needs
from ...mlir import context, ir, terminator
from .builder import Builder, constant_value, int_type, operations, parsed_type, symbol
from .shared_memory import place_allocations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...hardware.architectures import Architecture, Generation

SHARED_HEADER = 32
"""Bytes before a warp's entries in shared memory: where in the region the next chunk goes, where the region ends, and
bytes for which there was no room."""
DRAINING = 1
DRAINED = 2
PAYLOAD = 3
"""Sites of every kernel: a chunk is moved to global memory, it has been, and a word that belongs to the entry before."""
_KINDS = {"ranges": (), "waits": ("wait",), "all": ("wait", "arrive", "issue", "compute")}
_FAR = 32
"""Operations between two of a kind that are no longer one event."""
_LEAST = 8
"""Entries of a chunk for which collecting them in shared memory is worth it."""
_CHUNK = 64
"""Bytes that chunks are multiples of."""
_PAYLOADS = {"mbarrier": 0, "barrier": 0}
"""Entries that a payload takes: none where it is part of the code. Numbers take one for each 32 bits."""


def mark_kernels(module: ir.Module, request: Request, arch: Architecture, on_host: bool = False) -> None:
    """Let the kernels of a module record what a request asks for; `on_host`: they run on the CPU target."""
    launches: dict[str, list[cute.Launch]] = {}
    for launch in cute.Launch.all_in(module.operation):
        launches.setdefault(launch.kernel, []).append(launch)
    for func in operations(module):
        if func.name == "func.func" and cute.KERNEL in func.attributes:
            _mark_kernel(func, launches.get(symbol(func), []), request, arch, on_host)


def _mark_kernel(
    func: ir.Operation, launches: Sequence[cute.Launch], request: Request, arch: Architecture, on_host: bool
) -> None:
    marks = _Marks(_KINDS[request.level])
    marks.visit(func)
    if not marks.count and request.level == "ranges":
        return
    longest = 0 if on_host else _make_room(func)
    block = _extents(launches, "block")
    threads = math.prod(block) if block else THREADS_PER_BLOCK
    room = 0 if on_host else _room(func, launches, arch.generation, threads)
    warps = -(-threads // WARP)
    layout = _layout(request, warps, longest, min(room // warps, request.shared_bytes), on_host)
    layout.address = request.allocate(REGION + len(request.blocks) * warps * layout.warp_bytes)
    kernel = TracedKernel(symbol(func), layout, request.blocks, marks.sites, notes=marks.notes, arch=arch.name)
    kernel.block = block or kernel.block
    kernel.cluster = _extents(launches, "cluster") or kernel.cluster
    if not layout.in_shared_memory and not on_host:
        kernel.notes.append("shared memory had no room for marks, so each is written to global memory when it is made")
    request.kernels.append(kernel)
    _begin_and_end(func, layout, request)


# --- which operations ------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Group:
    """Operations of one kind that follow each other, which are one event."""

    first: ir.Operation
    last: ir.Operation
    kind: str
    count: int = 1
    since: int = 0
    """Other operations since the last."""

    def takes(self, op: ir.Operation, kind: str) -> bool:
        """Return whether the next operation belongs to the same event."""
        return op.name == self.first.name and kind in ("issue", "compute") and self.since < _FAR


class _Marks:
    """The marks of a kernel, as they are made: how many, and what they say."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self.count = 0
        self.notes: list[str] = []
        moved = (Site("marks to global memory", "range", phase) for phase in ("begin", "end"))
        self.sites: list[Site] = [Site("", "mark", "moment"), *moved, Site("", "mark", "payload")]

    def visit(self, func: ir.Operation) -> None:
        """Mark what is in an operation."""
        for region in func.regions:
            for block in region.blocks:
                self._visit_block(block)

    def _visit_block(self, block: ir.Block) -> None:
        group: _Group | None = None
        for each in list(block.operations):
            op = each.operation
            if polled := self._polled(op):
                self._close(group)
                self._close(_Group(op, op, moments.kind_of(polled.name)), polled)
                group = None
            elif len(op.regions):
                before = self.count
                self.visit(op)
                if self.count > before:
                    self._close(group)
                    group = None
                elif group is not None:
                    group.since = _FAR
            elif mark := TraceMark.of(op):
                self._close(group)
                group = None
                self._number_mark(mark)
            elif (kind := moments.kind_of(op.name)) not in self.kinds or not self._has_room():
                if group is not None:  # what is committed apart is complete apart
                    group.since = _FAR if moments.commits(op.name) else group.since + 1
            elif group is not None and group.takes(op, kind):
                group.last = op
                group.count += 1
                group.since = 0
            else:
                self._close(group)
                group = _Group(op, op, kind)
        self._close(group)

    def _has_room(self) -> bool:
        """Return whether there are numbers for more sites."""
        if len(self.sites) < SITES - 4:
            return True
        text = f"operations were left out: a kernel can have marks at {SITES} places"
        if text not in self.notes:
            self.notes.append(text)
        return False

    def _polled(self, op: ir.Operation) -> ir.Operation | None:
        """Return the wait of a loop that does nothing but repeat a wait which may fail."""
        if op.name != "scf.while" or "wait" not in self.kinds:
            return None
        before, after = (region.blocks[0].operations for region in op.regions)
        tries = [each.operation for each in before if moments.may_fail(each.operation.name)]
        others = [
            each.operation
            for each in (*before, *after)
            if moments.kind_of(each.operation.name) or len(each.operation.regions)
        ]
        return tries[0] if len(tries) == 1 and all(each == tries[0] for each in others) else None

    def _close(self, group: _Group | None, what: ir.Operation | None = None) -> None:
        """Add the marks of a group; `what` is its operation if it stands inside the group's."""
        if group is None:
            return
        op = group.first if what is None else what
        operand, values = _operand(op, group.first)
        phases = ("moment",) if group.kind == "arrive" else ("begin", "end")
        engine = moments.engine_of(op.name)
        for phase in phases:
            at = group.last if phase == "end" else group.first
            point = _after(at) if phase == "end" else ir.InsertionPoint(at)
            b = Builder(point, op.location)
            fields = {"event": op.name, "phase": phase, "kind": group.kind}
            if phase == "end" and moments.opens_late(op.name):
                fields["behind"] = True
            said = phase != "end"
            if said and operand:
                fields["number"] = operand
            mark = TraceMark(b.op(TraceMark.OPERATION_NAME, (), values if said else (), attributes(**fields)))
            span = source_span(op.location)[0]
            name = "" if engine is None else engine.name
            left = moments.left_by(op)
            self._site(mark, Site(op.name, group.kind, phase, span, operand if said else "", name, group.count, left))

    def _number_mark(self, mark: TraceMark) -> None:
        """Give a mark of the program its site."""
        span = source_span(mark.location)[0]
        self._site(mark, Site(mark.event, mark.kind, mark.phase, span, mark.number or "", token=bool(mark.token)))

    def _site(self, mark: TraceMark, site: Site) -> None:
        mark.site = len(self.sites)
        self.sites.append(site)
        self.count += 1


def _after(op: ir.Operation) -> ir.InsertionPoint:
    return ir.InsertionPoint.after(op)


def _operand(op: ir.Operation, at: ir.Operation) -> tuple[str, tuple[ir.Value, ...]]:
    """Return what an entry says of an operation besides its site, and the value, if there is one before `at`."""
    if moments.meets_cluster(op.name):
        return "cluster", ()
    mbarrier = moments.mbarrier_of(op)
    value = mbarrier if mbarrier is not None else moments.barrier_of(op)
    if value is None or (at != op and not _is_outside(value, at)):
        return "", ()
    return "mbarrier" if mbarrier is not None else "barrier", (value,)


def _is_outside(value: ir.Value, op: ir.Operation) -> bool:
    """Return whether a value is none of those that the regions of an operation compute."""
    owner = value.owner
    inside = owner.owner.operation if isinstance(owner, ir.Block) else owner.operation.parent
    while inside is not None:
        if inside.operation == op:
            return False
        inside = inside.operation.parent
    return True


# --- where entries go ------------------------------------------------------------------------------------------------


def entries_of(mark: TraceMark) -> int:
    """Return how many entries a mark makes."""
    kind = mark.number
    return 1 if not mark.payload or kind in _PAYLOADS else 1 + mark.payload[0].type.width // 32


_LOOPS = ("scf.for", "scf.while")
_MOST = 32
"""The most entries before a thread looks whether there is room for more."""


def _make_room(func: ir.Operation) -> int:
    """Let a thread look for room once in each iteration of a loop with marks, and after `_MOST` entries.

    Return the most entries that are made from one look to the next.
    """
    longest = 0

    def look(point: ir.InsertionPoint, location: ir.Location) -> None:
        Builder(point, location).op(TraceRoom.OPERATION_NAME)

    def visit(block: ir.Block, entries: int) -> int:
        """Return how many entries there may be since the last look, at the end of a block that begins with some."""
        nonlocal longest
        for each in list(block.operations):
            op = each.operation
            if mark := TraceMark.of(op):
                entries += entries_of(mark)
                longest = max(longest, entries)
                if entries >= _MOST:
                    look(_after(op), op.location)
                    entries = 0
            elif len(op.regions) and TraceMark.all_in(op):
                entries = (
                    loop(op, entries)
                    if op.name in _LOOPS
                    else max([entries, *(visit(inner, entries) for region in op.regions for inner in region.blocks)])
                )
        return entries

    def loop(op: ir.Operation, entries: int) -> int:
        """Return the same for a loop, whose iterations end with a look. A `while` is left before its body."""
        inside = entries
        for number, region in enumerate(op.regions):
            inside = visit(region.blocks[0], inside)
            if number == 0 and op.name == "scf.while":
                entries = max(entries, inside)
        last = terminator(op.regions[len(op.regions) - 1].blocks[0])
        look(ir.InsertionPoint(last), last.location)
        return entries

    for block in func.regions[0].blocks:
        visit(block, 0)
    return longest


def _room(func: ir.Operation, launches: Sequence[cute.Launch], of: Generation, threads: int) -> int:
    """Return the bytes of shared memory that a kernel can have more without fewer of its CTAs on an SM."""
    asked = [constant_value(launch.smem) for launch in launches]
    if not asked or None in asked:
        return 0
    allocations = cute.AllocSmem.all_in(func)
    merged = all(launch.merge_smem for launch in launches)
    needs = Needs(place_allocations(func, allocations, merged), bool(cute.DynamicSmem.all_in(func)))
    used = max(map(needs.total, asked))
    blocks = max(1, min(of.smem // (used + of.kept_smem), of.threads // threads, of.blocks))
    most = min(of.smem // blocks - of.kept_smem, of.smem_per_block)
    return most - used - 2 * DYNAMIC_SMEM_ALIGNMENT


def _layout(request: Request, warps: int, longest: int, shared: int, on_host: bool) -> Layout:
    """Return where entries go; `longest` are those that may come before one that looks for room."""
    chunk = (shared - SHARED_HEADER) // _CHUNK * _CHUNK
    entries = chunk // ENTRY - longest - 1
    if on_host or entries < _LEAST:
        chunk = -(-(request.marks + 1) * ENTRY // _CHUNK) * _CHUNK
        return Layout(0, warps, HEADER + chunk, chunk, False, request.marks)
    chunks = -(-request.marks // entries)
    bytes_ = warps * (SHARED_HEADER + chunk)
    return Layout(0, warps, HEADER + chunks * chunk, chunk, True, entries, bytes_)


def _begin_and_end(func: ir.Operation, layout: Layout, request: Request) -> None:
    """Add what comes before the first mark of a kernel and after the last."""
    body = func.regions[0].blocks[0]
    b = Builder(ir.InsertionPoint.at_block_begin(body), func.location)
    shared: tuple[ir.Value, ...] = ()
    if layout.in_shared_memory:
        size = _numbers({"bytes": layout.shared_bytes, "alignment": 16})
        type_ = parsed_type('!cute.ptr<i8, "smem", 16 : i64>')
        shared = (b.value(cute.AllocSmem.OPERATION_NAME, type_, (), size),)
    fields = _numbers({"address": layout.address, "warp_bytes": layout.warp_bytes, "chunk_bytes": layout.chunk_bytes})
    lane = -1 if request.lane is None else request.lane
    fields |= attributes(warps=layout.warps, entries=layout.entries, lane=lane) or {}
    fields["blocks"] = ir.DenseI32ArrayAttr.get(list(request.blocks), context())
    b.op(TraceStart.OPERATION_NAME, (), shared, fields)
    for block in func.regions[0].blocks:
        last = terminator(block)
        if last.name.endswith(".return"):
            Builder(ir.InsertionPoint(last), last.location).op(TraceStop.OPERATION_NAME)


def _numbers(values: Mapping[str, int]) -> dict[str, ir.Attribute]:
    return {name: ir.IntegerAttr.get(int_type(64), value) for name, value in values.items()}


def _extents(launches: Sequence[cute.Launch], what: str) -> tuple[int, int, int] | None:
    """Return the extents that all launches of a kernel have, if they are known."""
    seen = {tuple(constant_value(extent) for extent in getattr(launch, what)) for launch in launches}
    (extents,) = seen if len(seen) == 1 else (None,)
    return None if extents is None or None in extents else (extents[0], extents[1], extents[2])
