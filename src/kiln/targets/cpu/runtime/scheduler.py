"""Scheduling of kernels whose threads wait: the blocks that must be resident together run on one OS thread.

A group is a block, a cluster of blocks, or all clusters that a launch wants resident together (a cooperative launch, a
kernel that spins on memory). The group's function resumes every thread that is not blocked, round after round, until
all are done or none can make progress.

With a schedule seed the order of blocks and threads changes from round to round, and threads that could run are skipped
now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....mlir import ir
from ...host import call_context as shared
from ...host.loops import stopped
from ...lowering.builder import Builder, function, global_, int_attr, int_type, ptr_type
from .record_access import Fields, waits_no_more
from .records import BLOCK_BYTES, FrameHeader, Sizes
from .schedule_order import schedule

if TYPE_CHECKING:
    from ..expand import Expansion, FunctionState


def frame_size_name(kernel: str) -> str:
    """Return the global constant that holds the size of a kernel's frame."""
    return f"{kernel}.frame_size"


class _Group:
    """Values shared by the parts of a group's function."""

    def __init__(self, b: Builder, arena: ir.Value, sizes: ir.Value, frame: ir.Value) -> None:
        fields = Fields(b, sizes, Sizes)
        i32 = int_type(32)
        self.grid, block = ([b.load(i32, fields.at(name, 4 * n)) for n in range(3)] for name in ("grid", "block"))
        self.smem, self.chunk, self.size = (fields.load(name) for name in ("smem", "chunk", "group"))
        self.threads = b.product(block)
        self.frame_size = frame
        self.arena = arena

    def record(self, b: Builder, rank: ir.Value) -> ir.Value:
        wide = [b.value("arith.extui", int_type(64), (number,)) for number in (rank, self.chunk)]
        return b.byte_gep(b.byte_gep(self.arena, b.binary("muli", *wide)), self.smem)

    def frame(self, b: Builder, record: ir.Value, thread: ir.Value) -> ir.Value:
        return b.byte_gep(b.byte_gep(record, BLOCK_BYTES), b.binary("muli", thread, self.frame_size))


class _Order:
    """A changing order of `count` items: every `stride`-th from `first` on, cyclically."""

    def __init__(self, b: Builder, count: ir.Value) -> None:
        self.count = count
        self.first, self.stride, self.at = (b.alloca(int_type(32)) for _ in range(3))
        b.store(b.i32(0), self.first)
        b.store(b.i32(1), self.stride)

    def shuffle(self, expansion: Expansion, b: Builder, random: ir.Value) -> None:
        ptr = ptr_type()
        i32 = int_type(32)
        expansion.declare("kiln_cpu_order", [ptr, i32, ptr, ptr], [])
        b.call("kiln_cpu_order", [], [random, self.count, self.first, self.stride])

    def start(self, b: Builder) -> None:
        b.store(b.load(int_type(32), self.first), self.at)

    def take(self, b: Builder) -> ir.Value:
        """Return the next one."""
        here = b.load(int_type(32), self.at)
        after = b.binary("addi", here, b.load(int_type(32), self.stride))
        beyond = b.compare("sge", after, self.count)
        b.store(b.select(beyond, b.binary("subi", after, self.count), after), self.at)
        return here


class Shuffled:
    """The threads of a block without waits, in the order of a seed."""

    def __init__(self, b: Builder, block_dim: list[ir.Value]) -> None:
        self.sizes = block_dim
        self.random: Any = b.alloca(int_type(64))
        self.order: _Order = _Order(b, b.product(block_dim))

    def threads(self, expansion: Expansion, b: Builder, block: ir.Value) -> tuple[Builder, list[ir.Value]]:
        """Open a loop over the threads of a block in the order of its number, and return its body and the thread
        index."""
        i32 = int_type(32)
        ptr = ptr_type()
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
    """Return the name of the variable with the seed, made known to a module."""
    expansion.declare_variable(schedule.symbol, int_type(64))
    return schedule.symbol


def group_function(
    expansion: Expansion,
    state: FunctionState,
    name: str,
    unpack: Callable[[Builder, ir.Value], list[ir.Value]],
    static: int,
) -> None:
    """Make `name(arguments, context, arena, sizes, x, y, z)`, which runs all threads of a group."""
    ptr = ptr_type()
    i32 = int_type(32)
    global_(expansion.module, frame_size_name(state.name), i32, int_attr(i32, 0), linkage="internal", constant=True)
    group_func = function(expansion.module, name, [ptr, ptr, ptr, ptr, i32, i32, i32], [])
    entry = group_func.regions[0].blocks[0]
    end = ir.Operation.create("func.return", loc=state.operation.location, ip=ir.InsertionPoint(entry))
    _GroupFunction(expansion, state, Builder(ir.InsertionPoint(end), state.operation.location), entry).build(
        unpack, static
    )


class _GroupFunction:
    """The body of a group's function: rounds in which every thread that can run is resumed."""

    def __init__(self, expansion: Expansion, state: FunctionState, b: Builder, entry: ir.Block) -> None:
        self.expansion = expansion
        self.state = state
        self.b = b
        self.packed, self.context, self.arena, self.sizes, *self.index = entry.arguments

    def build(self, unpack: Callable[[Builder, ir.Value], list[ir.Value]], static: int) -> None:
        b = self.b
        i32 = int_type(32)
        arguments = unpack(b, self.packed)
        frame_size = b.load(i32, b.address_of(frame_size_name(self.state.name)))
        group = self.group = _Group(b, self.arena, self.sizes, frame_size)
        self.number = b.linear(self.index, group.grid)
        self.random = b.alloca(int_type(64))
        seeded = self._call(b, "kiln_cpu_seed", [self.number, self.random], i32)
        self.seeded = b.compare("ne", seeded, 0)
        settings = [frame_size, self.number, b.i32(int(self.state.meets)), b.i32(static)]
        self._call(b, "kiln_cpu_initialize", [self.context, self.arena, self.sizes, *settings, self.random])
        self._tell(b, "group", self.arena, self.sizes, self.number)
        self.alive, self.progress, self.passed, self.halts = (b.alloca(i32) for _ in range(4))
        b.store(b.i32(0), self.passed)
        b.store(b.binary("muli", group.threads, group.size), self.alive)
        blocks = _Order(b, group.size)
        threads = _Order(b, group.threads)
        rounds, _ = b.while_(self._goes_on)
        self._round(rounds, blocks, threads, arguments)
        self._wake_or_report(rounds)
        self._end()

    def _call(self, b: Builder, name: str, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
        """Call a function of the runtime."""
        results = [] if result is None else [result]
        self.expansion.declare(name, [operand.type for operand in operands], results)
        called = b.call(name, results, operands)
        return None if result is None else called.results[0]

    def _tell(self, b: Builder, event: str, *operands: ir.Value) -> None:
        """Call the detector for an event, in an instrumented build."""
        if self.expansion.sanitizer is not None:
            self.expansion.sanitizer.call(self.expansion, b, event, *operands)

    def _fault_free(self, b: Builder) -> ir.Value:
        """Return whether the group may go on: there is no fault, or only one in a later block, since the lowest is
        reported."""
        i32 = int_type(32)
        i64 = int_type(64)
        status = b.load(i32, b.byte_gep(self.context, shared.offset("status")))
        none = b.compare("eq", b.binary("andi", status, shared.FAULT), 0)
        if self.state.spins:  # it may wait for the block that is no more
            return none
        order = b.load(i64, b.byte_gep(self.context, shared.offset("order")))
        later = b.compare("ult", b.value("arith.extui", i64, (self.number,)), order)
        return b.binary("ori", none, b.binary("andi", later, b.compare("eq", self.group.size, 1)))

    def _goes_on(self, b: Builder) -> tuple[ir.Value]:
        """Return whether there is another round."""
        i32 = int_type(32)
        healthy = self._fault_free(b)
        b.store(b.i32(0), self.halts)
        asked = b.if_(b.compare("ne", stopped(self.expansion, b, self.context), 0))
        what = [self.context, asked.load(i32, self.alive), self.arena, self.sizes, self.group.frame_size]
        sanitizer = self.expansion.sanitizer
        kept = sanitizer.call(self.expansion, asked, "pause") if sanitizer is not None and sanitizer.several else None
        asked.store(self._call(asked, "kiln_cpu_round", what, i32), self.halts)
        if kept is not None:
            self._tell(asked, "resume", kept)
        healthy = b.binary("andi", healthy, b.compare("eq", b.load(i32, self.halts), 0))
        return (b.binary("andi", healthy, b.compare("ne", b.load(i32, self.alive), 0)),)

    def _round(self, rounds: Builder, blocks: _Order, threads: _Order, arguments: list[ir.Value]) -> None:
        """Resume every thread of every block that is not blocked."""
        i32 = int_type(32)
        group = self.group
        rounds.store(rounds.i32(0), self.progress)
        blocks.shuffle(self.expansion, rounds.if_(self.seeded), self.random)
        blocks.start(rounds)
        each, _ = rounds.for_(rounds.i32(0), group.size, rounds.i32(1))
        rank = blocks.take(each)
        record = group.record(each, rank)
        other = each.if_(self.seeded)
        threads.shuffle(self.expansion, other, self.random)
        if self.state.copies:
            landed = self._call(other, "kiln_cpu_land_some", [record], i32)
            other.store(other.binary("ori", other.load(i32, self.progress), landed), self.progress)
        threads.start(each)
        inner, _ = each.for_(each.i32(0), group.threads, each.i32(1))
        self._resume(inner, group.frame(inner, record, threads.take(inner)), rank, arguments)

    def _resume(self, b: Builder, frame: ir.Value, rank: ir.Value, arguments: list[ir.Value]) -> None:
        """Run a thread until it waits again, unless it is blocked or skipped."""
        i32 = int_type(32)
        header = Fields(b, frame, FrameHeader)
        seen = b.binary("andi", b.load(i32, header.load("wait_address")), header.load("wait_mask"))
        ready = b.if_(b.compare("ne", seen, header.load("wait_value")))
        ready.store(ready.i32(1), self.progress)
        _pass_over(ready.if_(self.seeded), self.random, self.passed)
        run = ready.if_(ready.compare("eq", ready.load(i32, self.passed), 0))
        waits_no_more(run, frame)
        # all that is left of the hidden arguments is the frame (`record_access.indices_from_frame`)
        hidden = [run.null(), run.null(), run.null(), *[run.i32(0)] * 12, frame]
        if self.expansion.sanitizer is not None:
            self._tell(run, "switch", rank, header.inside(run).load("thread"))
        suspended = run.call(self.state.name, [i32], [*arguments, *hidden]).results[0]
        over = run.if_(run.compare("eq", suspended, 0))
        self._tell(over, "exit")
        self._call(over, "kiln_cpu_exit", [frame])
        over.store(over.binary("subi", over.load(i32, self.alive), 1), self.alive)

    def _wake_or_report(self, rounds: Builder) -> None:
        """After a round in which no thread ran, let waits that may fail do so, or report a deadlock."""
        i32 = int_type(32)
        idle = rounds.compare("eq", rounds.load(i32, self.progress), 0)
        left = rounds.compare("ne", rounds.load(i32, self.alive), 0)
        nobody = rounds.if_(rounds.binary("andi", idle, left))
        woken = self._call(nobody, "kiln_cpu_wake", [self.arena, self.sizes, self.group.frame_size], i32)
        report = nobody.if_(nobody.compare("eq", woken, 0))
        self._tell(report, "stuck")
        self._report(report)

    def _report(self, b: Builder) -> None:
        self._call(b, "kiln_cpu_stuck", [self.context, self.arena, self.sizes, self.group.frame_size])

    def _end(self) -> None:
        """Report threads that were stopped, and complete remaining asynchronous operations."""
        b = self.b
        left = b.compare("ne", b.load(int_type(32), self.alive), 0)
        self._report(b.if_(b.binary("andi", self._fault_free(b), left)))
        if self.expansion.counter is not None:
            self.expansion.counter.end_of_block(b)
        if self.state.copies:
            self._call(b, "kiln_cpu_land_all", [self.arena, self.sizes])


def _pass_over(b: Builder, random: ir.Value, passed: ir.Value) -> None:
    """Skip a thread in a round with a probability of a quarter."""
    i64 = int_type(64)
    state = b.load(i64, random)
    # a step of a linear congruential generator; its high bits are used
    following = b.binary("addi", b.binary("muli", state, 6364136223846793005), 1442695040888963407)
    b.store(following, random)
    b.store(b.value("arith.extui", int_type(32), (b.compare("ult", following, 1 << 62),)), passed)


def set_frame_size(module: ir.Module, kernel: str, size: int) -> None:
    """Fill in the constant that the launch and the group's function read."""
    for op in module.body.operations:
        inner = op.operation
        if inner.name == "llvm.mlir.global" and inner.attributes["sym_name"].value == frame_size_name(kernel):  # pyright: ignore[reportAttributeAccessIssue]
            inner.attributes["value"] = ir.IntegerAttr.get(int_type(32), size)
            return
    raise AssertionError(f"no frame size of {kernel}")
