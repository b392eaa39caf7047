"""Marks of a trace: the entries of a warp, whose clock is how many marks the kernel's warps have made before."""

from __future__ import annotations

import dataclasses

from ....base_dsl.kernel_trace import ENTRY, HEADER, REGION, Header, code_of
from ....dialects.nvgpu.trace import TraceMark, TraceRoom, TraceStart, TraceStop
from ....mlir import ir
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import Handlers
from ...lowering.marks import PAYLOAD
from ..expand import Expander

HANDLERS = Handlers()


@dataclasses.dataclass
class Recording:
    """Where the entries of a kernel go."""

    address: int
    warps: int
    warp_bytes: int
    entries: int
    lane: int
    blocks: tuple[int, ...]


@HANDLERS.expands(TraceStart)
def _start(x: Expander, op: TraceStart, b: Builder) -> None:
    lane = max(op.lane, 0)
    x.function.recording = Recording(op.address, op.warps, op.warp_bytes, op.entries, lane, tuple(op.blocks))
    inside, header = _of_recorded_warp(x, b)
    for name, words in (("end", 2), ("bytes", 1), ("lost", 1)):
        _store(inside, header, name, inside.const(int_type(32 * words), 0))
    _store(inside, header, "begin", _now(x, inside))
    for number, extent in enumerate(x.function.indices["grid_dim"]):
        inside.store(extent, inside.byte_gep(header, Header.grid.offset + 4 * number))
    launches = inside.byte_gep(header, Header.launches.offset)
    inside.store(inside.binary("addi", inside.load(int_type(32), launches), 1), launches)


@HANDLERS.expands(TraceMark)
def _mark(x: Expander, op: TraceMark, b: Builder) -> None:
    if x.function.recording is None:  # a function that kernels call
        return
    inside, header = _of_recorded_warp(x, b)
    code = inside.i32(code_of(op.site or 0))
    words: list[ir.Value] = []
    if op.payload:
        value = op.payload[0]
        if op.number in ("mbarrier", "barrier"):
            code = inside.binary("ori", code, inside.binary("andi", _word(inside, value), code_of(1) - 1))
        else:
            shifts = range(0, value.type.width, 32)  # pyright: ignore[reportAttributeAccessIssue]
            words = [_word(inside, inside.binary("shrui", value, shift)) for shift in shifts]
    time = inside.value("arith.trunci", int_type(32), (_now(x, inside),))
    for word, its_code in ((time, code), *((word, inside.i32(code_of(PAYLOAD))) for word in words)):
        _entry(x, inside, header, word, its_code)


@HANDLERS.expands(TraceRoom)
def _make_room(_x: Expander, _op: TraceRoom, _b: Builder) -> None:
    """Do nothing: entries go where they stay."""


@HANDLERS.expands(TraceStop)
def _stop(x: Expander, _op: TraceStop, b: Builder) -> None:
    if x.function.recording is not None:
        inside, header = _of_recorded_warp(x, b)
        _store(inside, header, "end", _now(x, inside))


def _of_recorded_warp(x: Expander, b: Builder) -> tuple[Builder, ir.Value]:
    """Return a builder of what only the recorded lane of a recorded warp does, and the address of its header."""
    recording = x.function.recording
    assert recording is not None
    indices = x.function.indices
    thread = b.linear(indices["thread_idx"], indices["block_dim"])
    block = b.linear(indices["block_idx"], indices["grid_dim"])
    slot = b.i32(0)
    recorded = b.const(int_type(1), 0)
    for number, each in enumerate(recording.blocks):
        same = b.compare("eq", block, each)
        slot = b.select(same, b.i32(number), slot)
        recorded = b.binary("ori", recorded, same)
    recorded = b.binary("andi", recorded, b.compare("eq", b.binary("andi", thread, 31), recording.lane))
    inside = b.if_(recorded)
    warp = inside.binary("shrui", thread, 5)
    number = inside.binary("addi", inside.binary("muli", slot, recording.warps), warp)
    wide = inside.value("arith.extui", int_type(64), (number,))
    address = inside.binary("addi", inside.binary("muli", wide, recording.warp_bytes), recording.address + REGION)
    return inside, inside.value("llvm.inttoptr", ptr_type(), (address,))


def _now(x: Expander, b: Builder) -> ir.Value:
    recording = x.function.recording
    assert recording is not None
    return b.atomic("add", b.value("llvm.inttoptr", ptr_type(), (b.i64(recording.address),)), b.i64(1))


def _store(b: Builder, header: ir.Value, field: str, value: ir.Value) -> None:
    b.store(value, b.byte_gep(header, getattr(Header, field).offset))


def _word(b: Builder, value: ir.Value) -> ir.Value:
    """Return the low 32 bits of a number or an address."""
    i32 = int_type(32)
    if value.type == ptr_type():
        value = b.value("llvm.ptrtoint", int_type(64), (value,))
    return value if value.type == i32 else b.value("arith.trunci", i32, (value,))


def _entry(x: Expander, b: Builder, header: ir.Value, word: ir.Value, code: ir.Value) -> None:
    """Add an entry if there is room, or count what is lost."""
    recording = x.function.recording
    assert recording is not None
    i32 = int_type(32)
    used = b.load(i32, b.byte_gep(header, Header.bytes.offset))
    fits, full = b.if_else(b.compare("ult", used, recording.entries * ENTRY))
    place = fits.byte_gep(header, fits.binary("addi", used, HEADER))
    fits.store(word, place)
    fits.store(code, fits.byte_gep(place, 4))
    _store(fits, header, "bytes", fits.binary("addi", used, ENTRY))
    lost = full.byte_gep(header, Header.lost.offset)
    full.store(full.binary("addi", full.load(i32, lost), ENTRY), lost)
