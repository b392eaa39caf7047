"""`cute_nvgpu` operations as host code: the definition of each, one function each.

The threads of a group of blocks run on one OS thread (`scheduler.py`), so what only they share needs no atomic access.
An operation that waits leaves a wait record and suspends (`threads.py`); every other one just happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...mlir import ir
from ..llvm_build import Builder, int_attr, int_type, ptr_type
from .expand import Expander, expands, from_carrier, to_carrier
from .resume import SUSPEND
from .threads import PAYLOAD, BlockRecord, Fields, FrameHeader, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _text(op: ir.Operation, name: str) -> str:
    return op.attributes[name].value


def _hardware(name: str) -> Callable[[Any], Any]:
    return expands(f"cute_nvgpu.{name}")


def _frame(x: Expander, op: ir.Operation) -> ir.Value:
    """The frame of the running thread; the kernel becomes one that waits."""
    if x.function.frame is None:
        raise report_at(op.location, DSLNotImplemented, f"{op.name} is only possible in a kernel")
    x.function.waits = True
    return x.function.frame


def _site(x: Expander, op: ir.Operation, what: str) -> int:
    return x.module.site(op, "wait", what, x.function.name)


def _call(x: Expander, b: Builder, name: str, operands: Sequence[ir.Value], result: ir.Type | None = None) -> Any:
    results = [] if result is None else [result]
    x.module.declare(name, [v.type for v in operands], results)
    made = b.call(name, results, operands)
    return made.results[0] if result is not None else None


def _suspend(x: Expander, b: Builder) -> None:
    x.module.declare(SUSPEND, [], [])
    b.call(SUSPEND, [], [])


def _suspend_if(x: Expander, b: Builder, must_wait: ir.Value) -> None:
    _suspend(x, b.if_(b.compare("ne", must_wait, b.i32(0))))


# --- barriers and fences ---------------------------------------------------------------------------------------------


@_hardware("barrier")
def _barrier(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    frame, site = _frame(x, op), b.i32(_site(x, op, "barrier"))
    _suspend_if(x, b, _call(x, b, "kiln_cpu_sync", [frame, *op.operands, site], int_type(32)))
    return []


@_hardware("barrier_arrive")
def _barrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _call(x, b, "kiln_cpu_arrive", [_frame(x, op), *op.operands, b.i32(_site(x, op, "barrier"))])
    return []


def _nothing(_x: Expander, _op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    """Accesses are ordered and complete here as soon as they are made; registers and caches are not modelled."""
    return []


for _name in (
    "fence", "prefetch", "cp_async_commit", "cp_async_wait", "cp_async_bulk_commit", "cp_async_bulk_wait",
    "set_max_register", "grid_dependency", "nanosleep", "mbarrier_inval",
):  # fmt: skip
    _hardware(_name)(_nothing)


# --- meetings of lanes -----------------------------------------------------------------------------------------------


def _meet(x: Expander, op: ir.Operation, b: Builder, mask: ir.Value, brings: ir.Value | None) -> ir.Value:
    """Wait for the lanes of a mask; where what they brought lies, `PAYLOAD` bytes each."""
    frame, ptr = _frame(x, op), ptr_type()
    x.function.meets = True
    if brings is not None:
        b.store(brings, _call(x, b, "kiln_cpu_slot", [frame, mask], ptr))
    site = b.i32(_site(x, op, op.name.partition(".")[2]))
    _suspend_if(x, b, _call(x, b, "kiln_cpu_meet", [frame, mask, site], int_type(32)))
    return _call(x, b, "kiln_cpu_payload", [frame, mask], ptr)


def _lane(x: Expander, b: Builder) -> ir.Value:
    assert x.function.frame is not None
    return b.binary("andi", Fields(b, x.function.frame, FrameHeader).load("thread"), b.i32(31))


@_hardware("sync_warp")
def _sync_warp(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _meet(x, op, b, op.operands[0], None)
    return []


@_hardware("shuffle")
def _shuffle(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    value, offset, mask, clamp = op.operands
    bits = to_carrier(b, value)
    if bits.type != int_type(32):
        bits = b.value("arith.bitcast", int_type(32), (bits,))
    brought = _meet(x, op, b, mask, bits)
    lane = _lane(x, b)
    segment = b.binary("andi", b.binary("shrui", clamp, b.i32(8)), b.i32(31))
    inside = b.binary("xori", segment, b.i32(31))
    low = b.binary("andi", lane, segment)
    high = b.binary("ori", low, b.binary("andi", b.binary("andi", clamp, b.i32(31)), inside))
    kind = _text(op, "kind")
    offset = b.binary("andi", offset, b.i32(31))
    if kind == "idx":
        source = b.binary("ori", low, b.binary("andi", offset, inside))
        outside = b.compare("sgt", source, high)
    elif kind == "up":
        source = b.binary("subi", lane, offset)
        outside = b.compare("slt", source, high)
    else:
        source = b.binary("addi" if kind == "down" else "xori", lane, offset)
        outside = b.compare("sgt", source, high)
    source = b.select(outside, lane, source)
    got = b.load(int_type(32), b.byte_gep(brought, b.binary("muli", source, b.i32(PAYLOAD))))
    want = to_carrier_type(results[0])
    if want != int_type(32):
        got = b.value("arith.bitcast", want, (got,))
    return [from_carrier(b, got, results[0])]


def to_carrier_type(type_: ir.Type) -> ir.Type:
    """The LLVM type of a value."""
    from .expand import carrier_type

    return carrier_type(type_)


def _over_lanes(
    x: Expander,
    b: Builder,
    mask: ir.Value,
    brought: ir.Value,
    type_: ir.Type,
    combine: Callable[[Builder, ir.Value, ir.Value, ir.Value], ir.Value],
    start: ir.Value | None,
) -> ir.Value:
    """Fold what the lanes of a mask brought, lowest lane first; without `start`, from the first lane's value."""
    cell = x.at_entry(b.location).alloca(type_)
    begun = x.at_entry(b.location).alloca(int_type(32))
    b.store(b.i32(0), begun)
    if start is not None:
        b.store(start, cell)
    mask = b.binary("andi", mask, _call(x, b, "kiln_cpu_lanes", [_frame_of(x)], int_type(32)))
    each, lane = b.for_(b.i32(0), b.i32(32), b.i32(1))
    bit = each.binary("andi", each.binary("shrui", mask, lane), each.i32(1))
    inside = each.if_(each.compare("ne", bit, each.i32(0)))
    value = inside.load(type_, inside.byte_gep(brought, inside.binary("muli", lane, inside.i32(PAYLOAD))))
    if start is not None:
        inside.store(combine(inside, inside.load(type_, cell), value, lane), cell)
    else:
        first, other = inside.if_else(inside.compare("eq", inside.load(int_type(32), begun), inside.i32(0)))
        first.store(value, cell)
        first.store(first.i32(1), begun)
        other.store(combine(other, other.load(type_, cell), value, lane), cell)
    return b.load(type_, cell)


def _frame_of(x: Expander) -> ir.Value:
    assert x.function.frame is not None
    return x.function.frame


@_hardware("vote")
def _vote(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    predicate, mask = op.operands
    brought = _meet(x, op, b, mask, b.value("arith.extui", int_type(32), (predicate,)))

    def add(inner: Builder, so_far: ir.Value, value: ir.Value, lane: ir.Value) -> ir.Value:
        return inner.binary("ori", so_far, inner.binary("shli", value, lane))

    ballot = _over_lanes(x, b, mask, brought, int_type(32), add, b.i32(0))
    kind = _text(op, "kind")
    if kind == "ballot":
        return [ballot]
    everyone = b.binary("andi", mask, _call(x, b, "kiln_cpu_lanes", [_frame_of(x)], int_type(32)))
    all_ = b.compare("eq", ballot, everyone)
    none = b.compare("eq", ballot, b.i32(0))
    if kind == "all":
        return [all_]
    if kind == "any":
        return [b.binary("xori", none, b.const(int_type(1), 1))]
    return [b.binary("ori", all_, none)]


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


@_hardware("redux")
def _redux(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    value, mask = op.operands
    kind, *modifiers = _text(op, "kind").split(".")
    brought = _meet(x, op, b, mask, value)

    def combine(inner: Builder, so_far: ir.Value, other: ir.Value, _lane: ir.Value) -> ir.Value:
        if kind in _REDUX:
            return inner.binary(_REDUX[kind], so_far, other)
        propagates = "NaN" in modifiers
        name = {"fmin": ("minnumf", "minimumf"), "fmax": ("maxnumf", "maximumf")}[kind][propagates]
        if "abs" in modifiers:
            so_far, other = (inner.value("math.absf", v.type, (v,)) for v in (so_far, other))
        return inner.binary(name, so_far, other)

    return [_over_lanes(x, b, mask, brought, value.type, combine, None)]


@_hardware("elect_one")
def _elect_one(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _frame(x, op)
    return [b.compare("eq", _lane(x, b), b.i32(0))]


@_hardware("warp_uniform")
def _warp_uniform(_x: Expander, op: ir.Operation, _o: Any, _r: Any, _b: Builder) -> list[ir.Value]:
    return [op.operands[0]]


# --- atomics and ordered accesses ------------------------------------------------------------------------------------
# Blocks of other groups run on other OS threads: these are real atomic operations.

_ATOMICS = {
    "exch": 0, "add": 1, "and": 3, "or": 5, "xor": 6, "max": 7, "min": 8, "umax": 9, "umin": 10, "inc": 15, "dec": 16,
}  # fmt: skip
_FADD = 11
_SEQUENTIAL = 7


def _i64_attribute(value: int) -> ir.Attribute:
    return int_attr(int_type(64), value)


def _is_float(type_: ir.Type) -> bool:
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, ir.FloatType)


@_hardware("atomic_rmw")
def _atomic_rmw(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, value = op.operands
    kind = _text(op, "kind")
    number = _FADD if kind == "add" and _is_float(value.type) else _ATOMICS[kind]
    if kind == "exch" and _is_float(value.type):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        raw = b.value("arith.bitcast", bits, (value,))
        old = b.value(
            "llvm.atomicrmw",
            bits,
            (pointer, raw),
            {"bin_op": _i64_attribute(0), "ordering": _i64_attribute(_SEQUENTIAL)},
        )
        return [b.value("arith.bitcast", value.type, (old,))]
    attributes = {"bin_op": _i64_attribute(number), "ordering": _i64_attribute(_SEQUENTIAL)}
    return [b.value("llvm.atomicrmw", value.type, (pointer, value), attributes)]


@_hardware("atomic_cas")
def _atomic_cas(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, compare, value = op.operands
    bits = value.type
    if _is_float(bits):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        compare, value = (b.value("arith.bitcast", bits, (v,)) for v in (compare, value))
    pair = ir.Type.parse(f"!llvm.struct<({bits}, i1)>")
    made = b.value(
        "llvm.cmpxchg", pair, (pointer, compare, value),
        {"success_ordering": _i64_attribute(_SEQUENTIAL), "failure_ordering": _i64_attribute(_SEQUENTIAL)},
    )  # fmt: skip
    old = b.extract(made, bits, 0)
    # whoever loses may be spinning for a lock that another thread of the group holds: let the others run
    _frame(x, op)
    _suspend(x, b.if_(b.compare("ne", old, compare)))
    result = op.results[0].type
    return [old if old.type == result else b.value("arith.bitcast", result, (old,))]


@_hardware("ordered_load")
def _ordered_load(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    _frame(x, op)
    _suspend(x, b)  # a loop around it may wait for another thread of the group
    type_ = to_carrier_type(results[0])
    attributes = {"volatile_": ir.UnitAttr.get()}
    return [from_carrier(b, b.value("llvm.load", type_, (op.operands[0],), attributes), results[0])]


@_hardware("ordered_store")
def _ordered_store(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, value = op.operands
    b.op("llvm.store", (), (to_carrier(b, value), pointer), {"volatile_": ir.UnitAttr.get()})
    return []


# --- mbarriers -------------------------------------------------------------------------------------------------------
# Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes missing; 63: parity of the phase.


@_hardware("mbarrier_init")
def _mbarrier_init(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, count = op.operands
    wide = b.value("arith.extui", int_type(64), (count,))
    b.store(b.binary("ori", wide, b.binary("shli", wide, b.i64(20))), pointer)
    return []


def _peer(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, rank: ir.Value) -> ir.Value:
    """The address in the shared memory of block `rank` of the cluster; negative: this block's."""
    record = Fields(b, Fields(b, _frame(x, op), FrameHeader).load("block"), BlockRecord)
    there = b.binary("subi", rank, record.load("rank"))
    distance = b.binary("muli", there, record.load("chunk"))
    here = b.compare("slt", rank, b.i32(0))
    wide = b.value("arith.extsi", int_type(64), (b.select(here, b.i32(0), distance),))
    return b.byte_gep(pointer, wide)


@_hardware("mbarrier_arrive")
def _mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, count, bytes_, rank = op.operands
    _call(x, b, "kiln_cpu_mbarrier", [_peer(x, op, b, pointer, rank), b.i32(0), bytes_])
    _call(x, b, "kiln_cpu_mbarrier", [_peer(x, op, b, pointer, rank), count, b.i32(0)])
    return []


@_hardware("mbarrier_expect_tx")
def _mbarrier_expect_tx(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, bytes_, rank = op.operands
    _call(x, b, "kiln_cpu_mbarrier", [_peer(x, op, b, pointer, rank), b.i32(0), bytes_])
    return []


def _phase_bit(b: Builder, phase: ir.Value) -> ir.Value:
    return b.binary("shli", b.binary("andi", phase, b.i32(1)), b.i32(31))


def _incomplete(b: Builder, pointer: ir.Value, phase: ir.Value) -> ir.Value:
    """Whether the phase of a parity is still the current one."""
    word = b.load(int_type(32), b.byte_gep(pointer, 4))
    return b.compare("eq", b.binary("andi", word, b.i32(-(1 << 31))), _phase_bit(b, phase))


def _wait_phase(x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, phase: ir.Value) -> None:
    frame, site = _frame(x, op), _site(x, op, "mbarrier")
    then = b.if_(_incomplete(b, pointer, phase))
    wait(then, frame, then.byte_gep(pointer, 4), then.i32(-(1 << 31)), _phase_bit(then, phase), then.i32(site))
    _suspend(x, then)


@_hardware("mbarrier_wait")
def _mbarrier_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _wait_phase(x, op, b, *op.operands)
    return []


@_hardware("mbarrier_try_wait")
def _mbarrier_try_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    # Programs try again until it succeeds; waiting here makes a deadlock visible.
    _wait_phase(x, op, b, *op.operands)
    return [b.const(int_type(1), 1)]


@_hardware("mbarrier_test_wait")
def _mbarrier_test_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _frame(x, op)
    _suspend(x, b)
    return [b.binary("xori", _incomplete(b, *op.operands), b.const(int_type(1), 1))]


# --- asynchronous copies: they are made at once -----------------------------------------------------------------------


@_hardware("cp_async")
def _cp_async(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    target, source, source_size = op.operands
    size = op.attributes["size"].value
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    wide = b.value("arith.extui", i64, (source_size,))
    x.module.declare("memset", [ptr, i32, i64], [ptr])
    b.call("memset", [ptr], [target, b.i32(0), b.i64(size)])
    x.module.declare("memcpy", [ptr, ptr, i64], [ptr])
    b.call("memcpy", [ptr], [target, source, wide])
    return []


@_hardware("cp_async_mbarrier_arrive")
def _cp_async_mbarrier_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _call(x, b, "kiln_cpu_mbarrier", [op.operands[0], b.i32(1), b.i32(0)])
    return []


# --- clusters --------------------------------------------------------------------------------------------------------


@_hardware("cluster_index")
def _cluster_index(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    record = Fields(b, Fields(b, _frame(x, op), FrameHeader).load("block"), BlockRecord)
    which, dim = _text(op, "which"), op.attributes["dim"].value
    sizes = [record.load(f"cluster_{a}") for a in "xyz"]
    if which == "cluster_size":
        return [b.binary("muli", sizes[0], b.binary("muli", sizes[1], sizes[2]))]
    block = x.function.indices["block_idx"]
    within = [b.binary("remui", i, s) for i, s in zip(block, sizes, strict=True)]
    if which == "block_idx_in_cluster":
        return [
            b.binary(
                "addi",
                within[0],
                b.binary("muli", sizes[0], b.binary("addi", within[1], b.binary("muli", sizes[1], within[2]))),
            )
        ]
    if which == "block_in_cluster_idx":
        return [within[dim]]
    if which == "block_in_cluster_dim":
        return [sizes[dim]]
    grid = x.function.indices["grid_dim"]
    return [b.binary("divui", block[dim] if which == "cluster_idx" else grid[dim], sizes[dim])]


@_hardware("cluster_arrive")
def _cluster_arrive(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    _call(x, b, "kiln_cpu_cluster_arrive", [_frame(x, op)])
    return []


@_hardware("cluster_wait")
def _cluster_wait(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    site = b.i32(_site(x, op, "cluster barrier"))
    _suspend_if(x, b, _call(x, b, "kiln_cpu_cluster_wait", [_frame(x, op), site], int_type(32)))
    return []


@_hardware("map_shared")
def _map_shared(x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    pointer, rank = op.operands
    return [_peer(x, op, b, pointer, rank)]


# --- arithmetic units ------------------------------------------------------------------------------------------------


@_hardware("prmt")
def _prmt(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    low, high, selector = op.operands
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
    return [result]


@_hardware("lop3")
def _lop3(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    table, words = op.attributes["lut"].value, list(op.operands)
    negated = [b.binary("xori", w, b.i32(-1)) for w in words]
    result = b.i32(0)
    for n in range(8):
        if not table >> n & 1:
            continue
        term = b.i32(-1)
        for position, (word, inverse) in enumerate(zip(words, negated, strict=True)):
            term = b.binary("andi", term, word if n >> (2 - position) & 1 else inverse)
        result = b.binary("ori", result, term)
    return [result]


@_hardware("approx")
def _approx(_x: Expander, op: ir.Operation, _o: Any, _r: Any, b: Builder) -> list[ir.Value]:
    """The correctly rounded function, or the C library's: closer than the hardware, within its stated error."""
    (value,) = op.operands
    kind, f32 = _text(op, "kind"), value.type
    one = b.value("arith.constant", f32, (), {"value": ir.FloatAttr.get(f32, 1.0)})
    if kind == "rcp":
        return [b.value("arith.divf", f32, (one, value))]
    if kind in ("sqrt", "rsqrt"):
        root = b.value("math.sqrt", f32, (value,))
        return [root if kind == "sqrt" else b.value("arith.divf", f32, (one, root))]
    name = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}[kind]
    return [b.value(f"math.{name}", f32, (value,))]


@_hardware("packed_f32x2")
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


@_hardware("clock")
def _clock(x: Expander, op: ir.Operation, _o: Any, results: Any, b: Builder) -> list[ir.Value]:
    now = _call(x, b, "kiln_cpu_now", [], int_type(64))
    return [now if results[0] == int_type(64) else b.value("arith.trunci", results[0], (now,))]
