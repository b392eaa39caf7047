"""Running kernels whose threads wait: the blocks that must be resident together, on one OS thread.

A group is a block, a cluster of blocks, or the whole grid of a cooperative launch. Its memory is one chunk for each
block (`chunk_bytes`): shared memory, then the block's record, its frames and its meetings. The group's function resumes every
thread that is not blocked, round after round, until all are done or none can go on.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ...mlir import ir
from ..llvm_build import Builder, function, global_, int_attr, int_type, ptr_type
from .threads import BARRIERS, BLOCK_BYTES, WARP, WARP_BYTES, Barrier, BlockRecord, Fields, FrameHeader, Meeting

if TYPE_CHECKING:
    from collections.abc import Callable

    from .expand import Expansion, FunctionState

SIZES = (
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "cluster_x",
    "cluster_y",
    "cluster_z",
    "smem",
    "chunk",
    "group",
    "cooperative",
)
"""The i32 numbers a launch hands to a group's function: sizes, bytes of shared memory, bytes of a chunk, blocks of a group,
whether the group is the whole grid."""

DEADLOCK = "kiln_cpu_deadlock"
CHUNK_ALIGNMENT = 1024
DEADLOCK_SITES = 3
"""How many places where threads wait a report of a deadlock names."""


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
        self._cooperative = numbers["cooperative"]
        self.threads = b.binary("muli", self.block[0], b.binary("muli", self.block[1], self.block[2]))
        self.frame_size = frame
        self.arena = arena

    def is_grid(self, b: Builder) -> ir.Value:
        """Whether the group is the grid of a cooperative launch: then its blocks are no cluster."""
        return b.compare("ne", self._cooperative, b.i32(0))

    def chunk_at(self, b: Builder, rank: ir.Value) -> ir.Value:
        wide = b.value("arith.extui", int_type(64), (self.chunk,))
        return b.byte_gep(self.arena, b.binary("muli", b.value("arith.extui", int_type(64), (rank,)), wide))

    def record(self, b: Builder, chunk: ir.Value) -> ir.Value:
        return b.byte_gep(chunk, self.smem)

    def frames(self, b: Builder, record: ir.Value) -> ir.Value:
        return b.byte_gep(record, BLOCK_BYTES)

    def frame(self, b: Builder, frames: ir.Value, thread: ir.Value) -> ir.Value:
        return b.byte_gep(frames, b.binary("muli", thread, self.frame_size))


def group_function(
    expansion: Expansion,
    state: FunctionState,
    name: str,
    unpack: Callable[[Builder, ir.Value], list[ir.Value]],
    static: int,
) -> None:
    """Make `name(arguments, context, arena, sizes, x, y, z)`: all threads of group number x + grid x * (y + grid y * z)."""
    ptr, i32 = ptr_type(), int_type(32)
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
    _initialize(b, group, ctx, state.meets)
    alive, progress = b.alloca(i32), b.alloca(i32)
    b.store(b.binary("muli", group.threads, group.size), alive)

    def goes_on(c: Builder) -> tuple[ir.Value]:
        status = c.load(i32, ctx)  # the first field of the context
        healthy = c.compare("eq", c.binary("andi", status, c.i32(1)), c.i32(0))
        return (c.binary("andi", healthy, c.compare("ne", c.load(i32, alive), c.i32(0))),)

    rounds, _ = b.while_(goes_on)
    rounds.store(rounds.i32(0), progress)
    each, rank = rounds.for_(rounds.i32(0), group.size, rounds.i32(1))
    chunk = group.chunk_at(each, rank)
    frames = group.frames(each, group.record(each, chunk))
    dynamic = each.byte_gep(chunk, static)
    block_idx = _block_index(each, group, number, rank)
    inner, thread_idx = each, []
    for size in reversed(group.block):
        inner, index = inner.for_(inner.i32(0), size, inner.i32(1))
        thread_idx.insert(0, index)
    tx, ty, tz = thread_idx
    thread = inner.binary(
        "addi",
        tx,
        inner.binary("muli", group.block[0], inner.binary("addi", ty, inner.binary("muli", group.block[1], tz))),
    )
    frame = group.frame(inner, frames, thread)
    header = Fields(inner, frame, FrameHeader)
    waits_for = header.load("wait_address")
    address = inner.value("llvm.ptrtoint", int_type(64), (waits_for,))
    waiting = inner.compare("ne", address, inner.i64(0))
    # a thread that is not waiting looks at its own header: anything readable will do
    look_at = inner.select(waiting, waits_for, frame)
    seen = inner.binary("andi", inner.load(i32, look_at), header.load("wait_mask"))
    blocked = inner.binary("andi", waiting, inner.compare("eq", seen, header.load("wait_value")))
    finished = inner.compare("ne", header.load("done"), inner.i32(0))
    idle = inner.binary("ori", blocked, finished)
    run = inner.if_(inner.binary("xori", idle, inner.const(int_type(1), 1)))
    run.store(run.i32(1), progress)
    Fields(run, frame, FrameHeader).store("wait_address", run.null())
    hidden = [ctx, chunk, dynamic, *thread_idx, *block_idx, *group.block, *group.grid, frame]
    suspended = run.call(state.name, [i32], [*values, *hidden]).results[0]
    over = run.if_(run.compare("eq", suspended, run.i32(0)))
    expansion.declare("kiln_cpu_exit", [ptr], [])
    over.call("kiln_cpu_exit", [], [frame])
    over.store(over.binary("subi", over.load(i32, alive), over.i32(1)), alive)

    stuck = rounds.binary(
        "andi",
        rounds.compare("eq", rounds.load(i32, progress), rounds.i32(0)),
        rounds.compare("ne", rounds.load(i32, alive), rounds.i32(0)),
    )
    report = rounds.if_(stuck)
    expansion.declare(DEADLOCK, [ptr, ptr, *[i32] * 6], [])
    report.call(
        DEADLOCK, [], [ctx, arena, group.chunk, group.size, group.smem, group.threads, frame_size, number]
    )  # fmt: skip


def _initialize(b: Builder, group: _Group, ctx: ir.Value, meets: bool) -> None:
    """Fresh records, frames and meetings. Shared memory keeps what was in it: it starts undefined."""
    i32 = int_type(32)
    each, rank = b.for_(b.i32(0), group.size, b.i32(1))
    chunk = group.chunk_at(each, rank)
    record = group.record(each, chunk)
    fields = Fields(each, record, BlockRecord)
    fields.store("threads", group.threads)
    fields.store("live", group.threads)
    fields.store("context", ctx)
    fields.store("rank", rank)
    fields.store("chunk", group.chunk)
    first = group.record(each, group.chunk_at(each, each.i32(0)))
    fields.store("cluster", each.select(group.is_grid(each), record, first))
    blocks = each.i32(1)
    for axis, size in zip("xyz", group.cluster, strict=True):
        size = each.select(group.is_grid(each), each.i32(1), size)
        fields.store(f"cluster_{axis}", size)
        blocks = each.binary("muli", blocks, size)
    fields.store("cluster_live", each.binary("muli", group.threads, blocks))
    frames = group.frames(each, record)
    meetings = each.byte_gep(frames, each.binary("muli", group.threads, group.frame_size))
    fields.store("meetings", meetings)
    words = (ctypes.sizeof(Barrier) * (BARRIERS + 1)) // 4
    clear, word = each.for_(each.i32(0), each.i32(words), each.i32(1))
    clear.store(clear.i32(0), clear.gep(fields_at(clear, record, "cluster_barrier"), i32, word))
    per_thread, thread = each.for_(each.i32(0), group.threads, each.i32(1))
    frame = group.frame(per_thread, frames, thread)
    header = Fields(per_thread, frame, FrameHeader)
    for name in ("resume", "done", "site", "cluster_phase"):
        header.store(name, per_thread.i32(0))
    header.store("wait_address", per_thread.null())
    header.store("thread", thread)
    header.store("block", record)
    if meets:
        warps = each.binary("andi", each.binary("addi", group.threads, each.i32(WARP - 1)), each.i32(-WARP))
        per_meeting, lane = each.for_(each.i32(0), warps, each.i32(1))
        wide = per_meeting.value("arith.extui", int_type(64), (lane,))
        at = per_meeting.byte_gep(meetings, per_meeting.binary("muli", wide, per_meeting.i64(ctypes.sizeof(Meeting))))
        meeting = Fields(per_meeting, at, Meeting)
        meeting.store("arrived", per_meeting.i32(0))
        meeting.store("phase", per_meeting.i32(0))


def fields_at(b: Builder, record: ir.Value, name: str) -> ir.Value:
    """The address of a field of a block's record."""
    return Fields(b, record, BlockRecord).at(name)


def _block_index(b: Builder, group: _Group, number: ir.Value, rank: ir.Value) -> list[ir.Value]:
    """The block of rank `rank` of a group: in a cluster x fastest; a cooperative grid is one cluster as large as itself."""
    clusters = [b.binary("divui", g, c) for g, c in zip(group.grid, group.cluster, strict=True)]
    index: list[ir.Value] = []
    left, within = number, rank
    for count, size in zip(clusters, group.cluster, strict=True):
        origin = b.binary("muli", b.binary("remui", left, count), size)
        index.append(b.binary("addi", origin, b.binary("remui", within, size)))
        left, within = b.binary("divui", left, count), b.binary("divui", within, size)
    return index


def set_frame_size(module: ir.Module, kernel: str, size: int) -> None:
    """Fill in the constant that the launch and the group's function read."""
    for op in module.body.operations:
        found = op.operation
        if found.name == "llvm.mlir.global" and found.attributes["sym_name"].value == frame_size_name(kernel):  # pyright: ignore[reportAttributeAccessIssue]
            found.attributes["value"] = ir.IntegerAttr.get(int_type(32), size)
            return
    raise AssertionError(f"no frame size of {kernel}")


def build_deadlock(module: ir.Module) -> None:
    """Add `kiln_cpu_deadlock(context, arena, chunk, group, smem, threads, frame size, group number)` to the runtime.

    Records a fault at the place where the first blocked thread waits. Its numbers: for up to `DEADLOCK_SITES` places, the site,
    how many threads wait there, and the first of them (counted through the blocks of the group).
    """
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    made = function(module, DEADLOCK, [ptr, ptr, *[i32] * 6], [])
    entry = made.regions[0].blocks[0]
    ctx, arena, chunk, group_size, smem, threads, frame_size, number = entry.arguments
    del number
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown())
    numbers = b.alloca(i64, 3 * DEADLOCK_SITES + 1)
    found, first = b.alloca(i32), b.alloca(i32)
    total = b.binary("muli", group_size, threads)
    b.store(b.i32(0), found)
    b.store(b.i32(0), first)

    def frame_of(c: Builder, index: ir.Value) -> Fields:
        rank, thread = c.binary("divui", index, threads), c.binary("remui", index, threads)
        at = c.binary("muli", c.value("arith.extui", i64, (rank,)), c.value("arith.extui", i64, (chunk,)))
        frames = c.byte_gep(c.byte_gep(c.byte_gep(arena, at), smem), BLOCK_BYTES)
        return Fields(c, c.byte_gep(frames, c.binary("muli", thread, frame_size)), FrameHeader)

    each, index = b.for_(b.i32(0), total, b.i32(1))
    header = frame_of(each, index)
    alive = each.if_(each.compare("eq", header.load("done"), each.i32(0)))
    site = alive.value("arith.extsi", i64, (Fields(alive, header.address, FrameHeader).load("site"),))
    known = alive.alloca(i32)
    alive.store(alive.i32(-1), known)
    look, k = alive.for_(alive.i32(0), alive.load(i32, found), alive.i32(1))
    same = look.compare("eq", look.load(i64, look.gep(numbers, i64, look.binary("muli", k, look.i32(3)))), site)
    look.if_(same).store(k, known)
    is_new = alive.compare("slt", alive.load(i32, known), alive.i32(0))
    room = alive.compare("slt", alive.load(i32, found), alive.i32(DEADLOCK_SITES))
    add = alive.if_(alive.binary("andi", is_new, room))
    slot = add.binary("muli", add.load(i32, found), add.i32(3))
    add.store(site, add.gep(numbers, i64, slot))
    add.store(add.i64(0), add.gep(numbers, i64, add.binary("addi", slot, add.i32(1))))
    wide = add.value("arith.extui", i64, (index,))
    add.store(wide, add.gep(numbers, i64, add.binary("addi", slot, add.i32(2))))
    add.store(add.load(i32, found), known)
    add.store(add.binary("addi", add.load(i32, found), add.i32(1)), found)
    counted = alive.if_(alive.compare("sge", alive.load(i32, known), alive.i32(0)))
    at = counted.gep(
        numbers,
        i64,
        counted.binary("addi", counted.binary("muli", counted.load(i32, known), counted.i32(3)), counted.i32(1)),
    )
    counted.store(counted.binary("addi", counted.load(i64, at), counted.i64(1)), at)

    where = b.value("arith.trunci", i32, (b.load(i64, numbers),))
    count = b.binary("muli", b.load(i32, found), b.i32(3))
    minus = b.i32(-1)
    b.call("kiln_cpu_fault", [], [ctx, where, *[minus] * 6, count, numbers])
    b.op("func.return", (), ())
