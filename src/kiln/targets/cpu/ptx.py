"""Inline PTX as host code: its statements, expanded one by one like the operations of `cute_nvgpu`.

A register is an integer of its width while it is not used; an instruction takes it as the type it names. What is not in
the table of instructions is refused with its text and the user's line.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...base_dsl.numeric import formats
from ...base_dsl.numeric.expand import Emitter, extend, truncate
from ...mlir import context, ir
from ..llvm_build import Builder, int_type, ptr_type
from ..ptx_text import Address, Immediate, Label, Operand, Pair, PtxSyntaxError, Register, Statement, Vector, parse
from . import hardware
from .arithmetic import computes_in_f32, in_f32, intrinsic
from .expand import HANDLERS, Expander, expands, from_carrier, shared_pointer, to_carrier
from .sanitizer.instrument import Hooks
from .threads import BlockRecord, Fields, FrameHeader, Warp, leave

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS = {"pred": 1, "b8": 8, "u8": 8, "s8": 8, "b128": 128} | {
    f"{kind}{width}": width for kind in "busf" for width in (16, 32, 64)
} | {"bf16": 16, "f16x2": 32, "bf16x2": 32, "f32x2": 64, "e4m3x2": 16, "e5m2x2": 16, "tf32": 32, "u16x2": 32, "s16x2": 32}  # fmt: skip
_ORDERS = ("acquire", "release", "relaxed", "acq_rel", "volatile", "weak", "mmio", "sc")
_SCOPES = ("cta", "cluster", "gpu", "sys")


class Refused(Exception):
    """An instruction, or a form of it, that is not executed."""


class Machine:
    """One piece of inline PTX: its registers by name, and where it is expanded."""

    def __init__(self, x: Expander, op: ir.Operation, b: Builder, registers: dict[str, str]) -> None:
        self.x, self.op, self.b = x, op, b
        self.types = registers
        self.values: dict[str, ir.Value] = {}

    # -- reading ---------------------------------------------------------------------------------------------

    def bits(self, operand: Operand, width: int) -> ir.Value:
        """An operand as an integer of a width."""
        b = self.b
        if isinstance(operand, Immediate):
            return b.const(int_type(width), self._pattern(operand, width))
        if isinstance(operand, Vector):
            return self._joined(operand, width)
        if not isinstance(operand, Register):
            raise Refused(f"{operand} where a register is expected")
        value = self.values.get(operand.name)
        if value is None:
            value = self._special(operand.name)
        if value is None:
            value = b.const(int_type(_BITS.get(self.types.get(operand.name, "b32"), 32)), 0)
        if operand.negated:
            value = b.binary("xori", value, b.const(value.type, -1))
        return resized(b, value, width)

    def _pattern(self, operand: Immediate, width: int) -> int:
        if operand.width == -1:
            kind = {16: "<e", 32: "<f", 64: "<d"}[width]
            return int.from_bytes(struct.pack(kind, operand.value), "little")
        return int(operand.value)

    def _joined(self, operand: Vector, width: int) -> ir.Value:
        part = width // len(operand.parts)
        result = self.b.const(int_type(width), 0)
        for number, piece in enumerate(operand.parts):
            wide = resized(self.b, self.bits(piece, part), width)
            moved = self.b.binary("shli", wide, self.b.const(int_type(width), number * part))
            result = self.b.binary("ori", result, moved)
        return result

    def i1(self, operand: Operand) -> ir.Value:
        return self.bits(operand, 1)

    def float(self, operand: Operand, kind: str) -> ir.Value:
        """An operand as an f32 or f64; f16 and bf16 are widened."""
        if isinstance(operand, Immediate) and operand.width == 32 and kind == "f64":
            raise Refused("an f32 immediate where an f64 is expected")
        if isinstance(operand, Immediate) and operand.width == 0:
            operand = Immediate(float(operand.value), -1)
        return as_float(self.b, self.x, self.bits(operand, _BITS[kind]), kind)

    def pointer(self, operand: Operand, space: str) -> ir.Value:
        """The host address that `[base + offset]` is in a state space; "": generic."""
        if not isinstance(operand, Address):
            raise Refused(f"{operand} where an address is expected")
        width = 32 if isinstance(operand.base, Register) and self._width(operand.base) == 32 else 64
        address = self.bits(operand.base, width)
        if space.startswith("shared") or width == 32:
            made = shared_pointer(self.x, self.b, resized(self.b, address, 32))
        else:
            made = self.b.value("llvm.inttoptr", ptr_type(), (address,))
        return self.b.byte_gep(made, operand.offset) if operand.offset else made

    def _width(self, operand: Register) -> int:
        value = self.values.get(operand.name)
        return value.type.width if value is not None else _BITS.get(self.types.get(operand.name, "b64"), 64)  # pyright: ignore[reportAttributeAccessIssue]

    # -- writing ---------------------------------------------------------------------------------------------

    def set(self, operand: Operand, value: ir.Value) -> None:
        """Give a destination a value of its width; vectors take it apart."""
        if isinstance(operand, Vector):
            part = value.type.width // len(operand.parts)  # pyright: ignore[reportAttributeAccessIssue]
            for number, piece in enumerate(operand.parts):
                moved = self.b.binary("shrui", value, self.b.const(value.type, number * part))
                self.set(piece, resized(self.b, moved, part))
            return
        if not isinstance(operand, Register):
            raise Refused(f"{operand} where a destination is expected")
        if operand.name != "_":
            self.values[operand.name] = value

    # -- special registers -----------------------------------------------------------------------------------

    def _special(self, name: str) -> ir.Value | None:
        if not name.startswith("%"):
            if name.startswith("$") or name in self.types:
                return None
            raise Refused(f"{name} is not declared")
        b, x = self.b, self.x
        root, _, axis = name[1:].partition(".")
        triples = {"tid": "thread_idx", "ntid": "block_dim", "ctaid": "block_idx", "nctaid": "grid_dim"}
        if root in triples and axis in ("x", "y", "z"):
            return x.function.indices[triples[root]]["xyz".index(axis)]
        (tx, ty, tz), (dx, dy, dz) = x.function.indices["thread_idx"], x.function.indices["block_dim"]
        linear = b.binary("addi", tx, b.binary("muli", dx, b.binary("addi", ty, b.binary("muli", dy, tz))))
        lane = b.binary("andi", linear, b.i32(31))
        if root == "laneid":
            return lane
        if root == "warpid":
            return b.binary("shrui", linear, b.i32(5))
        if root == "nwarpid":
            threads = b.binary("muli", dx, b.binary("muli", dy, dz))
            return b.binary("shrui", b.binary("addi", threads, b.i32(31)), b.i32(5))
        if root == "WARP_SZ":
            return b.i32(32)
        if root.startswith("lanemask_"):
            here = b.binary("shli", b.i32(1), lane)
            below = b.binary("subi", here, b.i32(1))
            through = b.binary("ori", below, here)
            return {
                "lt": below, "le": through, "eq": here, "gt": b.binary("xori", through, b.i32(-1)),
                "ge": b.binary("xori", below, b.i32(-1)),
            }[root.removeprefix("lanemask_")]  # fmt: skip
        if root in ("clock", "clock64", "globaltimer"):
            now = hardware.call(x, b, "kiln_cpu_now", [], int_type(64))
            return now if root != "clock" else resized(b, now, 32)
        if root in ("smid", "gridid"):
            return b.i32(0)
        record = Fields(b, Fields(b, hardware.frame_of(x, self.op), FrameHeader).load("block"), BlockRecord)
        if root == "dynamic_smem_size":
            return record.load("dynamic_smem")
        if root == "cluster_ctarank":
            return record.load("rank")
        sizes = [record.load(f"cluster_{a}") for a in "xyz"]
        if root == "cluster_nctarank":
            return b.binary("muli", sizes[0], b.binary("muli", sizes[1], sizes[2]))
        if axis in ("x", "y", "z"):
            at = "xyz".index(axis)
            block, grid = x.function.indices["block_idx"][at], x.function.indices["grid_dim"][at]
            known = {
                "cluster_ctaid": ("remui", block), "clusterid": ("divui", block), "nclusterid": ("divui", grid),
            }  # fmt: skip
            if root == "cluster_nctaid":
                return sizes[at]
            if root in known:
                name, value = known[root]
                return b.binary(name, value, sizes[at])
        raise Refused(f"the special register {name}")

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, statement: Statement) -> None:
        """Expand one statement."""
        handler = INSTRUCTIONS.get(statement.name)
        if handler is None:
            raise Refused("the instruction is not known to the CPU target")
        if statement.guard is None:
            handler(self, statement.modifiers, list(statement.operands))
            return
        # under a guard: in a branch, with destinations in memory
        condition = self.i1(statement.guard)
        outer, before = self.b, dict(self.values)
        inner = outer.if_(condition)
        self.b = inner
        handler(self, statement.modifiers, list(statement.operands))
        self.b = outer
        for name, value in self.values.items():
            if before.get(name) is value:
                continue
            cell = self.x.at_entry(outer.location).alloca(value.type)
            old = before.get(name)
            branch = ir.InsertionPoint(inner.point.block.owner)
            start = Builder(branch, outer.location)
            start.store(start.const(value.type, 0) if old is None else resized(start, old, value.type.width), cell)  # pyright: ignore[reportAttributeAccessIssue]
            inner.store(value, cell)
            self.values[name] = outer.load(value.type, cell)


def resized(b: Builder, value: ir.Value, width: int) -> ir.Value:
    """An integer of another width: zeros in front, or the low bits."""
    have = value.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if have == width:
        return value
    return b.value("arith.extui" if have < width else "arith.trunci", int_type(width), (value,))


def expanded(x: Expander, b: Builder, name: str, result: ir.Type, *operands: ir.Value, **attributes: Any) -> ir.Value:
    """The result of an operation, expanded as the same operation of a program would be."""
    op = b.op(name, (result,), operands, attributes or None)
    handler: Any = in_f32 if computes_in_f32(op) else HANDLERS.get(name)
    values = handler(x, op, [], [result], Builder(ir.InsertionPoint(op), b.location)) if handler else None
    if values is None:
        return op.result
    op.erase()
    return values[0]


def _float_type(kind: str) -> ir.Type:
    return {
        "f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "tf32": ir.F32Type, "f64": ir.F64Type,
    }[kind].get(context())  # fmt: skip


def as_float(b: Builder, x: Expander, bits: ir.Value, kind: str) -> ir.Value:
    """Bits of a float, as an f32 (f64 stays)."""
    value = b.value("arith.bitcast", _float_type(kind), (bits,))
    return value if kind in ("f32", "tf32", "f64") else expanded(x, b, "arith.extf", _float_type("f32"), value)


def float_bits(b: Builder, x: Expander, value: ir.Value, kind: str) -> ir.Value:
    """An f32 (or f64) as the bits of a float, rounded to nearest."""
    want = _float_type(kind)
    if value.type != want:
        value = expanded(x, b, "arith.truncf" if value.type.width > want.width else "arith.extf", want, value)  # pyright: ignore[reportAttributeAccessIssue]
    return b.value("arith.bitcast", int_type(want.width), (value,))  # pyright: ignore[reportAttributeAccessIssue]


def _is_float(kind: str) -> bool:
    return kind.startswith(("f", "bf", "tf"))


def _typed(modifiers: tuple[str, ...]) -> str:
    """The type an instruction names last."""
    for part in reversed(modifiers):
        if part in _BITS:
            return part
    raise Refused("it names no type")


INSTRUCTIONS: dict[str, Any] = {}


def instruction(*names: str) -> Callable[[Any], Any]:
    """Register the expansion of an instruction."""

    def register(handler: Any) -> Any:
        for name in names:
            INSTRUCTIONS[name] = handler
        return handler

    return register


# --- moves and integer arithmetic ------------------------------------------------------------------------------------


@instruction("mov")
def _mov(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    width = _BITS[_typed(modifiers)]
    m.set(operands[0], m.bits(operands[1], width))


@instruction("cvta")
def _cvta(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Addresses of a state space and generic ones: shared addresses have 32 bits that mean something."""
    width = _BITS[_typed(modifiers)]
    value = m.bits(operands[1], width)
    if any(part.startswith("shared") for part in modifiers) and "to" not in modifiers:
        made = shared_pointer(m.x, m.b, resized(m.b, value, 32))
        value = m.b.value("llvm.ptrtoint", int_type(64), (made,))
    m.set(operands[0], resized(m.b, value, width))


_INTEGER = {"and": "andi", "or": "ori", "xor": "xori"}
_PARTS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}


def _arithmetic(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    if kind in _PARTS:
        _each_half(m, name, modifiers, operands, kind)
        return
    if _is_float(kind):
        rounding = {"rz", "rm", "rp"} & set(modifiers)
        if rounding:
            raise Refused(f"rounding .{rounding.pop()}: the CPU target rounds to nearest")
        values = [m.float(o, kind) for o in operands[1:]]
        m.set(operands[0], float_bits(m.b, m.x, _float_operation(m, name, values, modifiers), kind))
        return
    width = _BITS[kind]
    values = [m.bits(o, width) for o in operands[1:]]
    m.set(operands[0], _integer_operation(m.b, name, kind, values, modifiers))


def _each_half(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand], kind: str) -> None:
    part, width = _PARTS[kind], _BITS[kind] // 2
    whole = [m.bits(o, 2 * width) for o in operands[1:]]
    halves: list[ir.Value] = []
    for number in range(2):
        values: list[ir.Value] = []
        for value in whole:
            moved = m.b.binary("shrui", value, m.b.const(value.type, number * width))
            values.append(as_float(m.b, m.x, resized(m.b, moved, width), part))
        halves.append(float_bits(m.b, m.x, _float_operation(m, name, values, modifiers), part))
    low, high = (resized(m.b, half, 2 * width) for half in halves)
    m.set(operands[0], m.b.binary("ori", low, m.b.binary("shli", high, m.b.const(high.type, width))))


def _float_operation(m: Machine, name: str, values: list[ir.Value], modifiers: tuple[str, ...]) -> ir.Value:
    b, x, type_ = m.b, m.x, values[0].type
    simple = {"add": "addf", "sub": "subf", "mul": "mulf", "div": "divf"}
    if name in simple:
        made = expanded(x, b, f"arith.{simple[name]}", type_, *values)
    elif name in ("fma", "mad"):
        made = expanded(x, b, "math.fma", type_, *values)
    elif name in ("min", "max"):
        nan = "NaN" in modifiers
        made = b.value(f"arith.{name}{'imumf' if nan else 'numf'}", type_, (values[0], values[1]))
    elif name in ("neg", "abs"):
        made = b.value("arith.negf" if name == "neg" else "math.absf", type_, (values[0],))
    else:
        raise Refused(f"{name} of floats")
    if "relu" in modifiers or "sat" in modifiers:
        zero = b.value("arith.constant", type_, (), {"value": ir.FloatAttr.get(type_, 0.0, b.location)})
        made = b.value("arith.maxnumf", type_, (made, zero))
    if "sat" in modifiers:
        one = b.value("arith.constant", type_, (), {"value": ir.FloatAttr.get(type_, 1.0, b.location)})
        made = b.value("arith.minnumf", type_, (made, one))
    return made


def _integer_operation(
    b: Builder, name: str, kind: str, values: list[ir.Value], modifiers: tuple[str, ...]
) -> ir.Value:
    signed = kind.startswith("s")
    if name in ("add", "sub"):
        return b.binary(f"{name}i", values[0], values[1])
    if name in _INTEGER:
        return b.binary(_INTEGER[name], values[0], values[1])
    if name in ("min", "max"):
        return b.binary(f"{name}{'si' if signed else 'ui'}", values[0], values[1])
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
        addend = values[2]
        if product.type != addend.type:
            raise Refused("mad.wide")
        return b.binary("addi", product, addend)
    raise Refused(f"{name} of integers")


def _register_arithmetic() -> None:
    for name in ("add", "sub", "mul", "mad", "fma", "min", "max", "neg", "abs", "and", "or", "xor", "not"):

        def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand], name: str = name) -> None:
            _arithmetic(m, name, modifiers, operands)

        INSTRUCTIONS[name] = handler


_register_arithmetic()


@instruction("div")
def _div(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    if _is_float(kind):
        _arithmetic(m, "div", modifiers, operands)
        return
    name = "arith.divsi" if kind.startswith("s") else "arith.divui"
    values = [m.bits(o, _BITS[kind]) for o in operands[1:]]
    m.set(operands[0], expanded(m.x, m.b, name, values[0].type, *values))


@instruction("rem")
def _rem(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    values = [m.bits(o, _BITS[kind]) for o in operands[1:]]
    name = "arith.remsi" if kind.startswith("s") else "arith.remui"
    m.set(operands[0], expanded(m.x, m.b, name, values[0].type, *values))


def _shift(m: Machine, name: str, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Amounts of the width or more shift everything out."""
    kind = _typed(modifiers)
    width = _BITS[kind]
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


@instruction("shl")
def _shl(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    _shift(m, "shl", modifiers, operands)


@instruction("shr")
def _shr(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    _shift(m, "shr", modifiers, operands)


@instruction("shf")
def _shf(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """Funnel shift of (high, low) = (b, a)."""
    b = m.b
    low, high, amount = (m.bits(o, 32) for o in operands[1:])
    by = b.binary("andi", amount, b.i32(31)) if "wrap" in modifiers else b.binary("minui", amount, b.i32(32))
    both = b.binary("ori", resized(b, low, 64), b.binary("shli", resized(b, high, 64), b.i64(32)))
    if "l" in modifiers:
        moved = b.binary("shrui", b.binary("shli", both, resized(b, by, 64)), b.i64(32))
    else:
        moved = b.binary("shrui", both, resized(b, by, 64))
    m.set(operands[0], b.value("arith.trunci", int_type(32), (moved,)))


@instruction("prmt")
def _prmt(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    if set(modifiers) != {"b32"}:
        raise Refused("modes of prmt")
    m.set(operands[0], hardware.prmt(m.b, *(m.bits(o, 32) for o in operands[1:])))


@instruction("lop3")
def _lop3(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    *words, table = operands[1:]
    if not isinstance(table, Immediate):
        raise Refused("a table that is no number")
    m.set(operands[0], hardware.lop3(m.b, int(table.value), [m.bits(o, 32) for o in words]))


def _counting(name: str) -> Callable[[Machine, tuple[str, ...], list[Operand]], None]:
    def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
        value = m.bits(operands[1], _BITS[_typed(modifiers)])
        if name == "brev":
            m.set(operands[0], intrinsic(m.b, "llvm.bitreverse", value.type, [value]))
            return
        made = m.b.value("math.ctpop" if name == "popc" else "math.ctlz", value.type, (value,))
        m.set(operands[0], resized(m.b, made, 32))

    return handler


for _name in ("popc", "clz", "brev"):
    INSTRUCTIONS[_name] = _counting(_name)


@instruction("bfe")
def _bfe(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    if kind != "u32":
        raise Refused("bfe of this type")
    value, start, length = (m.bits(o, 32) for o in operands[1:])
    b = m.b
    start, length = (b.binary("minui", b.binary("andi", v, b.i32(255)), b.i32(32)) for v in (start, length))
    moved = b.binary("shrui", resized(b, value, 64), resized(b, start, 64))
    mask = b.binary("subi", b.binary("shli", b.i64(1), resized(b, length, 64)), b.i64(1))
    m.set(operands[0], resized(b, b.binary("andi", moved, mask), 32))


# --- predicates --------------------------------------------------------------------------------------------------------

_INTEGER_TESTS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT_TESTS = {
    "eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "num": 7, "equ": 8, "gtu": 9, "geu": 10, "ltu": 11, "leu": 12,
    "neu": 13, "nan": 14, "ne": 6,
}  # fmt: skip
"""Numbers of `arith.cmpf`; PTX's `ne` is false for NaN, as `one` is."""


@instruction("setp")
def _setp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind, test = _typed(modifiers), modifiers[0]
    b = m.b
    if _is_float(kind):
        values = [m.float(o, kind) for o in operands[1:3]]
        number = ir.IntegerAttr.get(int_type(64), _FLOAT_TESTS[test])
        made = b.value("arith.cmpf", int_type(1), tuple(values), {"predicate": number})
    else:
        values = [m.bits(o, _BITS[kind]) for o in operands[1:3]]
        prefix = "s" if kind.startswith("s") else "u"
        name = _INTEGER_TESTS.get(test) or f"{prefix}{test}"
        made = b.compare(name, *values)
    joined = next((part for part in modifiers[1:] if part in ("and", "or", "xor")), "")
    if joined:
        made = b.binary(_INTEGER[joined], made, m.i1(operands[3]))
    target = operands[0]
    if isinstance(target, Pair):
        m.set(target.second, b.binary("xori", made, b.const(int_type(1), 1)))
        target = target.first
    m.set(target, made)


@instruction("selp")
def _selp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    width = _BITS[_typed(modifiers)]
    target, first, second, condition = operands
    m.set(target, m.b.select(m.i1(condition), m.bits(first, width), m.bits(second, width)))


# --- conversions -------------------------------------------------------------------------------------------------------

_NARROW = {"e4m3": formats.FLOAT8_E4M3FN, "e5m2": formats.FLOAT8_E5M2}
_ROUNDINGS = {"rni": "math.roundeven", "rzi": "math.trunc", "rmi": "math.floor", "rpi": "math.ceil"}


@instruction("cvt")
def _cvt(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kinds = [part for part in modifiers if part in _BITS]
    if len(kinds) != 2:
        raise Refused("the types of this conversion")
    target, source = kinds
    if {"rz", "rm", "rp"} & set(modifiers) and _is_float(target):
        raise Refused("this rounding: the CPU target rounds to nearest")
    b, x = m.b, m.x
    if target.endswith("x2"):
        part = target.removesuffix("x2")
        if source.endswith("x2"):  # two narrow floats to two halves
            value = m.bits(operands[1], 16)
            halves = [resized(b, b.binary("shrui", value, b.const(value.type, 8 * n)), 8) for n in range(2)]
            floats = [_widened(b, half, source.removesuffix("x2")) for half in halves]
        else:  # the first source becomes the upper half
            floats = [m.float(o, source) for o in (operands[2], operands[1])]
        if "relu" in modifiers:
            zero = b.value(
                "arith.constant", floats[0].type, (), {"value": ir.FloatAttr.get(floats[0].type, 0.0, b.location)}
            )
            floats = [b.value("arith.maxnumf", f.type, (f, zero)) for f in floats]
        parts = [_narrowed(b, x, f, part) for f in floats]
        width = parts[0].type.width  # pyright: ignore[reportAttributeAccessIssue]
        low, high = (resized(b, p, 2 * width) for p in parts)
        m.set(operands[0], b.binary("ori", low, b.binary("shli", high, b.const(high.type, width))))
        return
    if target == "tf32":
        value = m.bits(operands[1], 32)  # round half away: add half of what is dropped
        m.set(operands[0], b.binary("andi", b.binary("addi", value, b.i32(0x1000)), b.i32(-0x2000)))
        return
    if _is_float(source):
        value = m.float(operands[1], source)
        rounding = next((part for part in modifiers if part in _ROUNDINGS), "")
        if rounding:
            value = expanded(x, b, _ROUNDINGS[rounding], value.type, value)
        if _is_float(target):
            m.set(operands[0], float_bits(b, x, value, target))
        else:
            name = "arith.fptosi" if target.startswith("s") else "arith.fptoui"
            m.set(operands[0], expanded(x, b, name, int_type(_BITS[target]), value))
        return
    value = m.bits(operands[1], _BITS[source])
    if _is_float(target):
        name = "arith.sitofp" if source.startswith("s") else "arith.uitofp"
        wide = _float_type("f64" if target == "f64" else "f32")
        m.set(operands[0], float_bits(b, x, b.value(name, wide, (value,)), target))
        return
    want = _BITS[target]
    if "sat" in modifiers:
        raise Refused("saturating conversions of integers")
    if want > _BITS[source] and source.startswith("s"):
        m.set(operands[0], b.value("arith.extsi", int_type(want), (value,)))
    else:
        m.set(operands[0], resized(b, value, want))


def _widened(b: Builder, bits: ir.Value, kind: str) -> ir.Value:
    f32 = _float_type("f32")
    return extend(Emitter(f32, b.point, b.location), bits, _NARROW[kind], f32)


def _narrowed(b: Builder, x: Expander, value: ir.Value, kind: str) -> ir.Value:
    """An f32 as the bits of a type."""
    if kind not in _NARROW:
        return float_bits(b, x, value, kind)
    f32 = _float_type("f32")
    code = truncate(Emitter(f32, b.point, b.location), value, formats.FLOAT32, f32, _NARROW[kind])
    return b.value("arith.trunci", int_type(8), (code,))


# --- functions ---------------------------------------------------------------------------------------------------------


def _function(name: str) -> Callable[[Machine, tuple[str, ...], list[Operand]], None]:
    def handler(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
        kind = _typed(modifiers)
        if kind == "f64":
            raise Refused("the f64 function")
        halves = _PARTS.get(kind)
        if halves:
            whole = m.bits(operands[1], 32)
            parts = [
                as_float(m.b, m.x, resized(m.b, m.b.binary("shrui", whole, m.b.i32(16 * n)), 16), halves)
                for n in range(2)
            ]
            low, high = (resized(m.b, float_bits(m.b, m.x, hardware.approx(m.b, name, p), halves), 32) for p in parts)
            m.set(operands[0], m.b.binary("ori", low, m.b.binary("shli", high, m.b.i32(16))))
            return
        m.set(operands[0], float_bits(m.b, m.x, hardware.approx(m.b, name, m.float(operands[1], kind)), kind))

    return handler


for _name in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"):
    INSTRUCTIONS[_name] = _function(_name)


# --- memory ------------------------------------------------------------------------------------------------------------


def _space(modifiers: tuple[str, ...]) -> str:
    for part in modifiers:
        if part.split("::")[0] in ("global", "shared", "local", "const", "param"):
            if part in ("local", "const", "param"):
                raise Refused(f"the state space {part}")
            return part
    return ""


def _vector_type(m: Machine, kind: str, modifiers: tuple[str, ...]) -> tuple[ir.Type, int]:
    count = next((int(part[1:]) for part in modifiers if part in ("v2", "v4", "v8")), 1)
    element = int_type(_BITS[kind])
    if count == 1:
        return element, 1
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context())), count


@instruction("ld", "ldu")
def _ld(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    type_, count = _vector_type(m, kind, modifiers)
    pointer = m.pointer(operands[1], _space(modifiers))
    order = ".".join(part for part in modifiers if part in _ORDERS)
    made = hardware.ordered_load(m.x, m.op, m.b, pointer, type_, order)
    if count == 1:
        m.set(operands[0], made)
        return
    if not isinstance(operands[0], Vector):
        raise Refused("a vector load needs a vector of destinations")
    for number, part in enumerate(operands[0].parts):
        position = {"static_position": ir.DenseI64ArrayAttr.get([number], context())}
        m.set(part, m.b.value("vector.extract", int_type(_BITS[kind]), (made,), position))


@instruction("st")
def _st(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    if "async" in modifiers:
        _st_async(m, kind, operands)
        return
    type_, count = _vector_type(m, kind, modifiers)
    pointer = m.pointer(operands[0], _space(modifiers))
    if count == 1:
        value = m.bits(operands[1], _BITS[kind])
    else:
        if not isinstance(operands[1], Vector):
            raise Refused("a vector store needs a vector")
        value = m.b.value("vector.from_elements", type_, [m.bits(part, _BITS[kind]) for part in operands[1].parts])
    hardware.ordered_store(m.x, m.op, m.b, pointer, value, ".".join(part for part in modifiers if part in _ORDERS))


def _st_async(m: Machine, kind: str, operands: list[Operand]) -> None:
    """Store to another block of the cluster, then take the bytes from what its mbarrier misses."""
    parts = operands[1].parts if isinstance(operands[1], Vector) else (operands[1],)
    pointer = m.pointer(operands[0], "shared::cluster")
    hooks, mbarrier = Hooks(m.x, m.op), m.pointer(operands[2], "shared::cluster")
    hooks.store_async(m.b, pointer, _BITS[kind] // 8 * len(parts), mbarrier)
    for number, part in enumerate(parts):
        m.b.store(m.bits(part, _BITS[kind]), m.b.byte_gep(pointer, number * _BITS[kind] // 8))
    bytes_ = m.b.i32(-(_BITS[kind] // 8) * len(parts))
    hardware.frame_of(m.x, m.op)
    hardware.call(m.x, m.b, "kiln_cpu_mbarrier", [mbarrier, m.b.i32(0), bytes_])
    hooks.mbarrier_after(m.b, mbarrier)


_ATOMIC_NAMES = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")


@instruction("atom", "red")
def _atom(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = _typed(modifiers)
    name = next((part for part in modifiers if part in _ATOMIC_NAMES), "")
    if not name or "async" in modifiers or any(part in ("v2", "v4", "v8") for part in modifiers):
        raise Refused("this atomic operation")
    b = m.b
    returns = len(operands) == (4 if name == "cas" else 3)
    target = operands.pop(0) if returns else Register("_")
    pointer = m.pointer(operands[0], _space(modifiers))
    values = [m.bits(o, _BITS[kind]) for o in operands[1:]]
    if name == "cas":
        compare, value = values
        m.set(target, hardware.atomic_cas(m.x, m.op, b, pointer, compare, value, ".".join(modifiers)))
        return
    if _is_float(kind):
        type_ = (
            ir.VectorType.get([2], _float_type(_PARTS[kind]), loc=ir.Location.unknown(context()))
            if kind in _PARTS
            else _float_type(kind)
        )
        value = b.value("llvm.bitcast", type_, (values[0],))
        old = hardware.atomic_rmw(m.x, m.op, b, name, pointer, value, ".".join(modifiers))
        m.set(target, b.value("llvm.bitcast", int_type(_BITS[kind]), (old,)))
        return
    how = f"u{name}" if name in ("min", "max") and kind.startswith(("u", "b")) else name
    m.set(target, hardware.atomic_rmw(m.x, m.op, b, how, pointer, values[0], ".".join(modifiers)))


@instruction("fence", "membar")
def _fence(m: Machine, modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    kind = ".".join({"gl": "gpu"}.get(part, part) for part in modifiers)
    Hooks(m.x, m.op).fence(m.b, kind)
    hardware.fence(m.b, kind)


@instruction("prefetch", "prefetchu", "griddepcontrol", "setmaxnreg", "discard", "applypriority")
def _nothing(_m: Machine, _modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    """Caches and registers are not modelled; a kernel runs when all before it are done."""


@instruction("nanosleep")
def _nanosleep(m: Machine, _modifiers: tuple[str, ...], _operands: list[Operand]) -> None:
    hardware.let_others_run(m.x, m.op, m.b, "nanosleep")


# --- lanes and barriers ------------------------------------------------------------------------------------------------


@instruction("vote")
def _vote(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = next((part for part in modifiers if part in ("all", "any", "uni", "ballot")), "")
    mask = m.bits(operands[2], 32) if len(operands) > 2 else m.b.i32(-1)
    m.set(operands[0], hardware.vote(m.x, m.op, m.b, kind, m.i1(operands[1]), mask))


@instruction("shfl")
def _shfl(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = next((part for part in modifiers if part in ("up", "down", "bfly", "idx")), "")
    target, value, offset, clamp, *mask = operands
    got, inside = hardware.shuffle(
        m.x, m.op, m.b, kind, m.bits(value, 32), m.bits(offset, 32),
        m.bits(mask[0], 32) if mask else m.b.i32(-1), m.bits(clamp, 32),
    )  # fmt: skip
    if isinstance(target, Pair):
        m.set(target.second, inside)
        target = target.first
    m.set(target, got)


@instruction("redux")
def _redux(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind, parts = _typed(modifiers), list(modifiers)
    name = next(part for part in parts if part in ("add", "min", "max", "and", "or", "xor"))
    if kind == "f32":
        name = ".".join([f"f{name}", *(part for part in parts if part in ("abs", "NaN"))])
        value = m.float(operands[1], kind)
        made = hardware.redux(m.x, m.op, m.b, name, value, m.bits(operands[2], 32))
        m.set(operands[0], m.b.value("arith.bitcast", int_type(32), (made,)))
        return
    if name in ("min", "max") and kind == "u32":
        name = f"u{name}"
    m.set(operands[0], hardware.redux(m.x, m.op, m.b, name, m.bits(operands[1], 32), m.bits(operands[2], 32)))


@instruction("match")
def _match(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = "any" if "any" in modifiers else "all"
    value = m.bits(operands[1], _BITS[_typed(modifiers)])
    lanes, everyone = hardware.match(m.x, m.op, m.b, kind, value, m.bits(operands[2], 32))
    target = operands[0]
    if isinstance(target, Pair):
        m.set(target.second, everyone)
        target = target.first
    m.set(target, lanes)


@instruction("elect")
def _elect(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    chosen, is_it = hardware.elect(m.x, m.op, m.b, m.bits(operands[1], 32))
    target = operands[0]
    if not isinstance(target, Pair):
        raise Refused("elect needs a destination d|p")
    m.set(target.first, chosen)
    m.set(target.second, is_it)


@instruction("activemask")
def _activemask(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The lanes that have not exited: which of them are together is not modelled."""
    warp = Fields(m.b, hardware.frame_of(m.x, m.op), FrameHeader).load("warp")
    m.set(operands[0], Fields(m.b, warp, Warp).load("live"))


@instruction("bar", "barrier")
def _bar(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    if "cluster" in modifiers:
        if "arrive" in modifiers:
            hardware.cluster_arrive(x, op, b, "relaxed" in modifiers)
        else:
            hardware.cluster_wait(x, op, b)
        return
    if "warp" in modifiers:
        leave(b, hardware.meet(x, op, b, "sync_warp", m.bits(operands[0], 32), []))
        return
    if "red" in modifiers:
        raise Refused("barriers that reduce")
    number = m.bits(operands[0], 32)
    count = m.bits(operands[1], 32) if len(operands) > 1 else b.i32(0)
    hardware.barrier(x, op, b, number, count, waits="arrive" not in modifiers)


@instruction("mapa")
def _mapa(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    b = m.b
    width = _BITS[_typed(modifiers)]
    address = m.bits(operands[1], width)
    if width == 32 or any(part.startswith("shared") for part in modifiers):
        pointer = shared_pointer(m.x, b, resized(b, address, 32))
    else:
        pointer = b.value("llvm.inttoptr", ptr_type(), (address,))
    there = hardware.peer(m.x, m.op, b, pointer, m.bits(operands[2], 32))
    m.set(operands[0], b.value("llvm.ptrtoint", int_type(width), (there,)))


@instruction("mbarrier")
def _mbarrier(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    hardware.frame_of(x, op)
    if "init" in modifiers:
        hardware.mbarrier_init(x, op, b, m.pointer(operands[0], "shared"), m.bits(operands[1], 32))
    elif "inval" in modifiers:
        Hooks(x, op).mbarrier_inval(b, m.pointer(operands[0], "shared"))
    elif "expect_tx" in modifiers and "arrive" not in modifiers:
        hardware.mbarrier_change(x, op, b, m.pointer(operands[0], "shared"), None, m.bits(operands[1], 32))
    elif "complete_tx" in modifiers:
        taken = b.binary("subi", b.i32(0), m.bits(operands[1], 32))
        hardware.mbarrier_change(x, op, b, m.pointer(operands[0], "shared"), None, taken)
    elif "arrive" in modifiers:
        addresses = [i for i, o in enumerate(operands) if isinstance(o, Address)]
        at = addresses[0]
        if at and isinstance(operands[0], Register) and operands[0].name != "_":
            m.set(operands[0], b.i64(0))  # the state is only good for waits by state, which are refused
        pointer = m.pointer(operands[at], "shared")
        more = m.bits(operands[at + 1], 32) if len(operands) > at + 1 else None
        if "expect_tx" in modifiers:
            hardware.mbarrier_change(x, op, b, pointer, b.i32(1), more if more is not None else b.i32(0))
        else:
            hardware.mbarrier_change(x, op, b, pointer, more if more is not None else b.i32(1), b.i32(0))
    elif ("try_wait" in modifiers or "test_wait" in modifiers) and "parity" in modifiers:
        pointer = m.pointer(operands[1], "shared")
        m.set(operands[0], hardware.mbarrier_wait(x, op, b, pointer, m.bits(operands[2], 32), may_fail=True))
    else:
        raise Refused("this form of mbarrier")


@instruction("cp")
def _cp(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    if modifiers[:1] != ("async",) or "reduce" in modifiers or "tensor" in modifiers or "prefetch" in modifiers:
        raise Refused("this copy")
    x.function.copies = True
    frame, hooks, bulk = hardware.frame_of(x, op), Hooks(x, op), "bulk" in modifiers
    prefix = "kiln_cpu_bulk" if bulk else "kiln_cpu_copy"
    if "commit_group" in modifiers:
        hardware.call(x, b, f"{prefix}_commit", [frame])
        hooks.commit(b, bulk)
    elif "wait_group" in modifiers or "wait_all" in modifiers:
        if "wait_all" in modifiers:
            hardware.call(x, b, f"{prefix}_commit", [frame])
            hooks.commit(b, bulk)
        count = m.bits(operands[0], 32) if operands else b.i32(0)
        hardware.call(x, b, f"{prefix}_wait", [frame, count])
        hooks.waited(b, count, bulk)
    elif "mbarrier" in modifiers:
        if "noinc" not in modifiers:
            raise Refused("arriving with an expectation that grows")
        mbarrier = m.pointer(operands[0], "shared")
        hooks.copies_arrive(b, mbarrier)
        hardware.call(x, b, "kiln_cpu_copy_arrive", [frame, mbarrier])
        hooks.mbarrier_after(b, mbarrier)
    elif "bulk" in modifiers and len(operands) == 4:
        target, source = m.pointer(operands[0], "shared"), m.pointer(operands[1], "global")
        size, mbarrier = m.bits(operands[2], 32), m.pointer(operands[3], "shared")
        hooks.bulk_copy(b, target, source, size, mbarrier)
        hardware.call(x, b, "kiln_cpu_bulk_load", [frame, target, source, size, mbarrier])
        hooks.mbarrier_after(b, mbarrier)
    elif "bulk" in modifiers and "bulk_group" in modifiers:
        target, source = m.pointer(operands[0], "global"), m.pointer(operands[1], "shared")
        size = m.bits(operands[2], 32)
        hooks.bulk_copy(b, target, source, size)
        hardware.call(x, b, "kiln_cpu_bulk_store", [frame, target, source, size])
    elif "bulk" not in modifiers:
        size = operands[2]
        if not isinstance(size, Immediate):
            raise Refused("a copy of a size that is no number")
        taken = m.bits(operands[3], 32) if len(operands) > 3 else b.i32(int(size.value))
        target, source = m.pointer(operands[0], "shared"), m.pointer(operands[1], "global")
        hardware.copy_async(x, op, b, target, source, taken, int(size.value))
    else:
        raise Refused("this bulk copy")


# --- the operation -----------------------------------------------------------------------------------------------------


@expands("llvm.inline_asm")
def _inline_asm(x: Expander, op: ir.Operation, _o: Any, results: list[ir.Type], b: Builder) -> list[ir.Value]:
    text = op.attributes["asm_string"].value
    constraints = [part.strip() for part in op.attributes["constraints"].value.split(",") if part.strip()]
    constraints = [part for part in constraints if not part.startswith("~")]
    if not x.function.is_kernel:
        raise report_at(op.location, DSLNotImplemented, "inline assembly is only possible in a kernel, as PTX")
    try:
        program = parse(text)
    except PtxSyntaxError as reason:
        raise report_at(op.location, DSLNotImplemented, f"inline PTX cannot be read: {reason}") from None
    machine = Machine(x, op, b, program.registers)
    outputs = [part for part in constraints if part.startswith(("=", "+"))]
    inputs = iter(op.operands)
    for number, part in enumerate(constraints):
        if part.startswith("="):
            continue
        value = _register(b, next(inputs))
        machine.values[f"${number}"] = value
        tied = part.lstrip("+")
        if tied.isdigit():
            machine.values[f"${tied}"] = value
    for statement in program.statements:
        if isinstance(statement, Label):
            raise report_at(
                op.location, DSLNotImplemented, f"inline PTX with a label ({statement.name}) is not executed on the CPU"
            )
        try:
            machine.run(statement)
        except Refused as reason:
            raise report_at(
                op.location, DSLNotImplemented, f"inline PTX `{statement.text}` is not executed on the CPU: {reason}"
            ) from None
        except (KeyError, IndexError, ValueError) as reason:
            message = f"inline PTX `{statement.text}` is not executed on the CPU: its form is not known ({reason})"
            raise report_at(op.location, DSLNotImplemented, message) from None
    if not results:
        return []
    made = [machine.bits(Register(f"${n}"), _output_width(p)) for n, p in enumerate(outputs)]
    struct = str(results[0]).startswith("!llvm.struct")
    if not struct:
        return [_value(b, made[0], results[0])]
    types = _struct_types(results[0])
    whole = b.value("llvm.mlir.undef", results[0])
    for number, (bits, type_) in enumerate(zip(made, types, strict=True)):
        whole = b.insert(whole, _value(b, bits, type_), number)
    return [whole]


_LETTERS = {"b": 1, "c": 8, "h": 16, "r": 32, "f": 32, "l": 64, "d": 64, "q": 128}


def _output_width(constraint: str) -> int:
    return _LETTERS[constraint.lstrip("=+&")]


def _struct_types(type_: ir.Type) -> list[ir.Type]:
    inside = str(type_).removeprefix("!llvm.struct<(").removesuffix(")>")
    return [ir.Type.parse(part.strip(), context()) for part in inside.split(",")]


def _register(b: Builder, value: ir.Value) -> ir.Value:
    """A value of the program as the bits of a register; truth values and bytes are widened to a word when they are used."""
    if str(value.type).startswith("!llvm.ptr"):
        return b.value("llvm.ptrtoint", int_type(64), (value,))
    value = to_carrier(b, value)
    type_ = value.type
    if isinstance(type_, ir.IntegerType):
        return value
    width = type_.width if not isinstance(type_, ir.VectorType) else type_.shape[0] * type_.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return b.value("llvm.bitcast", int_type(width), (value,))


def _value(b: Builder, bits: ir.Value, type_: ir.Type) -> ir.Value:
    """The bits of a register as a value of the program."""
    if str(type_).startswith("!llvm.ptr"):
        return b.value("llvm.inttoptr", type_, (bits,))
    if isinstance(type_, ir.IntegerType):
        return resized(b, bits, type_.width)
    width = type_.width if not isinstance(type_, ir.VectorType) else type_.shape[0] * type_.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return from_carrier(b, b.value("llvm.bitcast", type_, (resized(b, bits, width),)), type_)
