"""`cute_nvgpu` operations as host code: the definition of each, one function each.

The threads of a group of blocks run on one OS thread (`runtime/scheduler.py`), so what only they share needs no atomic access.
An operation that waits leaves a wait record and suspends (`runtime/threads.py`); every other one just happens. Functions without
an underscore work on values, so that inline PTX (`ptx/`) can use them too.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....mlir import ir
from ...host import call_context as shared
from ...host.expand import Expander, expands
from ...lowering.builder import Builder, constant_values, int_attr, int_type
from ..passes.coroutines import END, LEAVE, SUSPEND
from ..runtime import scheduler
from ..runtime.in_kernels import Fields
from ..runtime.records import TALLIES, BlockRecord, FrameHeader, Tally
from ..runtime.records import Barrier as BarrierRecord
from ..sanitizer.hooks import Hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def text(op: ir.Operation, name: str) -> str:
    return op.attributes[name].value


def hardware(name: str) -> Callable[[Any], Any]:
    """Register the expansion of `cute_nvgpu.<name>`."""
    return expands(f"cute_nvgpu.{name}")


def frame_of(x: Expander, op: ir.Operation) -> ir.Value:
    """The frame of the running thread; the kernel becomes one that waits."""
    if x.function.frame is None:
        raise report_at(op.location, DSLNotImplemented, f"{op.name} is only possible in a kernel")
    x.function.waits = True
    return x.function.frame


def site_of(x: Expander, op: ir.Operation, what: str) -> int:
    """The number of a place where threads wait."""
    return x.module.site(op, "wait", what, x.function.name)


def call(x: Expander, b: Builder, name: str, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
    """Call a function of the runtime."""
    results = [] if result is None else [result]
    x.module.declare(name, [v.type for v in operands], results)
    made = b.call(name, results, operands)
    return made.results[0] if result is not None else None


def suspend(x: Expander, b: Builder) -> None:
    x.module.declare(SUSPEND, [], [])
    b.call(SUSPEND, [], [])


def suspend_if(x: Expander, b: Builder, must_wait: ir.Value) -> None:
    suspend(x, b.if_(b.compare("ne", must_wait, b.i32(0))))


OPEN_LOOP = "kiln.open_loop"
"""An attribute of inline PTX that branches back."""


def in_open_loop(op: ir.Operation) -> bool:
    """Whether an operation is in a loop that runs until a condition holds: it may be waiting for another thread."""
    if OPEN_LOOP in op.attributes:
        return True
    parent = op.parent
    while parent is not None:
        name = parent.operation.name if hasattr(parent, "operation") else parent.name
        if name == "scf.while":
            return True
        if name == "func.func":
            return False
        parent = parent.parent
    return False


def let_others_run(x: Expander, op: ir.Operation, b: Builder, what: str) -> None:
    """A look at memory that a loop may repeat until another thread changes it: suspend without waiting for anything."""
    if not in_open_loop(op):
        return
    frame = frame_of(x, op)
    x.function.spins = True
    Fields(b, frame, FrameHeader).store("site", b.i32(site_of(x, op, what)))
    suspend(x, b)


@expands("scf.while")
def _open_loop(x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> None:
    """A loop that may never end asks each time whether it has to stop."""
    b = Builder(ir.InsertionPoint.at_block_begin(op.regions[1].blocks[0]), op.location)
    if x.function.is_kernel:
        stop_here(x, op, b)
    else:
        x.function.loops = True
        _stop_if_asked(x, op, b, lambda asked: asked.i32(1))


def stop_here(x: Expander, op: ir.Operation, b: Builder) -> None:
    """In each iteration of a loop that may never end: leave it if kernels have to stop."""
    frame_of(x, op)
    _stop_if_asked(x, op, b, lambda asked: asked.i32(1))


def _stop_if_asked(x: Expander, op: ir.Operation, b: Builder, steps: Callable[[Builder], ir.Value]) -> None:
    """Give the thread up if kernels have to stop after so many more steps; host code ends, and takes no steps."""
    frame, i32 = x.function.frame, int_type(32)
    asked = b.if_(b.compare("ne", scheduler.stopped(x.module, b, x.function.context), b.i32(0)))
    taken = steps(asked) if x.function.is_kernel else asked.i32(0)
    stop = call(x, asked, "kiln_cpu_step", [x.function.context, taken], i32)
    then = asked.if_(asked.compare("ne", stop, asked.i32(0)))
    if not x.function.is_kernel:
        then.atomic("_or", then.byte_gep(x.function.context, shared.offset("stop")), stop)
        x.fault(then, x.module.site(op, "wait", "loop", ""))
        x.module.declare(END, [], [])
        then.call(END, [], [])
        return
    assert frame is not None
    has_frame = then.compare("ne", then.value("llvm.ptrtoint", int_type(64), (frame,)), then.i64(0))
    site = site_of(x, op, "loop")
    waits, ends = then.if_else(has_frame)
    Fields(waits, frame, FrameHeader).store("site", waits.i32(site))
    x.fault(ends, site)
    x.module.declare(LEAVE, [], [])
    then.call(LEAVE, [], [])


LOOP_CHUNK = 1 << 14
"""Iterations of a plain loop after which a thread asks whether it has to stop."""

_SUSPENDS = {
    f"cute_nvgpu.{name}"
    for name in (
        "barrier", "sync_warp", "shuffle", "vote", "redux", "elect_one", "match", "mbarrier_wait", "mbarrier_try_wait",
        "mbarrier_test_wait", "mma_sync", "ldmatrix", "ldmatrix_bytes", "stmatrix", "stmatrix_bytes", "cluster_wait",
    )
}  # fmt: skip


@expands("scf.for")
def _plain_loop(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> None:
    """A loop that may be long and does not suspend is cut into pieces, each after a question whether to stop."""
    lower, upper, step, *inits = op.operands
    if _surely_short(lower, upper, step) or _suspends(op):
        return
    strides = constant_values(step)
    stride = strides[0] if strides else 0
    wide = 64 if isinstance(step.type, ir.IndexType) else step.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if stride < 1 or stride * LOOP_CHUNK >= 1 << (wide - 1):
        return
    x.function.loops = True
    types = [lower.type, *(value.type for value in inits)]
    around = b.op("scf.while", types, [lower, *inits], None, 2)
    locations = [op.location] * len(types)
    before = around.regions[0].blocks.append(*types, arg_locs=locations)
    after = around.regions[1].blocks.append(*types, arg_locs=locations)
    test = Builder(ir.InsertionPoint(before), op.location)
    more = test.compare("ult" if "unsignedCmp" in op.attributes else "slt", before.arguments[0], upper)

    def steps(c: Builder) -> ir.Value:
        left = c.binary("subi", upper, before.arguments[0])
        least = c.binary("minui", left, c.const(left.type, stride * LOOP_CHUNK))
        count = c.binary("divui", c.binary("addi", least, c.const(left.type, stride - 1)), c.const(left.type, stride))
        if isinstance(count.type, ir.IndexType):
            return c.value("arith.index_cast", int_type(32), (count,))
        return count if wide == 32 else c.value("arith.trunci" if wide > 32 else "arith.extui", int_type(32), (count,))

    _stop_if_asked(x, op, test.if_(more), steps)
    test.op("scf.condition", (), (more, *before.arguments))
    piece = Builder(ir.InsertionPoint(after), op.location)
    start, *values = after.arguments
    left = piece.binary("subi", upper, start)
    most = piece.const(left.type, stride * LOOP_CHUNK)
    end = piece.select(piece.compare("ugt", left, most), piece.binary("addi", start, most), upper)
    last = piece.op("scf.yield", (), ())
    op.move_before(last)
    for old, new in zip(op.results, list(around.results)[1:], strict=True):
        old.replace_all_uses_with(new)
    for number, value in enumerate([start, end, step, *values]):
        op.operands[number] = value
    Builder(ir.InsertionPoint(last), op.location).op("scf.yield", (), (end, *op.results))
    last.erase()


def _surely_short(*bounds: ir.Value) -> bool:
    """Whether a loop's bounds are constants with few iterations."""
    numbers = [constant_values(value) for value in bounds]
    if any(number is None for number in numbers):
        return False
    lower, upper, step = (number[0] for number in numbers if number)
    return step > 0 and (upper - lower) // step <= LOOP_CHUNK


def _suspends(loop: ir.Operation) -> bool:
    """Whether a loop's body has operations that suspend, or loops that ask themselves."""
    found = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal found
        found = found or op.name in _SUSPENDS
        return ir.WalkResult.INTERRUPT if found else ir.WalkResult.ADVANCE

    loop.walk(visit)
    return found


# --- barriers and fences ---------------------------------------------------------------------------------------------


def barrier(x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, waits: bool) -> None:
    """Arrive at a barrier of the block, and wait for it."""
    _barrier_with(x, op, b, number, threads, waits, None)


def _barrier_with(
    x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, waits: bool,
    contribute: Callable[[Builder, ir.Value], None] | None,
) -> ir.Value | None:  # fmt: skip
    """A barrier to which a thread may bring something when its arrival counts; then the phase that it arrived in."""
    site = site_of(x, op, "barrier")
    operands = [frame_of(x, op), number, threads, b.i32(site)]
    hooks, native = Hooks(x, op), "kiln_cpu_sync" if waits else "kiln_cpu_arrive"

    def phase_now(c: Builder) -> ir.Value:
        block = Fields(c, Fields(c, operands[0], FrameHeader).load("block"), BlockRecord)
        offset = c.binary("muli", number, c.i32(ctypes.sizeof(BarrierRecord)))
        return Fields(c, c.byte_gep(block.at("barriers"), offset), BarrierRecord).load("phase")

    def again(c: Builder) -> tuple[ir.Value, ...]:
        phase = [] if contribute is None else [phase_now(c)]
        arrive = lambda: call(x, c, native, operands, int_type(32))
        status = hooks.arrival(c, operands[0], number, threads, int(waits), arrive)
        twice = c.compare("eq", status, c.i32(2))
        suspended, came = c.if_else(twice)
        suspend(x, suspended)
        if contribute is not None:
            contribute(came, phase[0])
        return twice, status, *phase

    loop, _ = b.while_(again, [int_type(32)] * (1 if contribute is None else 2))
    status, *phase = loop.point.block.owner.operation.results
    if waits:
        # a suspend point of its own, so that nothing has to be kept across it
        suspend_if(x, b, status)
        hooks.passed(b)
    return phase[0] if phase else None


def barrier_reduce(
    x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, kind: str, predicate: ir.Value
) -> ir.Value:
    """A barrier that counts (`popc`: an i32) or combines (`and`, `or`: an i1) what its threads bring.

    A phase has a tally of its own, which starts when the first of its threads comes.
    """
    frame, i32 = frame_of(x, op), int_type(32)

    def tally(c: Builder, phase: ir.Value) -> Fields:
        block = Fields(c, Fields(c, frame, FrameHeader).load("block"), BlockRecord)
        which = c.binary("addi", c.binary("muli", number, c.i32(TALLIES)), c.binary("andi", phase, c.i32(TALLIES - 1)))
        return Fields(c, c.byte_gep(block.at("tallies"), c.binary("muli", which, c.i32(ctypes.sizeof(Tally)))), Tally)

    def bring(came: Builder, phase: ir.Value) -> None:
        here = tally(came, phase)
        fresh = came.if_(came.compare("ne", here.load("phase"), came.binary("addi", phase, came.i32(1))))
        start = here.inside(fresh)
        start.store("phase", fresh.binary("addi", phase, fresh.i32(1)))
        start.store("threads", 0)
        start.store("holds", 0)
        here.store("threads", came.binary("addi", here.load("threads"), came.i32(1)))
        holds = came.value("arith.extui", i32, (predicate,))
        here.store("holds", came.binary("addi", here.load("holds"), holds))

    phase = _barrier_with(x, op, b, number, threads, True, bring)
    assert phase is not None
    result = tally(b, phase)
    if kind == "popc":
        return result.load("holds")
    if kind == "or":
        return b.compare("ne", result.load("holds"), b.i32(0))
    return b.compare("eq", result.load("holds"), result.load("threads"))


@hardware("barrier")
def _barrier(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    barrier(x, op, b, *op.operands, waits=True)
    return []


@hardware("barrier_arrive")
def _barrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    barrier(x, op, b, *op.operands, waits=False)
    return []


def _nothing(_x: Expander, _op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    """Registers and caches are not modelled."""
    return []


for _name in ("prefetch", "set_max_register"):
    hardware(_name)(_nothing)


@hardware("grid_dependency")
def _grid_dependency(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    """Launches are made in order: when a kernel starts, those before it are complete."""
    if text(op, "action") == "wait":
        Hooks(x, op).depends(b)
    return []


@hardware("nanosleep")
def _nanosleep(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    let_others_run(x, op, b, "nanosleep")
    return []


SEQUENTIAL = 7
"""LLVM's number of sequential consistency."""


def i64_attribute(value: int) -> ir.Attribute:
    return int_attr(int_type(64), value)


def fence(b: Builder, kind: str) -> None:
    """Blocks may run on other OS threads: what orders memory for more than a block is a fence of the host."""
    if "gpu" in kind or "sys" in kind or kind.startswith(("sc", "acq_rel")):
        b.op("llvm.fence", (), (), {"ordering": i64_attribute(SEQUENTIAL)})


@hardware("fence")
def _fence(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    Hooks(x, op).fence(b, text(op, "kind"))
    fence(b, text(op, "kind"))
    return []


# --- clusters --------------------------------------------------------------------------------------------------------


@hardware("cluster_index")
def _cluster_index(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    record = Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord)
    which, dim = text(op, "which"), op.attributes["dim"].value
    sizes = [record.load(f"cluster_{a}") for a in "xyz"]
    if which == "cluster_size":
        return [b.binary("muli", sizes[0], b.binary("muli", sizes[1], sizes[2]))]
    if which == "block_idx_in_cluster":
        return [record.load("rank")]
    if which == "block_in_cluster_dim":
        return [sizes[dim]]
    if which == "block_in_cluster_idx":
        return [b.binary("remui", x.function.indices["block_idx"][dim], sizes[dim])]
    index = x.function.indices["block_idx" if which == "cluster_idx" else "grid_dim"]
    return [b.binary("divui", index[dim], sizes[dim])]


def cluster_arrive(x: Expander, op: ir.Operation, b: Builder, relaxed: bool) -> None:
    """Arrive at the cluster's barrier."""
    frame = frame_of(x, op)
    mode = 3 if relaxed else 2
    Hooks(x, op).arrival(b, frame, None, None, mode, lambda: call(x, b, "kiln_cpu_cluster_arrive", [frame]))


def cluster_wait(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Wait for the cluster's barrier."""
    site = b.i32(site_of(x, op, "cluster barrier"))
    suspend_if(x, b, call(x, b, "kiln_cpu_cluster_wait", [frame_of(x, op), site], int_type(32)))
    Hooks(x, op).passed(b, cluster=True)


@hardware("cluster_arrive")
def _cluster_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    cluster_arrive(x, op, b, "relaxed" in op.attributes)
    return []


@hardware("cluster_wait")
def _cluster_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    cluster_wait(x, op, b)
    return []


def peer(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, rank: ir.Value) -> ir.Value:
    """The address in the shared memory of block `rank` of the cluster; negative: the address itself.

    The address may be another block's already: what counts is its place in its block.
    """
    record = Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord)
    there = b.binary("subi", rank, record.load("rank"))
    distance = b.binary("muli", there, record.load("chunk"))
    here = b.compare("slt", rank, b.i32(0))
    wide = b.value("arith.extsi", int_type(64), (b.select(here, b.i32(0), distance),))
    return b.byte_gep(pointer, wide)


@hardware("map_shared")
def _map_shared(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, rank = op.operands
    return [peer(x, op, b, pointer, rank)]


@hardware("dynamic_smem_size")
def _dynamic_smem_size(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord).load("dynamic_smem")]
