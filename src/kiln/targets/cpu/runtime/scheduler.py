"""Running kernels whose threads wait: the blocks that must be resident together, on one OS thread.

A group is a block, a cluster of blocks, or all clusters that a launch wants resident together (a cooperative launch, a
kernel that spins on memory). The group's function resumes every thread that is not blocked, round after round, until all
are done or none can go on.

With a schedule seed the order of blocks and threads changes from round to round, and threads that could go on are
passed over now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....mlir import ir
from ...host import call_context as shared
from ...host.loops import stopped
from ...lowering.builder import Builder, function, global_, int_attr, int_type, ptr_type
from .in_kernels import Fields, waits_no_more
from .orders import schedule
from .records import BLOCK_BYTES, FrameHeader, Sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..expand import Expansion, FunctionState


def frame_size_name(kernel: str) -> str:
    """The global constant that holds the size of a kernel's frame."""
    return f"{kernel}.frame_size"


class _Group:
    """Values that the parts of a group's function share."""

    def __init__(self, b: Builder, arena: ir.Value, sizes: ir.Value, frame: ir.Value) -> None:
        fields, i32 = Fields(b, sizes, Sizes), int_type(32)
        self.grid, block = ([b.load(i32, fields.at(name, 4 * n)) for n in range(3)] for name in ("grid", "block"))
        self.smem, self.chunk, self.size = (fields.load(name) for name in ("smem", "chunk", "group"))
        self.threads = b.binary("muli", block[0], b.binary("muli", block[1], block[2]))
        self.frame_size = frame
        self.arena = arena

    def record(self, b: Builder, rank: ir.Value) -> ir.Value:
        wide = [b.value("arith.extui", int_type(64), (number,)) for number in (rank, self.chunk)]
        return b.byte_gep(b.byte_gep(self.arena, b.binary("muli", *wide)), self.smem)

    def frame(self, b: Builder, record: ir.Value, thread: ir.Value) -> ir.Value:
        return b.byte_gep(b.byte_gep(record, BLOCK_BYTES), b.binary("muli", thread, self.frame_size))


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
    expansion.declare_variable(schedule.symbol, int_type(64))
    return schedule.symbol


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
        expansion.sanitizer.call(expansion, b, "group", arena, sizes, number)
    alive, progress, passed, halts = (b.alloca(i32) for _ in range(4))
    b.store(b.i32(0), passed)
    b.store(b.binary("muli", group.threads, group.size), alive)
    blocks, threads = _Order(b, group.size), _Order(b, group.threads)

    def fault_free(c: Builder) -> ir.Value:
        """Whether there is no fault. One in a later block does not count: of several, that of the lowest block is reported."""
        none = c.compare(
            "eq", c.binary("andi", c.load(i32, c.byte_gep(ctx, shared.offset("status"))), c.i32(shared.FAULT)), c.i32(0)
        )
        if state.spins:  # it may wait for the block that is no more
            return none
        later = c.compare(
            "ult", c.value("arith.extui", i64, (number,)), c.load(i64, c.byte_gep(ctx, shared.offset("order")))
        )
        return c.binary("ori", none, c.binary("andi", later, c.compare("eq", group.size, c.i32(1))))

    def goes_on(c: Builder) -> tuple[ir.Value]:
        healthy = fault_free(c)
        c.store(c.i32(0), halts)
        asked = c.if_(c.compare("ne", stopped(expansion, c, ctx), c.i32(0)))
        expansion.declare("kiln_cpu_step", [ptr, i32], [i32])
        asked.store(asked.call("kiln_cpu_step", [i32], [ctx, asked.load(i32, alive)]).results[0], halts)
        healthy = c.binary("andi", healthy, c.compare("eq", c.load(i32, halts), c.i32(0)))
        return (c.binary("andi", healthy, c.compare("ne", c.load(i32, alive), c.i32(0))),)

    rounds, _ = b.while_(goes_on)
    rounds.store(rounds.i32(0), progress)
    other = rounds.if_(seeded)
    blocks.shuffle(expansion, other, random)
    blocks.start(rounds)
    each, _index = rounds.for_(rounds.i32(0), group.size, rounds.i32(1))
    rank = blocks.take(each)
    record = group.record(each, rank)
    other = each.if_(seeded)
    threads.shuffle(expansion, other, random)
    if state.copies:
        expansion.declare("kiln_cpu_land_some", [ptr], [i32])
        landed = other.call("kiln_cpu_land_some", [i32], [record]).results[0]
        other.store(other.binary("ori", other.load(i32, progress), landed), progress)
    threads.start(each)
    inner, _index = each.for_(each.i32(0), group.threads, each.i32(1))
    frame = group.frame(inner, record, threads.take(inner))
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
        expansion.sanitizer.call(expansion, run, "switch", rank, header.inside(run).load("thread"))
    suspended = run.call(state.name, [i32], [*values, *hidden]).results[0]
    over = run.if_(run.compare("eq", suspended, run.i32(0)))
    expansion.declare("kiln_cpu_exit", [ptr], [])
    if expansion.sanitizer is not None:
        expansion.sanitizer.call(expansion, over, "exit")
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
        expansion.sanitizer.call(expansion, report, "stuck")
    expansion.declare("kiln_cpu_stuck", [ptr, ptr, ptr, i32], [])
    report.call("kiln_cpu_stuck", [], [ctx, arena, sizes, frame_size])

    left = b.compare("ne", b.load(i32, alive), b.i32(0))
    halted = b.if_(b.binary("andi", fault_free(b), left))
    halted.call("kiln_cpu_stuck", [], [ctx, arena, sizes, frame_size])
    if expansion.banks is not None:
        expansion.banks.end_of_block(b)
    if state.copies:
        expansion.declare("kiln_cpu_land_all", [ptr, ptr], [])
        b.call("kiln_cpu_land_all", [], [arena, sizes])


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
