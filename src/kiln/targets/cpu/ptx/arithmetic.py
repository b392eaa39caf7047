"""Moves, arithmetic of integers and floats, predicates, conversions, functions."""

from __future__ import annotations

from collections.abc import Callable

from ....base_dsl.numeric import formats
from ....base_dsl.numeric.expand import Emitter, extend, truncate
from ....mlir import ir
from ...host import math
from ...host.rounding import rounded, rounding_of, step
from ...lowering.arithmetic import intrinsic
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..ops.cute import shared_pointer
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
from .syntax import Immediate, Operand, Pair

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("mov")
def _mov(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    width = BITS[typed(modifiers)]
    m.set(operands[0], m.bits(operands[1], width))


@INSTRUCTIONS.expands("cvta")
def _cvta(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Addresses of a state space and generic ones: shared addresses have 32 bits that mean something."""
    width = BITS[typed(modifiers)]
    value = m.bits(operands[1], width)
    if any(part.startswith("shared") for part in modifiers) and "to" not in modifiers:
        made = shared_pointer(m.x, m.b, resized(m.b, value, 32))
        value = m.b.value("llvm.ptrtoint", int_type(64), (made,))
    m.set(operands[0], resized(m.b, value, width))


_UNDERSTOOD = {"rn", "rz", "rm", "rp", "ftz", "sat", "relu", "NaN", "lo", "hi", "wide", "approx", "full", "cc"}


def _refuse_others(modifiers: tuple[str, ...], understood: set[str]) -> None:
    """A modifier that is not looked at would be one that is not obeyed."""
    for part in modifiers:
        if part not in understood and part not in BITS:
            raise Refused(f"the modifier .{part}")


def _arithmetic(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    _refuse_others(modifiers, _UNDERSTOOD)
    if kind.startswith(("e", "tf")):
        raise Refused(f"arithmetic of {kind}")
    if kind in PARTS:
        _each_half(m, name, modifiers, operands, kind)
        return
    if is_float(kind):
        result = next(part for part in modifiers if part in BITS)  # of fma.rn.f32.f16 it is that of the last operand
        values = [m.float(o, kind) for o in operands[1:-1]] + [m.float(operands[-1], result)]
        m.set(operands[0], float_bits(m.b, m.x, _float_operation(m, name, result, values, modifiers), result))
        return
    width = BITS[kind]
    values = [m.bits(o, width) for o in operands[1:3]]
    values += [m.bits(o, 2 * width if "wide" in modifiers else width) for o in operands[3:]]
    m.set(operands[0], _integer_operation(m.b, name, kind, values, modifiers))


def _each_half(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand], kind: str) -> None:
    part, width = PARTS[kind], BITS[kind] // 2
    whole = [m.bits(o, 2 * width) for o in operands[1:]]
    halves: list[ir.Value] = []
    for number in range(2):
        values = [_half(m.b, value, number, width) for value in whole]
        if is_float(part):
            floats = [as_float(m.b, m.x, value, part) for value in values]
            halves.append(float_bits(m.b, m.x, _float_operation(m, name, part, floats, modifiers), part))
        else:
            halves.append(_integer_operation(m.b, name, part, values, modifiers))
    m.set(operands[0], _joined(m.b, *halves))


def _half(b: Builder, value: ir.Value, number: int, width: int) -> ir.Value:
    return resized(b, b.binary("shrui", value, b.const(value.type, number * width)), width)


def _joined(b: Builder, first: ir.Value, second: ir.Value) -> ir.Value:
    """Two parts as one number of twice the bits, the first in its lower half."""
    width = first.type.width  # pyright: ignore[reportAttributeAccessIssue]
    low, high = (resized(b, part, 2 * width) for part in (first, second))
    return b.binary("ori", low, b.binary("shli", high, b.const(high.type, width)))


def _float_constant(b: Builder, type_: ir.Type, value: float) -> ir.Value:
    return b.value("arith.constant", type_, (), {"value": ir.FloatAttr.get(type_, value, b.location)})


def _limited(b: Builder, value: ir.Value, modifiers: tuple[str, ...]) -> ir.Value:
    """Return a float as `.relu` (not negative; NaN stays) and `.sat` (from 0 to 1; NaN is 0) say."""
    type_ = value.type
    if "relu" in modifiers:
        value = b.value("arith.maximumf", type_, (value, _float_constant(b, type_, 0.0)))
    if "sat" in modifiers:
        value = b.value("arith.maxnumf", type_, (value, _float_constant(b, type_, 0.0)))
        value = b.value("arith.minnumf", type_, (value, _float_constant(b, type_, 1.0)))
    return value


def _float_operation(m: Machine, name: str, kind: str, values: list[ir.Value], modifiers: tuple[str, ...]) -> ir.Value:
    b, x, type_ = m.b, m.x, values[0].type
    simple = {"add": "addf", "sub": "subf", "mul": "mulf", "div": "divf"}
    direction = rounding_of(modifiers)
    if direction and kind not in ("f32", "f64"):
        raise Refused(f"rounding .{direction} of {kind}")
    if direction and (name in simple or name in ("fma", "mad")):
        made = rounded(x, b, "fma" if name == "mad" else name, direction, type_, *values)
    elif name in simple:
        made = expanded(x, b, f"arith.{simple[name]}", type_, *values)
    elif name in ("fma", "mad") and kind == "f16":  # as f32 it would be rounded twice
        half = float_type("f16")
        halves = [expanded(x, b, "arith.truncf", half, value) for value in values]
        made = expanded(x, b, "arith.extf", type_, expanded(x, b, "math.fma", half, *halves))
    elif name in ("fma", "mad"):
        made = expanded(x, b, "math.fma", type_, *values)
    elif name in ("min", "max"):
        made = values[0]
        for value in values[1:]:
            made = b.value(f"arith.{name}{'imumf' if 'NaN' in modifiers else 'numf'}", type_, (made, value))
    elif name in ("neg", "abs"):
        made = b.value("arith.negf" if name == "neg" else "math.absf", type_, (values[0],))
    else:
        raise Refused(f"{name} of floats")
    return _limited(b, made, modifiers)


def _integer_operation(
    b: Builder, name: str, kind: str, values: list[ir.Value], modifiers: tuple[str, ...]
) -> ir.Value:
    signed = kind.startswith("s")
    if "sat" in modifiers:
        if name not in ("add", "sub") or not signed:
            raise Refused(f"{name}.sat of {kind}")
        return intrinsic(b, f"llvm.s{name}.sat", values[0].type, values)
    if name in ("add", "sub"):
        return b.binary(f"{name}i", values[0], values[1])
    if name in INTEGER:
        return b.binary(INTEGER[name], values[0], values[1])
    if name in ("min", "max"):
        chosen = b.binary(f"{name}{'si' if signed else 'ui'}", values[0], values[1])
        return b.binary("maxsi", chosen, b.const(chosen.type, 0)) if "relu" in modifiers else chosen
    if name == "neg":
        return b.binary("subi", b.const(values[0].type, 0), values[0])
    if name == "not":
        return b.binary("xori", values[0], b.const(values[0].type, -1))
    if name == "abs":
        negated = b.binary("subi", b.const(values[0].type, 0), values[0])
        return b.select(b.compare("slt", values[0], b.const(values[0].type, 0)), negated, values[0])
    if name in ("mul", "mad"):
        width = values[0].type.width  # pyright: ignore[reportAttributeAccessIssue]
        extension = "arith.extsi" if signed else "arith.extui"
        if "wide" in modifiers or "hi" in modifiers:
            wide = int_type(2 * width)
            product = b.binary("muli", *(b.value(extension, wide, (v,)) for v in values[:2]))
            if "hi" in modifiers:
                product = b.value("arith.trunci", values[0].type, (b.binary("shrui", product, b.const(wide, width)),))
        else:
            product = b.binary("muli", values[0], values[1])
        if name == "mul":
            return product
        return b.binary("addi", product, values[2])
    raise Refused(f"{name} of integers")


def _register_arithmetic() -> None:
    for name in ("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "and", "or", "xor", "not"):

        def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand], name: str = name) -> None:
            _arithmetic(m, name, modifiers, operands)

        INSTRUCTIONS.expands(name)(handler)


_register_arithmetic()


@INSTRUCTIONS.expands("div")
def _div(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    if is_float(kind):
        _arithmetic(m, "div", modifiers, operands)
        return
    name = "arith.divsi" if kind.startswith("s") else "arith.divui"
    values = [m.bits(o, BITS[kind]) for o in operands[1:]]
    m.set(operands[0], expanded(m.x, m.b, name, values[0].type, *values))


@INSTRUCTIONS.expands("rem")
def _rem(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = typed(modifiers)
    values = [m.bits(o, BITS[kind]) for o in operands[1:]]
    name = "arith.remsi" if kind.startswith("s") else "arith.remui"
    m.set(operands[0], expanded(m.x, m.b, name, values[0].type, *values))


def _shift(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Amounts of the width or more shift everything out."""
    kind = typed(modifiers)
    width = BITS[kind]
    value, amount = m.bits(operands[1], width), m.bits(operands[2], 32)
    b = m.b
    limit = b.i32(width - 1)
    inside = b.compare("ule", amount, limit)
    by = resized(b, b.select(inside, amount, limit), width)
    how = "shli" if name == "shl" else "shrsi" if kind.startswith("s") else "shrui"
    made = b.binary(how, value, by)
    if how != "shrsi":
        made = b.select(inside, made, b.const(value.type, 0))
    m.set(operands[0], made)


@INSTRUCTIONS.expands("shl")
def _shl(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    _shift(m, "shl", modifiers, operands)


@INSTRUCTIONS.expands("shr")
def _shr(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    _shift(m, "shr", modifiers, operands)


@INSTRUCTIONS.expands("shf")
def _shf(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Funnel shift of (high, low) = (b, a)."""
    b = m.b
    low, high, amount = (m.bits(o, 32) for o in operands[1:])
    by = b.binary("andi", amount, 31) if "wrap" in modifiers else b.binary("minui", amount, 32)
    both = b.binary("ori", resized(b, low, 64), b.binary("shli", resized(b, high, 64), 32))
    if "l" in modifiers:
        moved = b.binary("shrui", b.binary("shli", both, resized(b, by, 64)), 32)
    else:
        moved = b.binary("shrui", both, resized(b, by, 64))
    m.set(operands[0], b.value("arith.trunci", int_type(32), (moved,)))


@INSTRUCTIONS.expands("prmt")
def _prmt(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    if set(modifiers) != {"b32"}:
        raise Refused("modes of prmt")
    m.set(operands[0], math.prmt(m.b, *(m.bits(o, 32) for o in operands[1:])))


@INSTRUCTIONS.expands("lop3")
def _lop3(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    *words, table = operands[1:]
    if not isinstance(table, Immediate):
        raise Refused("a table that is no number")
    m.set(operands[0], math.lop3(m.b, int(table.value), [m.bits(o, 32) for o in words]))


def _counting(name: str) -> Callable[[Machine, tuple[str, ...], list[Operand]], None]:
    def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
        value = m.bits(operands[1], BITS[typed(modifiers)])
        if name == "brev":
            m.set(operands[0], intrinsic(m.b, "llvm.bitreverse", value.type, [value]))
            return
        made = m.b.value("math.ctpop" if name == "popc" else "math.ctlz", value.type, (value,))
        m.set(operands[0], resized(m.b, made, 32))

    return handler


for _name in ("popc", "clz", "brev"):
    INSTRUCTIONS.expands(_name)(_counting(_name))


def _field(m: Machine, start: Operand, length: Operand, width: int) -> tuple[ir.Value, ir.Value]:
    """Return where a field of bits starts, at most at the width, and a mask of its length; twice as wide as the
    value."""
    b = m.b
    first, count = (b.binary("minui", b.binary("andi", m.bits(o, 32), 255), width) for o in (start, length))
    wide = int_type(2 * width)
    one = b.const(wide, 1)
    mask = b.binary("subi", b.binary("shli", one, resized(b, count, 2 * width)), one)
    return resized(b, first, 2 * width), mask


@INSTRUCTIONS.expands("bfe")
def _bfe(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """A field of bits; of a signed type it is extended by its highest bit, or the value's where the field goes beyond."""
    kind, b = typed(modifiers), m.b
    width = BITS[kind]
    wide = int_type(2 * width)
    value = m.bits(operands[1], width)
    start, mask = _field(m, operands[2], operands[3], width)
    signed = kind.startswith("s")
    extended = b.value("arith.extsi" if signed else "arith.extui", wide, (value,))
    taken = b.binary("andi", b.binary("shrsi" if signed else "shrui", extended, start), mask)
    if signed:  # the highest bit of the field, repeated
        top = b.binary("xori", mask, b.binary("shrui", mask, b.const(wide, 1)))
        taken = b.binary("subi", b.binary("xori", taken, top), top)
    m.set(operands[0], resized(b, taken, width))


@INSTRUCTIONS.expands("bfi")
def _bfi(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The lowest bits of the first value put into the second."""
    width, b = BITS[typed(modifiers)], m.b
    source, into = (resized(b, m.bits(o, width), 2 * width) for o in operands[1:3])
    start, mask = _field(m, operands[3], operands[4], width)
    moved, hole = b.binary("shli", b.binary("andi", source, mask), start), b.binary("shli", mask, start)
    kept = b.binary("andi", into, b.binary("xori", hole, b.const(hole.type, -1)))
    m.set(operands[0], resized(b, b.binary("ori", kept, moved), width))


@INSTRUCTIONS.expands("bfind")
def _bfind(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The place of the highest bit that differs from the sign (unsigned: that is set); -1: there is none."""
    kind, b = typed(modifiers), m.b
    value = m.bits(operands[1], BITS[kind])
    if kind.startswith("s"):
        value = b.binary("xori", value, b.binary("shrsi", value, b.const(value.type, BITS[kind] - 1)))
    zeros = resized(b, b.value("math.ctlz", value.type, (value,)), 32)
    place = b.binary("subi", b.i32(BITS[kind] - 1), zeros)
    if "shiftamt" in modifiers:
        place = b.select(b.compare("eq", zeros, b.i32(BITS[kind])), b.i32(-1), zeros)
    m.set(operands[0], place)


@INSTRUCTIONS.expands("sad")
def _sad(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The distance of two integers, and a third."""
    kind, b = typed(modifiers), m.b
    first, second, third = (m.bits(o, BITS[kind]) for o in operands[1:])
    less = b.compare("slt" if kind.startswith("s") else "ult", first, second)
    distance = b.select(less, b.binary("subi", second, first), b.binary("subi", first, second))
    m.set(operands[0], b.binary("addi", distance, third))


@INSTRUCTIONS.expands("dp4a", "dp2a")
def _dot(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Four products of bytes (`dp2a`: two, of a half word and a byte), and a third operand."""
    b = m.b
    kinds = [part for part in modifiers if part in ("u32", "s32")]
    left, right, total = (m.bits(o, 32) for o in operands[1:])
    pairs = 2 if "lo" in modifiers or "hi" in modifiers else 4
    for n in range(pairs):
        first = _part(b, left, 32 // pairs, n, kinds[0])
        second = _part(b, right, 8, n + (2 if "hi" in modifiers else 0), kinds[1])
        total = b.binary("addi", total, b.binary("muli", first, second))
    m.set(operands[0], total)


def _part(b: Builder, word: ir.Value, width: int, number: int, kind: str) -> ir.Value:
    part = resized(b, b.binary("shrui", word, number * width), width)
    return b.value("arith.extsi" if kind == "s32" else "arith.extui", int_type(32), (part,))


@INSTRUCTIONS.expands("copysign")
def _copysign(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The second number with the sign of the first."""
    width, b = BITS[typed(modifiers)], m.b
    sign, number = (m.bits(o, width) for o in operands[1:])
    top = b.const(sign.type, 1 << (width - 1))
    rest = b.const(sign.type, (1 << (width - 1)) - 1)
    m.set(operands[0], b.binary("ori", b.binary("andi", sign, top), b.binary("andi", number, rest)))


@INSTRUCTIONS.expands("trap")
def _trap(m: Machine, _modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    m.x.fault(m.b, m.x.module.site(m.op, "assert", "trap", m.x.function.name))


# --- predicates --------------------------------------------------------------------------------------------------------

_INTEGER_TESTS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT_TESTS = {
    "eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "num": 7, "equ": 8, "gtu": 9, "geu": 10, "ltu": 11, "leu": 12,
    "neu": 13, "nan": 14, "ne": 6,
}  # fmt: skip
"""Numbers of `arith.cmpf`; PTX's `ne` is false for NaN, as `one` is."""


@INSTRUCTIONS.expands("setp")
def _setp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind, test = typed(modifiers), modifiers[0]
    b = m.b
    if is_float(kind):
        values = [m.float(o, kind) for o in operands[1:3]]
        number = ir.IntegerAttr.get(int_type(64), _FLOAT_TESTS[test])
        made = b.value("arith.cmpf", int_type(1), tuple(values), {"predicate": number})
    else:
        values = [m.bits(o, BITS[kind]) for o in operands[1:3]]
        prefix = "s" if kind.startswith("s") else "u"
        name = _INTEGER_TESTS.get(test) or f"{prefix}{test}"
        made = b.compare(name, *values)
    joined = next((part for part in modifiers[1:] if part in ("and", "or", "xor")), "")
    if joined:
        made = b.binary(INTEGER[joined], made, m.i1(operands[3]))
    target = operands[0]
    if isinstance(target, Pair):
        m.set(target.second, b.binary("xori", made, b.const(int_type(1), 1)))
        target = target.first
    m.set(target, made)


@INSTRUCTIONS.expands("selp")
def _selp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    width = BITS[typed(modifiers)]
    target, first, second, condition = operands
    m.set(target, m.b.select(m.i1(condition), m.bits(first, width), m.bits(second, width)))


# --- conversions -------------------------------------------------------------------------------------------------------

_NARROW = {"e4m3": formats.FLOAT8_E4M3FN, "e5m2": formats.FLOAT8_E5M2}
_LARGEST = {"f16": formats.FLOAT16.max, "bf16": formats.BFLOAT16.max}
_ROUNDINGS = {"rni": "math.roundeven", "rzi": "math.trunc", "rmi": "math.floor", "rpi": "math.ceil"}
_CONVERSION_MODIFIERS = {"rn", "rz", "rm", "rp", "rna", "ftz", "sat", "satfinite", "relu", *_ROUNDINGS}


def _cvt_pack(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Two words saturated to 16 bits, the first in the upper half; narrower ones below the low bits of a third word."""
    kinds = [part for part in modifiers if part in BITS or part in ("s4", "u4", "s2", "u2")]
    target, b = kinds[0], m.b
    width, signed = int(target[1:]), target.startswith("s")
    if "sat" not in modifiers or kinds[1] != "s32" or (width == 16) != (len(operands) == 3):
        raise Refused("this form of cvt.pack")
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)

    def saturated(operand: Operand) -> ir.Value:
        value = b.binary("maxsi", b.binary("minsi", m.bits(operand, 32), high), low)
        return b.binary("andi", value, (1 << width) - 1)

    first, second = saturated(operands[1]), saturated(operands[2])
    made = b.binary("ori", b.binary("shli", first, width), second)
    if len(operands) == 4:
        made = b.binary("ori", made, b.binary("shli", m.bits(operands[3], 32), 2 * width))
    m.set(operands[0], made)


@INSTRUCTIONS.expands("cvt")
def _cvt(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    if "pack" in modifiers:
        _cvt_pack(m, modifiers, operands)
        return
    kinds = [part for part in modifiers if part in BITS]
    if len(kinds) != 2:
        raise Refused("the types of this conversion")
    target, source = kinds
    _refuse_others(modifiers, _CONVERSION_MODIFIERS)
    b, x, direction = m.b, m.x, rounding_of(modifiers)
    if target.endswith("x2"):
        if source.endswith("x2"):  # two floats in one register
            part, width = source.removesuffix("x2"), BITS[source] // 2
            halves = [_half(b, m.bits(operands[1], 2 * width), n, width) for n in range(2)]
            floats = [_widened(b, half, part) if part in _NARROW else as_float(b, x, half, part) for half in halves]
        else:  # the first source becomes the upper half
            floats = [m.float(o, source) for o in (operands[2], operands[1])]
        parts = [_narrowed(b, x, f, target.removesuffix("x2"), direction, modifiers) for f in floats]
        m.set(operands[0], _joined(b, *parts))
        return
    if target == "tf32":
        if source != "f32" or "satfinite" in modifiers or "relu" in modifiers:
            raise Refused("this conversion to tf32")
        value, half = m.bits(operands[1], 32), b.i32(0x1000)  # what is added before 13 bits are dropped
        if "rn" in modifiers:  # to even: a little less than half, and what the last bit that stays makes of it
            last = b.binary("andi", b.binary("shrui", value, 13), 1)
            half = b.binary("addi", b.i32(0xFFF), last)
        if direction not in ("", "rz"):
            raise Refused(f"rounding .{direction} of tf32")
        value = value if direction else b.binary("addi", value, half)
        m.set(operands[0], b.binary("andi", value, -0x2000))
        return
    if is_float(source):
        value = m.float(operands[1], source)
        rounding = next((part for part in modifiers if part in _ROUNDINGS), "")
        if rounding:
            value = expanded(x, b, _ROUNDINGS[rounding], value.type, value)
        if is_float(target):
            m.set(operands[0], _narrowed(b, x, value, target, direction, modifiers))
        else:
            name = "arith.fptosi" if target.startswith("s") else "arith.fptoui"
            m.set(operands[0], expanded(x, b, name, int_type(BITS[target]), value))
        return
    value = m.bits(operands[1], BITS[source])
    if is_float(target):
        name = "arith.sitofp" if source.startswith("s") else "arith.uitofp"
        if direction:
            wide = float_type("f32" if target == "f32" else "f64")
            made = rounded(x, b, name.removeprefix("arith."), direction, wide, value)
        else:
            made = expanded(x, b, name, float_type(target), value)
            if BITS[target] < 32:
                made = expanded(x, b, "arith.extf", float_type("f32"), made)
        m.set(operands[0], _narrowed(b, x, made, target, direction, modifiers))
        return
    want = BITS[target]
    if "sat" in modifiers:
        raise Refused("saturating conversions of integers")
    if want > BITS[source] and source.startswith("s"):
        m.set(operands[0], b.value("arith.extsi", int_type(want), (value,)))
    else:
        m.set(operands[0], resized(b, value, want))


def _widened(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    f32 = float_type("f32")
    return extend(Emitter(f32, b.point, b.location), bits, _NARROW[kind], f32)


def _narrowed(
    b: Builder, x: Expander, value: ir.Value, kind: str, direction: str, modifiers: tuple[str, ...]
) -> ir.Value:
    """Return a float as the bits of a type, rounded to nearest or in a direction, and within the limits that are asked
    for."""
    value = _limited(b, value, modifiers)
    if "satfinite" in modifiers and kind in _LARGEST:
        largest = _LARGEST[kind]
        value = b.value("arith.minimumf", value.type, (value, _float_constant(b, value.type, largest)))
        value = b.value("arith.maximumf", value.type, (value, _float_constant(b, value.type, -largest)))
    if kind not in _NARROW:
        narrower = BITS[kind] < value.type.width  # pyright: ignore[reportAttributeAccessIssue]
        if not direction or not narrower:
            return float_bits(b, x, value, kind)
        if kind == "f32":
            return float_bits(b, x, rounded(x, b, "fptrunc", direction, float_type("f32"), value), kind)
        bits = float_bits(b, x, value, kind)
        made = as_float(b, x, bits, kind)
        if made.type != value.type:
            made = b.value("arith.extf", value.type, (made,))
        return step(b, bits, value, made, direction)
    if direction:
        raise Refused(f"rounding .{direction} of {kind}")
    f32 = float_type("f32")
    code = truncate(Emitter(f32, b.point, b.location), value, formats.FLOAT32, f32, _NARROW[kind])
    return b.value("arith.trunci", int_type(8), (code,))


def _exact_function(m: Machine, name: str, kind: str, operand: Operand, modifiers: tuple[str, ...]) -> ir.Value:
    """Return a square root or a reciprocal, rounded to nearest or in a direction."""
    b, x, type_, value = m.b, m.x, float_type(kind), m.float(operand, kind)
    direction = rounding_of(modifiers)
    values = [value] if name == "sqrt" else [_float_constant(b, type_, 1.0), value]
    if direction:
        return rounded(x, b, "sqrt" if name == "sqrt" else "div", direction, type_, *values)
    return expanded(x, b, "math.sqrt" if name == "sqrt" else "arith.divf", type_, *values)


# --- functions ---------------------------------------------------------------------------------------------------------


def _function(name: str) -> Callable[[Machine, tuple[str, ...], list[Operand]], None]:
    def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
        kind = typed(modifiers)
        if name in ("sqrt", "rcp") and kind in ("f32", "f64") and not {"approx", "ftz64h"} & set(modifiers):
            m.set(operands[0], float_bits(m.b, m.x, _exact_function(m, name, kind, operands[1], modifiers), kind))
            return
        if kind == "f64":
            raise Refused("the f64 function")
        halves = PARTS.get(kind)
        if halves:
            whole = m.bits(operands[1], 32)
            parts = [as_float(m.b, m.x, _half(m.b, whole, n, 16), halves) for n in range(2)]
            m.set(operands[0], _joined(m.b, *(float_bits(m.b, m.x, math.approx(m.b, name, p), halves) for p in parts)))
            return
        m.set(operands[0], float_bits(m.b, m.x, math.approx(m.b, name, m.float(operands[1], kind)), kind))

    return handler


for _name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"):
    INSTRUCTIONS.expands(_name)(_function(_name))
