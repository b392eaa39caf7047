"""Warp operations, at which lanes meet: shuffles, votes, matches, reductions, elections.

Functions without an underscore work on values, so that inline PTX (`ptx/`) can use them too.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from ....dialects import nvgpu
from ....mlir import ir
from ...lowering.builder import Builder, constant_value, int_type, ptr_type
from ...lowering.expansion import Handlers
from ...lowering.memory import carrier_type, from_carrier, to_carrier
from ..expand import Expander
from ..runtime.record_access import Fields, leave
from ..runtime.records import PAYLOAD, FrameHeader, Meeting
from ..sanitizer.hooks import hooks_of

HANDLERS = Handlers()


def _kind(name: str) -> int:
    """Return the number of a kind of meeting: lanes meet at the same instruction, wherever it stands in the program."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def meet_word(x: Expander, op: ir.Operation, b: Builder, name: str, mask: ir.Value, word: ir.Value) -> Fields:
    """Exchange 32 bits with the lanes of a mask: leave them and wait for theirs."""
    frame = x.frame_of(op)
    x.function.meets = True
    what = name.partition(".")[0]
    site = b.i32(x.site_of(op, what))
    hooks = hooks_of(x, op)
    hooks.meet(b, mask, what)
    operands = [frame, _lanes_met(x, op, b, what, mask), b.i32(_kind(name)), site, word]
    x.suspend_if(b, x.call(b, "kiln_cpu_meet_word", operands, int_type(32)))
    hooks.met(b, what)
    return Fields(b, Fields(b, frame, FrameHeader).load("meeting"), Meeting)


def meet(
    x: Expander, op: ir.Operation, b: Builder, name: str, mask: ir.Value, bring: Sequence[tuple[ir.Value, int]]
) -> Fields:
    """Store values in this lane's slot, each at its byte offset, and wait for the lanes of a mask."""
    frame = x.frame_of(op)
    x.function.meets = True
    what = name.partition(".")[0]
    met = _lanes_met(x, op, b, what, mask)
    slot = x.call(b, "kiln_cpu_join", [frame, met, b.i32(_kind(name))], ptr_type())
    for value, offset in bring:
        b.store(value, b.byte_gep(slot, offset), 8)
    site = b.i32(x.site_of(op, what))
    hooks = hooks_of(x, op)
    hooks.meet(b, mask, what)
    x.suspend_if(b, x.call(b, "kiln_cpu_meet", [frame, site], int_type(32)))
    hooks.met(b, name)
    return Fields(b, Fields(b, frame, FrameHeader).load("meeting"), Meeting)


def _lanes_met(x: Expander, op: ir.Operation, b: Builder, what: str, mask: ir.Value) -> ir.Value:
    """Return the lanes that this lane meets: those of the mask, or itself alone if the mask lacks it.

    PTX leaves the result of such a lane undefined. The others do not wait for it, so it cannot wait for them.
    """
    if constant_value(mask) == -1:
        return mask
    me = b.binary("shli", b.i32(1), lane_of(x, b))
    lacks = b.compare("eq", b.binary("andi", mask, me), 0)
    if x.module.sanitizer is None or "sync" not in x.module.sanitizer.kinds:
        result = "its result is undefined: PTX asks that a lane which executes it is in the mask"
        x.warn(op, b.if_(lacks), f"a {what} is executed by a lane that its mask does not name", result)
    return b.select(lacks, me, mask)


def once(b: Builder, meeting: Fields) -> Builder:
    """Open a branch that only the first lane to continue executes, for all lanes."""
    first = b.if_(b.compare("eq", meeting.load("computed"), 0))
    meeting.inside(first).store("computed", 1)
    return first


def once_for_warp(x: Expander, op: ir.Operation, b: Builder, what: str, meeting: Fields) -> Builder:
    """Open a branch as `once` does for an operation of all 32 lanes; it is a fault if lanes are missing."""
    first = once(b, meeting)
    arrived = meeting.inside(first).load("arrived")
    whole, missing = first.if_else(first.compare("eq", arrived, -1))
    lanes = missing.value("arith.extui", int_type(64), (missing.value("math.ctpop", int_type(32), (arrived,)),))
    x.fault(missing, x.module.site(op, "lanes", what.partition(".")[0], x.function.name, ("i64",)), [lanes])
    return whole


def slot(b: Builder, meeting: Fields, lane: ir.Value) -> ir.Value:
    """Return the slot of a lane, which holds its operands and its results."""
    return b.byte_gep(meeting.inside(b).at("payload"), b.binary("muli", lane, PAYLOAD))


def lane_of(x: Expander, b: Builder) -> ir.Value:
    """Return the lane of the running thread."""
    assert x.function.frame is not None
    return b.binary("andi", Fields(b, x.function.frame, FrameHeader).load("thread"), 31)


def shuffle(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    kind: str,
    bits: ir.Value,
    offset: ir.Value,
    mask: ir.Value,
    clamp: ir.Value,
) -> tuple[ir.Value, ir.Value]:
    """Return 32 bits of another lane, and whether that lane was inside the clamp."""
    meeting = meet_word(x, op, b, f"shuffle.{kind}", mask, bits)
    lane = lane_of(x, b)
    segment = b.binary("andi", b.binary("shrui", clamp, 8), 31)
    within = b.binary("xori", segment, 31)
    low = b.binary("andi", lane, segment)
    high = b.binary("ori", low, b.binary("andi", b.binary("andi", clamp, 31), within))
    offset = b.binary("andi", offset, 31)
    if kind == "idx":
        source = b.binary("ori", low, b.binary("andi", offset, within))
    elif kind == "up":
        source = b.binary("subi", lane, offset)
    else:
        source = b.binary("addi" if kind == "down" else "xori", lane, offset)
    inside = b.compare("sge" if kind == "up" else "sle", source, high)
    reads_it = inside
    if constant_value(mask) != -1:
        there = b.binary("andi", b.binary("shrui", meeting.load("arrived"), b.binary("andi", source, 31)), 1)
        reads_it = b.binary("andi", inside, b.compare("ne", there, 0))
    source = b.select(reads_it, source, lane)
    got = b.load(int_type(32), slot(b, meeting, source))
    leave(b, meeting)
    return got, inside


def as_word(b: Builder, value: ir.Value) -> ir.Value:
    """Return the bits of a value of up to 32 bits."""
    bits = to_carrier(b, value)
    width = bits.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(bits.type, ir.IntegerType):
        bits = b.value("arith.bitcast", int_type(width), (bits,))
    return bits if width == 32 else b.value("arith.extui", int_type(32), (bits,))


def from_word(b: Builder, word: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the inverse of `as_word`."""
    want = carrier_type(type_)
    if want.width < 32:  # pyright: ignore[reportAttributeAccessIssue]
        word = b.value("arith.trunci", int_type(want.width), (word,))  # pyright: ignore[reportAttributeAccessIssue]
    if word.type != want:
        word = b.value("arith.bitcast", want, (word,))
    return from_carrier(b, word, type_)


@HANDLERS.expands(nvgpu.warp.Shuffle)
def _shuffle(x: Expander, op: nvgpu.warp.Shuffle, b: Builder) -> ir.Value:
    got, _ = shuffle(x, op, b, op.kind, as_word(b, op.value), op.offset, op.mask, op.clamp)
    return from_word(b, got, op.result.type)


def _fold(
    b: Builder, meeting: Fields, type_: ir.Type, combine: Callable[[Builder, ir.Value, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Reduce the values of the lanes of a meeting, lowest first, once for all: `combine(so far, value, lane)`."""
    first = once(b, meeting)
    result = meeting.inside(first).at("result")
    arrived = meeting.inside(first).load("arrived")
    lowest = first.value("math.cttz", int_type(32), (arrived,))
    first.store(first.load(type_, slot(first, meeting, lowest)), result)
    each, lane = first.for_(first.binary("addi", lowest, 1), first.i32(32), first.i32(1))
    bit = each.binary("andi", each.binary("shrui", arrived, lane), 1)
    inside = each.if_(each.compare("ne", bit, 0))
    value = inside.load(type_, slot(inside, meeting, lane))
    inside.store(combine(inside, inside.load(type_, result), value, lane), result)
    folded = b.load(type_, meeting.at("result"))
    leave(b, meeting)
    return folded


@HANDLERS.calls(nvgpu.warp.Vote, "kind", "predicate", "mask")
def vote(x: Expander, op: ir.Operation, b: Builder, kind: str, predicate: ir.Value, mask: ir.Value) -> ir.Value:
    """Return an i1, or an i32 for `ballot`."""
    meeting = meet_word(x, op, b, f"vote.{kind}", mask, b.value("arith.extui", int_type(32), (predicate,)))
    first = once(b, meeting)
    arrived = meeting.inside(first).load("arrived")
    result = meeting.inside(first).at("result")
    first.store(first.i32(0), result)
    each, number = first.for_(first.i32(0), first.i32(32), first.i32(1))
    bit = each.binary("andi", each.binary("shrui", arrived, number), 1)
    here = each.if_(each.compare("ne", bit, 0))
    holds = here.binary("shli", here.load(int_type(32), slot(here, meeting, number)), number)
    here.store(here.binary("ori", here.load(int_type(32), result), holds), result)
    ballot = b.load(int_type(32), meeting.at("result"))
    everyone = meeting.load("arrived")
    leave(b, meeting)
    if kind == "ballot":
        return ballot
    all_ = b.compare("eq", ballot, everyone)
    none = b.compare("eq", ballot, 0)
    if kind == "all":
        return all_
    if kind == "any":
        return b.binary("xori", none, b.const(int_type(1), 1))
    return b.binary("ori", all_, none)


_REDUX = {
    "add": "addi",
    "min": "minsi",
    "max": "maxsi",
    "umin": "minui",
    "umax": "maxui",
    "and": "andi",
    "or": "ori",
    "xor": "xori",
}


@HANDLERS.calls(nvgpu.warp.Redux, "kind", "value", "mask")
def redux(x: Expander, op: ir.Operation, b: Builder, name: str, value: ir.Value, mask: ir.Value) -> ir.Value:
    """`name` as in the operation's attribute `kind`."""
    kind, *modifiers = name.split(".")
    if "abs" in modifiers:
        value = b.value("math.absf", value.type, (value,))
    meeting = meet_word(x, op, b, f"redux.{name}", mask, as_word(b, value))

    def combine(inner: Builder, so_far: ir.Value, other: ir.Value, _lane: ir.Value) -> ir.Value:
        if kind in _REDUX:
            return inner.binary(_REDUX[kind], so_far, other)
        propagates = "NaN" in modifiers
        return inner.binary(
            {"fmin": ("minnumf", "minimumf"), "fmax": ("maxnumf", "maximumf")}[kind][propagates], so_far, other
        )

    return _fold(b, meeting, value.type, combine)


def match(
    x: Expander, op: ir.Operation, b: Builder, kind: str, value: ir.Value, mask: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Return the lanes with the same value, and whether all lanes have it; for `all`, no lanes unless all have it."""
    i32 = int_type(32)
    wide = value if value.type == int_type(64) else b.value("arith.extui", int_type(64), (value,))
    meeting = meet(x, op, b, f"match.{kind}.{value.type}", mask, [(wide, 0)])
    cell = x.at_entry(b.location).alloca(i32)
    b.store(b.i32(0), cell)
    arrived = meeting.load("arrived")
    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    here = each.binary("andi", each.binary("shrui", arrived, lane), 1)
    inside = each.if_(each.compare("ne", here, 0))
    same = inside.if_(inside.compare("eq", inside.load(int_type(64), slot(inside, meeting, lane)), wide))
    same.store(same.binary("ori", same.load(i32, cell), same.binary("shli", same.i32(1), lane)), cell)
    leave(b, meeting)
    lanes = b.load(i32, cell)
    everyone = b.compare("eq", lanes, arrived)
    return (lanes if kind == "any" else b.select(everyone, lanes, b.i32(0))), everyone


def elect(x: Expander, op: ir.Operation, b: Builder, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the lowest lane there is, and whether it is this one."""
    meeting = meet(x, op, b, "elect", mask, [])
    chosen = b.value("math.cttz", int_type(32), (meeting.load("arrived"),))
    leave(b, meeting)
    return chosen, b.compare("eq", lane_of(x, b), chosen)


@HANDLERS.expands(nvgpu.warp.ElectOne)
def _elect_one(x: Expander, op: nvgpu.warp.ElectOne, b: Builder) -> ir.Value:
    return elect(x, op, b, b.i32(-1))[1]


@HANDLERS.expands(nvgpu.warp.WarpUniform)
def _warp_uniform(_x: Expander, op: nvgpu.warp.WarpUniform, _b: Builder) -> ir.Value:
    return op.value


@HANDLERS.expands(nvgpu.warp.Match)
def _match(x: Expander, op: nvgpu.warp.Match, b: Builder) -> ir.Value:
    return match(x, op, b, op.kind, op.value, op.mask)[0]
