"""Threads that wait for each other: what a frame, a warp and a block keep, and the native functions that work on it.

A block with suspend points is run by one OS thread, which resumes its threads in turn. A thread that must wait leaves a
wait record in its frame: it is blocked while `*address & mask == value`. A round in which no thread of a group can
go on, while some are left, is a deadlock, exactly. A thread that only tries a wait leaves a *soft* record: before a
deadlock is declared it is woken once and told that it failed.

    kiln_cpu_sync(frame, id, count, site)        arrive at a barrier and wait: 0 go on, 1 suspend, 2 suspend and call again
    kiln_cpu_arrive(frame, id, count, site)      arrive at a barrier without waiting: 0 go on, 2 suspend and call again
    kiln_cpu_exit(frame)                         a thread is done: nobody waits for it any more
    kiln_cpu_join(frame, mask, kind, site)       come to a meeting of lanes: where this lane leaves what it brings
    kiln_cpu_meet(frame, site)                   after that: 1 if the caller must suspend until all are there
    kiln_cpu_meet_word(frame, mask, kind, site, word)    both, for lanes that bring 32 bits
    kiln_cpu_mbarrier(address, n, bytes)         take n arrivals from what an mbarrier's phase misses, add bytes to it
    kiln_cpu_cluster_arrive(frame)               arrive at the cluster's barrier
    kiln_cpu_cluster_wait(frame, site)           wait for the cluster's barrier: 1 if the caller must suspend

Barriers count warps, as the hardware does: a warp has arrived when all its threads that have not exited have; that adds 32
to the count, however many there are. A barrier with count 0 waits for the warps that have threads left.

A meeting of lanes is a record of their warp, found by its mask and kind. A lane keeps the record from its arrival until it
has read what it wants, so 32 records are enough for any interleaving of masks.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ....mlir import ir
from ...lowering.builder import Builder, function, int_type, ptr_type

if TYPE_CHECKING:
    from collections.abc import Callable

BARRIERS = 16
"""Barriers of a block, as on the hardware."""
WARP = 32
WARPS = 32
"""Warps of the largest block."""
PAYLOAD = 128
"""Bytes a lane can bring to a meeting."""

TALLIES = 8
"""Phases of a barrier whose tallies are kept: a thread may read its own late."""

FREE, OPEN, COMPLETE = 0, 1, 2
"""States of a meeting."""


class FrameHeader(ctypes.Structure):
    """The start of a thread's frame."""

    _fields_ = [
        ("resume", ctypes.c_int32),
        ("done", ctypes.c_int32),
        ("wait_address", ctypes.c_void_p),  # always of something that can be read
        ("wait_mask", ctypes.c_uint32),  # 0 (and `wait_value` 1): not waiting
        ("wait_value", ctypes.c_uint32),
        ("site", ctypes.c_int32),  # where it last waited; -1: nowhere yet
        ("thread", ctypes.c_int32),  # linear index in the block
        ("block", ctypes.c_void_p),
        ("warp", ctypes.c_void_p),
        ("index", ctypes.c_int32),  # in the block: x, y << 10, z << 20
        ("cluster_phase", ctypes.c_uint32),  # of the cluster's barrier when this thread last arrived there
        # up to here: what every resumption looks at, in one cache line
        ("meeting", ctypes.c_void_p),  # that this lane came to last
        ("soft", ctypes.c_int32),  # 1: the wait may fail; 2: it failed before, at this site for the same thing
        ("woken_site", ctypes.c_int32),
        ("woken_address", ctypes.c_void_p),
        ("woken_value", ctypes.c_uint32),
        ("copy_group", ctypes.c_int32),  # groups of asynchronous copies this thread has committed
        ("bulk_group", ctypes.c_int32),
    ]


class Barrier(ctypes.Structure):
    """A barrier of a block."""

    _fields_ = [
        ("arrived", ctypes.c_int32),  # threads, by whole warps
        ("phase", ctypes.c_uint32),
        ("expected", ctypes.c_int32),  # by the last arrival; 0: all
        ("site", ctypes.c_int32),  # of the last arrival
    ]


class Tally(ctypes.Structure):
    """What threads brought to a phase of a barrier that reduces."""

    _fields_ = [
        ("phase", ctypes.c_uint32),  # its number and 1, so that zeroed memory is of none
        ("threads", ctypes.c_int32),
        ("holds", ctypes.c_int32),  # threads whose predicate holds
    ]


class Warp(ctypes.Structure):
    """A warp of a block."""

    _fields_ = [
        ("live", ctypes.c_uint32),  # lanes that have not exited
        ("opened", ctypes.c_int32),  # meetings that are open
        ("latest", ctypes.c_void_p),  # the meeting opened last
        ("meetings", ctypes.c_void_p),  # the first of 32
    ]


class Meeting(ctypes.Structure):
    """Lanes of a warp that meet."""

    _fields_ = [
        ("state", ctypes.c_uint32),  # FREE, OPEN, COMPLETE
        ("mask", ctypes.c_uint32),
        ("kind", ctypes.c_int32),
        ("arrived", ctypes.c_uint32),  # lanes
        ("readers", ctypes.c_int32),  # lanes that have not left yet
        ("computed", ctypes.c_int32),  # whether `result` and what lanes get is there
        ("result", ctypes.c_uint64),
        ("padding", ctypes.c_uint8 * 32),  # slots of lanes are aligned to 16 bytes
        ("payload", ctypes.c_uint8 * PAYLOAD * WARP),
    ]


class BlockRecord(ctypes.Structure):
    """What the threads of a block share besides shared memory; frames and warps' meetings follow it in memory."""

    _fields_ = [
        ("threads", ctypes.c_int32),
        ("live_warps", ctypes.c_int32),  # warps with threads that have not exited
        ("context", ctypes.c_void_p),
        ("cluster", ctypes.c_void_p),  # the record of the cluster's first block, which keeps what the cluster shares
        ("rank", ctypes.c_int32),  # in the cluster
        ("chunk", ctypes.c_int32),  # bytes from one block of the group to the next
        ("smem", ctypes.c_void_p),
        ("dynamic", ctypes.c_void_p),  # where dynamic shared memory starts
        ("index", ctypes.c_int32 * 3),  # in the grid, x y z
        ("block_dim", ctypes.c_int32 * 3),
        ("grid_dim", ctypes.c_int32 * 3),
        ("cluster_x", ctypes.c_int32),
        ("cluster_y", ctypes.c_int32),
        ("cluster_z", ctypes.c_int32),
        ("dynamic_smem", ctypes.c_int32),  # bytes, as the launch gave them
        ("used", ctypes.c_uint32),  # barriers that threads have arrived at
        ("copies", ctypes.c_void_p),  # asynchronous copies that have not landed
        ("copies_room", ctypes.c_int32),
        ("copies_left", ctypes.c_int32),  # that have not landed
        ("copies_count", ctypes.c_int32),  # entries of the list
        ("random", ctypes.c_uint64),
        # from here on zero at the start
        ("cluster_live", ctypes.c_int32),  # threads of the cluster that have not exited; kept in its first block
        ("padding", ctypes.c_int32),
        ("cluster_barrier", Barrier),
        ("barriers", Barrier * BARRIERS),
        ("tallies", Tally * TALLIES * BARRIERS),
        ("arriving", ctypes.c_uint32 * WARPS * BARRIERS),  # lanes of warps of which others have yet to arrive
        ("warps", Warp * WARPS),
    ]


HEADER = -(-ctypes.sizeof(FrameHeader) // 16) * 16
WARP_BYTES = ctypes.sizeof(Meeting) * WARP
BLOCK_BYTES = -(-ctypes.sizeof(BlockRecord) // 64) * 64


class Fields:
    """A C structure at an address."""

    def __init__(self, b: Builder, address: ir.Value, kind: type[ctypes.Structure]) -> None:
        self.b, self.address, self.kind = b, address, kind

    def at(self, name: str, extra: int = 0) -> ir.Value:
        return self.b.byte_gep(self.address, getattr(self.kind, name).offset + extra)

    def type(self, name: str) -> ir.Type:
        fields: Any = self.kind._fields_
        kind = dict(fields)[name]
        return ptr_type() if kind is ctypes.c_void_p else int_type(8 * ctypes.sizeof(kind))

    def load(self, name: str) -> ir.Value:
        return self.b.load(self.type(name), self.at(name))

    def store(self, name: str, value: ir.Value | int) -> None:
        if isinstance(value, int):
            value = self.b.const(self.type(name), value)
        self.b.store(value, self.at(name))

    def inside(self, b: Builder) -> Fields:
        """The same structure, used in another region."""
        return Fields(b, self.address, self.kind)


def build(module: ir.Module) -> None:
    """Add the functions to a module."""
    ptr, i32 = ptr_type(), int_type(32)
    define(module, "kiln_cpu_sync", [ptr, i32, i32, i32], [i32], _sync)
    define(module, "kiln_cpu_arrive", [ptr, i32, i32, i32], [i32], _arrive)
    define(module, "kiln_cpu_exit", [ptr], [], _exit)
    define(module, "kiln_cpu_find_meeting", [ptr, i32, i32], [ptr], _find_meeting)
    define(module, "kiln_cpu_join", [ptr, i32, i32], [ptr], _join)
    define(module, "kiln_cpu_meet", [ptr, i32], [i32], _meet)
    define(module, "kiln_cpu_meet_word", [ptr, i32, i32, i32, i32], [i32], _meet_word)
    define(module, "kiln_cpu_mbarrier", [ptr, i32, i32], [], _mbarrier)
    define(module, "kiln_cpu_cluster_arrive", [ptr], [], _cluster_arrive)
    define(module, "kiln_cpu_cluster_wait", [ptr, i32], [i32], _cluster_wait)


EXPORTS = (
    "kiln_cpu_sync", "kiln_cpu_arrive", "kiln_cpu_exit", "kiln_cpu_join", "kiln_cpu_meet", "kiln_cpu_meet_word",
    "kiln_cpu_mbarrier", "kiln_cpu_cluster_arrive", "kiln_cpu_cluster_wait",
)  # fmt: skip


def define(
    module: ir.Module, name: str, inputs: list[ir.Type], results: list[ir.Type], body: Callable[..., ir.Value | None]
) -> None:
    """A function whose body is built by a function of a builder and the arguments."""
    made = function(module, name, inputs, results)
    entry = made.regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown())
    result = body(b, *entry.arguments)
    b.op("func.return", (), () if result is None else (result,))


def wait(b: Builder, frame: ir.Value, address: ir.Value, mask: ir.Value, value: ir.Value, site: ir.Value) -> None:
    """Leave a wait record: blocked while `*address & mask == value`."""
    fields = Fields(b, frame, FrameHeader)
    fields.store("wait_address", address)
    fields.store("wait_mask", mask)
    fields.store("wait_value", value)
    fields.store("site", site)


def waits_no_more(b: Builder, frame: ir.Value) -> None:
    """Take a wait record back: mask 0, value 1."""
    b.store(b.i64(1 << 32), Fields(b, frame, FrameHeader).at("wait_mask"))


def wait_softly(
    b: Builder, frame: ir.Value, address: ir.Value, mask: ir.Value, value: ir.Value, site: ir.Value
) -> None:
    """Leave a wait record that may fail."""
    wait(b, frame, address, mask, value, site)
    fields = Fields(b, frame, FrameHeader)
    i64 = int_type(64)
    same = b.compare("eq", fields.load("woken_site"), site)
    same = b.binary("andi", same, b.compare("eq", fields.load("woken_value"), value))
    before, now = (b.value("llvm.ptrtoint", i64, (p,)) for p in (fields.load("woken_address"), address))
    same = b.binary("andi", same, b.compare("eq", before, now))
    fields.store("soft", b.select(same, b.i32(2), b.i32(1)))


def indices_from_frame(func: ir.Operation) -> None:
    """Let a resumable `llvm.func` read its hidden arguments from its frame, so that resuming it passes one pointer.

    The hidden arguments (`expand.FunctionState`): context, static and dynamic shared memory, four triples of indices, frame.
    """
    entry = func.regions[0].blocks[0]
    *_, context, smem, dynamic, tx, ty, tz, bx, by, bz, dx, dy, dz, gx, gy, gz, frame = entry.arguments
    b = Builder(ir.InsertionPoint.at_block_begin(entry), func.location)

    def llvm_constant(value: int) -> ir.Value:
        return b.value("llvm.mlir.constant", int_type(32), (), {"value": ir.IntegerAttr.get(int_type(32), value)})

    header = Fields(b, frame, FrameHeader)
    block = Fields(b, header.load("block"), BlockRecord)
    for argument, name in ((context, "context"), (smem, "smem"), (dynamic, "dynamic")):
        argument.replace_all_uses_with(block.load(name))
    index = header.load("index")
    for number, argument in enumerate((tx, ty, tz)):
        moved = b.value("llvm.lshr", int_type(32), (index, llvm_constant(10 * number)))
        argument.replace_all_uses_with(b.value("llvm.and", int_type(32), (moved, llvm_constant(1023))))
    for name, triple in (("index", (bx, by, bz)), ("block_dim", (dx, dy, dz)), ("grid_dim", (gx, gy, gz))):
        for number, argument in enumerate(triple):
            argument.replace_all_uses_with(b.load(int_type(32), block.at(name, 4 * number)))


# --- barriers --------------------------------------------------------------------------------------------------------


def _barrier(b: Builder, block: Fields, number: ir.Value) -> Fields:
    offset = b.binary("muli", number, b.i32(ctypes.sizeof(Barrier)))
    return Fields(b, b.byte_gep(block.inside(b).at("barriers"), offset), Barrier)


def _arriving(b: Builder, block: Fields, number: ir.Value, warp: ir.Value) -> ir.Value:
    """The address of the word with the lanes of a warp that have arrived at a barrier."""
    word = b.binary("addi", b.binary("muli", number, b.i32(WARPS)), warp)
    return b.gep(block.inside(b).at("arriving"), int_type(32), word)


def _complete(b: Builder, barrier: Fields) -> None:
    inside = barrier.inside(b)
    inside.store("arrived", 0)
    inside.store("expected", 0)
    inside.store("phase", b.binary("addi", inside.load("phase"), b.i32(1)))


def _complete_if_due(b: Builder, block: Fields, barrier: Fields) -> ir.Value:
    """Complete a barrier if it has the arrivals it needs; whether it was completed."""
    count, arrived = barrier.inside(b).load("expected"), barrier.inside(b).load("arrived")
    warps = b.binary("muli", block.inside(b).load("live_warps"), b.i32(WARP))
    needed = b.select(b.compare("eq", count, b.i32(0)), warps, count)
    due = b.binary("andi", b.compare("sgt", arrived, b.i32(0)), b.compare("sge", arrived, needed))
    _complete(b.if_(due), barrier)
    return due


def _come(b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value, waits: bool) -> ir.Value:
    header = Fields(b, frame, FrameHeader)
    block = Fields(b, header.load("block"), BlockRecord)
    thread = header.load("thread")
    warp = b.binary("shrui", thread, b.i32(5))
    lane = b.binary("shli", b.i32(1), b.binary("andi", thread, b.i32(WARP - 1)))
    live = Fields(b, header.load("warp"), Warp).load("live")
    word = _arriving(b, block, number, warp)
    barrier = _barrier(b, block, number)
    status = b.alloca(int_type(32))
    here = b.load(int_type(32), word)
    again, first = b.if_else(b.compare("ne", b.binary("andi", here, lane), b.i32(0)))
    # this thread came before and the rest of its warp has yet to: only then does its next arrival count
    wait(again, frame, word, lane, lane, site)
    again.store(again.i32(2), status)

    lanes = first.binary("ori", here, lane)
    begins = first.if_(first.compare("eq", lanes, lane))  # the first of its warp
    around, record = block.inside(begins), barrier.inside(begins)
    around.store("used", begins.binary("ori", around.load("used"), begins.binary("shli", begins.i32(1), number)))
    record.store("expected", count)
    record.store("site", site)
    came, partly = first.if_else(first.compare("eq", first.binary("andi", lanes, live), live))
    partly.store(lanes, word)
    partly.store(partly.i32(0), status)
    came.store(came.i32(0), word)
    inside = barrier.inside(came)
    inside.store("arrived", came.binary("addi", inside.load("arrived"), came.i32(WARP)))
    due = _complete_if_due(came, block, barrier)
    came.store(came.value("arith.extui", int_type(32), (due,)), status)
    if waits:  # 1 if the barrier was completed here: nothing to wait for
        stay = first.if_(first.compare("eq", first.load(int_type(32), status), first.i32(0)))
        after = barrier.inside(stay)
        wait(stay, frame, after.at("phase"), stay.i32(-1), after.load("phase"), site)
        turned = first.binary("xori", first.load(int_type(32), status), first.i32(1))
        first.store(turned, status)
    else:
        first.store(first.i32(0), status)
    return b.load(int_type(32), status)


def _sync(b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value) -> ir.Value:
    return _come(b, frame, number, count, site, waits=True)


def _arrive(b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value) -> ir.Value:
    return _come(b, frame, number, count, site, waits=False)


def _exit(b: Builder, frame: ir.Value) -> None:
    i32 = int_type(32)
    header = Fields(b, frame, FrameHeader)
    header.store("done", 1)
    # blocked for good: nobody looks at it again
    wait(b, frame, header.at("done"), b.i32(-1), b.i32(1), header.load("site"))
    block = Fields(b, header.load("block"), BlockRecord)
    cluster = Fields(b, block.load("cluster"), BlockRecord)
    left = b.binary("subi", cluster.load("cluster_live"), b.i32(1))
    cluster.store("cluster_live", left)
    waited = Fields(b, cluster.at("cluster_barrier"), Barrier)
    arrived = waited.load("arrived")
    over = b.binary("andi", b.compare("sgt", arrived, b.i32(0)), b.compare("sge", arrived, left))
    _complete(b.if_(over), waited)

    thread = header.load("thread")
    number = b.binary("shrui", thread, b.i32(5))
    lane = b.binary("shli", b.i32(1), b.binary("andi", thread, b.i32(WARP - 1)))
    warp = Fields(b, header.load("warp"), Warp)
    live = b.binary("andi", warp.load("live"), b.binary("xori", lane, b.i32(-1)))
    warp.store("live", live)
    gone = b.if_(b.compare("eq", live, b.i32(0)))
    inside = block.inside(gone)
    inside.store("live_warps", gone.binary("subi", inside.load("live_warps"), gone.i32(1)))

    # barriers of which this thread was the last of its warp, or its warp the last, to come
    any_used = b.if_(b.compare("ne", block.load("used"), b.i32(0)))
    each, which = any_used.for_(any_used.i32(0), any_used.i32(BARRIERS), any_used.i32(1))
    is_used = each.binary("andi", each.binary("shrui", block.inside(each).load("used"), which), each.i32(1))
    one = each.if_(each.compare("ne", is_used, each.i32(0)))
    word = _arriving(one, block, which, number)
    lanes = one.load(i32, word)
    whole = one.binary(
        "andi", one.compare("ne", lanes, one.i32(0)), one.compare("eq", one.binary("andi", lanes, live), live)
    )
    barrier = _barrier(one, block, which)
    count = one.if_(whole)
    count.store(count.i32(0), word)
    record = barrier.inside(count)
    record.store("arrived", count.binary("addi", record.load("arrived"), count.i32(WARP)))
    _complete_if_due(one, block, barrier)

    # meetings that only missed this lane
    opened = b.if_(b.compare("ne", warp.load("opened"), b.i32(0)))
    each, which = opened.for_(opened.i32(0), opened.i32(WARP), opened.i32(1))
    offset = each.binary("muli", which, each.i32(ctypes.sizeof(Meeting)))
    meeting = Fields(each, each.byte_gep(warp.inside(each).load("meetings"), offset), Meeting)
    is_open = each.if_(each.compare("eq", meeting.load("state"), each.i32(OPEN)))
    _complete_meeting(is_open, meeting, warp)


# --- meetings of lanes -----------------------------------------------------------------------------------------------


def _complete_meeting(b: Builder, meeting: Fields, warp: Fields) -> ir.Value:
    """Complete an open meeting if all lanes it waits for are there; whether it is complete."""
    meeting, warp = meeting.inside(b), warp.inside(b)
    arrived = meeting.load("arrived")
    wanted = b.binary("andi", meeting.load("mask"), warp.load("live"))
    all_here = b.compare("eq", b.binary("andi", arrived, wanted), wanted)
    then = b.if_(all_here)
    inside = meeting.inside(then)
    inside.store("state", COMPLETE)
    inside.store("readers", then.value("math.ctpop", int_type(32), (arrived,)))
    around = warp.inside(then)
    around.store("opened", then.binary("subi", around.load("opened"), then.i32(1)))
    return all_here


def _matches(b: Builder, meeting: Fields, mask: ir.Value, kind: ir.Value) -> ir.Value:
    is_open = b.compare("eq", meeting.load("state"), b.i32(OPEN))
    same = b.binary("andi", b.compare("eq", meeting.load("mask"), mask), b.compare("eq", meeting.load("kind"), kind))
    return b.binary("andi", is_open, same)


def _find_meeting(b: Builder, warp_address: ir.Value, mask: ir.Value, kind: ir.Value) -> ir.Value:
    """The open meeting of a mask and kind, or a free record opened for it."""
    warp = Fields(b, warp_address, Warp)
    first = warp.load("meetings")
    found, free = b.alloca(ptr_type()), b.alloca(ptr_type())
    b.store(b.null(), found)
    each, which = b.for_(b.i32(0), b.i32(WARP), b.i32(1))
    back = each.binary("subi", each.i32(WARP - 1), which)  # downwards, so that the first free one is kept
    at = each.byte_gep(first, each.binary("muli", back, each.i32(ctypes.sizeof(Meeting))))
    meeting = Fields(each, at, Meeting)
    each.if_(_matches(each, meeting, mask, kind)).store(at, found)
    each.if_(each.compare("eq", meeting.load("state"), each.i32(FREE))).store(at, free)
    none = b.compare("eq", b.value("llvm.ptrtoint", int_type(64), (b.load(ptr_type(), found),)), b.i64(0))
    opens = b.if_(none)
    new = Fields(opens, opens.load(ptr_type(), free), Meeting)
    new.store("state", OPEN)
    new.store("mask", mask)
    new.store("kind", kind)
    new.store("arrived", 0)
    new.store("computed", 0)
    opens.store(new.address, found)
    around = warp.inside(opens)
    around.store("opened", opens.binary("addi", around.load("opened"), opens.i32(1)))
    result = b.load(ptr_type(), found)
    warp.store("latest", result)
    return result


def _meeting(b: Builder, frame: ir.Value, mask: ir.Value, kind: ir.Value) -> Fields:
    """The meeting this lane comes to, with this lane in it."""
    header = Fields(b, frame, FrameHeader)
    warp = Fields(b, header.load("warp"), Warp)
    chosen = b.alloca(ptr_type())
    latest = warp.load("latest")
    b.store(latest, chosen)
    other = b.if_(b.binary("xori", _matches(b, Fields(b, latest, Meeting), mask, kind), b.const(int_type(1), 1)))
    searched = other.call("kiln_cpu_find_meeting", [ptr_type()], [warp.address, mask, kind]).results[0]
    other.store(searched, chosen)
    meeting = Fields(b, b.load(ptr_type(), chosen), Meeting)
    header.store("meeting", meeting.address)
    lane = b.binary("andi", header.load("thread"), b.i32(WARP - 1))
    meeting.store("arrived", b.binary("ori", meeting.load("arrived"), b.binary("shli", b.i32(1), lane)))
    return meeting


def _slot(b: Builder, frame: ir.Value, meeting: Fields) -> ir.Value:
    lane = b.binary("andi", Fields(b, frame, FrameHeader).load("thread"), b.i32(WARP - 1))
    return b.byte_gep(meeting.inside(b).at("payload"), b.binary("muli", lane, b.i32(PAYLOAD)))


def _join(b: Builder, frame: ir.Value, mask: ir.Value, kind: ir.Value) -> ir.Value:
    return _slot(b, frame, _meeting(b, frame, mask, kind))


def _wait_for_lanes(b: Builder, frame: ir.Value, meeting: Fields, site: ir.Value) -> ir.Value:
    warp = Fields(b, Fields(b, frame, FrameHeader).load("warp"), Warp)
    complete = _complete_meeting(b, meeting, warp)
    must_wait = b.binary("xori", complete, b.const(int_type(1), 1))
    then = b.if_(must_wait)
    wait(then, frame, meeting.inside(then).at("state"), then.i32(-1), then.i32(OPEN), site)
    return b.value("arith.extui", int_type(32), (must_wait,))


def _meet(b: Builder, frame: ir.Value, site: ir.Value) -> ir.Value:
    return _wait_for_lanes(b, frame, Fields(b, Fields(b, frame, FrameHeader).load("meeting"), Meeting), site)


def _meet_word(b: Builder, frame: ir.Value, mask: ir.Value, kind: ir.Value, site: ir.Value, word: ir.Value) -> ir.Value:
    meeting = _meeting(b, frame, mask, kind)
    b.store(word, _slot(b, frame, meeting))
    return _wait_for_lanes(b, frame, meeting, site)


def leave(b: Builder, meeting: Fields) -> None:
    """A lane has read what it wants: without readers the record is free."""
    meeting = meeting.inside(b)
    readers = b.binary("subi", meeting.load("readers"), b.i32(1))
    meeting.store("readers", readers)
    meeting.store("state", b.select(b.compare("eq", readers, b.i32(0)), b.i32(FREE), b.i32(COMPLETE)))


# --- mbarriers and clusters ------------------------------------------------------------------------------------------


def _mbarrier(b: Builder, pointer: ir.Value, arrivals: ir.Value, bytes_: ir.Value) -> None:
    """Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes missing (signed); 63: parity."""
    i64 = int_type(64)
    field = b.i64((1 << 20) - 1)
    state = b.load(i64, pointer)
    pending = b.binary("andi", state, field)
    pending = b.binary("andi", b.binary("subi", pending, b.value("arith.extui", i64, (arrivals,))), field)
    expected = b.binary("andi", b.binary("shrui", state, b.i64(20)), field)
    bytes_field = b.i64((1 << 23) - 1)
    missing = b.binary("andi", b.binary("shrui", state, b.i64(40)), bytes_field)
    missing = b.binary("andi", b.binary("addi", missing, b.value("arith.extsi", i64, (bytes_,))), bytes_field)
    parity = b.binary("shrui", state, b.i64(63))
    complete = b.binary("andi", b.compare("eq", pending, b.i64(0)), b.compare("eq", missing, b.i64(0)))
    pending = b.select(complete, expected, pending)
    parity = b.select(complete, b.binary("xori", parity, b.i64(1)), parity)
    state = b.binary("ori", pending, b.binary("shli", expected, b.i64(20)))
    state = b.binary("ori", state, b.binary("shli", missing, b.i64(40)))
    b.store(b.binary("ori", state, b.binary("shli", parity, b.i64(63))), pointer)


def _cluster(b: Builder, frame: ir.Value) -> tuple[Fields, Fields, Fields]:
    """(this thread's header, the record of the cluster's first block, the cluster's barrier)."""
    header = Fields(b, frame, FrameHeader)
    first = Fields(b, Fields(b, header.load("block"), BlockRecord).load("cluster"), BlockRecord)
    return header, first, Fields(b, first.at("cluster_barrier"), Barrier)


def _cluster_arrive(b: Builder, frame: ir.Value) -> None:
    header, first, barrier = _cluster(b, frame)
    header.store("cluster_phase", barrier.load("phase"))
    arrived = b.binary("addi", barrier.load("arrived"), b.i32(1))
    barrier.store("arrived", arrived)
    _complete(b.if_(b.compare("sge", arrived, first.load("cluster_live"))), barrier)


def _cluster_wait(b: Builder, frame: ir.Value, site: ir.Value) -> ir.Value:
    header, _, barrier = _cluster(b, frame)
    blocked = b.compare("eq", barrier.load("phase"), header.load("cluster_phase"))
    then = b.if_(blocked)
    inside = barrier.inside(then)
    phase = Fields(then, frame, FrameHeader).load("cluster_phase")
    wait(then, frame, inside.at("phase"), then.i32(-1), phase, site)
    return b.value("arith.extui", int_type(32), (blocked,))
