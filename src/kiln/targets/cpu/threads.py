"""Threads that wait for each other: what a frame and a block keep, and the native functions that work on it.

A block with suspend points is run by one OS thread, which resumes its threads in turn. A thread that must wait leaves a
wait record in its frame: it is blocked while `*address & mask == value`. A round in which no thread of a block can
go on, while some are left, is a deadlock, exactly.

    kiln_cpu_sync(frame, id, count, site)    arrive at a barrier and wait: 1 if the caller must suspend now
    kiln_cpu_arrive(frame, id, count, site)  arrive at a barrier, without waiting
    kiln_cpu_exit(frame)                     a thread is done: barriers of the whole block no longer count it
    kiln_cpu_slot(frame, mask)               where this lane leaves what it brings to a meeting of lanes
    kiln_cpu_meet(frame, mask, site)         meet the lanes of a mask: 1 if the caller must suspend now
    kiln_cpu_payload(frame, mask)            after a meeting: what all lanes brought, `PAYLOAD` bytes each
    kiln_cpu_lanes(frame)                    the mask of the lanes that this thread's warp has (the last one may be short)
    kiln_cpu_mbarrier(address, n, bytes)     take n arrivals from what an mbarrier's phase misses, add bytes to it
    kiln_cpu_cluster_arrive(frame)           arrive at the cluster's barrier
    kiln_cpu_cluster_wait(frame, site)       wait for the cluster's barrier: 1 if the caller must suspend now

Barrier 0 with count 0 is the whole block's: it counts the threads that have not exited. Two generations of a meeting
alternate, so that a lane may bring something to the next one while a slower lane still reads the last.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...mlir import ir
from ..llvm_build import Builder, function, int_type, ptr_type

if TYPE_CHECKING:
    from collections.abc import Callable

BARRIERS = 16
"""Barriers of a block, as on the hardware."""
WARP = 32
PAYLOAD = 64
"""Bytes a lane can bring to a meeting."""


class FrameHeader(ctypes.Structure):
    """The start of a thread's frame; a fresh one is zero but for `block` and `thread`."""

    _fields_ = [
        ("resume", ctypes.c_int32),
        ("done", ctypes.c_int32),
        ("wait_address", ctypes.c_void_p),  # null: not waiting
        ("wait_mask", ctypes.c_uint32),
        ("wait_value", ctypes.c_uint32),
        ("site", ctypes.c_int32),  # where it waits
        ("thread", ctypes.c_int32),  # linear index in the block
        ("block", ctypes.c_void_p),
        ("cluster_phase", ctypes.c_uint32),  # of the cluster's barrier when this thread last arrived there
    ]


class Barrier(ctypes.Structure):
    """A barrier of a block."""

    _fields_ = [
        ("arrived", ctypes.c_int32),
        ("phase", ctypes.c_uint32),
        ("expected", ctypes.c_int32),  # by the arrivals of this phase; 0: none yet
        ("site", ctypes.c_int32),  # of the first arrival of this phase
    ]


class Meeting(ctypes.Structure):
    """Lanes of a warp that meet under a mask; there is one for each lane a mask can start with."""

    _fields_ = [
        ("arrived", ctypes.c_int32),
        ("phase", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("site", ctypes.c_int32),
        ("payload", ctypes.c_uint8 * PAYLOAD * WARP * 2),
    ]


class BlockRecord(ctypes.Structure):
    """What the threads of a block share besides shared memory; frames and warps' meetings follow it in memory."""

    _fields_ = [
        ("threads", ctypes.c_int32),
        ("live", ctypes.c_int32),  # that have not exited
        ("context", ctypes.c_void_p),
        ("meetings", ctypes.c_void_p),
        ("cluster", ctypes.c_void_p),  # the record of the cluster's first block, which keeps what the cluster shares
        ("rank", ctypes.c_int32),  # in the group
        ("chunk", ctypes.c_int32),  # bytes from one block of the group to the next
        ("cluster_x", ctypes.c_int32),
        ("cluster_y", ctypes.c_int32),
        ("cluster_z", ctypes.c_int32),
        ("cluster_live", ctypes.c_int32),  # threads of the cluster that have not exited; kept in its first block
        ("cluster_barrier", Barrier),
        ("barriers", Barrier * BARRIERS),
    ]


HEADER = -(-ctypes.sizeof(FrameHeader) // 16) * 16
WARP_BYTES = ctypes.sizeof(Meeting) * WARP
BLOCK_BYTES = -(-ctypes.sizeof(BlockRecord) // 64) * 64


class Fields:
    """A C structure at an address."""

    def __init__(self, b: Builder, address: ir.Value, kind: type[ctypes.Structure]) -> None:
        self.b, self.address, self.kind = b, address, kind

    def at(self, name: str) -> ir.Value:
        return self.b.byte_gep(self.address, getattr(self.kind, name).offset)

    def type(self, name: str) -> ir.Type:
        fields: Any = self.kind._fields_
        kind = next(field[1] for field in fields if field[0] == name)
        return ptr_type() if kind is ctypes.c_void_p else int_type(8 * ctypes.sizeof(kind))

    def load(self, name: str) -> ir.Value:
        return self.b.load(self.type(name), self.at(name))

    def store(self, name: str, value: ir.Value) -> None:
        self.b.store(value, self.at(name))


def build(module: ir.Module) -> None:
    """Add the functions to the runtime's module."""
    ptr, i32 = ptr_type(), int_type(32)
    _define(module, "kiln_cpu_sync", [ptr, i32, i32, i32], [i32], _sync)
    _define(module, "kiln_cpu_arrive", [ptr, i32, i32, i32], [], _arrive)
    _define(module, "kiln_cpu_exit", [ptr], [], _exit)
    _define(module, "kiln_cpu_slot", [ptr, i32], [ptr], _slot)
    _define(module, "kiln_cpu_meet", [ptr, i32, i32], [i32], _meet)
    _define(module, "kiln_cpu_payload", [ptr, i32], [ptr], _payload)
    _define(module, "kiln_cpu_lanes", [ptr], [i32], _lanes)
    _define(module, "kiln_cpu_mbarrier", [ptr, i32, i32], [], _mbarrier)
    _define(module, "kiln_cpu_cluster_arrive", [ptr], [], _cluster_arrive)
    _define(module, "kiln_cpu_cluster_wait", [ptr, i32], [i32], _cluster_wait)


EXPORTS = (
    "kiln_cpu_sync", "kiln_cpu_arrive", "kiln_cpu_exit", "kiln_cpu_slot", "kiln_cpu_meet", "kiln_cpu_payload",
    "kiln_cpu_lanes", "kiln_cpu_mbarrier", "kiln_cpu_cluster_arrive", "kiln_cpu_cluster_wait",
)  # fmt: skip


def _define(
    module: ir.Module, name: str, inputs: list[ir.Type], results: list[ir.Type], body: Callable[..., ir.Value | None]
) -> None:
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


def _barrier(b: Builder, frame: ir.Value, number: ir.Value) -> tuple[Fields, Fields]:
    """(the block's record, the barrier's)."""
    block = Fields(b, Fields(b, frame, FrameHeader).load("block"), BlockRecord)
    offset = b.binary("muli", number, b.i32(ctypes.sizeof(Barrier)))
    return block, Fields(b, b.byte_gep(block.at("barriers"), offset), Barrier)


def _count_arrival(
    b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value
) -> tuple[Fields, ir.Value]:
    """Count an arrival; the barrier, and whether it is complete now."""
    block, barrier = _barrier(b, frame, number)
    arrived = b.binary("addi", barrier.load("arrived"), b.i32(1))
    barrier.store("arrived", arrived)
    barrier.store("expected", count)
    barrier.store("site", site)
    everyone = b.compare("eq", count, b.i32(0))
    needed = b.select(everyone, block.load("live"), count)
    return barrier, b.compare("sge", arrived, needed)


def _complete(b: Builder, barrier: Fields) -> None:
    inside = Fields(b, barrier.address, Barrier)
    inside.store("arrived", b.i32(0))
    inside.store("expected", b.i32(0))
    inside.store("phase", b.binary("addi", inside.load("phase"), b.i32(1)))


def _sync(b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value) -> ir.Value:
    barrier, complete = _count_arrival(b, frame, number, count, site)
    last, other = b.if_else(complete)
    _complete(last, barrier)
    inside = Fields(other, barrier.address, Barrier)
    wait(other, frame, inside.at("phase"), other.i32(-1), inside.load("phase"), site)
    return b.value("arith.extui", int_type(32), (b.binary("xori", complete, b.const(int_type(1), 1)),))


def _arrive(b: Builder, frame: ir.Value, number: ir.Value, count: ir.Value, site: ir.Value) -> None:
    barrier, complete = _count_arrival(b, frame, number, count, site)
    _complete(b.if_(complete), barrier)


def _exit(b: Builder, frame: ir.Value) -> None:
    fields = Fields(b, frame, FrameHeader)
    fields.store("done", b.i32(1))
    block = Fields(b, fields.load("block"), BlockRecord)
    live = b.binary("subi", block.load("live"), b.i32(1))
    block.store("live", live)
    cluster = Fields(b, block.load("cluster"), BlockRecord)
    left = b.binary("subi", cluster.load("cluster_live"), b.i32(1))
    cluster.store("cluster_live", left)
    waited = Fields(b, cluster.at("cluster_barrier"), Barrier)
    arrived = waited.load("arrived")
    over = b.binary("andi", b.compare("sgt", arrived, b.i32(0)), b.compare("sge", arrived, left))
    _complete(b.if_(over), waited)
    each, number = b.for_(b.i32(0), b.i32(BARRIERS), b.i32(1))
    _, barrier = _barrier(each, frame, number)
    arrived = barrier.load("arrived")
    waited_for = each.binary(
        "andi", each.compare("sgt", arrived, each.i32(0)), each.compare("eq", barrier.load("expected"), each.i32(0))
    )
    inside = each.if_(each.binary("andi", waited_for, each.compare("sge", arrived, live)))
    _complete(inside, barrier)


def _meeting(b: Builder, frame: ir.Value, mask: ir.Value) -> tuple[Fields, ir.Value]:
    """(the meeting of a mask, this thread's lane)."""
    fields = Fields(b, frame, FrameHeader)
    thread = fields.load("thread")
    lane = b.binary("andi", thread, b.i32(WARP - 1))
    warp = b.binary("shrui", thread, b.i32(5))
    first = b.value("math.cttz", int_type(32), (mask,))
    number = b.binary("addi", b.binary("muli", warp, b.i32(WARP)), b.binary("andi", first, b.i32(WARP - 1)))
    offset = b.binary("muli", b.value("arith.extui", int_type(64), (number,)), b.i64(ctypes.sizeof(Meeting)))
    meetings = Fields(b, fields.load("block"), BlockRecord).load("meetings")
    return Fields(b, b.byte_gep(meetings, offset), Meeting), lane


def _generation(b: Builder, meeting: Fields, phase: ir.Value) -> ir.Value:
    parity = b.binary("andi", phase, b.i32(1))
    return b.byte_gep(meeting.at("payload"), b.binary("muli", parity, b.i32(PAYLOAD * WARP)))


def _slot(b: Builder, frame: ir.Value, mask: ir.Value) -> ir.Value:
    meeting, lane = _meeting(b, frame, mask)
    here = _generation(b, meeting, meeting.load("phase"))
    return b.byte_gep(here, b.binary("muli", lane, b.i32(PAYLOAD)))


def _meet(b: Builder, frame: ir.Value, mask: ir.Value, site: ir.Value) -> ir.Value:
    meeting, _ = _meeting(b, frame, mask)
    arrived = b.binary("addi", meeting.load("arrived"), b.i32(1))
    meeting.store("arrived", arrived)
    meeting.store("mask", mask)
    meeting.store("site", site)
    mask = b.binary("andi", mask, _lanes(b, frame))
    complete = b.compare("sge", arrived, b.value("math.ctpop", int_type(32), (mask,)))
    last, other = b.if_else(complete)
    inside = Fields(last, meeting.address, Meeting)
    inside.store("arrived", last.i32(0))
    inside.store("phase", last.binary("addi", inside.load("phase"), last.i32(1)))
    inside = Fields(other, meeting.address, Meeting)
    wait(other, frame, inside.at("phase"), other.i32(-1), inside.load("phase"), site)
    return b.value("arith.extui", int_type(32), (b.binary("xori", complete, b.const(int_type(1), 1)),))


def _payload(b: Builder, frame: ir.Value, mask: ir.Value) -> ir.Value:
    meeting, _ = _meeting(b, frame, mask)
    # The next generation cannot be complete before this lane has come to it too.
    return _generation(b, meeting, b.binary("subi", meeting.load("phase"), b.i32(1)))


def _lanes(b: Builder, frame: ir.Value) -> ir.Value:
    fields = Fields(b, frame, FrameHeader)
    threads = Fields(b, fields.load("block"), BlockRecord).load("threads")
    left = b.binary("subi", threads, b.binary("andi", fields.load("thread"), b.i32(-WARP)))
    short = b.binary("subi", b.binary("shli", b.i32(1), b.binary("andi", left, b.i32(WARP - 1))), b.i32(1))
    return b.select(b.compare("sge", left, b.i32(WARP)), b.i32(-1), short)


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
    inside = Fields(then, barrier.address, Barrier)
    phase = Fields(then, frame, FrameHeader).load("cluster_phase")
    wait(then, frame, inside.at("phase"), then.i32(-1), phase, site)
    return b.value("arith.extui", int_type(32), (blocked,))
