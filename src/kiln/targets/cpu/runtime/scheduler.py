"""Running kernels whose threads wait: the blocks that must be resident together, on one OS thread.

A group is a block, a cluster of blocks, or all clusters that a launch wants resident together (a cooperative launch, a
kernel that spins on memory). Its memory is one chunk for each block (`chunk_bytes`): shared memory, then the block's
record, its frames and its meetings. The group's function resumes every thread that is not blocked, round after round,
until all are done or none can go on.

With a schedule seed the order of blocks and threads changes from round to round, and threads that could go on are
passed over now and then. The numbers come from the seed and the number of the group, so that a seed means the same
schedule whatever number of OS threads there is.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ....mlir import ir
from ...host import call_context as shared
from ...lowering.builder import Builder, function, global_, int_attr, int_type, ptr_type
from .threads import (
    BLOCK_BYTES,
    WARP,
    WARP_BYTES,
    BlockRecord,
    Fields,
    FrameHeader,
    Meeting,
    Warp,
    define,
    waits_no_more,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...host.expand import Expansion, FunctionState

SIZES = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "cluster_x", "cluster_y", "cluster_z",
    "smem", "chunk", "group", "dynamic",
)  # fmt: skip
"""The i32 numbers a launch hands to a group's function: sizes, bytes of shared memory, bytes of a chunk, blocks of a group,
bytes of dynamic shared memory as the launch gave them."""

STUCK = "kiln_cpu_stuck"
CHUNK_ALIGNMENT = 1024
DETAILS_HEADER = 4
"""i32 numbers at the start of a report: why it was made, blocks, threads of a block, unused."""
DETAILS_BLOCK = 3 + 2 * 16
"""i32 numbers about a block: its index, and arrivals and expectation of each barrier."""
DETAILS_THREAD = 4
"""i32 numbers about a thread: 0 waits, 1 is done, 2 could go on, 3 tries; the site; the words at the address it waits for."""


def _detector_call(expansion: Expansion, b: Builder, event: str, *operands: ir.Value) -> None:
    from ..sanitizer.instrument import call  # most programs run without the sanitizer

    call(expansion, b, event, *operands)


def frame_size_name(kernel: str) -> str:
    """The global constant that holds the size of a kernel's frame."""
    return f"{kernel}.frame_size"


def chunk_bytes(b: Builder, smem: ir.Value, threads: ir.Value, frame: ir.Value, meets: bool) -> ir.Value:
    """Bytes of a block's chunk (i32): `smem` bytes of shared memory, and what its threads need."""
    total = b.binary("addi", smem, b.i32(BLOCK_BYTES))
    total = b.binary("addi", total, b.binary("muli", threads, frame))
    if meets:
        warps = b.binary("shrui", b.binary("addi", threads, b.i32(WARP - 1)), b.i32(5))
        total = b.binary("addi", total, b.binary("muli", warps, b.i32(WARP_BYTES)))
    rounded = b.binary("addi", total, b.i32(CHUNK_ALIGNMENT - 1))
    return b.binary("andi", rounded, b.i32(-CHUNK_ALIGNMENT))


class _Group:
    """Values that the parts of a group's function share."""

    def __init__(self, b: Builder, arena: ir.Value, sizes: ir.Value, frame: ir.Value) -> None:
        numbers = {name: b.load(int_type(32), b.gep(sizes, int_type(32), n)) for n, name in enumerate(SIZES)}
        self.grid = [numbers[f"grid_{a}"] for a in "xyz"]
        self.block = [numbers[f"block_{a}"] for a in "xyz"]
        self.cluster = [numbers[f"cluster_{a}"] for a in "xyz"]
        self.smem, self.chunk, self.size = numbers["smem"], numbers["chunk"], numbers["group"]
        self.dynamic = numbers["dynamic"]
        self.threads = b.binary("muli", self.block[0], b.binary("muli", self.block[1], self.block[2]))
        self.frame_size = frame
        self.arena = arena

    def chunk_at(self, b: Builder, rank: ir.Value) -> ir.Value:
        wide = b.value("arith.extui", int_type(64), (self.chunk,))
        return b.byte_gep(self.arena, b.binary("muli", b.value("arith.extui", int_type(64), (rank,)), wide))

    def record(self, b: Builder, chunk: ir.Value) -> ir.Value:
        return b.byte_gep(chunk, self.smem)

    def frames(self, b: Builder, record: ir.Value) -> ir.Value:
        return b.byte_gep(record, BLOCK_BYTES)

    def frame(self, b: Builder, frames: ir.Value, thread: ir.Value) -> ir.Value:
        return b.byte_gep(frames, b.binary("muli", thread, self.frame_size))


class _Order:
    """An order of `count` things that changes: from `first` on, every `stride`-th, round and round."""

    def __init__(self, b: Builder, count: ir.Value) -> None:
        self.count = count
        self.first, self.stride, self.at = (b.alloca(int_type(32)) for _ in range(3))
        b.store(b.i32(0), self.first)
        b.store(b.i32(1), self.stride)

    def shuffle(self, expansion: Expansion, b: Builder, random: ir.Value) -> None:
        ptr, i32 = ptr_type(), int_type(32)
        expansion.declare("kiln_cpu_order", [ptr, i32, ptr, ptr], [])
        b.call("kiln_cpu_order", [], [random, self.count, self.first, self.stride])

    def start(self, b: Builder) -> None:
        b.store(b.load(int_type(32), self.first), self.at)

    def take(self, b: Builder) -> ir.Value:
        """The next one."""
        here = b.load(int_type(32), self.at)
        after = b.binary("addi", here, b.load(int_type(32), self.stride))
        beyond = b.compare("sge", after, self.count)
        b.store(b.select(beyond, b.binary("subi", after, self.count), after), self.at)
        return here


class Shuffled:
    """The threads of a block without waits, in the order of a seed."""

    def __init__(self, b: Builder, block_dim: list[ir.Value]) -> None:
        self.sizes = block_dim
        self.random = b.alloca(int_type(64))
        self.order = _Order(b, b.binary("muli", block_dim[0], b.binary("muli", block_dim[1], block_dim[2])))

    def threads(self, expansion: Expansion, b: Builder, block: ir.Value) -> tuple[Builder, list[ir.Value]]:
        """A loop over the threads of a block, given its number: a builder for its body, and the index of the thread."""
        i32, ptr = int_type(32), ptr_type()
        expansion.declare("kiln_cpu_seed", [i32, ptr], [i32])
        b.call("kiln_cpu_seed", [i32], [block, self.random])
        self.order.shuffle(expansion, b, self.random)
        self.order.start(b)
        each, _ = b.for_(b.i32(0), self.order.count, b.i32(1))
        left = self.order.take(each)
        index: list[ir.Value] = []
        for size in self.sizes[:2]:
            index.append(each.binary("remui", left, size))
            left = each.binary("divui", left, size)
        return each, [*index, left]


def seed_variable(expansion: Expansion) -> str:
    """The name of the variable with the seed, made known to a module."""
    if SEED not in expansion.declared:
        expansion.declared.add(SEED)
        global_(expansion.module, SEED, int_type(64), None, linkage="external")
    return SEED


def group_function(
    expansion: Expansion,
    state: FunctionState,
    name: str,
    unpack: Callable[[Builder, ir.Value], list[ir.Value]],
    static: int,
) -> None:
    """Make `name(arguments, context, arena, sizes, x, y, z)`: all threads of group number x + grid x * (y + grid y * z)."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    global_(expansion.module, frame_size_name(state.name), i32, int_attr(i32, 0), linkage="internal", constant=True)
    made = function(expansion.module, name, [ptr, ptr, ptr, ptr, i32, i32, i32], [])
    entry = made.regions[0].blocks[0]
    packed, ctx, arena, sizes, x, y, z = entry.arguments
    end = ir.Operation.create("func.return", loc=state.operation.location, ip=ir.InsertionPoint(entry))
    b = Builder(ir.InsertionPoint(end), state.operation.location)
    values = unpack(b, packed)
    frame_size = b.load(i32, b.address_of(frame_size_name(state.name)))
    group = _Group(b, arena, sizes, frame_size)
    number = b.binary(
        "addi", x, b.binary("muli", group.grid[0], b.binary("addi", y, b.binary("muli", group.grid[1], z)))
    )
    random = b.alloca(i64)
    expansion.declare("kiln_cpu_seed", [i32, ptr], [i32])
    seeded = b.compare("ne", b.call("kiln_cpu_seed", [i32], [number, random]).results[0], b.i32(0))
    expansion.declare("kiln_cpu_initialize", [ptr, ptr, ptr, *[i32] * 4, ptr], [])
    known = [frame_size, number, b.i32(int(state.meets)), b.i32(static)]
    b.call("kiln_cpu_initialize", [], [ctx, arena, sizes, *known, random])
    if expansion.sanitizer is not None:
        _detector_call(expansion, b, "group", arena, sizes, number)
    alive, progress, passed, stop = (b.alloca(i32) for _ in range(4))
    b.store(b.i32(0), passed)
    b.store(b.binary("muli", group.threads, group.size), alive)
    blocks, threads = _Order(b, group.size), _Order(b, group.threads)

    def goes_on(c: Builder) -> tuple[ir.Value]:
        status = c.load(i32, ctx)  # the first field of the context
        healthy = c.compare("eq", c.binary("andi", status, c.i32(shared.FAULT)), c.i32(0))
        c.store(c.i32(0), stop)
        asked = c.if_(c.compare("ne", stopped(expansion, c, ctx), c.i32(0)))
        expansion.declare("kiln_cpu_step", [ptr, i32], [i32])
        asked.store(asked.call("kiln_cpu_step", [i32], [ctx, asked.load(i32, alive)]).results[0], stop)
        healthy = c.binary("andi", healthy, c.compare("eq", c.load(i32, stop), c.i32(0)))
        return (c.binary("andi", healthy, c.compare("ne", c.load(i32, alive), c.i32(0))),)

    rounds, _ = b.while_(goes_on)
    rounds.store(rounds.i32(0), progress)
    other = rounds.if_(seeded)
    blocks.shuffle(expansion, other, random)
    blocks.start(rounds)
    each, _index = rounds.for_(rounds.i32(0), group.size, rounds.i32(1))
    rank = blocks.take(each)
    chunk = group.chunk_at(each, rank)
    record = group.record(each, chunk)
    frames = group.frames(each, record)
    other = each.if_(seeded)
    threads.shuffle(expansion, other, random)
    if state.copies:
        expansion.declare("kiln_cpu_land_some", [ptr], [i32])
        landed = other.call("kiln_cpu_land_some", [i32], [record]).results[0]
        other.store(other.binary("ori", other.load(i32, progress), landed), progress)
    threads.start(each)
    inner, _index = each.for_(each.i32(0), group.threads, each.i32(1))
    frame = group.frame(inner, frames, threads.take(inner))
    header = Fields(inner, frame, FrameHeader)
    seen = inner.binary("andi", inner.load(i32, header.load("wait_address")), header.load("wait_mask"))
    ready = inner.if_(inner.compare("ne", seen, header.load("wait_value")))
    ready.store(ready.i32(1), progress)
    _pass_over(ready.if_(seeded), random, passed)
    run = ready.if_(ready.compare("eq", ready.load(i32, passed), ready.i32(0)))
    waits_no_more(run, frame)
    # all that is left of the hidden arguments is the frame (`threads.indices_from_frame`)
    hidden = [run.null(), run.null(), run.null(), *[run.i32(0)] * 12, frame]
    if expansion.sanitizer is not None:
        _detector_call(expansion, run, "switch", rank, header.inside(run).load("thread"))
    suspended = run.call(state.name, [i32], [*values, *hidden]).results[0]
    over = run.if_(run.compare("eq", suspended, run.i32(0)))
    expansion.declare("kiln_cpu_exit", [ptr], [])
    if expansion.sanitizer is not None:
        _detector_call(expansion, over, "exit")
    over.call("kiln_cpu_exit", [], [frame])
    over.store(over.binary("subi", over.load(i32, alive), over.i32(1)), alive)

    stuck = rounds.binary(
        "andi",
        rounds.compare("eq", rounds.load(i32, progress), rounds.i32(0)),
        rounds.compare("ne", rounds.load(i32, alive), rounds.i32(0)),
    )
    nobody = rounds.if_(stuck)
    expansion.declare("kiln_cpu_wake", [ptr, ptr, i32], [i32])
    woken = nobody.call("kiln_cpu_wake", [i32], [arena, sizes, frame_size]).results[0]
    report = nobody.if_(nobody.compare("eq", woken, nobody.i32(0)))
    if expansion.sanitizer is not None:
        _detector_call(expansion, report, "stuck")
    expansion.declare(STUCK, [ptr, ptr, ptr, i32], [])
    report.call(STUCK, [], [ctx, arena, sizes, frame_size])

    healthy = b.compare("eq", b.binary("andi", b.load(i32, ctx), b.i32(shared.FAULT)), b.i32(0))
    left = b.compare("ne", b.load(i32, alive), b.i32(0))
    halted = b.if_(b.binary("andi", healthy, left))
    halted.call(STUCK, [], [ctx, arena, sizes, frame_size])
    if expansion.banks is not None:
        expansion.banks.end_of_block(b)
    if state.copies:
        expansion.declare("kiln_cpu_land_all", [ptr, ptr], [])
        b.call("kiln_cpu_land_all", [], [arena, sizes])


def stopped(expansion: Expansion, b: Builder, ctx: ir.Value) -> ir.Value:
    """0 (i32), unless kernels may have to stop: `kiln_cpu_step` knows. Looked up anew each time."""
    i32 = int_type(32)
    if STOP not in expansion.declared:
        expansion.declared.add(STOP)
        global_(expansion.module, STOP, i32, None, linkage="external")
    everywhere = _volatile(b, b.address_of(STOP))
    return b.binary("ori", everywhere, _volatile(b, b.byte_gep(ctx, shared.offset("stop"))))


STOP = "kiln_cpu_stop"
"""The global variable that asks all kernels to stop."""


def _volatile(b: Builder, address: ir.Value) -> ir.Value:
    return b.value("llvm.load", int_type(32), (address,), {"volatile_": ir.UnitAttr.get()})


def _pass_over(b: Builder, random: ir.Value, passed: ir.Value) -> None:
    """One time in four: leave a thread for the next round although it could go on."""
    i64 = int_type(64)
    state = b.load(i64, random)
    # a step of a linear congruential generator; its high bits are used
    following = b.binary("addi", b.binary("muli", state, b.i64(6364136223846793005)), b.i64(1442695040888963407))
    b.store(following, random)
    b.store(b.value("arith.extui", int_type(32), (b.compare("ult", following, b.i64(1 << 62)),)), passed)


def set_frame_size(module: ir.Module, kernel: str, size: int) -> None:
    """Fill in the constant that the launch and the group's function read."""
    for op in module.body.operations:
        found = op.operation
        if found.name == "llvm.mlir.global" and found.attributes["sym_name"].value == frame_size_name(kernel):  # pyright: ignore[reportAttributeAccessIssue]
            found.attributes["value"] = ir.IntegerAttr.get(int_type(32), size)
            return
    raise AssertionError(f"no frame size of {kernel}")


# --- native functions of the scheduler ---------------------------------------------------------------------------------

EXPORTS = ("kiln_cpu_initialize", "kiln_cpu_wake", STUCK)
ORDER_EXPORTS = ("kiln_cpu_seed", "kiln_cpu_order", "kiln_cpu_random")


def build_order(module: ir.Module) -> None:
    """Add the functions about seeds and orders to a module."""
    ptr, i32 = ptr_type(), int_type(32)
    define(module, "kiln_cpu_random", [ptr, i32], [i32], _random)
    define(module, "kiln_cpu_seed", [i32, ptr], [i32], _seed)
    define(module, "kiln_cpu_order", [ptr, i32, ptr, ptr], [], _order)


def build(module: ir.Module) -> None:
    """Add the functions that run groups to a module."""
    ptr, i32 = ptr_type(), int_type(32)
    define(module, "kiln_cpu_initialize", [ptr, ptr, ptr, *[i32] * 4, ptr], [], _initialize)
    define(module, "kiln_cpu_wake", [ptr, ptr, i32], [i32], _wake)
    define(module, STUCK, [ptr, ptr, ptr, i32], [], _stuck)


SEED = "kiln_cpu_schedule"
"""The global variable (i64) with the schedule seed; 0: threads run in order, copies land at once."""


def _seed(b: Builder, number: ir.Value, random: ir.Value) -> ir.Value:
    """Set up the random numbers of a group; whether there is a seed."""
    i64 = int_type(64)
    seed = b.load(i64, b.address_of(SEED))
    mixed = b.binary("muli", b.value("arith.extui", i64, (number,)), b.i64(-7046029254386353131))
    mixed = b.binary("muli", b.binary("xori", seed, mixed), b.i64(-4658895280553007687))
    b.store(b.binary("xori", mixed, b.binary("shrui", mixed, b.i64(29))), random)
    return b.value("arith.extui", int_type(32), (b.compare("ne", seed, b.i64(0)),))


def _random(b: Builder, random: ir.Value, limit: ir.Value) -> ir.Value:
    """A number from 0 to limit - 1."""
    i64 = int_type(64)
    state = b.load(i64, random)
    state = b.binary("addi", b.binary("muli", state, b.i64(6364136223846793005)), b.i64(1442695040888963407))
    b.store(state, random)
    high = b.binary("shrui", state, b.i64(33))
    wide = b.value("arith.extui", i64, (limit,))
    return b.value("arith.trunci", int_type(32), (b.binary("remui", high, wide),))


def _order(b: Builder, random: ir.Value, count: ir.Value, first: ir.Value, stride: ir.Value) -> None:
    """A random start, and a random stride that meets every one of `count` things: they have no common divisor."""
    i32 = int_type(32)

    def draw(c: Builder) -> ir.Value:
        return c.call("kiln_cpu_random", [i32], [random, count]).results[0]

    b.store(draw(b), first)
    b.store(b.binary("addi", draw(b), b.i32(1)), stride)
    large, small = b.alloca(i32), b.alloca(i32)

    def has_common_divisor(c: Builder) -> tuple[ir.Value]:
        c.store(count, large)
        c.store(c.load(i32, stride), small)
        step, _ = c.while_(lambda d: (d.compare("ne", d.load(i32, small), d.i32(0)),))
        rest = step.binary("remui", step.load(i32, large), step.load(i32, small))
        step.store(step.load(i32, small), large)
        step.store(rest, small)
        return (c.compare("ne", c.load(i32, large), c.i32(1)),)

    body, _ = b.while_(has_common_divisor)
    following = body.binary("addi", body.load(i32, stride), body.i32(1))
    body.store(following, stride)
    whole = b.compare("sge", b.load(i32, stride), count)  # only where there is one thing
    b.store(b.select(whole, b.binary("subi", b.load(i32, stride), count), b.load(i32, stride)), stride)


def _initialize(
    b: Builder,
    ctx: ir.Value,
    arena: ir.Value,
    sizes: ir.Value,
    frame_size: ir.Value,
    number: ir.Value,
    meets: ir.Value,
    static: ir.Value,
    random: ir.Value,
) -> None:
    """Fresh records, frames and meetings. Shared memory keeps what was in it: it starts undefined."""
    i32, i64 = int_type(32), int_type(64)
    group = _Group(b, arena, sizes, frame_size)
    cluster_size = b.binary("muli", group.cluster[0], b.binary("muli", group.cluster[1], group.cluster[2]))
    clusters = b.binary("divui", group.size, cluster_size)
    has_meetings = b.compare("ne", meets, b.i32(0))
    each, rank = b.for_(b.i32(0), group.size, b.i32(1))
    chunk = group.chunk_at(each, rank)
    record = group.record(each, chunk)
    zero_from = BlockRecord.cluster_live.offset
    each.call(
        "memset", [ptr_type()], [each.byte_gep(record, zero_from), each.i32(0), each.i64(BLOCK_BYTES - zero_from)]
    )
    fields = Fields(each, record, BlockRecord)
    within, cluster = each.binary("remui", rank, cluster_size), each.binary("divui", rank, cluster_size)
    for name, value in (
        ("threads", group.threads), ("rank", within), ("chunk", group.chunk), ("dynamic_smem", group.dynamic),
        ("used", 0), ("copies_room", 0), ("copies_left", 0), ("copies_count", 0),
    ):  # fmt: skip
        fields.store(name, value)
    fields.store("context", ctx)
    fields.store("copies", each.null())
    fields.store("smem", chunk)
    fields.store("dynamic", each.byte_gep(chunk, static))
    fields.store("random", each.load(i64, random))
    each.call("kiln_cpu_random", [i32], [random, each.i32(7)])
    first = group.record(each, group.chunk_at(each, each.binary("subi", rank, within)))
    fields.store("cluster", first)
    left = each.binary("addi", each.binary("muli", number, clusters), cluster)
    inside = within
    for axis, (grid, size) in enumerate(zip(group.grid, group.cluster, strict=True)):
        count = each.binary("divui", grid, size)
        origin = each.binary("muli", each.binary("remui", left, count), size)
        index = each.binary("addi", origin, each.binary("remui", inside, size))
        each.store(index, fields.at("index", 4 * axis))
        each.store(group.block[axis], fields.at("block_dim", 4 * axis))
        each.store(grid, fields.at("grid_dim", 4 * axis))
        left, inside = each.binary("divui", left, count), each.binary("divui", inside, size)
        fields.store(f"cluster_{'xyz'[axis]}", size)
    fields.store("cluster_live", each.binary("muli", group.threads, cluster_size))
    frames = group.frames(each, record)
    meetings = each.byte_gep(frames, each.binary("muli", group.threads, group.frame_size))
    warps = each.binary("shrui", each.binary("addi", group.threads, each.i32(WARP - 1)), each.i32(5))
    fields.store("live_warps", warps)
    per_warp, number_of_warp = each.for_(each.i32(0), warps, each.i32(1))
    at = per_warp.binary("muli", number_of_warp, per_warp.i32(ctypes.sizeof(Warp)))
    warp = Fields(per_warp, per_warp.byte_gep(fields.inside(per_warp).at("warps"), at), Warp)
    short = per_warp.binary("subi", group.threads, per_warp.binary("muli", number_of_warp, per_warp.i32(WARP)))
    some = per_warp.binary("subi", per_warp.binary("shli", per_warp.i32(1), short), per_warp.i32(1))
    warp.store("live", per_warp.select(per_warp.compare("sge", short, per_warp.i32(WARP)), per_warp.i32(-1), some))
    warp.store("opened", 0)
    wide = per_warp.value("arith.extui", i64, (number_of_warp,))
    own = per_warp.byte_gep(meetings, per_warp.binary("muli", wide, per_warp.i64(WARP_BYTES)))
    warp.store("latest", own)
    warp.store("meetings", own)
    with_meetings = per_warp.if_(has_meetings)
    per_meeting, which = with_meetings.for_(with_meetings.i32(0), with_meetings.i32(WARP), with_meetings.i32(1))
    offset = per_meeting.binary("muli", which, per_meeting.i32(ctypes.sizeof(Meeting)))
    Fields(per_meeting, per_meeting.byte_gep(own, offset), Meeting).store("state", 0)
    inner, thread_idx = each, []
    for size in reversed(group.block):
        inner, index = inner.for_(inner.i32(0), size, inner.i32(1))
        thread_idx.insert(0, index)
    tx, ty, tz = thread_idx
    row = inner.binary("addi", ty, inner.binary("muli", group.block[1], tz))
    thread = inner.binary("addi", tx, inner.binary("muli", group.block[0], row))
    frame = group.frame(inner, frames, thread)
    header = Fields(inner, frame, FrameHeader)
    for name in ("resume", "done", "cluster_phase", "soft", "copy_group", "bulk_group"):
        header.store(name, 0)
    header.store("site", -1)
    header.store("woken_site", -1)
    header.store("wait_address", frame)
    waits_no_more(inner, frame)
    header.store("thread", thread)
    header.store("block", record)
    packed = inner.binary("ori", tx, inner.binary("shli", ty, inner.i32(10)))
    header.store("index", inner.binary("ori", packed, inner.binary("shli", tz, inner.i32(20))))
    warp_at = inner.binary("muli", inner.binary("shrui", thread, inner.i32(5)), inner.i32(ctypes.sizeof(Warp)))
    header.store("warp", inner.byte_gep(fields.inside(inner).at("warps"), warp_at))


def _each_frame(b: Builder, arena: ir.Value, sizes: ir.Value, frame_size: ir.Value) -> tuple[Builder, Fields, _Group]:
    """A loop over all threads of a group."""
    group = _Group(b, arena, sizes, frame_size)
    each, rank = b.for_(b.i32(0), group.size, b.i32(1))
    frames = group.frames(each, group.record(each, group.chunk_at(each, rank)))
    inner, thread = each.for_(each.i32(0), group.threads, each.i32(1))
    return inner, Fields(inner, group.frame(inner, frames, thread), FrameHeader), group


def _wake(b: Builder, arena: ir.Value, sizes: ir.Value, frame_size: ir.Value) -> ir.Value:
    """Nobody can go on: let the waits that may fail do so, but for those that did just that before. How many there were."""
    i32 = int_type(32)
    count = b.alloca(i32)
    b.store(b.i32(0), count)
    inner, header, _ = _each_frame(b, arena, sizes, frame_size)
    alive = inner.compare("eq", header.load("done"), inner.i32(0))
    one = inner.if_(inner.binary("andi", alive, inner.compare("eq", header.load("soft"), inner.i32(1))))
    one.store(one.binary("addi", one.load(i32, count), one.i32(1)), count)
    inside = header.inside(one)
    inside.store("woken_site", inside.load("site"))
    inside.store("woken_address", inside.load("wait_address"))
    inside.store("woken_value", inside.load("wait_value"))
    waits_no_more(one, header.address)
    return b.load(i32, count)


def _stuck(b: Builder, ctx: ir.Value, arena: ir.Value, sizes: ir.Value, frame_size: ir.Value) -> None:
    """Record a fault with what every thread of a group does: nobody can go on, or the kernel was stopped."""
    i32, i64 = int_type(32), int_type(64)
    group = _Group(b, arena, sizes, frame_size)
    per_block = b.binary("addi", b.i32(DETAILS_BLOCK), b.binary("muli", group.threads, b.i32(DETAILS_THREAD)))
    words = b.binary("addi", b.i32(DETAILS_HEADER), b.binary("muli", group.size, per_block))
    size = b.binary("muli", b.value("arith.extui", i64, (words,)), b.i64(4))
    details = b.call("malloc", [ptr_type()], [size]).results[0]
    for number, value in enumerate((b.i32(0), group.size, group.threads)):
        b.store(value, b.gep(details, i32, number))
    site = b.alloca(i32)
    b.store(b.i32(-1), site)
    each, rank = b.for_(b.i32(0), group.size, b.i32(1))
    chunk = group.chunk_at(each, rank)
    record = Fields(each, group.record(each, chunk), BlockRecord)
    at = each.binary("addi", each.i32(DETAILS_HEADER), each.binary("muli", rank, per_block))
    about = each.gep(details, i32, at)
    for axis in range(3):
        each.store(each.load(i32, record.at("index", 4 * axis)), each.gep(about, i32, axis))
    barriers, which = each.for_(each.i32(0), each.i32(16), each.i32(1))
    barrier = barriers.byte_gep(
        record.inside(barriers).at("barriers"), barriers.binary("muli", which, barriers.i32(16))
    )
    pair = barriers.gep(
        about, i32, barriers.binary("addi", barriers.i32(3), barriers.binary("muli", which, barriers.i32(2)))
    )
    barriers.store(barriers.load(i32, barrier), pair)
    barriers.store(barriers.load(i32, barriers.byte_gep(barrier, 8)), barriers.gep(pair, i32, 1))
    frames = group.frames(each, record.address)
    inner, thread = each.for_(each.i32(0), group.threads, each.i32(1))
    header = Fields(inner, group.frame(inner, frames, thread), FrameHeader)
    place = inner.binary("addi", inner.i32(DETAILS_BLOCK), inner.binary("muli", thread, inner.i32(DETAILS_THREAD)))
    line = inner.gep(about, i32, place)
    address = inner.value("llvm.ptrtoint", i64, (header.load("wait_address"),))
    seen = inner.binary("andi", inner.load(i32, header.load("wait_address")), header.load("wait_mask"))
    waiting = inner.compare("eq", seen, header.load("wait_value"))
    done = inner.compare("ne", header.load("done"), inner.i32(0))
    state = inner.select(waiting, inner.i32(0), inner.i32(2))
    state = inner.select(inner.compare("ne", header.load("soft"), inner.i32(0)), inner.i32(3), state)
    inner.store(inner.select(done, inner.i32(1), state), line)
    inner.store(header.load("site"), inner.gep(line, i32, 1))
    aligned = inner.value("llvm.inttoptr", ptr_type(), (inner.binary("andi", address, inner.i64(-8)),))
    look = inner.select(waiting, aligned, header.address)
    for half in range(2):
        inner.store(inner.load(i32, inner.gep(look, i32, half)), inner.gep(line, i32, 2 + half))
    unknown = inner.compare("slt", inner.load(i32, site), inner.i32(0))
    interesting = inner.binary("andi", unknown, inner.binary("xori", done, inner.const(int_type(1), 1)))
    its_site = header.load("site")
    inner.if_(interesting).store(its_site, site)

    first = Fields(b, group.record(b, group.chunk_at(b, b.i32(0))), BlockRecord)
    block = [b.load(i32, first.at("index", 4 * n)) for n in range(3)]
    minus = b.i32(-1)
    where = b.binary("maxsi", b.load(i32, site), b.i32(0))
    b.call("kiln_cpu_fault_with", [], [ctx, where, *block, *[minus] * 3, b.i32(0), b.null(), details, size])
