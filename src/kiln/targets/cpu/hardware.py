"""`cute_nvgpu` operations as host code: the definition of each, one function each.

The threads of a group of blocks run on one OS thread (`scheduler.py`), so what only they share needs no atomic access.
An operation that waits leaves a wait record and suspends (`threads.py`); every other one just happens. Functions without
an underscore work on values, so that inline PTX (`ptx.py`) can use them too.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...mlir import ir
from ..llvm_build import Builder, int_attr, int_type, ptr_type
from . import scheduler
from .expand import Expander, carrier_type, expands, from_carrier, to_carrier
from .resume import SUSPEND
from .sanitizer.instrument import Hooks
from .threads import PAYLOAD, BlockRecord, Fields, FrameHeader, Meeting, leave, wait, wait_softly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _text(op: ir.Operation, name: str) -> str:
    return op.attributes[name].value


def hardware(name: str) -> Callable[[Any], Any]:
    """Register the expansion of `cute_nvgpu.<name>`."""
    return expands(f"cute_nvgpu.{name}")


def frame_of(x: Expander, op: ir.Operation) -> ir.Value:
    """The frame of the running thread; the kernel becomes one that waits."""
    if x.function.frame is None:
        raise report_at(op.location, DSLNotImplemented, f"{op.name} is only possible in a kernel")
    x.function.waits = True
    return x.function.frame


def site_of(x: Expander, op: ir.Operation, what: str) -> int:
    """The number of a place where threads wait."""
    return x.module.site(op, "wait", what, x.function.name)


def call(x: Expander, b: Builder, name: str, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
    """Call a function of the runtime."""
    results = [] if result is None else [result]
    x.module.declare(name, [v.type for v in operands], results)
    made = b.call(name, results, operands)
    return made.results[0] if result is not None else None


def _suspend(x: Expander, b: Builder) -> None:
    x.module.declare(SUSPEND, [], [])
    b.call(SUSPEND, [], [])


def _suspend_if(x: Expander, b: Builder, must_wait: ir.Value) -> None:
    _suspend(x, b.if_(b.compare("ne", must_wait, b.i32(0))))


def in_open_loop(op: ir.Operation) -> bool:
    """Whether an operation is in a loop that runs until a condition holds: it may be waiting for another thread."""
    parent = op.parent
    while parent is not None:
        name = parent.operation.name if hasattr(parent, "operation") else parent.name
        if name == "scf.while":
            return True
        if name == "func.func":
            return False
        parent = parent.parent
    return False


def let_others_run(x: Expander, op: ir.Operation, b: Builder, what: str) -> None:
    """A look at memory that a loop may repeat until another thread changes it: suspend without waiting for anything."""
    if not in_open_loop(op):
        return
    frame = frame_of(x, op)
    x.function.spins = True
    Fields(b, frame, FrameHeader).store("site", b.i32(site_of(x, op, what)))
    _suspend(x, b)


@expands("scf.while")
def _open_loop(x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> None:
    """A loop that may never end asks each time whether it has to stop."""
    if not x.function.is_kernel:
        return
    frame = frame_of(x, op)
    b = Builder(ir.InsertionPoint.at_block_begin(op.regions[1].blocks[0]), op.location)
    then = b.if_(b.compare("ne", scheduler.stopped(x.module, b, x.function.context), b.i32(0)))
    Fields(then, frame, FrameHeader).store("site", then.i32(site_of(x, op, "loop")))
    _suspend(x, then)


# --- barriers and fences ---------------------------------------------------------------------------------------------


def barrier(x: Expander, op: ir.Operation, b: Builder, number: ir.Value, threads: ir.Value, waits: bool) -> None:
    """Arrive at a barrier of the block, and wait for it."""
    site = site_of(x, op, "barrier")
    operands = [frame_of(x, op), number, threads, b.i32(site)]

    hooks, native = Hooks(x, op), "kiln_cpu_sync" if waits else "kiln_cpu_arrive"

    def again(c: Builder) -> tuple[ir.Value, ir.Value]:
        arrive = lambda: call(x, c, native, operands, int_type(32))
        status = hooks.arrival(c, operands[0], number, threads, int(waits), arrive)
        twice = c.compare("eq", status, c.i32(2))
        _suspend(x, c.if_(twice))
        return twice, status

    loop, _ = b.while_(again, [int_type(32)])
    if waits:
        # a suspend point of its own, so that nothing has to be kept across it
        _suspend_if(x, b, loop.point.block.owner.operation.results[0])
        hooks.passed(b)


@hardware("barrier")
def _barrier(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    barrier(x, op, b, *op.operands, waits=True)
    return []


@hardware("barrier_arrive")
def _barrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    barrier(x, op, b, *op.operands, waits=False)
    return []


def _nothing(_x: Expander, _op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    """Registers and caches are not modelled; a kernel runs when all before it are done."""
    return []


for _name in ("prefetch", "set_max_register", "grid_dependency"):
    hardware(_name)(_nothing)


@hardware("nanosleep")
def _nanosleep(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    let_others_run(x, op, b, "nanosleep")
    return []


def fence(b: Builder, kind: str) -> None:
    """Blocks may run on other OS threads: what orders memory for more than a block is a fence of the host."""
    if "gpu" in kind or "sys" in kind or kind.startswith(("sc", "acq_rel")):
        b.op("llvm.fence", (), (), {"ordering": _i64_attribute(_SEQUENTIAL)})


@hardware("fence")
def _fence(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    Hooks(x, op).fence(b, _text(op, "kind"))
    fence(b, _text(op, "kind"))
    return []


# --- meetings of lanes -----------------------------------------------------------------------------------------------


def _kind(name: str) -> int:
    """Lanes meet if they execute the same instruction, wherever it is written."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def meet_word(x: Expander, op: ir.Operation, b: Builder, name: str, mask: ir.Value, word: ir.Value) -> Fields:
    """Bring 32 bits to the lanes of a mask and wait for theirs."""
    frame = frame_of(x, op)
    x.function.meets = True
    site = b.i32(site_of(x, op, name.partition(".")[0]))
    operands = [frame, mask, b.i32(_kind(name)), site, word]
    Hooks(x, op).meet(b, mask, name.partition(".")[0])
    _suspend_if(x, b, call(x, b, "kiln_cpu_meet_word", operands, int_type(32)))
    return Fields(b, Fields(b, frame, FrameHeader).load("meeting"), Meeting)


def meet(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    name: str,
    mask: ir.Value,
    bring: Sequence[tuple[ir.Value, int]],
) -> Fields:
    """Bring values, each to its byte of this lane's slot, and wait for the lanes of a mask."""
    frame = frame_of(x, op)
    x.function.meets = True
    slot = call(x, b, "kiln_cpu_join", [frame, mask, b.i32(_kind(name))], ptr_type())
    for value, offset in bring:
        b.store(value, b.byte_gep(slot, offset), 8)
    site = b.i32(site_of(x, op, name.partition(".")[0]))
    hooks = Hooks(x, op)
    hooks.meet(b, mask, name.partition(".")[0])
    _suspend_if(x, b, call(x, b, "kiln_cpu_meet", [frame, site], int_type(32)))
    hooks.met(b, name)
    return Fields(b, Fields(b, frame, FrameHeader).load("meeting"), Meeting)


def once(b: Builder, meeting: Fields) -> Builder:
    """What the first lane that goes on does for all."""
    first = b.if_(b.compare("eq", meeting.load("computed"), b.i32(0)))
    meeting.inside(first).store("computed", 1)
    return first


def slot(b: Builder, meeting: Fields, lane: ir.Value) -> ir.Value:
    """Where a lane left what it brought, and finds what it gets."""
    return b.byte_gep(meeting.inside(b).at("payload"), b.binary("muli", lane, b.i32(PAYLOAD)))


def lane_of(x: Expander, b: Builder) -> ir.Value:
    """The lane of the running thread."""
    assert x.function.frame is not None
    return b.binary("andi", Fields(b, x.function.frame, FrameHeader).load("thread"), b.i32(31))


@hardware("sync_warp")
def _sync_warp(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    leave(b, meet(x, op, b, "sync_warp", op.operands[0], []))
    return []


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
    """32 bits of another lane, and whether it was inside the clamp."""
    meeting = meet_word(x, op, b, f"shuffle.{kind}", mask, bits)
    lane = lane_of(x, b)
    segment = b.binary("andi", b.binary("shrui", clamp, b.i32(8)), b.i32(31))
    within = b.binary("xori", segment, b.i32(31))
    low = b.binary("andi", lane, segment)
    high = b.binary("ori", low, b.binary("andi", b.binary("andi", clamp, b.i32(31)), within))
    offset = b.binary("andi", offset, b.i32(31))
    if kind == "idx":
        source = b.binary("ori", low, b.binary("andi", offset, within))
    elif kind == "up":
        source = b.binary("subi", lane, offset)
    else:
        source = b.binary("addi" if kind == "down" else "xori", lane, offset)
    inside = b.compare("sge" if kind == "up" else "sle", source, high)
    source = b.select(inside, source, lane)
    got = b.load(int_type(32), slot(b, meeting, source))
    leave(b, meeting)
    return got, inside


def as_word(b: Builder, value: ir.Value) -> ir.Value:
    """The bits of a value of up to 32 bits."""
    bits = to_carrier(b, value)
    width = bits.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(bits.type, ir.IntegerType):
        bits = b.value("arith.bitcast", int_type(width), (bits,))
    return bits if width == 32 else b.value("arith.extui", int_type(32), (bits,))


def from_word(b: Builder, word: ir.Value, type_: ir.Type) -> ir.Value:
    """The inverse of `as_word`."""
    want = carrier_type(type_)
    if want.width < 32:  # pyright: ignore[reportAttributeAccessIssue]
        word = b.value("arith.trunci", int_type(want.width), (word,))  # pyright: ignore[reportAttributeAccessIssue]
    if word.type != want:
        word = b.value("arith.bitcast", want, (word,))
    return from_carrier(b, word, type_)


@hardware("shuffle")
def _shuffle(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    value, offset, mask, clamp = op.operands
    got, _ = shuffle(x, op, b, _text(op, "kind"), as_word(b, value), offset, mask, clamp)
    return [from_word(b, got, results[0])]


def _fold(
    b: Builder, meeting: Fields, type_: ir.Type, combine: Callable[[Builder, ir.Value, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Combine what the lanes of a meeting brought, lowest first, once for all of them: (so far, value, lane) -> new."""
    first = once(b, meeting)
    result = meeting.inside(first).at("result")
    arrived = meeting.inside(first).load("arrived")
    lowest = first.value("math.cttz", int_type(32), (arrived,))
    first.store(first.load(type_, slot(first, meeting, lowest)), result)
    each, lane = first.for_(first.binary("addi", lowest, first.i32(1)), first.i32(32), first.i32(1))
    bit = each.binary("andi", each.binary("shrui", arrived, lane), each.i32(1))
    inside = each.if_(each.compare("ne", bit, each.i32(0)))
    value = inside.load(type_, slot(inside, meeting, lane))
    inside.store(combine(inside, inside.load(type_, result), value, lane), result)
    made = b.load(type_, meeting.at("result"))
    leave(b, meeting)
    return made


def vote(x: Expander, op: ir.Operation, b: Builder, kind: str, predicate: ir.Value, mask: ir.Value) -> ir.Value:
    """An i1, or an i32 for `ballot`."""
    meeting = meet_word(x, op, b, f"vote.{kind}", mask, b.value("arith.extui", int_type(32), (predicate,)))
    first = once(b, meeting)
    arrived = meeting.inside(first).load("arrived")
    result = meeting.inside(first).at("result")
    first.store(first.i32(0), result)
    each, number = first.for_(first.i32(0), first.i32(32), first.i32(1))
    bit = each.binary("andi", each.binary("shrui", arrived, number), each.i32(1))
    here = each.if_(each.compare("ne", bit, each.i32(0)))
    holds = here.binary("shli", here.load(int_type(32), slot(here, meeting, number)), number)
    here.store(here.binary("ori", here.load(int_type(32), result), holds), result)
    ballot, everyone = b.load(int_type(32), meeting.at("result")), meeting.load("arrived")
    leave(b, meeting)
    if kind == "ballot":
        return ballot
    all_, none = b.compare("eq", ballot, everyone), b.compare("eq", ballot, b.i32(0))
    if kind == "all":
        return all_
    if kind == "any":
        return b.binary("xori", none, b.const(int_type(1), 1))
    return b.binary("ori", all_, none)


@hardware("vote")
def _vote(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [vote(x, op, b, _text(op, "kind"), *op.operands)]


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


@hardware("redux")
def _redux(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [redux(x, op, b, _text(op, "kind"), *op.operands)]


def match(
    x: Expander, op: ir.Operation, b: Builder, kind: str, value: ir.Value, mask: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The lanes that brought the same value, and (`all`) whether all did: without that no lanes."""
    i32 = int_type(32)
    wide = value if value.type == int_type(64) else b.value("arith.extui", int_type(64), (value,))
    meeting = meet(x, op, b, f"match.{kind}.{value.type}", mask, [(wide, 0)])
    cell = x.at_entry(b.location).alloca(i32)
    b.store(b.i32(0), cell)
    arrived = meeting.load("arrived")
    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    here = each.binary("andi", each.binary("shrui", arrived, lane), each.i32(1))
    inside = each.if_(each.compare("ne", here, each.i32(0)))
    same = inside.if_(inside.compare("eq", inside.load(int_type(64), slot(inside, meeting, lane)), wide))
    same.store(same.binary("ori", same.load(i32, cell), same.binary("shli", same.i32(1), lane)), cell)
    leave(b, meeting)
    lanes = b.load(i32, cell)
    everyone = b.compare("eq", lanes, arrived)
    return (lanes if kind == "any" else b.select(everyone, lanes, b.i32(0))), everyone


def elect(x: Expander, op: ir.Operation, b: Builder, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The lowest lane there is, and whether it is this one."""
    meeting = meet(x, op, b, "elect", mask, [])
    chosen = b.value("math.cttz", int_type(32), (meeting.load("arrived"),))
    leave(b, meeting)
    return chosen, b.compare("eq", lane_of(x, b), chosen)


@hardware("elect_one")
def _elect_one(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [elect(x, op, b, b.i32(-1))[1]]


@hardware("warp_uniform")
def _warp_uniform(_x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    return [op.operands[0]]


# --- atomics and ordered accesses ------------------------------------------------------------------------------------
# Blocks of other groups run on other OS threads: these are real atomic operations.

_ATOMICS = {
    "exch": 0, "add": 1, "and": 3, "or": 5, "xor": 6, "max": 7, "min": 8, "umax": 9, "umin": 10, "inc": 15, "dec": 16,
}  # fmt: skip
_FLOAT_ATOMICS = {"add": 11, "max": 13, "min": 14}
_ACQUIRE, _RELEASE, _SEQUENTIAL = 4, 5, 7


def _i64_attribute(value: int) -> ir.Attribute:
    return int_attr(int_type(64), value)


def _is_float(type_: ir.Type) -> bool:
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, ir.FloatType)


def atomic_rmw(
    x: Expander, op: ir.Operation, b: Builder, kind: str, pointer: ir.Value, value: ir.Value, modifiers: str = ""
) -> ir.Value:
    """The old element. Inline PTX gives its order and scope as modifiers."""
    let_others_run(x, op, b, "loop around an atomic operation")
    pointer = Hooks(x, op).atomic(b, pointer, value.type, modifiers)
    attributes = {"ordering": _i64_attribute(_SEQUENTIAL)}
    if kind == "exch" and _is_float(value.type):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        raw = b.value("arith.bitcast", bits, (value,))
        old = b.value("llvm.atomicrmw", bits, (pointer, raw), {**attributes, "bin_op": _i64_attribute(0)})
        return b.value("arith.bitcast", value.type, (old,))
    known = _FLOAT_ATOMICS if _is_float(value.type) else _ATOMICS
    if kind not in known:
        raise report_at(op.location, DSLNotImplemented, f"atomic {kind} of {value.type}")
    return b.value(
        "llvm.atomicrmw", value.type, (pointer, value), {**attributes, "bin_op": _i64_attribute(known[kind])}
    )


@hardware("atomic_rmw")
def _atomic_rmw(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [atomic_rmw(x, op, b, _text(op, "kind"), *op.operands)]


def atomic_cas(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    pointer: ir.Value,
    compare: ir.Value,
    value: ir.Value,
    modifiers: str = "",
) -> ir.Value:
    """The old element. Inline PTX gives its order and scope as modifiers."""
    let_others_run(x, op, b, "loop around an atomic operation")
    pointer = Hooks(x, op).atomic(b, pointer, value.type, modifiers)
    result, bits = value.type, value.type
    if _is_float(bits):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        compare, value = (b.value("arith.bitcast", bits, (v,)) for v in (compare, value))
    pair = ir.Type.parse(f"!llvm.struct<({bits}, i1)>")
    made = b.value(
        "llvm.cmpxchg", pair, (pointer, compare, value),
        {"success_ordering": _i64_attribute(_SEQUENTIAL), "failure_ordering": _i64_attribute(_SEQUENTIAL)},
    )  # fmt: skip
    old = b.extract(made, bits, 0)
    return old if old.type == result else b.value("arith.bitcast", result, (old,))


@hardware("atomic_cas")
def _atomic_cas(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [atomic_cas(x, op, b, *op.operands)]


def _access(b: Builder, type_: ir.Type, modifiers: str, order: int) -> dict[str, ir.Attribute]:
    """Attributes of an access: what other OS threads may see is ordered."""
    width = 0 if isinstance(type_, ir.VectorType) else type_.width  # pyright: ignore[reportAttributeAccessIssue]
    if width not in (8, 16, 32, 64) or not {"acquire", "release", "relaxed", "volatile", "mmio"} & set(
        modifiers.split(".")
    ):
        return {"volatile_": ir.UnitAttr.get()}
    return {
        "volatile_": ir.UnitAttr.get(), "ordering": _i64_attribute(order), "alignment": _i64_attribute(width // 8),
    }  # fmt: skip


def ordered_load(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, type_: ir.Type, modifiers: str
) -> ir.Value:
    """A load that happens here."""
    let_others_run(x, op, b, "loop around a load")
    carrier = carrier_type(type_)
    pointer = Hooks(x, op).ordered(b, pointer, carrier, modifiers, stores=False)
    made = b.value("llvm.load", carrier, (pointer,), _access(b, carrier, modifiers, _ACQUIRE))
    return from_carrier(b, made, type_)


@hardware("ordered_load")
def _ordered_load(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    return [ordered_load(x, op, b, op.operands[0], results[0], _text(op, "modifiers"))]


def ordered_store(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, modifiers: str
) -> None:
    """A store that happens here."""
    value = to_carrier(b, value)
    pointer = Hooks(x, op).ordered(b, pointer, value.type, modifiers, stores=True)
    b.op("llvm.store", (), (value, pointer), _access(b, value.type, modifiers, _RELEASE))


@hardware("ordered_store")
def _ordered_store(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, value = op.operands
    ordered_store(x, op, b, pointer, value, _text(op, "modifiers"))
    return []


# --- mbarriers -------------------------------------------------------------------------------------------------------
# Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes missing; 63: parity of the phase.


def mbarrier_init(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, count: ir.Value) -> None:
    """An mbarrier at the start of its first phase."""
    Hooks(x, op).mbarrier_init(b, pointer, count)
    wide = b.value("arith.extui", int_type(64), (count,))
    b.store(b.binary("ori", wide, b.binary("shli", wide, b.i64(20))), pointer)


@hardware("mbarrier_init")
def _mbarrier_init(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    mbarrier_init(x, op, b, *op.operands)
    return []


@hardware("mbarrier_inval")
def _mbarrier_inval(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    Hooks(x, op).mbarrier_inval(b, op.operands[0])
    return []


def peer(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, rank: ir.Value) -> ir.Value:
    """The address in the shared memory of block `rank` of the cluster; negative: the address itself.

    The address may be another block's already: what counts is its place in its block.
    """
    record = Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord)
    there = b.binary("subi", rank, record.load("rank"))
    distance = b.binary("muli", there, record.load("chunk"))
    here = b.compare("slt", rank, b.i32(0))
    wide = b.value("arith.extsi", int_type(64), (b.select(here, b.i32(0), distance),))
    return b.byte_gep(pointer, wide)


def mbarrier_change(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, arrivals: ir.Value | None, bytes_: ir.Value
) -> None:
    """Add bytes to what a phase misses, then take arrivals from it."""
    hooks = Hooks(x, op)
    hooks.mbarrier_arrive(b, pointer, 0 if arrivals is None else arrivals, bytes_)
    call(x, b, "kiln_cpu_mbarrier", [pointer, b.i32(0), bytes_])
    if arrivals is not None:
        call(x, b, "kiln_cpu_mbarrier", [pointer, arrivals, b.i32(0)])
    hooks.mbarrier_after(b, pointer)


@hardware("mbarrier_arrive")
def _mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, count, bytes_, rank = op.operands
    mbarrier_change(x, op, b, peer(x, op, b, pointer, rank), count, bytes_)
    return []


@hardware("mbarrier_expect_tx")
def _mbarrier_expect_tx(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, bytes_, rank = op.operands
    mbarrier_change(x, op, b, peer(x, op, b, pointer, rank), None, bytes_)
    return []


def _phase_bit(b: Builder, phase: ir.Value) -> ir.Value:
    return b.binary("shli", b.binary("andi", phase, b.i32(1)), b.i32(31))


def _incomplete(b: Builder, pointer: ir.Value, phase: ir.Value) -> ir.Value:
    """Whether the phase of a parity is still the current one."""
    word = b.load(int_type(32), b.byte_gep(pointer, 4))
    return b.compare("eq", b.binary("andi", word, b.i32(-(1 << 31))), _phase_bit(b, phase))


def mbarrier_wait(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, phase: ir.Value, may_fail: bool
) -> ir.Value:
    """Wait for the phase of a parity; whether it is complete. A wait that may fail does so when nothing else can happen."""
    frame, site = frame_of(x, op), site_of(x, op, "mbarrier")
    hooks = Hooks(x, op)
    hooks.mbarrier_wait(b, pointer)
    then = b.if_(_incomplete(b, pointer, phase))
    record = wait_softly if may_fail else wait
    record(then, frame, then.byte_gep(pointer, 4), then.i32(-(1 << 31)), _phase_bit(then, phase), then.i32(site))
    _suspend(x, then)
    if may_fail:
        Fields(then, frame, FrameHeader).store("soft", 0)
    done = b.const(int_type(1), 1)
    if may_fail:
        done = b.binary("xori", _incomplete(b, pointer, phase), done)
    hooks.mbarrier_waited(b, pointer, phase, done)
    return done


@hardware("mbarrier_wait")
def _mbarrier_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    mbarrier_wait(x, op, b, *op.operands, may_fail=False)
    return []


@hardware("mbarrier_try_wait")
@hardware("mbarrier_test_wait")
def _mbarrier_try_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [mbarrier_wait(x, op, b, *op.operands, may_fail=True)]


# --- asynchronous copies (`copies.py`) ---------------------------------------------------------------------------------


def _copies(x: Expander, op: ir.Operation) -> ir.Value:
    x.function.copies = True
    return frame_of(x, op)


def copy_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
) -> None:
    """`bytes_` of `size` bytes, and zeros for the rest."""
    target, source = Hooks(x, op).copy(b, target, source, bytes_, size)
    call(x, b, "kiln_cpu_copy", [_copies(x, op), target, source, bytes_, b.i32(size)])


@hardware("cp_async")
def _cp_async(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    target, source, bytes_ = op.operands
    copy_async(x, op, b, target, source, bytes_, op.attributes["size"].value)
    return []


@hardware("cp_async_commit")
def _cp_async_commit(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_copy_commit", [_copies(x, op)])
    Hooks(x, op).commit(b)
    return []


@hardware("cp_async_wait")
def _cp_async_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_copy_wait", [_copies(x, op), b.i32(op.attributes["count"].value)])
    Hooks(x, op).waited(b, op.attributes["count"].value)
    return []


@hardware("cp_async_mbarrier_arrive")
def _cp_async_mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    hooks = Hooks(x, op)
    hooks.copies_arrive(b, op.operands[0])
    call(x, b, "kiln_cpu_copy_arrive", [_copies(x, op), op.operands[0]])
    hooks.mbarrier_after(b, op.operands[0])
    return []


@hardware("cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_bulk_commit", [_copies(x, op)])
    Hooks(x, op).commit(b, bulk=True)
    return []


@hardware("cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    call(x, b, "kiln_cpu_bulk_wait", [_copies(x, op), b.i32(op.attributes["count"].value)])
    Hooks(x, op).waited(b, op.attributes["count"].value, bulk=True)
    return []


# --- clusters --------------------------------------------------------------------------------------------------------


@hardware("cluster_index")
def _cluster_index(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    record = Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord)
    which, dim = _text(op, "which"), op.attributes["dim"].value
    sizes = [record.load(f"cluster_{a}") for a in "xyz"]
    if which == "cluster_size":
        return [b.binary("muli", sizes[0], b.binary("muli", sizes[1], sizes[2]))]
    if which == "block_idx_in_cluster":
        return [record.load("rank")]
    if which == "block_in_cluster_dim":
        return [sizes[dim]]
    if which == "block_in_cluster_idx":
        return [b.binary("remui", x.function.indices["block_idx"][dim], sizes[dim])]
    index = x.function.indices["block_idx" if which == "cluster_idx" else "grid_dim"]
    return [b.binary("divui", index[dim], sizes[dim])]


def cluster_arrive(x: Expander, op: ir.Operation, b: Builder, relaxed: bool) -> None:
    """Arrive at the cluster's barrier."""
    frame = frame_of(x, op)
    mode = 3 if relaxed else 2
    Hooks(x, op).arrival(b, frame, None, None, mode, lambda: call(x, b, "kiln_cpu_cluster_arrive", [frame]))


def cluster_wait(x: Expander, op: ir.Operation, b: Builder) -> None:
    """Wait for the cluster's barrier."""
    site = b.i32(site_of(x, op, "cluster barrier"))
    _suspend_if(x, b, call(x, b, "kiln_cpu_cluster_wait", [frame_of(x, op), site], int_type(32)))
    Hooks(x, op).passed(b, cluster=True)


@hardware("cluster_arrive")
def _cluster_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    cluster_arrive(x, op, b, "relaxed" in op.attributes)
    return []


@hardware("cluster_wait")
def _cluster_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    cluster_wait(x, op, b)
    return []


@hardware("map_shared")
def _map_shared(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, rank = op.operands
    return [peer(x, op, b, pointer, rank)]


@hardware("dynamic_smem_size")
def _dynamic_smem_size(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [Fields(b, Fields(b, frame_of(x, op), FrameHeader).load("block"), BlockRecord).load("dynamic_smem")]


# --- arithmetic units ------------------------------------------------------------------------------------------------


def prmt(b: Builder, low: ir.Value, high: ir.Value, selector: ir.Value) -> ir.Value:
    """Four of eight bytes."""
    i64 = int_type(64)
    both = b.binary(
        "ori", b.value("arith.extui", i64, (low,)), b.binary("shli", b.value("arith.extui", i64, (high,)), b.i64(32))
    )
    result = b.i32(0)
    for n in range(4):
        nibble = b.binary("andi", b.binary("shrui", selector, b.i32(4 * n)), b.i32(15))
        shift = b.value("arith.extui", i64, (b.binary("shli", b.binary("andi", nibble, b.i32(7)), b.i32(3)),))
        byte = b.binary("andi", b.value("arith.trunci", int_type(32), (b.binary("shrui", both, shift),)), b.i32(255))
        sign = b.binary("subi", b.i32(0), b.binary("shrui", byte, b.i32(7)))
        copies = b.compare("ne", b.binary("andi", nibble, b.i32(8)), b.i32(0))
        byte = b.select(copies, b.binary("andi", sign, b.i32(255)), byte)
        result = b.binary("ori", result, b.binary("shli", byte, b.i32(8 * n)))
    return result


@hardware("prmt")
def _prmt(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [prmt(b, *op.operands)]


def lop3(b: Builder, table: int, words: Sequence[ir.Value]) -> ir.Value:
    """A logical function of three words by its table."""
    negated = [b.binary("xori", w, b.i32(-1)) for w in words]
    result = b.i32(0)
    for n in range(8):
        if not table >> n & 1:
            continue
        term = b.i32(-1)
        for position, (word, inverse) in enumerate(zip(words, negated, strict=True)):
            term = b.binary("andi", term, word if n >> (2 - position) & 1 else inverse)
        result = b.binary("ori", result, term)
    return result


@hardware("lop3")
def _lop3(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [lop3(b, op.attributes["lut"].value, list(op.operands))]


def approx(b: Builder, kind: str, value: ir.Value) -> ir.Value:
    """The correctly rounded function, or the C library's: closer than the hardware, within its stated error."""
    f32 = value.type
    one = b.value("arith.constant", f32, (), {"value": ir.FloatAttr.get(f32, 1.0, b.location)})
    if kind == "rcp":
        return b.value("arith.divf", f32, (one, value))
    if kind in ("sqrt", "rsqrt"):
        root = b.value("math.sqrt", f32, (value,))
        return root if kind == "sqrt" else b.value("arith.divf", f32, (one, root))
    name = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}[kind]
    return b.value(f"math.{name}", f32, (value,))


@hardware("approx")
def _approx(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    return [approx(b, _text(op, "kind"), op.operands[0])]


@hardware("packed_f32x2")
def _packed_f32x2(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    first, second, third = op.operands
    kind, rounding = _text(op, "kind"), _text(op, "rounding")
    if rounding != "rn":
        raise report_at(
            op.location, DSLNotImplemented, f"the CPU target rounds packed arithmetic to nearest, not {rounding}"
        )
    if kind == "fma":
        return [b.value("math.fma", first.type, (first, second, third))]
    return [b.value(f"arith.{kind}f", first.type, (first, second))]


@hardware("clock")
def _clock(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    now = call(x, b, "kiln_cpu_now", [], int_type(64))
    return [now if results[0] == int_type(64) else b.value("arith.trunci", results[0], (now,))]
