"""Moves, arithmetic of integers and floats, predicates, conversions, functions."""

from __future__ import annotations

from ....base_dsl.numeric import formats
from ....base_dsl.numeric.expand import Emitter, extend, truncate
from ....mlir import ir
from ....ptx.syntax import Immediate, Operand, Pair, Statement
from ...host import math
from ...host.rounding import rounded, rounding_of, step
from ...lowering.arithmetic import intrinsic
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..ops.cute import shared_address, shared_pointer
from .machine import (
    BITS,
    INTEGER,
    PARTS,
    Machine,
    Refused,
    as_float,
    expanded,
    float_bits,
    float_type,
    is_float,
    resized,
    typed,
)

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("mov")
def _mov(m: Machine, s: Statement) -> ir.Value:
    return m.bits(s.operands[1], BITS[typed(s)])


@INSTRUCTIONS.expands("cvta")
def _cvta(m: Machine, s: Statement) -> ir.Value:
    """Convert between addresses of a state space and generic ones; only the low 32 bits of a shared address count."""
    width = BITS[typed(s)]
    value = m.bits(s.operands[1], width)
    if any(part.startswith("shared") for part in s.modifiers):
        if "to" not in s.modifiers:
            address_ = shared_pointer(m.x, m.op, m.b, resized(m.b, value, 32))
            value = m.b.value("llvm.ptrtoint", int_type(64), (address_,))
        elif width == 64:
            value = shared_address(m.x, m.op, m.b, m.b.value("llvm.inttoptr", ptr_type(), (value,)))
    return resized(m.b, value, width)


_UNDERSTOOD = {"rn", "rz", "rm", "rp", "ftz", "sat", "relu", "NaN", "lo", "hi", "wide", "approx", "full", "cc"}


def _refuse_others(s: Statement, understood: set[str]) -> None:
    """Refuse modifiers that are not understood, instead of ignoring them."""
    for part in s.modifiers:
        if part not in understood and part not in BITS:
            raise Refused(f"the modifier .{part}")


@INSTRUCTIONS.expands("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "and", "or", "xor", "not")
def _arithmetic(m: Machine, s: Statement) -> ir.Value:
    kind = typed(s)
    sources = s.operands[1:]
    _refuse_others(s, _UNDERSTOOD)
    if kind.startswith(("e", "tf")):
        raise Refused(f"arithmetic of {kind}")
    if kind in PARTS:
        return _each_half(m, s, _source_types(s))
    if is_float(kind):
        result = next(part for part in s.modifiers if part in BITS)  # of fma.rn.f32.f16 it is that of the last operand
        values = [m.float(o, kind) for o in sources[:-1]] + [m.float(sources[-1], result)]
        return float_bits(m.b, m.x, _float_operation(m, s, result, values), result)
    width = BITS[kind]
    values = [m.bits(o, width) for o in sources[:2]]
    values += [m.bits(o, 2 * width if "wide" in s.modifiers else width) for o in sources[2:]]
    return _integer_operation(m.b, s, kind, values)


def _source_types(s: Statement) -> list[str]:
    """Return the types of the sources of an operation on pairs: the one that it names, or (sm_107) a pair of f16 or bf16
    first where the others and the result, named before it, are pairs of f32."""
    kinds = [part for part in s.modifiers if part in BITS]
    sources = len(s.operands) - 1
    if len(kinds) == 1:
        return kinds * sources
    others = ["f32x2"] * (sources - 1)
    mixed = [("f32x2", half, *others) for half in ("f16x2", "bf16x2")]
    if s.name not in ("add", "sub", "fma") or tuple(kinds) not in mixed or s.one_of("ftz", "sat", "relu"):
        raise Refused(f"{s.name} of {' and '.join(kinds)}")
    return kinds[1:]


def _each_half(m: Machine, s: Statement, kinds: list[str]) -> ir.Value:
    part = PARTS[kinds[-1]]
    whole = [m.bits(o, BITS[kind]) for o, kind in zip(s.operands[1:], kinds, strict=True)]
    halves: list[ir.Value] = []
    for number in range(2):
        values = [_half(m.b, value, number, BITS[kind] // 2) for value, kind in zip(whole, kinds, strict=True)]
        if is_float(part):
            floats = [as_float(m.b, m.x, value, PARTS[kind]) for value, kind in zip(values, kinds, strict=True)]
            halves.append(float_bits(m.b, m.x, _float_operation(m, s, part, floats), part))
        else:
            halves.append(_integer_operation(m.b, s, part, values))
    return _joined(m.b, *halves)


def _half(b: Builder, value: ir.Value, number: int, width: int) -> ir.Value:
    return resized(b, b.binary("shrui", value, number * width), width)


def _joined(b: Builder, first: ir.Value, second: ir.Value) -> ir.Value:
    """Return two parts as one number of twice the bits, the first in its lower half."""
    width = first.type.width  # pyright: ignore[reportAttributeAccessIssue]
    low, high = (resized(b, part, 2 * width) for part in (first, second))
    return b.binary("ori", low, b.binary("shli", high, width))


def _float_constant(b: Builder, type_: ir.Type, value: float) -> ir.Value:
    return b.value("arith.constant", type_, (), {"value": ir.FloatAttr.get(type_, value, b.location)})


def _limited(b: Builder, value: ir.Value, s: Statement) -> ir.Value:
    """Return a float as `.relu` (not negative; NaN stays) and `.sat` (from 0 to 1; NaN is 0) say."""
    limits = [("relu", "maximumf", 0.0), ("sat", "maxnumf", 0.0), ("sat", "minnumf", 1.0)]
    for modifier, name, limit in limits:
        if modifier in s.modifiers:
            value = b.binary(name, value, _float_constant(b, value.type, limit))
    return value


_FLOAT_OPERATIONS = {
    "add": "arith.addf",
    "sub": "arith.subf",
    "mul": "arith.mulf",
    "div": "arith.divf",
    "fma": "math.fma",
    "mad": "math.fma",
}


def _float_operation(m: Machine, s: Statement, kind: str, values: list[ir.Value]) -> ir.Value:
    b = m.b
    x = m.x
    type_ = values[0].type
    name = s.name
    direction = rounding_of(s.modifiers)
    if direction and kind not in ("f32", "f64"):
        raise Refused(f"rounding .{direction} of {kind}")
    if direction and name in _FLOAT_OPERATIONS:
        result = rounded(x, b, "fma" if name == "mad" else name, direction, type_, *values)
    elif (name in ("fma", "mad") and kind in ("f16", "bf16")) or (name == "mul" and kind == "bf16"):
        result = _rounds_once(x, b, values)  # f32 holds other results as they are, or precisely enough
    elif name in _FLOAT_OPERATIONS:
        result = expanded(x, b, _FLOAT_OPERATIONS[name], type_, *values)
    elif name in ("min", "max"):
        result = values[0]
        for value in values[1:]:
            result = b.binary(f"{name}{'imumf' if 'NaN' in s.modifiers else 'numf'}", result, value)
    elif name in ("neg", "abs"):
        result = b.value("arith.negf" if name == "neg" else "math.absf", type_, (values[0],))
    else:
        raise Refused(f"{name} of floats")
    return _limited(b, result, s)


def _rounds_once(x: Expander, b: Builder, values: list[ir.Value]) -> ir.Value:
    """Return a * b, or a * b + c, of 16-bit floats as an f32 that rounds to 16 bits as the exact result does: where
    that lies between two f32, the odd one of them."""
    wide = float_type("f64")
    first, second, *rest = (expanded(x, b, "arith.extf", wide, value) for value in values)
    total = product = b.binary("mulf", first, second)  # exact
    lost: ir.Value | None = None
    for addend in rest:
        total = b.binary("addf", product, addend)
        added = b.binary("subf", total, product)
        lost = b.binary(
            "addf", b.binary("subf", product, b.binary("subf", total, added)), b.binary("subf", addend, added)
        )
    near = expanded(x, b, "arith.truncf", values[0].type, total)
    error = b.binary("subf", total, expanded(x, b, "arith.extf", wide, near))
    error = error if lost is None else b.binary("addf", error, lost)
    bits = b.value("arith.bitcast", int_type(32), (near,))
    zero = _float_constant(b, wide, 0.0)
    above, below = (
        b.value("arith.cmpf", int_type(1), (error, zero), {"predicate": ir.IntegerAttr.get(int_type(64), number)})
        for number in (_FLOAT_TESTS["gt"], _FLOAT_TESTS["lt"])
    )
    inexact_and_even = b.binary("andi", b.binary("ori", above, below), b.compare("eq", b.binary("andi", bits, 1), 0))
    further = b.binary("xori", below, b.compare("sge", bits, 0))  # away from zero
    step_ = b.select(further, b.const(int_type(32), 1), b.const(int_type(32), -1))
    odd = b.binary("addi", bits, step_)
    return b.value("arith.bitcast", values[0].type, (b.select(inexact_and_even, odd, bits),))


def _integer_operation(b: Builder, s: Statement, kind: str, values: list[ir.Value]) -> ir.Value:
    name = s.name
    first = values[0]
    signed = kind.startswith("s")
    if "sat" in s.modifiers:
        if name not in ("add", "sub") or not signed:
            raise Refused(f"{name}.sat of {kind}")
        return intrinsic(b, f"llvm.s{name}.sat", first.type, values)
    if name in ("add", "sub"):
        return b.binary(f"{name}i", first, values[1])
    if name in INTEGER:
        return b.binary(INTEGER[name], first, values[1])
    if name in ("min", "max"):
        chosen = b.binary(f"{name}{'si' if signed else 'ui'}", first, values[1])
        return b.binary("maxsi", chosen, 0) if "relu" in s.modifiers else chosen
    if name == "not":
        return b.binary("xori", first, -1)
    if name in ("neg", "abs"):
        negated = b.binary("subi", b.const(first.type, 0), first)
        return negated if name == "neg" else b.select(b.compare("slt", first, 0), negated, first)
    if name in ("mul", "mad"):
        product = _product(b, s, signed, *values[:2])
        return product if name == "mul" else b.binary("addi", product, values[2])
    raise Refused(f"{name} of integers")


def _product(b: Builder, s: Statement, signed: bool, left: ir.Value, right: ir.Value) -> ir.Value:
    """Multiply, and return the low half or what `.wide` and `.hi` ask for."""
    if not s.one_of("wide", "hi"):
        return b.binary("muli", left, right)
    width = left.type.width  # pyright: ignore[reportAttributeAccessIssue]
    product = b.binary("muli", *(_extended(b, value, 2 * width, signed) for value in (left, right)))
    return product if "wide" in s.modifiers else resized(b, b.binary("shrui", product, width), width)


def _extended(b: Builder, value: ir.Value, width: int, signed: bool) -> ir.Value:
    return b.value("arith.extsi" if signed else "arith.extui", int_type(width), (value,))


@INSTRUCTIONS.expands("mul24", "mad24")
def _mul24(m: Machine, s: Statement) -> ir.Value:
    """Multiply the lower 24 bits, and return bits 0 to 31 of the 48, or (`.hi`) 16 to 47; `mad24` adds to them."""
    kind = typed(s)
    _refuse_others(s, {"lo", "hi"})
    b = m.b
    i64 = int_type(64)
    signed = kind.startswith("s")
    factors: list[ir.Value] = []
    for operand in s.operands[1:3]:
        raised = b.binary("shli", resized(b, m.bits(operand, 32), 64), b.const(i64, 40))
        factors.append(b.binary("shrsi" if signed else "shrui", raised, b.const(i64, 40)))
    bits = b.binary("muli", *factors)
    if "hi" in s.modifiers:
        bits = b.binary("shrui", bits, b.const(i64, 16))
    low = resized(b, bits, 32)
    return low if s.name == "mul24" else b.binary("addi", low, m.bits(s.operands[3], 32))


@INSTRUCTIONS.expands("div", "rem")
def _divide(m: Machine, s: Statement) -> ir.Value:
    kind = typed(s)
    if is_float(kind) and s.name == "div":
        return _arithmetic(m, s)
    values = [m.bits(o, BITS[kind]) for o in s.operands[1:]]
    name = f"arith.{s.name}{'si' if kind.startswith('s') else 'ui'}"
    return expanded(m.x, m.b, name, values[0].type, *values)


@INSTRUCTIONS.expands("shl", "shr")
def _shift(m: Machine, s: Statement) -> ir.Value:
    """Shift; an amount of the width or more shifts everything out."""
    kind = typed(s)
    b = m.b
    width = BITS[kind]
    value = m.bits(s.operands[1], width)
    amount = m.bits(s.operands[2], 32)
    limit = b.i32(width - 1)
    inside = b.compare("ule", amount, limit)
    by = resized(b, b.select(inside, amount, limit), width)
    how = "shli" if s.name == "shl" else "shrsi" if kind.startswith("s") else "shrui"
    shifted = b.binary(how, value, by)
    return shifted if how == "shrsi" else b.select(inside, shifted, b.const(value.type, 0))


@INSTRUCTIONS.expands("shf")
def _shf(m: Machine, s: Statement) -> ir.Value:
    """Funnel shift of (high, low) = (b, a)."""
    b = m.b
    low, high, amount = (m.bits(o, 32) for o in s.operands[1:])
    by = b.binary("andi", amount, 31) if "wrap" in s.modifiers else b.binary("minui", amount, 32)
    both = _joined(b, low, high)
    by = resized(b, by, 64)
    moved = b.binary("shrui", b.binary("shli", both, by), 32) if "l" in s.modifiers else b.binary("shrui", both, by)
    return resized(b, moved, 32)


_PRMT_MODES = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""The bytes that a mode of `prmt` takes for a selector of 0 to 3, as selectors without a mode name them."""


@INSTRUCTIONS.expands("prmt")
def _prmt(m: Machine, s: Statement) -> ir.Value:
    if set(s.modifiers) - {"b32", *_PRMT_MODES}:
        raise Refused("this mode of prmt")
    b = m.b
    low, high, selector = (m.bits(o, 32) for o in s.operands[1:])
    mode = s.one_of(*_PRMT_MODES)
    if mode:
        table = b.i64(sum(bytes_ << 16 * n for n, bytes_ in enumerate(_PRMT_MODES[mode])))
        by = b.binary("shli", b.binary("andi", selector, 3), 4)
        selector = resized(b, b.binary("shrui", table, resized(b, by, 64)), 32)
    return math.prmt(b, low, high, selector)


@INSTRUCTIONS.expands("lop3")
def _lop3(m: Machine, s: Statement) -> ir.Value:
    *words, table = s.operands[1:]
    if not isinstance(table, Immediate):
        raise Refused("a table that is no number")
    return math.lop3(m.b, int(table.value), [m.bits(o, 32) for o in words])


@INSTRUCTIONS.expands("brev")
def _brev(m: Machine, s: Statement) -> ir.Value:
    value = m.bits(s.operands[1], BITS[typed(s)])
    return intrinsic(m.b, "llvm.bitreverse", value.type, [value])


@INSTRUCTIONS.expands("popc", "clz")
def _count_bits(m: Machine, s: Statement) -> ir.Value:
    value = m.bits(s.operands[1], BITS[typed(s)])
    return resized(m.b, m.b.value("math.ctpop" if s.name == "popc" else "math.ctlz", value.type, (value,)), 32)


def _field(m: Machine, start: Operand, length: Operand, width: int) -> tuple[ir.Value, ir.Value]:
    """Return where a bit field starts, at most at the width, and a mask of its length; both of twice the width."""
    b = m.b
    first, count = (b.binary("minui", b.binary("andi", m.bits(o, 32), 255), width) for o in (start, length))
    one = b.const(int_type(2 * width), 1)
    mask = b.binary("subi", b.binary("shli", one, resized(b, count, 2 * width)), one)
    return resized(b, first, 2 * width), mask


@INSTRUCTIONS.expands("bfe")
def _bfe(m: Machine, s: Statement) -> ir.Value:
    """Extract a bit field, sign-extended by its highest bit, or by the value's where the field goes beyond."""
    kind = typed(s)
    b = m.b
    width = BITS[kind]
    signed = kind.startswith("s")
    value = m.bits(s.operands[1], width)
    start, mask = _field(m, s.operands[2], s.operands[3], width)
    extended = _extended(b, value, 2 * width, signed)
    taken = b.binary("andi", b.binary("shrsi" if signed else "shrui", extended, start), mask)
    if signed:  # the highest bit of the field, repeated
        top = b.binary("xori", mask, b.binary("shrui", mask, 1))
        taken = b.binary("subi", b.binary("xori", taken, top), top)
    return resized(b, taken, width)


@INSTRUCTIONS.expands("bfi")
def _bfi(m: Machine, s: Statement) -> ir.Value:
    """Insert the lowest bits of the first value into the second."""
    width = BITS[typed(s)]
    b = m.b
    source, into = (resized(b, m.bits(o, width), 2 * width) for o in s.operands[1:3])
    start, mask = _field(m, s.operands[3], s.operands[4], width)
    moved = b.binary("shli", b.binary("andi", source, mask), start)
    hole = b.binary("shli", mask, start)
    kept = b.binary("andi", into, b.binary("xori", hole, -1))
    return resized(b, b.binary("ori", kept, moved), width)


@INSTRUCTIONS.expands("bfind")
def _bfind(m: Machine, s: Statement) -> ir.Value:
    """Find the highest bit that differs from the sign (unsigned: that is set); -1 if there is none."""
    kind = typed(s)
    b = m.b
    width = BITS[kind]
    value = m.bits(s.operands[1], width)
    if kind.startswith("s"):
        value = b.binary("xori", value, b.binary("shrsi", value, width - 1))
    zeros = resized(b, b.value("math.ctlz", value.type, (value,)), 32)
    if "shiftamt" in s.modifiers:
        return b.select(b.compare("eq", zeros, width), b.i32(-1), zeros)
    return b.binary("subi", b.i32(width - 1), zeros)


@INSTRUCTIONS.expands("sad")
def _sad(m: Machine, s: Statement) -> ir.Value:
    """Add the absolute difference of two integers to a third."""
    kind = typed(s)
    b = m.b
    first, second, third = (m.bits(o, BITS[kind]) for o in s.operands[1:])
    less = b.compare("slt" if kind.startswith("s") else "ult", first, second)
    distance = b.select(less, b.binary("subi", second, first), b.binary("subi", first, second))
    return b.binary("addi", distance, third)


@INSTRUCTIONS.expands("dp4a", "dp2a")
def _dot(m: Machine, s: Statement) -> ir.Value:
    """Add the dot product of four bytes (`dp2a`: of two half words and two bytes) to the third operand."""
    b = m.b
    left_type, right_type = (part for part in s.modifiers if part in ("u32", "s32"))
    left, right, total = (m.bits(o, 32) for o in s.operands[1:])
    pairs = 2 if s.one_of("lo", "hi") else 4
    for n in range(pairs):
        first = _part(b, left, 32 // pairs, n, left_type)
        second = _part(b, right, 8, n + (2 if "hi" in s.modifiers else 0), right_type)
        total = b.binary("addi", total, b.binary("muli", first, second))
    return total


def _part(b: Builder, word: ir.Value, width: int, number: int, kind: str) -> ir.Value:
    return _extended(b, _half(b, word, number, width), 32, kind == "s32")


@INSTRUCTIONS.expands("copysign")
def _copysign(m: Machine, s: Statement) -> ir.Value:
    """Return the second number with the sign of the first."""
    width = BITS[typed(s)]
    b = m.b
    sign, number = (m.bits(o, width) for o in s.operands[1:])
    top = 1 << (width - 1)
    return b.binary("ori", b.binary("andi", sign, top), b.binary("andi", number, top - 1))


@INSTRUCTIONS.expands("exit")
def _exit(m: Machine, _s: Statement) -> None:
    """End the thread, which barriers no longer count. The condition is one that nobody can fold: the call that ends the
    function stays the last of its block."""
    address = m.b.value("llvm.ptrtoint", int_type(64), (m.x.frame_of(m.op),))
    m.x.end(m.b.if_(m.b.compare("ne", address, 0)))


@INSTRUCTIONS.expands("trap")
def _trap(m: Machine, _s: Statement) -> None:
    m.x.fault(m.b, m.x.module.site(m.op, "assert", "trap", m.x.function.name))


# --- predicates --------------------------------------------------------------------------------------------------------

_INTEGER_TESTS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT_TESTS = {
    "eq": 1,
    "gt": 2,
    "ge": 3,
    "lt": 4,
    "le": 5,
    "num": 7,
    "equ": 8,
    "gtu": 9,
    "geu": 10,
    "ltu": 11,
    "leu": 12,
    "neu": 13,
    "nan": 14,
    "ne": 6,
}
"""Numbers of `arith.cmpf`; PTX's `ne` is false for NaN, as `one` is."""


def _compared(m: Machine, s: Statement, kind: str, values: list[ir.Value]) -> ir.Value:
    """Return whether two numbers, as bits, compare as the first modifier says; with a third operand, joined with it."""
    test = s.modifiers[0]
    b = m.b
    if is_float(kind):
        floats = [as_float(b, m.x, value, kind) for value in values]
        number = ir.IntegerAttr.get(int_type(64), _FLOAT_TESTS[test])
        compared = b.value("arith.cmpf", int_type(1), floats, {"predicate": number})
    else:
        compared = b.compare(_INTEGER_TESTS.get(test) or f"{'s' if kind.startswith('s') else 'u'}{test}", *values)
    joined = next((part for part in s.modifiers[1:] if part in INTEGER), "")
    return b.binary(INTEGER[joined], compared, m.i1(s.operands[3])) if joined else compared


def _compared_halves(m: Machine, s: Statement, kind: str) -> tuple[ir.Value, ir.Value]:
    whole = [m.bits(o, 32) for o in s.operands[1:3]]
    low, high = (_compared(m, s, PARTS[kind], [_half(m.b, value, i, 16) for value in whole]) for i in range(2))
    return low, high


def _operand_bits(m: Machine, operand: Operand, kind: str) -> ir.Value:
    if is_float(kind) and isinstance(operand, Immediate):
        return float_bits(m.b, m.x, m.float(operand, kind), kind)
    return m.bits(operand, BITS[kind])


@INSTRUCTIONS.expands("setp")
def _setp(m: Machine, s: Statement) -> ir.Value | tuple[ir.Value, ir.Value]:
    """Compare; of two numbers in one register, `p|q` takes both results."""
    kind = typed(s)
    if kind in ("f16x2", "bf16x2"):
        return _compared_halves(m, s, kind)
    compared = _compared(m, s, kind, [_operand_bits(m, o, kind) for o in s.operands[1:3]])
    return (compared, m.b.binary("xori", compared, 1)) if isinstance(s.operands[0], Pair) else compared


@INSTRUCTIONS.expands("set")
def _set(m: Machine, s: Statement) -> ir.Value:
    """Compare; true is a register, or a half of it, with all bits set, or 1.0 where the result is a float."""
    kind = typed(s)
    b = m.b
    result = next(part for part in s.modifiers if part in BITS)
    _refuse_others(s, {*_FLOAT_TESTS, *_INTEGER_TESTS, "lt", "le", "gt", "ge", *INTEGER})
    halves = kind in ("f16x2", "bf16x2")
    part = PARTS[result] if halves and result in PARTS else result
    width = BITS[result] // 2 if halves else BITS[result]
    true = -1 if not is_float(part) else {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000}[part]

    def chosen(condition: ir.Value) -> ir.Value:
        return b.select(condition, b.const(int_type(width), true), b.const(int_type(width), 0))

    if halves:
        return _joined(b, *map(chosen, _compared_halves(m, s, kind)))
    return chosen(_compared(m, s, kind, [_operand_bits(m, o, kind) for o in s.operands[1:3]]))


@INSTRUCTIONS.expands("selp")
def _selp(m: Machine, s: Statement) -> ir.Value:
    width = BITS[typed(s)]
    _, first, second, condition = s.operands
    return m.b.select(m.i1(condition), m.bits(first, width), m.bits(second, width))


# --- conversions -------------------------------------------------------------------------------------------------------

_NARROW = {
    "e4m3": formats.FLOAT8_E4M3FN,
    "e5m2": formats.FLOAT8_E5M2,
    "e2m3": formats.FLOAT6_E2M3FN,
    "e3m2": formats.FLOAT6_E3M2FN,
    "e2m1": formats.FLOAT4_E2M1FN,
    "ue5m3": formats.FLOAT8_E5M3FNU,
    "ue8m0": formats.FLOAT8_E8M0FNU,
}
_FIXED_POINT = "s2f6"
_SCALED = "scaled::n2::ue8m0"
_LARGEST = {"f16": formats.FLOAT16.max, "bf16": formats.BFLOAT16.max}
_ROUNDINGS = {"rni": "math.roundeven", "rzi": "math.trunc", "rmi": "math.floor", "rpi": "math.ceil"}
_CONVERSION_MODIFIERS = {"rn", "rz", "rm", "rp", "rna", "ftz", "sat", "satfinite", "relu", _SCALED, *_ROUNDINGS}


def _cvt_pack(m: Machine, modifiers: tuple[str, ...], operands: tuple[Operand, ...]) -> ir.Value:
    """Return two words saturated to 16 bits, the first in the upper half; narrower ones below the low bits of a third word."""
    kinds = [part for part in modifiers if part in BITS or part in ("s4", "u4", "s2", "u2")]
    target = kinds[0]
    b = m.b
    width = int(target[1:])
    signed = target.startswith("s")
    if "sat" not in modifiers or kinds[1] != "s32" or (width == 16) != (len(operands) == 3):
        raise Refused("this form of cvt.pack")
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)

    def saturated(operand: Operand) -> ir.Value:
        value = b.binary("maxsi", b.binary("minsi", m.bits(operand, 32), high), low)
        return b.binary("andi", value, (1 << width) - 1)

    first = saturated(operands[1])
    second = saturated(operands[2])
    packed = b.binary("ori", b.binary("shli", first, width), second)
    if len(operands) == 4:
        packed = b.binary("ori", packed, b.binary("shli", m.bits(operands[3], 32), 2 * width))
    return packed


@INSTRUCTIONS.expands("cvt")
def _cvt(m: Machine, s: Statement) -> ir.Value:
    if "pack" in s.modifiers:
        return _cvt_pack(m, s.modifiers, s.operands)
    kinds = [part for part in s.modifiers if part in BITS]
    if len(kinds) != 2:
        raise Refused("the types of this conversion")
    target, source = kinds
    _refuse_others(s, _CONVERSION_MODIFIERS)
    b = m.b
    x = m.x
    if target.endswith("x2"):
        return _to_pair(m, s, source, target.removesuffix("x2"))
    if target == "tf32":
        return _to_tf32(m, s, source)
    if is_float(source):
        value = m.float(s.operands[1], source)
        if rounding := s.one_of(*_ROUNDINGS):
            value = expanded(x, b, _ROUNDINGS[rounding], value.type, value)
        if is_float(target):
            return _narrowed(b, x, value, target, s)
        name = "arith.fptosi" if target.startswith("s") else "arith.fptoui"
        return expanded(x, b, name, int_type(BITS[target]), value)
    value = m.bits(s.operands[1], BITS[source])
    if is_float(target):
        return _narrowed(b, x, _from_integer(m, value, source, target, rounding_of(s.modifiers)), target, s)
    if "sat" in s.modifiers:
        raise Refused("saturating conversions of integers")
    if BITS[target] > BITS[source] and source.startswith("s"):
        return _extended(b, value, BITS[target], signed=True)
    return resized(b, value, BITS[target])


def _to_pair(m: Machine, s: Statement, source: str, target: str) -> ir.Value:
    """Return two floats in one register, of two operands or of two floats in one register."""
    b = m.b
    x = m.x
    if source.endswith("x2"):
        part = source.removesuffix("x2")
        width = BITS[source] // 2
        halves = [_half(b, m.bits(s.operands[1], 2 * width), n, width) for n in range(2)]
        wide = part in _NARROW or part == _FIXED_POINT
        floats = [_widened(b, half, part) if wide else as_float(b, x, half, part) for half in halves]
    else:  # the first source becomes the upper half
        floats = [m.float(o, source) for o in (s.operands[2], s.operands[1])]
    if _SCALED in s.modifiers:
        scales = m.bits(s.operands[-1], 16)
        name = "divf" if target == _FIXED_POINT else "mulf"
        factors = [_widened(b, _half(b, scales, n, 8), "ue8m0") for n in range(2)]
        floats = [b.binary(name, value, factor) for value, factor in zip(floats, factors, strict=True)]
    return _joined(b, *(_narrowed(b, x, value, target, s) for value in floats))


def _to_tf32(m: Machine, s: Statement, source: str) -> ir.Value:
    """Round an f32 to 10 bits of fraction: add what rounds it, and drop 13 bits."""
    b = m.b
    direction = rounding_of(s.modifiers)
    if source != "f32" or s.one_of("satfinite", "relu"):
        raise Refused("this conversion to tf32")
    if direction not in ("", "rz"):
        raise Refused(f"rounding .{direction} of tf32")
    value = m.bits(s.operands[1], 32)
    if "rn" in s.modifiers:  # to even: a little less than half, plus the last bit that stays
        last = b.binary("andi", b.binary("shrui", value, 13), 1)
        value = b.binary("addi", value, b.binary("addi", b.i32(0xFFF), last))
    elif not direction:
        value = b.binary("addi", value, 0x1000)
    return b.binary("andi", value, -0x2000)


def _from_integer(m: Machine, value: ir.Value, source: str, target: str, direction: str) -> ir.Value:
    """Return an integer as a float, f32 at least."""
    b = m.b
    x = m.x
    name = "sitofp" if source.startswith("s") else "uitofp"
    if direction:
        return rounded(x, b, name, direction, float_type("f32" if target == "f32" else "f64"), value)
    converted = expanded(x, b, f"arith.{name}", float_type(target), value)
    return converted if BITS[target] >= 32 else expanded(x, b, "arith.extf", float_type("f32"), converted)


def _widened(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    f32 = float_type("f32")
    if kind == _FIXED_POINT:  # six bits after the point
        return b.binary("mulf", b.value("arith.sitofp", f32, (bits,)), _float_constant(b, f32, 1 / 64))
    bits = resized(b, bits, _NARROW[kind].width)
    return extend(Emitter(f32, b.point, b.location), bits, _NARROW[kind], f32)


def _narrowed(b: Builder, x: Expander, value: ir.Value, kind: str, s: Statement) -> ir.Value:
    """Return a float as the bits of a type, rounded and limited as the modifiers of an instruction say."""
    direction = rounding_of(s.modifiers)
    value = _limited(b, value, s)
    if "satfinite" in s.modifiers and kind in _LARGEST:
        for name, limit in (("minimumf", _LARGEST[kind]), ("maximumf", -_LARGEST[kind])):
            value = b.binary(name, value, _float_constant(b, value.type, limit))
    if kind == _FIXED_POINT:
        return _to_fixed_point(b, x, value)
    if kind == "ue8m0":
        return _to_power_of_two(b, value, direction, "satfinite" in s.modifiers)
    if kind not in _NARROW:
        narrower = BITS[kind] < value.type.width  # pyright: ignore[reportAttributeAccessIssue]
        if not direction or not narrower:
            return float_bits(b, x, value, kind)
        if kind == "f32":
            return float_bits(b, x, rounded(x, b, "fptrunc", direction, float_type("f32"), value), kind)
        bits = float_bits(b, x, value, kind)
        narrowed = as_float(b, x, bits, kind)
        if narrowed.type != value.type:
            narrowed = b.value("arith.extf", value.type, (narrowed,))
        return step(b, bits, value, narrowed, direction)
    if direction:
        raise Refused(f"rounding .{direction} of {kind}")
    if kind == "ue5m3" and "satfinite" not in s.modifiers:
        raise Refused("a conversion to ue5m3 without .satfinite")
    f32 = float_type("f32")
    code = truncate(Emitter(f32, b.point, b.location), value, formats.FLOAT32, f32, _NARROW[kind])
    return b.value("arith.trunci", int_type(BITS[f"{kind}x2"] // 2), (code,))


def _to_fixed_point(b: Builder, x: Expander, value: ir.Value) -> ir.Value:
    """Return an f32 as a byte with a sign and six bits after the point, rounded to nearest even and saturated."""
    scaled = b.binary("mulf", value, _float_constant(b, value.type, 64.0))
    whole = expanded(x, b, "math.roundeven", value.type, scaled)
    code = expanded(x, b, "arith.fptosi", int_type(32), whole)
    return b.value("arith.trunci", int_type(8), (b.binary("maxsi", b.binary("minsi", code, 127), -128),))


def _to_power_of_two(b: Builder, value: ir.Value, direction: str, saturates: bool) -> ir.Value:
    """Return an f32 as ue8m0, rounded down (rz) or up (rp). The sign is ignored; what is below 2^-127 becomes that.

    What `cvt` does with signs and zeros is not documented: PyTorch's conversion on the host ignores signs.
    """
    if direction not in ("rz", "rp"):
        raise Refused("rounding of ue8m0 other than .rz and .rp")
    bits = b.binary("andi", b.value("arith.bitcast", int_type(32), (value,)), 0x7FFFFFFF)
    field = b.binary("shrui", bits, 23)
    rest = b.binary("andi", bits, 0x7FFFFF)
    if direction == "rp":  # 2^-127 is a subnormal f32
        least = b.select(b.compare("eq", field, 0), b.i32(0x400000), b.i32(0))
        field = b.binary("addi", field, b.value("arith.extui", int_type(32), (b.compare("ugt", rest, least),)))
    field = b.binary("minui", field, 254 if saturates else 255)
    field = b.select(b.compare("ugt", bits, 0x7F800000), b.i32(255), field)
    return b.value("arith.trunci", int_type(8), (field,))


# --- functions ---------------------------------------------------------------------------------------------------------


@INSTRUCTIONS.expands("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh")
def _function(m: Machine, s: Statement) -> ir.Value:
    kind = typed(s)
    b = m.b
    x = m.x
    if s.name in ("sqrt", "rcp") and kind in ("f32", "f64") and not s.one_of("approx", "ftz64h"):
        return float_bits(b, x, _exact_function(m, s, kind), kind)
    if kind == "f64":
        raise Refused("the f64 function")
    if kind in PARTS:
        whole = m.bits(s.operands[1], 32)
        part = PARTS[kind]
        values = [as_float(b, x, _half(b, whole, n, 16), part) for n in range(2)]
        return _joined(b, *(float_bits(b, x, math.approx(b, s.name, value), part) for value in values))
    return float_bits(b, x, math.approx(b, s.name, m.float(s.operands[1], kind)), kind)


def _exact_function(m: Machine, s: Statement, kind: str) -> ir.Value:
    """Return a square root or a reciprocal, rounded to nearest or in a direction."""
    b = m.b
    x = m.x
    type_ = float_type(kind)
    value = m.float(s.operands[1], kind)
    direction = rounding_of(s.modifiers)
    is_root = s.name == "sqrt"
    values = [value] if is_root else [_float_constant(b, type_, 1.0), value]
    if direction:
        return rounded(x, b, "sqrt" if is_root else "div", direction, type_, *values)
    return expanded(x, b, "math.sqrt" if is_root else "arith.divf", type_, *values)
