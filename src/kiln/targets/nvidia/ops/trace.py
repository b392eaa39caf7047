"""Marks of a trace: entries of a warp in shared memory, which move to global memory when there is no room for more.

Two registers of a thread are all that marks change and read: where the next entry goes, and where there is no more
room. The second is `_NOBODY` in threads whose entries nobody wants, so a mark is a clock, a store under a predicate and,
once in a straight line of code, a comparison. All of it is in one warp: nothing is shared between warps.
"""

from __future__ import annotations

import dataclasses
import math

from ....base_dsl.kernel_trace import HEADER, REGION, UNFINISHED, code_of
from ....dialects.nvgpu.trace import TraceMark, TraceRoom, TraceStart, TraceStop
from ....hardware import features
from ....hardware.limits import WARP
from ....mlir import ir
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ...lowering.marks import DRAINED, DRAINING, PAYLOAD, SHARED_HEADER
from ..device_builder import DeviceBuilder, special_register
from ..expand import Expander

HANDLERS = Handlers()
_NOBODY = 0xFFFF_FFFF


@dataclasses.dataclass
class Recording:
    """Where the entries of a thread go."""

    shared: bool
    """Whether entries are collected in shared memory."""
    room: int
    """Bytes from the first entry to the end of room."""
    chunk_bytes: int
    place: ir.Value
    """The register with the address of the next entry, as memory that LLVM makes a register of."""
    end: ir.Value
    """The address at which there is no more room; `_NOBODY` in threads that make no entries."""

    @property
    def width(self) -> int:
        """Bits of an entry's address."""
        return 32 if self.shared else 64


def _asm(b: DeviceBuilder, lines: str, operands: list[ir.Value], results: tuple[ir.Type, ...] = ()) -> list[ir.Value]:
    letters = ["=r"] * len(results) + ["l" if value.type == int_type(64) else "r" for value in operands]
    return b.asm(f"{{ {lines} }}", ",".join(letters), operands, results)


# --- the beginning ---------------------------------------------------------------------------------------------------


@HANDLERS.expands(TraceStart)
def _start(x: Expander, op: TraceStart, b: DeviceBuilder) -> None:
    i32 = int_type(32)
    i64 = int_type(64)
    entry = x.at_entry(op.location)
    wide = i32 if op.shared else i64
    recording = Recording(bool(op.shared), 8 * op.entries, op.chunk_bytes, entry.alloca(wide), b.i32(0))
    thread = b.linear(
        [special_register(b, f"tid.{axis}") for axis in "xyz"], [special_register(b, f"ntid.{axis}") for axis in "xy"]
    )
    warp = b.binary("shrui", thread, 5)
    slot, chosen = _slot(b, list(op.blocks))
    records = b.binary("andi", chosen, _is_recorded(x, op, b))
    number = b.binary("addi", b.binary("muli", slot, op.warps), warp)
    far = b.binary("muli", b.value("arith.extui", i64, (number,)), op.warp_bytes)
    header = b.binary("addi", far, op.address + REGION)
    first = b.binary("addi", header, HEADER)
    home = first
    if op.shared:
        base = b.value("llvm.ptrtoint", i32, (op.shared[0],))
        home = b.binary("addi", base, b.binary("muli", warp, SHARED_HEADER + op.chunk_bytes))
    body = b.if_(records)
    leader = DeviceBuilder(body.point, body.location)
    _write_header(leader, header)
    if op.shared:
        last = leader.binary("addi", first, op.warp_bytes - HEADER)
        lines = "st.shared.v2.b64 [$0], {$1, $2}; st.shared.v2.b64 [$0+16], {0, $3};"
        _asm(leader, lines, [home, first, last, header])
    place = b.binary("addi", home, SHARED_HEADER) if op.shared else first
    b.store(place, recording.place)
    nobody = b.const(wide, _NOBODY if op.shared else 0)
    recording.end = b.select(records, b.binary("addi", place, recording.room), nobody)
    x.recording = recording


def _slot(b: DeviceBuilder, blocks: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return the number of this CTA among those that are recorded, and whether it is one."""
    block = b.linear(
        [special_register(b, f"ctaid.{axis}") for axis in "xyz"],
        [special_register(b, f"nctaid.{axis}") for axis in "xy"],
    )
    if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
        slot = b.binary("subi", block, blocks[0])
        return slot, b.compare("ult", slot, len(blocks))
    slot = b.i32(0)
    chosen = b.const(int_type(1), 0)
    for number, each in enumerate(blocks):
        same = b.compare("eq", block, each)
        slot = b.select(same, b.i32(number), slot)
        chosen = b.binary("ori", chosen, same)
    return slot, chosen


def _is_recorded(x: Expander, op: TraceStart, b: DeviceBuilder) -> ir.Value:
    """Return whether this lane makes its warp's entries: the elected one, which also runs what one lane alone runs."""
    threads = math.prod(x.module.blocks.get(x.kernel.name, (1,)))
    if op.lane < 0 and threads % WARP == 0 and features.ELECT.on(x.arch):
        return b.value("nvvm.elect.sync", int_type(1))
    return b.compare("eq", special_register(b, "laneid"), max(op.lane, 0))


def _write_header(b: DeviceBuilder, header: ir.Value) -> None:
    """Write what is known of a warp at its beginning, and that it has not ended. See `kernel_trace.Header`."""
    _asm(
        b,
        ".reg .b64 c, g; .reg .b32 s, l, x, y, z, n; mov.u64 g, %globaltimer; mov.u64 c, %clock64; "
        "st.global.v2.b64 [$0], {c, g}; st.global.v2.b64 [$0+16], {0, 0}; "
        "mov.u32 s, %smid; mov.u32 l, %laneid; shl.b32 l, l, 16; or.b32 s, s, l; "
        "ld.global.b32 n, [$0+56]; add.u32 n, n, 1; "
        "mov.u32 x, %nctaid.x; mov.u32 y, %nctaid.y; mov.u32 z, %nctaid.z; "
        f"st.global.v4.b32 [$0+32], {{s, {UNFINISHED}, 0, x}}; st.global.v2.b32 [$0+48], {{y, z}}; "
        "st.global.b32 [$0+56], n;",
        [header],
    )


# --- marks -----------------------------------------------------------------------------------------------------------


@HANDLERS.expands(TraceMark)
def _mark(x: Expander, op: TraceMark, b: DeviceBuilder) -> None:
    recording = x.recording
    if recording is None:  # a function that kernels call
        return
    code = b.i32(code_of(op.site or 0))
    values: list[ir.Value] = []
    if op.payload:
        value = op.payload[0]
        if op.number in ("mbarrier", "barrier"):
            code = b.binary("ori", code, _operand(b, value))
        else:
            values = _words(b, value)
    _entry(b, recording, code, behind=bool(op.behind))
    for word in values:
        _entry(b, recording, b.i32(code_of(PAYLOAD)), word)


BEHIND_BARRIER = "@p st.{space}.b32 [$0], $2;"
"""What makes a warp wait at a barrier of its CTA before it reads the clock: an access to memory.

A warp that comes to a barrier goes on until it accesses memory. On an H200 it reads the clock 18 cycles later, however
late the last warp comes (`benchmarks/kernel_trace.py`). The mark itself then overwrites what is stored.
"""


def _operand(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    """Return an address in shared memory, or a number, in the low bits of a code."""
    i32 = int_type(32)
    number = value if value.type == i32 else b.value("llvm.ptrtoint", i32, (value,))
    return b.binary("andi", number, code_of(1) - 1)


def _words(b: DeviceBuilder, value: ir.Value) -> list[ir.Value]:
    """Return the words of a number, the low one first."""
    i32 = int_type(32)
    if value.type == i32:
        return [value]
    high = b.binary("shrui", value, 32)
    return [b.value("arith.trunci", i32, (part,)) for part in (value, high)]


def _entry(
    b: DeviceBuilder, recording: Recording, code: ir.Value, word: ir.Value | None = None, behind: bool = False
) -> None:
    """Make an entry of the clock, or of a word, and a code."""
    wide = int_type(recording.width)
    place = b.load(wide, recording.place)
    space = "shared" if recording.shared else "global"
    test = f"setp.ne.u32 p, $1, {_NOBODY};" if recording.shared else "setp.lt.u64 p, $0, $1;"
    clock = "mov.u32 t, %clock;" if word is None else "mov.u32 t, $3;"
    if behind:
        clock = f"{BEHIND_BARRIER.format(space=space)} {clock}"
    operands = [place, recording.end, code, *([] if word is None else [word])]
    _asm(b, f".reg .pred p; .reg .b32 t, u; {test} {clock} @p st.{space}.v2.b32 [$0], {{t, $2}};", operands)
    b.store(b.binary("addi", place, 8), recording.place)


# --- moving entries to global memory ---------------------------------------------------------------------------------

_PLACES = "ld.shared.v2.b64 {g, h}, [$0+-32];"
"""Where the next chunk goes, and where the region of the warp ends."""
_BULK = (
    "sub.u32 n, $1, $0; add.u32 n, n, 23; and.b32 n, n, 0xfffffff0; fence.proxy.async.shared::cta; "
    "cp.async.bulk.global.shared::cta.bulk_group [g], [$0], n; cp.async.bulk.commit_group; "
    "cp.async.bulk.wait_group.read 0; "
)
"""One copy of all entries, so that it takes no registers of an MMA that is under way.

It makes a group of copies more than the program does: the program's waits for the last groups wait for no fewer of its
own.
"""
_BY_WORDS = (
    "mov.b64 w, g; mov.b32 n, $0; "
    "MORE: ld.shared.v4.b32 {a0, a1, a2, a3}, [n]; ld.shared.v4.b32 {a4, a5, a6, a7}, [n+16]; "
    "st.global.v4.b32 [w], {a0, a1, a2, a3}; st.global.v4.b32 [w+16], {a4, a5, a6, a7}; "
    "add.u32 n, n, 32; add.u64 w, w, 32; setp.le.u32 q, n, $1; @q bra MORE; "
)


def _moving(x: Expander, recording: Recording) -> str:
    """Return PTX that moves the entries from the address `$0` to `$1` to the warp's region, or counts those lost."""
    copy = _BULK if features.BULK_COPY.on(x.arch) else _BY_WORDS
    return (
        ".reg .pred q; .reg .b32 n, a<8>; .reg .b64 g, h, w; "
        f"st.shared.v2.b32 [$1], {{0, 0}}; {_PLACES} setp.ge.u64 q, g, h; @q bra LOST; {copy} "
        f"add.u64 g, g, {recording.chunk_bytes}; st.shared.b64 [$0+-32], g; bra MOVED; "
        "LOST: sub.u32 n, $1, $0; ld.shared.b32 a0, [$0+-16]; add.u32 n, n, a0; st.shared.b32 [$0+-16], n; MOVED: "
    )


@HANDLERS.expands(TraceRoom)
def _make_room(x: Expander, _op: TraceRoom, b: DeviceBuilder) -> None:
    """Move entries on where there is no room for more, which is an event of its own."""
    recording = x.recording
    if recording is None or not recording.shared:
        return
    i32 = int_type(32)
    place = b.load(i32, recording.place)
    full = b.compare("uge", place, recording.end)
    body = b.if_(b.value("llvm.intr.expect", int_type(1), (full, b.const(int_type(1), 0))))
    inside = DeviceBuilder(body.point, body.location)
    first = inside.binary("subi", recording.end, recording.room)
    begun, ended = (code_of(site) for site in (DRAINING, DRAINED))
    _asm(
        inside,
        f".reg .b32 t, u; mov.u32 t, %clock; {_moving(x, recording)} mov.u32 u, %clock; "
        f"st.shared.v4.b32 [$0], {{t, {begun}, u, {ended}}};",
        [first, place],
    )
    inside.store(inside.binary("addi", first, 16), recording.place)


# --- the end ---------------------------------------------------------------------------------------------------------


@HANDLERS.expands(TraceStop)
def _stop(x: Expander, _op: TraceStop, b: DeviceBuilder) -> None:
    recording = x.recording
    if recording is None:
        return
    place = b.load(int_type(recording.width), recording.place)
    body = b.if_(b.compare("ne", recording.end, _NOBODY if recording.shared else 0))
    leader = DeviceBuilder(body.point, body.location)
    first = leader.binary("subi", recording.end, recording.room)
    clocks = ".reg .b64 c, t; mov.u64 c, %clock64; mov.u64 t, %globaltimer;"
    if recording.shared:
        wait = "cp.async.bulk.wait_group 0;" if features.BULK_COPY.on(x.arch) else ""
        _asm(
            leader,
            f"{clocks} {_moving(x, recording)} {wait} ld.shared.b64 h, [$0+-8]; ld.shared.b64 g, [$0+-32]; "
            f"ld.shared.b32 a0, [$0+-16]; sub.u64 g, g, h; cvt.u32.u64 n, g; sub.u32 n, n, {HEADER}; "
            "st.global.v2.b64 [h+16], {c, t}; st.global.b32 [h+36], n; st.global.b32 [h+40], a0;",
            [first, place],
        )
        return
    _asm(
        leader,
        f"{clocks} .reg .b64 n, m; .reg .b32 k, l; min.u64 n, $1, $2; sub.u64 m, $1, n; sub.u64 n, n, $0; "
        f"cvt.u32.u64 k, n; cvt.u32.u64 l, m; st.global.v2.b64 [$0+-{HEADER - 16}], {{c, t}}; "
        f"st.global.b32 [$0+-{HEADER - 36}], k; st.global.b32 [$0+-{HEADER - 40}], l;",
        [first, place, recording.end],
    )
