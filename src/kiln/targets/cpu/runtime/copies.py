"""Asynchronous copies: made at once or, under a schedule seed, at any moment until something waits for them.

    kiln_cpu_copy(frame, target, source, bytes, size)         `bytes` of `size` bytes, and zeros for the rest
    kiln_cpu_copy_commit(frame)                               the copies so far are a group
    kiln_cpu_copy_wait(frame, n)                              wait for all groups but the latest n
    kiln_cpu_copy_arrive(frame, mbarrier)                     arrive when the copies so far are complete
    kiln_cpu_bulk_load(frame, target, source, bytes, mbarrier)    a bulk copy that takes its bytes from an mbarrier
    kiln_cpu_bulk_store(frame, target, source, bytes)             one that belongs to a group
    kiln_cpu_bulk_commit(frame), kiln_cpu_bulk_wait(frame, n)     as above, for those
    kiln_cpu_land_some(block), kiln_cpu_land_all(arena, sizes)    for the scheduler

What has not landed is a list of the block's record. A copy reads its source when it lands, so a source that changes too
early shows.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from ....mlir import ir
from ...lowering.builder import Builder, int_type, ptr_type
from .threads import BlockRecord, Fields, FrameHeader, define

if TYPE_CHECKING:
    from collections.abc import Callable

LANDED, COPY, ARRIVE, BULK_LOAD, BULK_STORE = range(5)


class Copy(ctypes.Structure):
    """A copy that has not landed."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("group", ctypes.c_int32),
        ("bytes", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("target", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("mbarrier", ctypes.c_void_p),
    ]


EXPORTS = (
    "kiln_cpu_copy", "kiln_cpu_copy_commit", "kiln_cpu_copy_wait", "kiln_cpu_copy_arrive", "kiln_cpu_bulk_load",
    "kiln_cpu_bulk_store", "kiln_cpu_bulk_commit", "kiln_cpu_bulk_wait", "kiln_cpu_land_some", "kiln_cpu_land_all",
)  # fmt: skip


def build(module: ir.Module) -> None:
    """Add the functions to a module."""
    ptr, i32 = ptr_type(), int_type(32)
    define(module, "kiln_cpu_make_copy", [ptr], [], _make)
    define(module, "kiln_cpu_land", [ptr, ptr], [], _land)
    define(module, "kiln_cpu_defer", [ptr, i32, ptr, ptr, i32, i32, ptr], [], _defer)
    define(module, "kiln_cpu_copy", [ptr, ptr, ptr, i32, i32], [], _copy)
    define(module, "kiln_cpu_copy_commit", [ptr], [], lambda b, frame: _commit(b, frame, "copy_group"))
    define(module, "kiln_cpu_copy_wait", [ptr, i32], [], lambda b, f, n: _wait(b, f, n, COPY, "copy_group"))
    define(module, "kiln_cpu_copy_arrive", [ptr, ptr], [], _arrive)
    define(module, "kiln_cpu_bulk_load", [ptr, ptr, ptr, i32, ptr], [], _bulk_load)
    define(module, "kiln_cpu_bulk_store", [ptr, ptr, ptr, i32], [], _bulk_store)
    define(module, "kiln_cpu_bulk_commit", [ptr], [], lambda b, frame: _commit(b, frame, "bulk_group"))
    define(module, "kiln_cpu_bulk_wait", [ptr, i32], [], lambda b, f, n: _wait(b, f, n, BULK_STORE, "bulk_group"))
    define(module, "kiln_cpu_land_some", [ptr], [i32], _land_some)
    define(module, "kiln_cpu_land_all", [ptr, ptr], [], _land_all)


def _make(b: Builder, copy: ir.Value) -> None:
    """Do what an entry says."""
    entry = Fields(b, copy, Copy)
    kind = entry.load("kind")
    size, bytes_ = entry.load("size"), entry.load("bytes")
    i32, i64, ptr = int_type(32), int_type(64), ptr_type()
    moves = b.if_(b.compare("ne", kind, b.i32(ARRIVE)))
    inside = entry.inside(moves)
    wide = moves.value("arith.extui", i64, (bytes_,))
    moves.call("memcpy", [ptr], [inside.load("target"), inside.load("source"), wide])
    rest = moves.value("arith.extui", i64, (moves.binary("subi", size, bytes_),))
    moves.call("memset", [ptr], [moves.byte_gep(inside.load("target"), wide), moves.i32(0), rest])
    arrives = b.if_(b.compare("eq", kind, b.i32(ARRIVE)))
    arrives.call("kiln_cpu_mbarrier", [], [entry.inside(arrives).load("mbarrier"), arrives.i32(1), arrives.i32(0)])
    completes = b.if_(b.compare("eq", kind, b.i32(BULK_LOAD)))
    taken = completes.binary("subi", completes.i32(0), bytes_)
    completes.call("kiln_cpu_mbarrier", [], [entry.inside(completes).load("mbarrier"), completes.i32(0), taken])
    entry.store("kind", LANDED)
    del i32


def _entries(b: Builder, block: Fields, body: Callable[[Builder, Fields], None]) -> None:
    """For each entry of a block that has not landed, oldest first."""
    each, number = b.for_(b.i32(0), block.inside(b).load("copies_count"), b.i32(1))
    offset = each.binary("muli", number, each.i32(ctypes.sizeof(Copy)))
    entry = Fields(each, each.byte_gep(block.inside(each).load("copies"), offset), Copy)
    there = each.if_(each.compare("ne", entry.load("kind"), each.i32(LANDED)))
    body(there, entry.inside(there))


def _land(b: Builder, block_address: ir.Value, copy: ir.Value) -> None:
    """Let an entry land; what arrives after copies lets those of its thread land first."""
    block, entry = Fields(b, block_address, BlockRecord), Fields(b, copy, Copy)
    arrives = b.if_(b.compare("eq", entry.load("kind"), b.i32(ARRIVE)))
    thread = entry.inside(arrives).load("thread")
    own = arrives.value("llvm.ptrtoint", int_type(64), (copy,))

    def earlier(c: Builder, other: Fields) -> None:
        mine = c.compare("eq", other.load("thread"), thread)
        before = c.compare("ult", c.value("llvm.ptrtoint", int_type(64), (other.address,)), own)
        is_copy = c.compare("eq", other.load("kind"), c.i32(COPY))
        first = c.if_(c.binary("andi", is_copy, c.binary("andi", mine, before)))
        first.call("kiln_cpu_make_copy", [], [other.address])
        _forget(first, block)

    _entries(arrives, block, earlier)
    b.call("kiln_cpu_make_copy", [], [copy])
    _forget(b, block)


def _forget(b: Builder, block: Fields) -> None:
    """An entry has landed: without any left the list starts over."""
    inside = block.inside(b)
    left = b.binary("subi", inside.load("copies_left"), b.i32(1))
    inside.store("copies_left", left)


def _defer(
    b: Builder,
    frame: ir.Value,
    kind: ir.Value,
    target: ir.Value,
    source: ir.Value,
    bytes_: ir.Value,
    size: ir.Value,
    mbarrier: ir.Value,
) -> None:
    header = Fields(b, frame, FrameHeader)
    block = Fields(b, header.load("block"), BlockRecord)
    none = b.if_(b.compare("eq", block.load("copies_left"), b.i32(0)))
    block.inside(none).store("copies_count", 0)
    count = block.load("copies_count")
    full = b.if_(b.compare("eq", count, block.load("copies_room")))
    inside = block.inside(full)
    room = full.binary("addi", full.binary("muli", count, full.i32(2)), full.i32(64))
    size_of_all = full.value("arith.extui", int_type(64), (full.binary("muli", room, full.i32(ctypes.sizeof(Copy))),))
    inside.store("copies", full.call("realloc", [ptr_type()], [inside.load("copies"), size_of_all]).results[0])
    inside.store("copies_room", room)
    entry = Fields(b, b.byte_gep(block.load("copies"), b.binary("muli", count, b.i32(ctypes.sizeof(Copy)))), Copy)
    block.store("copies_count", b.binary("addi", count, b.i32(1)))
    block.store("copies_left", b.binary("addi", block.load("copies_left"), b.i32(1)))
    is_bulk = b.compare("eq", kind, b.i32(BULK_STORE))
    group = b.select(is_bulk, header.load("bulk_group"), header.load("copy_group"))
    for name, value in (
        ("kind", kind), ("thread", header.load("thread")), ("group", group), ("bytes", bytes_), ("size", size),
        ("target", target), ("source", source), ("mbarrier", mbarrier),
    ):  # fmt: skip
        entry.store(name, value)


def _now_or_later(
    b: Builder,
    frame: ir.Value,
    kind: int,
    target: ir.Value | None,
    source: ir.Value | None,
    bytes_: ir.Value,
    size: ir.Value,
    mbarrier: ir.Value | None,
) -> None:
    from .scheduler import SEED

    later, now = b.if_else(b.compare("ne", b.load(int_type(64), b.address_of(SEED)), b.i64(0)))
    values = [later.null() if v is None else v for v in (target, source, mbarrier)]
    later.call("kiln_cpu_defer", [], [frame, later.i32(kind), values[0], values[1], bytes_, size, values[2]])
    if kind != ARRIVE:
        assert target is not None
        assert source is not None
        wide = now.value("arith.extui", int_type(64), (bytes_,))
        now.call("memcpy", [ptr_type()], [target, source, wide])
        rest = now.value("arith.extui", int_type(64), (now.binary("subi", size, bytes_),))
        now.call("memset", [ptr_type()], [now.byte_gep(target, wide), now.i32(0), rest])
    if kind == ARRIVE:
        assert mbarrier is not None
        now.call("kiln_cpu_mbarrier", [], [mbarrier, now.i32(1), now.i32(0)])
    if kind == BULK_LOAD:
        assert mbarrier is not None
        now.call("kiln_cpu_mbarrier", [], [mbarrier, now.i32(0), now.binary("subi", now.i32(0), bytes_)])


def _copy(b: Builder, frame: ir.Value, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: ir.Value) -> None:
    _now_or_later(b, frame, COPY, target, source, bytes_, size, None)


def _arrive(b: Builder, frame: ir.Value, mbarrier: ir.Value) -> None:
    _now_or_later(b, frame, ARRIVE, None, None, b.i32(0), b.i32(0), mbarrier)


def _bulk_load(
    b: Builder, frame: ir.Value, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value
) -> None:
    _now_or_later(b, frame, BULK_LOAD, target, source, bytes_, bytes_, mbarrier)


def _bulk_store(b: Builder, frame: ir.Value, target: ir.Value, source: ir.Value, bytes_: ir.Value) -> None:
    _now_or_later(b, frame, BULK_STORE, target, source, bytes_, bytes_, None)


def _commit(b: Builder, frame: ir.Value, field: str) -> None:
    header = Fields(b, frame, FrameHeader)
    header.store(field, b.binary("addi", header.load(field), b.i32(1)))


def _wait(b: Builder, frame: ir.Value, latest: ir.Value, kind: int, field: str) -> None:
    header = Fields(b, frame, FrameHeader)
    block = Fields(b, header.load("block"), BlockRecord)
    thread, end = header.load("thread"), b.binary("subi", header.load(field), latest)
    some = b.if_(b.compare("ne", block.load("copies_left"), b.i32(0)))

    def due(c: Builder, entry: Fields) -> None:
        mine = c.binary(
            "andi", c.compare("eq", entry.load("thread"), thread), c.compare("eq", entry.load("kind"), c.i32(kind))
        )
        old = c.compare("slt", entry.load("group"), end)
        c.if_(c.binary("andi", mine, old)).call("kiln_cpu_land", [], [block.address, entry.address])

    _entries(some, block, due)


def _land_some(b: Builder, block_address: ir.Value) -> ir.Value:
    """Each copy lands one time in four; whether there were any."""
    block = Fields(b, block_address, BlockRecord)
    some = b.compare("ne", block.load("copies_left"), b.i32(0))

    def maybe(c: Builder, entry: Fields) -> None:
        drawn = c.call("kiln_cpu_random", [int_type(32)], [block.inside(c).at("random"), c.i32(4)]).results[0]
        c.if_(c.compare("eq", drawn, c.i32(0))).call("kiln_cpu_land", [], [block.address, entry.address])

    _entries(b.if_(some), block, maybe)
    return b.value("arith.extui", int_type(32), (some,))


def _land_all(b: Builder, arena: ir.Value, sizes: ir.Value) -> None:
    """At the end of a group: what nobody waited for lands too."""
    from .scheduler import SIZES

    i32, i64 = int_type(32), int_type(64)
    smem, chunk, group = (b.load(i32, b.gep(sizes, i32, SIZES.index(name))) for name in ("smem", "chunk", "group"))
    each, rank = b.for_(b.i32(0), group, b.i32(1))
    at = each.binary("muli", *(each.value("arith.extui", i64, (v,)) for v in (rank, chunk)))
    block = Fields(each, each.byte_gep(each.byte_gep(arena, at), smem), BlockRecord)

    def rest(c: Builder, entry: Fields) -> None:
        c.call("kiln_cpu_land", [], [block.address, entry.address])

    some = each.if_(each.compare("ne", block.load("copies_left"), each.i32(0)))
    _entries(some, block, rest)
    each.call("free", [], [block.load("copies")])
