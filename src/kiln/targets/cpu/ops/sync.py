"""Barriers of a block and of a warp, and fences.

The threads of a group of blocks run on one OS thread (`runtime/scheduler.py`), so what only they share needs no atomic
access. An operation that waits leaves a wait record and suspends (`runtime/threads.py`); every other one just happens.
Functions without an underscore work on values, so that inline PTX (`ptx/`) can use them too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ....dialects import nvgpu
from ....hardware.limits import BARRIERS, THREADS_PER_BLOCK, WARP
from ....mlir import ir
from ...lowering.builder import Builder, int_attr, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime.record_access import Fields, block_of, leave
from ..runtime.records import TALLIES, Tally
from ..runtime.records import Barrier as BarrierRecord
from ..sanitizer.hooks import hooks_of
from .warp import meet

HANDLERS = Handlers()


@HANDLERS.calls(nvgpu.sync.Barrier, "id", "threads", waits=True)
@HANDLERS.calls(nvgpu.sync.BarrierArrive, "id", "threads", waits=False)
def barrier(x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, waits: bool) -> None:
    """Arrive at a barrier of the block, and wait for it."""
    _barrier_with(x, op, b, number, threads, waits, None)


def _barrier_with(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    number: ir.Value,
    threads: ir.Value,
    waits: bool,
    contribute: Callable[[Builder, ir.Value], None] | None,
) -> ir.Value | None:
    """Arrive at a barrier and let a thread `contribute` when its arrival counts; return the phase it arrived in,
    then."""
    x.refuse_outside(op, b, number, 0, BARRIERS - 1, "barrier %d", f"a block has the barriers 0 to {BARRIERS - 1}")
    _check_threads(x, op, b, threads, least=0 if waits else WARP)
    site = x.site_of(op, "barrier")
    operands = [x.frame_of(op), number, threads, b.i32(site)]
    hooks = hooks_of(x, op)
    native = "kiln_cpu_sync" if waits else "kiln_cpu_arrive"

    def phase_now(c: Builder) -> ir.Value:
        block = block_of(c, operands[0])
        offset = c.binary("muli", number, c.i32(ctypes.sizeof(BarrierRecord)))
        return Fields(c, c.byte_gep(block.at("barriers"), offset), BarrierRecord).load("phase")

    def again(c: Builder) -> tuple[ir.Value, ...]:
        phase = [] if contribute is None else [phase_now(c)]
        arrive = lambda: x.call(c, native, operands, int_type(32))
        status = hooks.arrival(c, operands[0], number, threads, int(waits), arrive)
        return c.compare("eq", status, 2), status, *phase

    loop, _ = b.while_(again, [int_type(32)] * (1 if contribute is None else 2))
    x.suspend(loop)
    status, *phase = loop.point.block.owner.operation.results
    if contribute is not None:
        contribute(b, phase[0])
    if waits:
        # a suspend point of its own, so that nothing has to be kept across it
        x.suspend_if(b, status)
        hooks.passed(b)
    return phase[0] if phase else None


def _check_threads(x: Expander, op: ir.Operation, b: Builder, threads: ir.Value, least: int) -> None:
    what = "a barrier for %d threads"
    limit = f"a multiple of {WARP} up to {THREADS_PER_BLOCK}"
    x.refuse_outside(op, b, threads, least, THREADS_PER_BLOCK, what, limit, multiple=WARP)


def barrier_reduce(
    x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, kind: str, predicate: ir.Value
) -> ir.Value:
    """Return the reduction of the threads' predicates at a barrier: their count (`popc`, i32) or `and`, `or` of them
    (i1).

    Each phase has its own tally, which the first thread to arrive resets.
    """
    frame = x.frame_of(op)
    i32 = int_type(32)

    def tally(c: Builder, phase: ir.Value) -> Fields:
        block = block_of(c, frame)
        which = c.binary("addi", c.binary("muli", number, TALLIES), c.binary("andi", phase, TALLIES - 1))
        return Fields(c, c.byte_gep(block.at("tallies"), c.binary("muli", which, c.i32(ctypes.sizeof(Tally)))), Tally)

    def bring(came: Builder, phase: ir.Value) -> None:
        here = tally(came, phase)
        fresh = came.if_(came.compare("ne", here.load("phase"), came.binary("addi", phase, 1)))
        start = here.inside(fresh)
        start.store("phase", fresh.binary("addi", phase, 1))
        start.store("threads", 0)
        start.store("holds", 0)
        here.store("threads", came.binary("addi", here.load("threads"), 1))
        holds = came.value("arith.extui", i32, (predicate,))
        here.store("holds", came.binary("addi", here.load("holds"), holds))

    phase = _barrier_with(x, op, b, number, threads, True, bring)
    assert phase is not None
    result = tally(b, phase)
    if kind == "popc":
        return result.load("holds")
    if kind == "or":
        return b.compare("ne", result.load("holds"), 0)
    return b.compare("eq", result.load("holds"), result.load("threads"))


SEQUENTIAL = 7
"""LLVM's number for sequentially consistent ordering."""


def fence(b: Builder, kind: str) -> None:
    """Emit a host fence for fences beyond the block: blocks may run on other OS threads."""
    if "gpu" in kind or "sys" in kind or kind.startswith(("sc", "acq_rel")):
        b.op("llvm.fence", (), (), {"ordering": int_attr(int_type(64), SEQUENTIAL)})


@HANDLERS.expands(nvgpu.sync.Fence)
def _fence(x: Expander, op: nvgpu.sync.Fence, b: Builder) -> None:
    hooks_of(x, op).fence(b, op.kind)
    fence(b, op.kind)


@HANDLERS.expands(nvgpu.sync.SyncWarp)
def _sync_warp(x: Expander, op: nvgpu.sync.SyncWarp, b: Builder) -> None:
    leave(b, meet(x, op, b, "sync_warp", op.mask, []))
