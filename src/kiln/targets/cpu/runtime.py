"""The native half of the CPU target that no program changes, built once per process with the MLIR bindings.

`kiln_cpu_launch`  checks a grid and runs its blocks, on several OS threads once that pays
`kiln_cpu_worker`  what each of those threads runs: blocks from an atomic counter until there are none left
`kiln_cpu_fault`   records a fault in the context; of several, the one in the lowest block is kept
`kiln_cpu_stream`  the stream printf writes to
`kiln_cpu_finish`  the end of a call: the context, copied for Python, if there is anything to report
"""

from __future__ import annotations

from ...mlir import context, ir
from ..llvm_build import Builder, declare, function, global_, int_type, parsed_type, ptr_type
from . import context as shared
from . import scheduler, threads

EXPORTS = (
    "kiln_cpu_launch",
    "kiln_cpu_fault",
    "kiln_cpu_stream",
    "kiln_cpu_finish",
    "kiln_cpu_workers",
    "kiln_cpu_now",
    scheduler.DEADLOCK,
    *threads.EXPORTS,
)
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

_JOB = "!llvm.struct<(i64, i64, ptr, ptr, ptr, ptr, i64, i64)>"
_NEXT, _TOTAL, _CONTEXT, _BLOCK, _ARGUMENTS, _SIZES, _SMEM, _CHUNK = range(8)


def build() -> ir.Module:
    """The runtime as a module of `func`, `scf`, `arith` and `llvm` operations."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
        for name, inputs, results in (
            ("malloc", [i64], [ptr]),
            ("aligned_alloc", [i64, i64], [ptr]),
            ("free", [ptr], []),
            ("memcpy", [ptr, ptr, i64], [ptr]),
            ("open_memstream", [ptr, ptr], [ptr]),
            ("fclose", [ptr], [i32]),
            ("clock_gettime", [i32, ptr], [i32]),
            ("pthread_create", [ptr, ptr, ptr, ptr], [i32]),
            ("pthread_join", [i64, ptr], [i32]),
        ):
            declare(module, name, inputs, results)
        _workers_global(module)
        _fault(module)
        _stream(module)
        _finish(module)
        _run_block(module)
        _worker(module)
        _now(module)
        _launch(module)
        threads.build(module)
        scheduler.build_deadlock(module)
        return module


def _open(
    module: ir.Module, name: str, inputs: list[ir.Type], results: list[ir.Type]
) -> tuple[Builder, list[ir.Value]]:
    made = function(module, name, inputs, results)
    entry = made.regions[0].blocks[0]
    return Builder(ir.InsertionPoint(entry), ir.Location.unknown()), list(entry.arguments)


def _return(b: Builder, *values: ir.Value) -> None:
    b.op("func.return", (), values)


def _workers_global(module: ir.Module) -> None:
    """How many OS threads a launch may use; Python sets it."""
    i32 = int_type(32)
    global_(module, "kiln_cpu_workers", i32, ir.IntegerAttr.get(i32, 1), linkage="external")


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
    """`kiln_cpu_fault(context, site, block x3, thread x3, count, arguments)`; block x is negative in host code."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    b, (ctx, site, bx, by, bz, tx, ty, tz, count, arguments) = _open(
        module, "kiln_cpu_fault", [ptr, *[i32] * 8, ptr], []
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
    record = b.if_(b.binary("ori", none, earlier))
    inside = _Fields(record, ctx)
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
    _return(b, b.load(ptr, result))


def _run_block(module: ir.Module) -> None:
    """`kiln_cpu_run_block(job, number, smem)`: block `number` of the grid, x fastest."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    job_type = parsed_type(_JOB)
    b, (job, number, smem) = _open(module, "kiln_cpu_run_block", [ptr, i64, ptr], [])
    sizes, ctx, block, arguments = (
        b.load(ptr, b.field(job, job_type, n)) for n in (_SIZES, _CONTEXT, _BLOCK, _ARGUMENTS)
    )
    gx, gy = (b.value("arith.extui", i64, (b.load(i32, b.gep(sizes, i32, n)),)) for n in range(2))
    rows = b.binary("divui", number, gx)
    x, y, z = b.binary("remui", number, gx), b.binary("remui", rows, gy), b.binary("divui", rows, gy)
    index = [b.value("arith.trunci", i32, (v,)) for v in (x, y, z)]
    b.call_pointer(block, [arguments, ctx, smem, sizes, *index])
    _return(b)


def _next_chunk(b: Builder, job: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Take the next few blocks: whether there are any to run, and the number of the first.

    After a fault no more are run, but all before the faulting one are: so look for a fault first, then take.
    """
    i64, job_type = int_type(64), parsed_type(_JOB)
    failed = _has_fault(b, b.load(ptr_type(), b.field(job, job_type, _CONTEXT)))
    chunk = b.load(i64, b.field(job, job_type, _CHUNK))
    number = b.atomic("add", b.field(job, job_type, _NEXT), chunk)
    some = b.compare("ult", number, b.load(i64, b.field(job, job_type, _TOTAL)))
    return b.binary("andi", some, b.binary("xori", failed, b.const(int_type(1), 1))), number


def _run_chunk(b: Builder, job: ir.Value, first: ir.Value, smem: ir.Value) -> ir.Value:
    """Run the blocks of a chunk; the number after its last."""
    i64, job_type = int_type(64), parsed_type(_JOB)
    total, chunk = (b.load(i64, b.field(job, job_type, n)) for n in (_TOTAL, _CHUNK))
    end = b.binary("minui", total, b.binary("addi", first, chunk))
    each, number = b.for_(first, end, b.i64(1))
    each.call("kiln_cpu_run_block", [], [job, number, smem])
    return end


def _allocate_smem(b: Builder, job: ir.Value) -> ir.Value:
    from .launch import SMEM_ALIGNMENT

    size = b.load(int_type(64), b.field(job, parsed_type(_JOB), _SMEM))
    return b.call("aligned_alloc", [ptr_type()], [b.i64(SMEM_ALIGNMENT), size]).results[0]


def _worker(module: ir.Module) -> None:
    """`kiln_cpu_worker(job)`: the body of a helper thread."""
    ptr, i64 = ptr_type(), int_type(64)
    b, (job,) = _open(module, "kiln_cpu_worker", [ptr], [ptr])
    smem = _allocate_smem(b, job)
    body, (first,) = b.while_(lambda c: _next_chunk(c, job), [i64])
    _run_chunk(body, job, first, smem)
    b.call("free", [], [smem])
    _return(b, b.null())


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
    frame size, meets, cooperative)`; the frame size is 0 for a kernel whose threads never wait."""
    from .launch import SMEM_ALIGNMENT

    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    job_type = parsed_type(_JOB)
    start, (ctx, block, arguments, site, *numbers) = _open(module, "kiln_cpu_launch", [ptr, ptr, ptr, *[i32] * 16], [])
    sizes, cluster, (smem, static, serial, frame, meets, cooperative) = numbers[:6], numbers[6:9], numbers[9:]
    job, size_array = start.alloca(job_type), start.alloca(i32, len(scheduler.SIZES))
    fault_args = start.alloca(i64, shared.MAX_ARGS)
    handles, check_at, spawned_at = (start.alloca(i64, n) for n in (MAX_WORKERS, 1, 1))
    healthy = start.binary("xori", _has_fault(start, ctx), start.const(int_type(1), 1))
    b = start.if_(healthy)

    # one place decides whether a grid can run; Python says which rule was broken (`faults.py`)
    bad = b.const(int_type(1), 0)
    for size, limit in zip(sizes, LIMITS, strict=True):
        outside = b.compare("ugt", b.binary("subi", size, b.i32(1)), b.i32(limit - 1))
        bad = b.binary("ori", bad, outside)
    volume = b.binary("muli", sizes[3], b.binary("muli", sizes[4], sizes[5]))
    bad = b.binary("ori", bad, b.compare("ugt", volume, b.i32(MAX_THREADS)))
    bad = b.binary("ori", bad, b.compare("ugt", b.binary("addi", smem, static), b.i32(MAX_SMEM)))
    bad = b.binary("ori", bad, b.compare("slt", smem, b.i32(0)))
    for size, part in zip(sizes[:3], cluster, strict=True):
        small = b.compare("slt", part, b.i32(1))
        rest = b.binary("remui", size, b.select(small, b.i32(1), part))
        bad = b.binary("ori", bad, b.binary("ori", small, b.compare("ne", rest, b.i32(0))))
    wrong, run = b.if_else(bad)
    for number, value in enumerate([*sizes, *cluster, smem]):
        wrong.store(wrong.value("arith.extsi", i64, (value,)), wrong.gep(fault_args, i64, number))
    minus = wrong.i32(-1)
    wrong.call("kiln_cpu_fault", [], [ctx, site, *[minus] * 6, wrong.i32(shared.MAX_ARGS), fault_args])

    for number, value in enumerate(sizes[:3]):
        run.store(value, _Fields(run, ctx).at("grid", 4 * number))
    x, y, z = (run.value("arith.extui", i64, (v,)) for v in sizes[:3])
    total = run.binary("muli", x, run.binary("muli", y, z))
    round_up = run.binary("andi", run.binary("addi", smem, run.i32(SMEM_ALIGNMENT - 1)), run.i32(-SMEM_ALIGNMENT))
    shared_bytes = run.binary("addi", static, round_up)
    # a kernel whose threads wait: groups of blocks, each block with memory for its threads (`scheduler.py`)
    waits, is_grid = run.compare("ne", frame, run.i32(0)), run.compare("ne", cooperative, run.i32(0))
    shape = [run.select(is_grid, g, c) for g, c in zip(sizes[:3], cluster, strict=True)]
    blocks = run.binary("muli", shape[0], run.binary("muli", shape[1], shape[2]))
    group = run.select(waits, blocks, run.i32(1))
    with_meetings, without = (scheduler.chunk_bytes(run, shared_bytes, volume, frame, m) for m in (True, False))
    chunk = run.select(run.compare("ne", meets, run.i32(0)), with_meetings, without)
    chunk = run.select(waits, chunk, shared_bytes)
    bytes_ = run.binary("muli", run.value("arith.extui", i64, (chunk,)), run.value("arith.extui", i64, (group,)))
    total = run.binary("divui", total, run.value("arith.extui", i64, (group,)))
    for number, value in enumerate([*sizes, *shape, shared_bytes, chunk, group, cooperative]):
        run.store(value, run.gep(size_array, i32, number))
    workers = run.load(i32, run.address_of("kiln_cpu_workers"))
    share = run.value("arith.extui", i64, (run.binary("muli", workers, run.i32(CHUNKS_PER_WORKER)),))
    chunk = run.binary("maxui", run.binary("divui", total, share), run.i64(1))
    chunk = run.binary("minui", chunk, run.i64(MAX_CHUNK))
    # aligned_alloc(0) may give null, which a kernel without shared memory never touches
    for field, value in (
        (_NEXT, run.i64(0)), (_TOTAL, total), (_CONTEXT, ctx), (_BLOCK, block), (_ARGUMENTS, arguments),
        (_SIZES, size_array), (_SMEM, bytes_), (_CHUNK, chunk),
    ):  # fmt: skip
        run.store(value, run.field(job, job_type, field))
    run.store(run.i64(1), check_at)
    run.store(run.i64(0), spawned_at)
    own_smem = _allocate_smem(run, job)
    alone = run.binary("ori", run.compare("ne", serial, run.i32(0)), run.compare("slt", workers, run.i32(2)))
    begun = run.call("kiln_cpu_now", [i64], []).results[0]

    body, (first,) = run.while_(lambda c: _next_chunk(c, job), [i64])
    done = _run_chunk(body, job, first, own_smem)  # before there are helpers, all blocks up to here
    # after 1, 2, 4, ... chunks: is so much left that helpers pay?
    due = body.compare("uge", done, body.load(i64, check_at))
    check = body.if_(body.binary("andi", due, body.binary("xori", alone, body.const(int_type(1), 1))))
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
    spawn = check.if_(check.binary("andi", long, check.compare("ne", helpers, check.i64(0))))
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
    _return(start)
