"""The native half of the CPU target that no program changes, built once per process with the MLIR bindings.

It has parts, which are compiled when they are first needed. Host code for GPUs needs reports only.

`kiln_cpu_launch`  checks a grid and runs its blocks, on several OS threads once that pays
`kiln_cpu_worker`  what each of those threads runs: blocks from an atomic counter until there are none left
`kiln_cpu_fault`   records a fault in the context; of several, the one in the lowest block is kept
`kiln_cpu_watch`   from now on Ctrl-C stops kernels; `kiln_cpu_unwatch` ends it
`kiln_cpu_guard`   a thread that stops a launch when its time is up
`kiln_cpu_step`    counts steps of a launch, if that is asked for; why kernels have to stop
`kiln_cpu_stream`  the stream printf writes to
`kiln_cpu_finish`  the end of a call: the context, copied for Python, if there is anything to report
"""

from __future__ import annotations

from ....mlir import context, ir
from ...host import call_context as shared
from ...host import signals, soft_float
from ...lowering.builder import Builder, declare, function, global_, int_type, parsed_type, ptr_type
from . import copies, scheduler, threads

REPORT_EXPORTS = ("kiln_cpu_fault", "kiln_cpu_fault_with", "kiln_cpu_stream", "kiln_cpu_finish", scheduler.STOP)
LAUNCH_EXPORTS = (
    "kiln_cpu_launch",
    "kiln_cpu_workers",
    "kiln_cpu_now",
    "kiln_cpu_timeout",
    "kiln_cpu_max_steps",
    "kiln_cpu_step",
    "kiln_cpu_watch",
    "kiln_cpu_unwatch",
    "kiln_cpu_watchers",
    "kiln_cpu_old_handler",
    scheduler.SEED,
    *scheduler.ORDER_EXPORTS,
)
WAITING_EXPORTS = (*threads.EXPORTS, *scheduler.EXPORTS, *copies.EXPORTS)
SPAWN_AFTER_NS = 20_000
"""Blocks run on the calling thread for at least this long before others are started."""
SPAWN_GAIN_NS = 100_000
"""How much work must be left for a thread to be worth starting (starting one costs some 20 us)."""
MAX_WORKERS = 256
MAX_CHUNK = 32
CHUNKS_PER_WORKER = 8
"""Threads take up to so many blocks at a time (an atomic operation between blocks costs 90 ns), but not too many of all."""
MAX_SMEM = 232_448
"""Bytes of shared memory of a block on the largest device."""
LIMITS = (0x7FFFFFFF, 65535, 65535, 1024, 1024, 64)
"""Largest grid and block along x, y, z."""
MAX_THREADS = 1024
MAX_COOPERATIVE = 132 * 2048
"""Threads of a cooperative launch: what an H200 can hold at a time. Here it is memory that is limited."""

MAX_RESIDENT = 4096
"""Blocks of a launch that are resident together if the kernel spins on memory; past that, each cluster on its own."""
SIGINT = 2

_JOB = "!llvm.struct<(i64, i64, ptr, ptr, ptr, ptr, i64, i64, i32, i32, i32, ptr)>"
_NEXT, _TOTAL, _CONTEXT, _BLOCK, _ARGUMENTS, _SIZES, _SMEM, _CHUNK, _FIRST, _STRIDE, _SITE, _NAME = range(12)
_CHUNK_OF_JOB = "!llvm.struct<(ptr, i64, i64, ptr, i32, i32, i32)>"
_JOB_OF, _NUMBER, _END, _SMEM_OF, _X, _Y, _Z = range(7)
_FUNCTIONS = (
    ("malloc", ("i64",), "ptr"),
    ("realloc", ("ptr", "i64"), "ptr"),
    ("aligned_alloc", ("i64", "i64"), "ptr"),
    ("free", ("ptr",), ""),
    ("memcpy", ("ptr", "ptr", "i64"), "ptr"),
    ("memmove", ("ptr", "ptr", "i64"), "ptr"),
    ("memset", ("ptr", "i32", "i64"), "ptr"),
    ("open_memstream", ("ptr", "ptr"), "ptr"),
    ("fclose", ("ptr",), "i32"),
    ("clock_gettime", ("i32", "ptr"), "i32"),
    ("pthread_create", ("ptr", "ptr", "ptr", "ptr"), "i32"),
    ("pthread_join", ("i64", "ptr"), "i32"),
    ("sem_init", ("ptr", "i32", "i32"), "i32"),
    ("sem_post", ("ptr",), "i32"),
    ("sem_timedwait", ("ptr", "ptr"), "i32"),
    ("signal", ("i32", "ptr"), "ptr"),
)
"""Functions of the C library."""


def _declare_library(module: ir.Module) -> None:
    types = {"ptr": ptr_type(), "i32": int_type(32), "i64": int_type(64)}
    for name, inputs, result in _FUNCTIONS:
        declare(module, name, [types[i] for i in inputs], [types[result]] if result else [])


def build_reports() -> ir.Module:
    """What tells Python of a call, as a module of `func`, `scf`, `arith` and `llvm` operations."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        _declare_library(module)
        _number(module, scheduler.STOP, int_type(32), 0)
        _fault(module)
        _stream(module)
        _finish(module)
        return module


def build_launch() -> ir.Module:
    """What runs the blocks of a launch."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        _declare_library(module)
        declare(module, "kiln_cpu_fault", [ptr_type(), *[int_type(32)] * 8, ptr_type()], [])
        global_(module, scheduler.STOP, int_type(32), None, linkage="external")
        _globals(module)
        declare(module, "kiln_cpu_guarded", [ptr_type()] * 4, [int_type(32)])
        _run_block(module)
        _run_blocks(module)
        _run_chunk(module)
        _worker(module)
        _now(module)
        _watch(module)
        _guard(module)
        _step(module)
        scheduler.build_order(module)
        _launch(module)
        return module


def build_waiting() -> ir.Module:
    """What runs threads that wait: only kernels that have some need it."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        _declare_library(module)
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        declare(module, "kiln_cpu_fault_with", [ptr, *[i32] * 8, ptr, ptr, i64], [])
        declare(module, "kiln_cpu_random", [ptr, i32], [i32])
        global_(module, scheduler.SEED, i64, None, linkage="external")
        threads.build(module)
        copies.build(module)
        scheduler.build(module)
        return module


PARTS = {
    "reports": (build_reports, REPORT_EXPORTS),
    "launch": (build_launch, LAUNCH_EXPORTS),
    "waiting": (build_waiting, WAITING_EXPORTS),
    "soft_float": (soft_float.build, soft_float.EXPORTS),
    "signals": (signals.build, signals.EXPORTS),
}
"""How each part is built, and what others see of it."""


def _open(
    module: ir.Module, name: str, inputs: list[ir.Type], results: list[ir.Type]
) -> tuple[Builder, list[ir.Value]]:
    made = function(module, name, inputs, results)
    entry = made.regions[0].blocks[0]
    return Builder(ir.InsertionPoint(entry), ir.Location.unknown()), list(entry.arguments)


def _return(b: Builder, *values: ir.Value) -> None:
    b.op("func.return", (), values)


def _globals(module: ir.Module) -> None:
    """How many OS threads a launch may use, its milliseconds and steps (0: any), the seed: Python sets them."""
    i32, i64 = int_type(32), int_type(64)
    for name, type_, value in (
        ("kiln_cpu_workers", i32, 1), ("kiln_cpu_timeout", i64, 0), ("kiln_cpu_max_steps", i64, 0), (scheduler.SEED, i64, 0),
        ("kiln_cpu_watchers", i32, 0), ("kiln_cpu_old_handler", i64, 0),
    ):  # fmt: skip
        _number(module, name, type_, value)


def _number(module: ir.Module, name: str, type_: ir.Type, value: int) -> None:
    global_(module, name, type_, ir.IntegerAttr.get(type_, value), linkage="external")


class _Fields:
    """Access to the fields of the context at an address."""

    def __init__(self, b: Builder, ctx: ir.Value) -> None:
        self.b, self.ctx = b, ctx

    def at(self, field: str, extra: int = 0) -> ir.Value:
        return self.b.byte_gep(self.ctx, shared.offset(field) + extra)

    def load(self, field: str, type_: ir.Type, extra: int = 0) -> ir.Value:
        return self.b.load(type_, self.at(field, extra))


def _has_fault(b: Builder, ctx: ir.Value) -> ir.Value:
    status = _Fields(b, ctx).load("status", int_type(32))
    return b.compare("ne", b.binary("andi", status, b.i32(shared.FAULT)), b.i32(0))


def _fault(module: ir.Module) -> None:
    """`kiln_cpu_fault(context, site, block x3, thread x3, count, arguments)`; block x is negative in host code.

    `kiln_cpu_fault_with` takes details and their size in addition, and frees them if they are not kept.
    """
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (ctx, site, bx, by, bz, tx, ty, tz, count, arguments, details, size_of_details) = _open(
        module, "kiln_cpu_fault_with", [ptr, *[i32] * 8, ptr, ptr, i64], []
    )
    fields = _Fields(b, ctx)

    def wide(value: ir.Value) -> ir.Value:
        return b.value("arith.extsi", i64, (value,))

    gx, gy = (wide(fields.load("grid", i32, 4 * n)) for n in range(2))
    linear = b.binary(
        "addi", wide(bx), b.binary("muli", gx, b.binary("addi", wide(by), b.binary("muli", gy, wide(bz))))
    )
    order = b.select(b.compare("slt", bx, b.i32(0)), b.i64((1 << 63) - 1), linear)
    lock = fields.at("lock")
    b.while_(lambda c: (c.compare("ne", c.atomic("xchg", lock, c.i32(1)), c.i32(0)),))
    earlier = b.compare("slt", order, fields.load("order", i64))
    none = b.binary("xori", _has_fault(b, ctx), b.const(int_type(1), 1))
    record, not_kept = b.if_else(b.binary("ori", none, earlier))
    not_kept.call("free", [], [details])
    inside = _Fields(record, ctx)
    record.call("free", [], [inside.load("details", ptr)])
    record.store(details, inside.at("details"))
    record.store(size_of_details, inside.at("details_size"))
    record.store(order, inside.at("order"))
    record.store(site, inside.at("site"))
    for field, values in (("block", (bx, by, bz)), ("thread", (tx, ty, tz))):
        for number, value in enumerate(values):
            record.store(value, inside.at(field, 4 * number))
    size = record.binary("muli", record.value("arith.extsi", i64, (count,)), record.i64(8))
    record.call("memcpy", [ptr], [inside.at("arguments"), arguments, size])
    b.atomic("_or", fields.at("status"), b.i32(shared.FAULT))
    b.atomic("xchg", lock, b.i32(0))
    _return(b)
    b, arguments = _open(module, "kiln_cpu_fault", [ptr, *[i32] * 8, ptr], [])
    b.call("kiln_cpu_fault_with", [], [*arguments, b.null(), b.i64(0)])
    _return(b)


def _stream(module: ir.Module) -> None:
    """`kiln_cpu_stream(context)`: the call's FILE*, opened when first needed. Kernels that print run on one thread."""
    ptr, i32 = ptr_type(), int_type(32)
    b, (ctx,) = _open(module, "kiln_cpu_stream", [ptr], [ptr])
    fields = _Fields(b, ctx)
    first = b.if_(b.value("llvm.icmp", int_type(1), (fields.load("stream", ptr), b.null()), _EQ()))
    inner = _Fields(first, ctx)
    opened = first.call("open_memstream", [ptr], [inner.at("text"), inner.at("text_size")]).results[0]
    first.store(opened, inner.at("stream"))
    first.atomic("_or", inner.at("status"), first.i32(shared.TEXT))
    _return(b, fields.load("stream", ptr))
    del i32


def _EQ() -> dict[str, ir.Attribute]:
    return {"predicate": ir.IntegerAttr.get(int_type(64), 0)}


def _finish(module: ir.Module) -> None:
    """`kiln_cpu_finish(context)`: null, or a copy of the context that the caller frees."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (ctx,) = _open(module, "kiln_cpu_finish", [ptr], [ptr])
    result = b.alloca(ptr)
    b.store(b.null(), result)
    report = b.if_(b.compare("ne", _Fields(b, ctx).load("status", i32), b.i32(0)))
    stream = _Fields(report, ctx).load("stream", ptr)
    printed = report.if_(report.compare("ne", report.value("llvm.ptrtoint", i64, (stream,)), report.i64(0)))
    printed.call("fclose", [i32], [stream])
    copy = report.call("malloc", [ptr], [report.i64(shared.SIZE)]).results[0]
    report.call("memcpy", [ptr], [copy, ctx, report.i64(shared.SIZE)])
    report.store(copy, result)
    stop = b.address_of(scheduler.STOP)
    b.store(b.i32(0), stop)
    _return(b, b.load(ptr, result))


def _run_block(module: ir.Module) -> None:
    """`kiln_cpu_run_block(job, number, smem, index)`: block `number` of the grid in the order of the schedule, x fastest;
    its index is left in memory before it runs."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    job_type = parsed_type(_JOB)
    b, (job, number, smem, places) = _open(module, "kiln_cpu_run_block", [ptr, i64, ptr, ptr], [])
    sizes, ctx, block, arguments = (
        b.load(ptr, b.field(job, job_type, n)) for n in (_SIZES, _CONTEXT, _BLOCK, _ARGUMENTS)
    )
    gx, gy = (b.value("arith.extui", i64, (b.load(i32, b.gep(sizes, i32, n)),)) for n in range(2))
    cell = b.alloca(i64)
    b.store(number, cell)
    first, stride = (b.value("arith.extui", i64, (b.load(i32, b.field(job, job_type, n)),)) for n in (_FIRST, _STRIDE))
    other = b.if_(b.compare("ne", stride, b.i64(1)))
    place = other.binary("addi", other.binary("muli", number, stride), first)
    other.store(other.binary("remui", place, other.load(i64, other.field(job, job_type, _TOTAL))), cell)
    number = b.load(i64, cell)
    rows = b.binary("divui", number, gx)
    x, y, z = b.binary("remui", number, gx), b.binary("remui", rows, gy), b.binary("divui", rows, gy)
    index = [b.value("arith.trunci", i32, (v,)) for v in (x, y, z)]
    for position, value in enumerate(index):
        b.store(value, b.gep(places, i32, position))
    b.call_pointer(block, [arguments, ctx, smem, sizes, *index])
    _return(b)


def _next_chunk(b: Builder, job: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Take the next few blocks: whether there are any to run, and the number of the first.

    After a fault no more are run, but all before the faulting one are: so look for a fault first, then take.
    """
    i64, job_type = int_type(64), parsed_type(_JOB)
    ctx = b.load(ptr_type(), b.field(job, job_type, _CONTEXT))
    failed = b.binary("ori", _has_fault(b, ctx), b.compare("ne", _stop_reason(b, ctx), b.i32(0)))
    chunk = b.load(i64, b.field(job, job_type, _CHUNK))
    number = b.atomic("add", b.field(job, job_type, _NEXT), chunk)
    some = b.compare("ult", number, b.load(i64, b.field(job, job_type, _TOTAL)))
    return b.binary("andi", some, b.binary("xori", failed, b.const(int_type(1), 1))), number


def _run_blocks(module: ir.Module) -> None:
    """`kiln_cpu_run_blocks(chunk)`: the blocks of a chunk that have not run."""
    ptr, i64, type_ = ptr_type(), int_type(64), parsed_type(_CHUNK_OF_JOB)
    b, (chunk,) = _open(module, "kiln_cpu_run_blocks", [ptr], [])
    job, smem = (b.load(ptr, b.field(chunk, type_, n)) for n in (_JOB_OF, _SMEM_OF))
    first, end = (b.load(i64, b.field(chunk, type_, n)) for n in (_NUMBER, _END))
    each, number = b.for_(first, end, b.i64(1))
    each.call("kiln_cpu_run_block", [], [job, number, smem, each.field(chunk, type_, _X)])
    _return(b)


def _run_chunk(module: ir.Module) -> None:
    """`kiln_cpu_run_chunk(job, first, smem)`: run the blocks of a chunk; the number after its last. An access outside
    memory is a fault of the block that was running."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    job_type, type_ = parsed_type(_JOB), parsed_type(_CHUNK_OF_JOB)
    b, (job, first, smem) = _open(module, "kiln_cpu_run_chunk", [ptr, i64, ptr], [i64])
    chunk, caught = b.alloca(type_), b.alloca(i64, 3)
    total, size = (b.load(i64, b.field(job, job_type, n)) for n in (_TOTAL, _CHUNK))
    end = b.binary("minui", total, b.binary("addi", first, size))
    for field, value in ((_JOB_OF, job), (_NUMBER, first), (_END, end), (_SMEM_OF, smem)):
        b.store(value, b.field(chunk, type_, field))
    run = address_of_function(b, "kiln_cpu_run_blocks", [ptr], [])
    name = b.load(ptr, b.field(job, job_type, _NAME))
    signalled = b.call("kiln_cpu_guarded", [i32], [run, chunk, name, caught]).results[0]
    failed = b.if_(b.compare("ne", signalled, b.i32(0)))
    ctx = failed.load(ptr, failed.field(job, job_type, _CONTEXT))
    site = failed.binary("ori", failed.load(i32, failed.field(job, job_type, _SITE)), failed.i32(shared.MEMORY_FAULT))
    index = [failed.load(i32, failed.field(chunk, type_, n)) for n in (_X, _Y, _Z)]
    minus = failed.i32(-1)
    failed.call("kiln_cpu_fault", [], [ctx, site, *index, minus, minus, minus, failed.i32(3), caught])
    _return(b, end)


def _allocate_smem(b: Builder, job: ir.Value) -> ir.Value:
    from ..launch import SMEM_ALIGNMENT

    size = b.load(int_type(64), b.field(job, parsed_type(_JOB), _SMEM))
    return b.call("aligned_alloc", [ptr_type()], [b.i64(SMEM_ALIGNMENT), size]).results[0]


def _worker(module: ir.Module) -> None:
    """`kiln_cpu_worker(job)`: the body of a helper thread."""
    ptr, i64 = ptr_type(), int_type(64)
    b, (job,) = _open(module, "kiln_cpu_worker", [ptr], [ptr])
    smem = _allocate_smem(b, job)
    body, (first,) = b.while_(lambda c: _next_chunk(c, job), [i64])
    body.call("kiln_cpu_run_chunk", [i64], [job, first, smem])
    b.call("free", [], [smem])
    _return(b, b.null())


def _stop_reason(b: Builder, ctx: ir.Value) -> ir.Value:
    """Why the kernels of a context have to stop; 0: they do not."""
    volatile = {"volatile_": ir.UnitAttr.get()}
    both = b.binary("ori", *(
        b.value("llvm.load", int_type(32), (address,), volatile)
        for address in (b.address_of(scheduler.STOP), _Fields(b, ctx).at("stop"))
    ))  # fmt: skip
    return b.binary("andi", both, b.i32(shared.STOPS))


def _step(module: ir.Module) -> None:
    """`kiln_cpu_step(context, steps)`: why kernels have to stop, or 0. Steps are counted if the launch has a limit."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (ctx, steps) = _open(module, "kiln_cpu_step", [ptr, i32], [i32])
    counts = b.binary("andi", _Fields(b, ctx).load("stop", i32), b.i32(shared.COUNTS_STEPS))
    counting = b.if_(b.compare("ne", counts, b.i32(0)))
    wide = counting.value("arith.extui", i64, (steps,))
    before = counting.atomic("add", _Fields(counting, ctx).at("steps"), wide)
    limit = counting.load(i64, counting.address_of("kiln_cpu_max_steps"))
    over = counting.if_(counting.compare("ugt", counting.binary("addi", before, wide), limit))
    over.atomic("_or", _Fields(over, ctx).at("stop"), over.i32(shared.STOP_STEPS))
    _return(b, _stop_reason(b, ctx))


def address_of_function(b: Builder, name: str, inputs: list[ir.Type], results: list[ir.Type]) -> ir.Value:
    """The address of a function of the module."""
    made = b.value("func.constant", ir.FunctionType.get(inputs, results), (), {"value": ir.FlatSymbolRefAttr.get(name)})
    return b.value("builtin.unrealized_conversion_cast", ptr_type(), (made,))


def _watch(module: ir.Module) -> None:
    """`kiln_cpu_watch()` puts a handler before the one SIGINT has, which stops all kernels; `kiln_cpu_unwatch()` takes it away.

    Where SIGINT is ignored or ends the process, it stays so.
    """
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (number,) = _open(module, "kiln_cpu_interrupted", [i32], [])
    b.store(b.i32(shared.STOP_INTERRUPT), b.address_of(scheduler.STOP))
    old = b.load(i64, b.address_of("kiln_cpu_old_handler"))
    known = b.if_(b.compare("ugt", old, b.i64(1)))
    known.call_pointer(known.value("llvm.inttoptr", ptr, (old,)), [number])
    _return(b)

    b, _ = _open(module, "kiln_cpu_watch", [], [])
    before = b.atomic("add", b.address_of("kiln_cpu_watchers"), b.i32(1))
    first = b.if_(b.compare("eq", before, b.i32(0)))
    own = address_of_function(first, "kiln_cpu_interrupted", [i32], [])
    old = first.value("llvm.ptrtoint", i64, (first.call("signal", [ptr], [first.i32(SIGINT), own]).results[0],))
    # another launch may have ended in between and not yet taken the handler away
    others = first.if_(first.compare("ne", old, first.value("llvm.ptrtoint", i64, (own,))))
    others.store(old, others.address_of("kiln_cpu_old_handler"))
    useless = first.if_(first.compare("ule", old, first.i64(1)))
    useless.call("signal", [ptr], [useless.i32(SIGINT), useless.value("llvm.inttoptr", ptr, (old,))])
    _return(b)

    b, _ = _open(module, "kiln_cpu_unwatch", [], [])
    before = b.atomic("sub", b.address_of("kiln_cpu_watchers"), b.i32(1))
    last = b.if_(b.compare("eq", before, b.i32(1)))
    old = last.load(i64, last.address_of("kiln_cpu_old_handler"))
    known = last.if_(last.compare("ugt", old, last.i64(1)))
    known.call("signal", [ptr], [known.i32(SIGINT), known.value("llvm.inttoptr", ptr, (old,))])
    _return(b)


_GUARD = "!llvm.struct<(ptr, i64, i64, array<8 x i64>)>"
_GUARD_CONTEXT, _GUARD_SECONDS, _GUARD_NANOSECONDS, _GUARD_SEMAPHORE = range(4)


def _guard(module: ir.Module) -> None:
    """`kiln_cpu_guard(guard)`: wait for the end of a launch, but not past its deadline."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (guard,) = _open(module, "kiln_cpu_guard", [ptr], [ptr])
    type_ = parsed_type(_GUARD)
    late = b.alloca(i32)

    def too_early(c: Builder) -> tuple[ir.Value]:
        """A signal can end the wait."""
        time = c.alloca(i64, 2)
        failed = c.call(
            "sem_timedwait", [i32], [c.field(guard, type_, _GUARD_SEMAPHORE), c.field(guard, type_, _GUARD_SECONDS)]
        ).results[0]
        c.call("clock_gettime", [i32], [c.i32(0), time])
        end, nanoseconds = (c.load(i64, c.field(guard, type_, n)) for n in (_GUARD_SECONDS, _GUARD_NANOSECONDS))
        now = c.load(i64, time)
        past = c.binary("ori", c.compare("sgt", now, end), c.binary(
            "andi", c.compare("eq", now, end), c.compare("sge", c.load(i64, c.gep(time, i64, 1)), nanoseconds)
        ))  # fmt: skip
        still_running = c.compare("ne", failed, c.i32(0))
        c.store(c.value("arith.extui", i32, (c.binary("andi", past, still_running),)), late)
        return (c.binary("andi", still_running, c.binary("xori", past, c.const(int_type(1), 1))),)

    b.while_(too_early)
    stop = b.if_(b.compare("ne", b.load(i32, late), b.i32(0)))
    ctx = stop.load(ptr, stop.field(guard, type_, _GUARD_CONTEXT))
    stop.store(stop.i32(shared.STOP_TIMEOUT), _Fields(stop, ctx).at("stop"))
    _return(b, b.null())


def _start_guard(b: Builder, guard: ir.Value, handle: ir.Value, ctx: ir.Value, milliseconds: ir.Value) -> None:
    """Start a thread that stops the launch after a time."""
    i32, i64, type_ = int_type(32), int_type(64), parsed_type(_GUARD)
    ptr = ptr_type()
    b.store(ctx, b.field(guard, type_, _GUARD_CONTEXT))
    seconds = b.field(guard, type_, _GUARD_SECONDS)
    b.call("clock_gettime", [i32], [b.i32(0), seconds])
    at = b.field(guard, type_, _GUARD_NANOSECONDS)
    rest = b.binary("muli", b.binary("remui", milliseconds, b.i64(1000)), b.i64(1_000_000))
    nanoseconds = b.binary("addi", b.load(i64, at), rest)
    carry = b.binary("divui", nanoseconds, b.i64(1_000_000_000))
    b.store(b.binary("remui", nanoseconds, b.i64(1_000_000_000)), at)
    whole = b.binary("addi", b.load(i64, seconds), b.binary("divui", milliseconds, b.i64(1000)))
    b.store(b.binary("addi", whole, carry), seconds)
    b.call("sem_init", [i32], [b.field(guard, type_, _GUARD_SEMAPHORE), b.i32(0), b.i32(0)])
    entry = address_of_function(b, "kiln_cpu_guard", [ptr], [ptr])
    b.call("pthread_create", [i32], [handle, b.null(), entry, guard])


def _now(module: ir.Module) -> None:
    """`kiln_cpu_now()`: a monotonic clock in nanoseconds."""
    i32, i64 = int_type(32), int_type(64)
    b, _ = _open(module, "kiln_cpu_now", [], [i64])
    time = b.alloca(i64, 2)
    b.call("clock_gettime", [i32], [b.i32(1), time])
    seconds, nanoseconds = b.load(i64, time), b.load(i64, b.gep(time, i64, 1))
    _return(b, b.binary("addi", b.binary("muli", seconds, b.i64(1_000_000_000)), nanoseconds))


def _launch(module: ir.Module) -> None:
    """`kiln_cpu_launch(context, block function, arguments, site, grid x3, block x3, cluster x3, smem, static smem, serial,
    frame size, meets, resident, name)`; the frame size is 0 for a kernel whose threads never wait. `resident`: 1 if all blocks have
    to be resident together, 2 if that is desirable. `serial`: bit 0, blocks run in order; bit 1, a block may take long."""
    from ..launch import SMEM_ALIGNMENT

    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    job_type = parsed_type(_JOB)
    start, (ctx, block, arguments, site, *numbers) = _open(
        module, "kiln_cpu_launch", [ptr, ptr, ptr, i32, *[i64] * 10, *[i32] * 5, ptr], []
    )
    sizes, cluster, smem = numbers[:6], numbers[6:9], numbers[9]
    static, serial, frame, meets, resident, name = numbers[10:]
    job, size_array = start.alloca(job_type), start.alloca(i32, len(scheduler.SIZES))
    fault_args = start.alloca(i64, shared.MAX_ARGS)
    handles, check_at, spawned_at, random, guard_handle = (start.alloca(i64, n) for n in (MAX_WORKERS, 1, 1, 1, 1))
    guard, watched = start.alloca(parsed_type(_GUARD)), start.alloca(i32)
    healthy = start.binary("xori", _has_fault(start, ctx), start.const(int_type(1), 1))
    b = start.if_(healthy)

    # one place decides whether a grid can run; Python says which rule was broken (`faults.py`)
    bad = b.const(int_type(1), 0)
    for size, limit in zip(sizes, LIMITS, strict=True):
        outside = b.compare("ugt", b.binary("subi", size, b.i64(1)), b.i64(limit - 1))
        bad = b.binary("ori", bad, outside)
    wide_static = b.value("arith.extsi", i64, (static,))
    bad = b.binary("ori", bad, b.compare("ugt", smem, b.binary("subi", b.i64(MAX_SMEM), wide_static)))
    for size, part in zip(sizes[:3], cluster, strict=True):
        small = b.compare("slt", part, b.i64(1))
        rest = b.binary("remui", size, b.select(small, b.i64(1), part))
        bad = b.binary("ori", bad, b.binary("ori", small, b.compare("ne", rest, b.i64(0))))
    # numbers within their limits: from here on these cannot overflow
    volume = b.binary("muli", sizes[3], b.binary("muli", sizes[4], sizes[5]))
    bad = b.binary("ori", bad, b.compare("ugt", volume, b.i64(MAX_THREADS)))
    everyone = volume
    for size in sizes[:3]:
        everyone = b.binary("minui", b.binary("muli", everyone, size), b.i64(MAX_COOPERATIVE + 1))
    crowded = b.compare("ugt", everyone, b.i64(MAX_COOPERATIVE))
    bad = b.binary("ori", bad, b.binary("andi", crowded, b.compare("eq", resident, b.i32(1))))
    wrong, run = b.if_else(bad)
    for number, value in enumerate([*sizes, *cluster, smem, wrong.value("arith.extsi", i64, (resident,))]):
        wrong.store(value, wrong.gep(fault_args, i64, number))
    minus = wrong.i32(-1)
    wrong.call("kiln_cpu_fault", [], [ctx, site, *[minus] * 6, wrong.i32(11), fault_args])
    x, y, z = sizes[:3]
    volume, smem, *narrow = (run.value("arith.trunci", i32, (v,)) for v in (volume, smem, *sizes, *cluster))
    sizes, cluster = narrow[:6], narrow[6:]

    for number, value in enumerate(sizes[:3]):
        run.store(value, _Fields(run, ctx).at("grid", 4 * number))
    total = run.binary("muli", x, run.binary("muli", y, z))
    round_up = run.binary("andi", run.binary("addi", smem, run.i32(SMEM_ALIGNMENT - 1)), run.i32(-SMEM_ALIGNMENT))
    shared_bytes = run.binary("addi", static, round_up)
    # a kernel whose threads wait: groups of blocks, each block with memory for its threads (`scheduler.py`)
    waits = run.compare("ne", frame, run.i32(0))
    cluster_size = run.binary("muli", cluster[0], run.binary("muli", cluster[1], cluster[2]))
    with_meetings, without = (scheduler.chunk_bytes(run, shared_bytes, volume, frame, m) for m in (True, False))
    chunk = run.select(run.compare("ne", meets, run.i32(0)), with_meetings, without)
    chunk = run.select(waits, chunk, shared_bytes)
    few = run.binary("ori", run.compare("ule", total, run.i64(MAX_RESIDENT)), run.compare("eq", resident, run.i32(1)))
    together = run.binary("andi", run.compare("ne", resident, run.i32(0)), few)
    all_blocks = run.value("arith.trunci", i32, (total,))
    group = run.select(waits, run.select(together, all_blocks, cluster_size), run.i32(1))
    bytes_ = run.binary("muli", run.value("arith.extui", i64, (chunk,)), run.value("arith.extui", i64, (group,)))
    total = run.binary("divui", total, run.value("arith.extui", i64, (group,)))
    for number, value in enumerate([*sizes, *cluster, shared_bytes, chunk, group, smem]):
        run.store(value, run.gep(size_array, i32, number))
    workers = run.load(i32, run.address_of("kiln_cpu_workers"))
    share = run.value("arith.extui", i64, (run.binary("muli", workers, run.i32(CHUNKS_PER_WORKER)),))
    chunk = run.binary("maxui", run.binary("divui", total, share), run.i64(1))
    chunk = run.binary("minui", chunk, run.i64(MAX_CHUNK))
    # aligned_alloc(0) may give null, which a kernel without shared memory never touches
    for field, value in (
        (_NEXT, run.i64(0)), (_TOTAL, total), (_CONTEXT, ctx), (_BLOCK, block), (_ARGUMENTS, arguments),
        (_SIZES, size_array), (_SMEM, bytes_), (_CHUNK, chunk), (_FIRST, run.i32(0)), (_STRIDE, run.i32(1)),
        (_SITE, site), (_NAME, name),
    ):  # fmt: skip
        run.store(value, run.field(job, job_type, field))
    # a seed: the blocks in another order
    seeded = run.compare("ne", run.call("kiln_cpu_seed", [i32], [run.i32(-1), random]).results[0], run.i32(0))
    reorder = run.if_(run.binary("andi", seeded, run.compare("ult", total, run.i64(1 << 31))))
    places = [reorder.field(job, job_type, n) for n in (_FIRST, _STRIDE)]
    reorder.call("kiln_cpu_order", [], [random, reorder.value("arith.trunci", i32, (total,)), *places])
    # Ctrl-C, and the end of the launch's time
    run.store(run.i32(0), watched)
    loops = run.compare("ne", run.binary("andi", serial, run.i32(2)), run.i32(0))
    long_lived = run.if_(run.binary("ori", waits, loops))
    long_lived.call("kiln_cpu_watch", [], [])
    long_lived.store(long_lived.i32(1), watched)
    counted = run.compare("ne", run.load(i64, run.address_of("kiln_cpu_max_steps")), run.i64(0))
    run.store(run.i64(0), _Fields(run, ctx).at("steps"))
    run.store(run.select(counted, run.i32(shared.COUNTS_STEPS), run.i32(0)), _Fields(run, ctx).at("stop"))
    milliseconds = run.load(i64, run.address_of("kiln_cpu_timeout"))
    limited = run.compare("ne", milliseconds, run.i64(0))
    _start_guard(run.if_(limited), guard, guard_handle, ctx, milliseconds)
    run.store(run.i64(1), check_at)
    run.store(run.i64(0), spawned_at)
    own_smem = _allocate_smem(run, job)
    in_order = run.compare("ne", run.binary("andi", serial, run.i32(1)), run.i32(0))
    alone = run.binary("ori", in_order, run.compare("slt", workers, run.i32(2)))
    begun = run.call("kiln_cpu_now", [i64], []).results[0]

    body, (first,) = run.while_(lambda c: _next_chunk(c, job), [i64])
    done = body.call("kiln_cpu_run_chunk", [i64], [job, first, own_smem]).results[
        0
    ]  # before there are helpers, all blocks up to here
    # after 1, 2, 4, ... chunks: is so much left that helpers pay?
    due = body.compare("uge", done, body.load(i64, check_at))
    check = body.if_(due)
    check.store(check.binary("muli", done, check.i64(2)), check_at)
    elapsed = check.binary("subi", check.call("kiln_cpu_now", [i64], []).results[0], begun)
    left = check.binary("subi", total, done)
    helpers = check.binary(
        "divui", check.binary("muli", check.binary("divui", elapsed, done), left), check.i64(SPAWN_GAIN_NS)
    )
    for bound in (
        check.value("arith.extui", i64, (check.binary("subi", workers, check.i32(1)),)), left, check.i64(MAX_WORKERS),
    ):  # fmt: skip
        helpers = check.binary("minui", helpers, bound)
    long = check.compare("ugt", elapsed, check.i64(SPAWN_AFTER_NS))
    unwatched = check.compare("eq", check.load(i32, watched), check.i32(0))
    begin = check.if_(check.binary("andi", long, unwatched))
    begin.call("kiln_cpu_watch", [], [])
    begin.store(begin.i32(1), watched)
    pays = check.binary("andi", long, check.compare("ne", helpers, check.i64(0)))
    spawn = check.if_(check.binary("andi", pays, check.binary("xori", alone, check.const(int_type(1), 1))))
    spawn.store(spawn.i64(-1), check_at)  # never again
    each, index = spawn.for_(spawn.i64(0), helpers, spawn.i64(1))
    worker = each.value(
        "func.constant", ir.FunctionType.get([ptr], [ptr]), (), {"value": ir.FlatSymbolRefAttr.get("kiln_cpu_worker")}
    )
    worker = each.value("builtin.unrealized_conversion_cast", ptr, (worker,))
    slot = each.gep(handles, i64, each.load(i64, spawned_at))
    status = each.call("pthread_create", [i32], [slot, each.null(), worker, job]).results[0]
    started = each.value("arith.extui", i64, (each.compare("eq", status, each.i32(0)),))
    each.store(each.binary("addi", each.load(i64, spawned_at), started), spawned_at)
    del index

    join, index = run.for_(run.i64(0), run.load(i64, spawned_at), run.i64(1))
    join.call("pthread_join", [i32], [join.load(i64, join.gep(handles, i64, index)), join.null()])
    run.call("free", [], [own_smem])
    over = run.if_(limited)
    over.call("sem_post", [i32], [over.field(guard, parsed_type(_GUARD), _GUARD_SEMAPHORE)])
    over.call("pthread_join", [i32], [over.load(i64, guard_handle), over.null()])
    run.if_(run.compare("ne", run.load(i32, watched), run.i32(0))).call("kiln_cpu_unwatch", [], [])
    reason = _stop_reason(run, ctx)
    halted = run.if_(run.compare("ne", reason, run.i32(0)))
    halted.store(reason, _Fields(halted, ctx).at("stop"))
    silent = halted.if_(halted.binary("xori", _has_fault(halted, ctx), halted.const(int_type(1), 1)))
    minus = silent.i32(-1)
    silent.call("kiln_cpu_fault", [], [ctx, site, *[minus] * 6, silent.i32(0), silent.null()])
    _return(start)
