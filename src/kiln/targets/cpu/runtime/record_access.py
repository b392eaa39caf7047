"""Inline accesses of kernel code to the records of threads (`records.py`), built with a `Builder`.

Calls of native functions (`threads.py`, `engines.py`) do the rest.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ....mlir import ir
from ...lowering.builder import Builder, int_type, ptr_type
from .records import COMPLETE, FREE, BlockRecord, FrameHeader


class Fields:
    """A C structure at an address."""

    def __init__(self, b: Builder, address: ir.Value, kind: type[ctypes.Structure]) -> None:
        self.b = b
        self.address = address
        self.kind = kind

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
        """Return the same structure for a builder in another region."""
        return Fields(b, self.address, self.kind)


def block_of(b: Builder, frame: ir.Value) -> Fields:
    """Return the record of the block that a thread belongs to."""
    return Fields(b, Fields(b, frame, FrameHeader).load("block"), BlockRecord)


def wait(b: Builder, frame: ir.Value, address: ir.Value, mask: ir.Value, value: ir.Value, site: ir.Value) -> None:
    """Write a wait record: the thread is blocked while `*address & mask == value`."""
    fields = Fields(b, frame, FrameHeader)
    fields.store("wait_address", address)
    fields.store("wait_mask", mask)
    fields.store("wait_value", value)
    fields.store("site", site)


def waits_no_more(b: Builder, frame: ir.Value) -> None:
    """Clear a wait record: mask 0, value 1."""
    b.store(b.i64(1 << 32), Fields(b, frame, FrameHeader).at("wait_mask"))


def wait_softly(
    b: Builder, frame: ir.Value, address: ir.Value, mask: ir.Value, value: ir.Value, site: ir.Value
) -> None:
    """Write the record of a wait that may fail."""
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

    The hidden arguments (`expand.FunctionState`): context, static and dynamic shared memory, four triples of indices,
    frame.
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


def leave(b: Builder, meeting: Fields) -> None:
    """Leave a meeting: its record is free when all lanes have left."""
    meeting = meeting.inside(b)
    readers = b.binary("subi", meeting.load("readers"), 1)
    meeting.store("readers", readers)
    meeting.store("state", b.select(b.compare("eq", readers, 0), b.i32(FREE), b.i32(COMPLETE)))
