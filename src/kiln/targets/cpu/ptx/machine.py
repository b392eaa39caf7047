"""The registers of inline PTX, and how a statement is expanded: by a table of instructions.

A register is an integer of its width; an instruction takes it as the type it names. In a program with branches
registers lie in memory, and its pieces between labels and branches run in a loop around the number of the piece that is
next. Registers that are declared outside of braces lie in memory as well: the function's later inline PTX has them, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....dialects.nvgpu import OPERATIONS
from ....mlir import context, ir
from ....ptx import FORMS
from ....ptx.form import Form, Reading, UnknownForm
from ....ptx.syntax import Address, Immediate, Operand, Pair, Program, Register, Statement, Vector
from ...host.arithmetic import computes_in_f32, in_f32
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import KEEP, Handler, Handlers
from ..expand import Expander
from ..ops.cute import shared_pointer
from ..runtime.record_access import block_of

BITS = (
    {"pred": 1, "b8": 8, "u8": 8, "s8": 8, "b128": 128}
    | {f"{kind}{width}": width for kind in "busf" for width in (16, 32, 64)}
    | {
        "bf16": 16,
        "f16x2": 32,
        "bf16x2": 32,
        "f32x2": 64,
        "e4m3x2": 16,
        "e5m2x2": 16,
        "e4m3x4": 32,
        "e5m2x4": 32,
        "tf32": 32,
    }
    | {"u16x2": 32, "s16x2": 32, "e2m1x2": 8, "e2m3x2": 16, "e3m2x2": 16, "ue5m3x2": 16, "ue8m0x2": 16, "s2f6x2": 16}
)
INTEGER = {"and": "andi", "or": "ori", "xor": "xori"}
PARTS = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32", "u16x2": "u16", "s16x2": "s16"}


_OPERATIONS = {form.line: op for op in OPERATIONS for form in op.PTX}
"""The operations that are one instruction, by its forms."""


class Refused(Exception):
    """An instruction, or a form of it, that is not executed."""


class Machine:
    """One piece of inline PTX: its registers by name, and where it is expanded."""

    def __init__(
        self, x: Expander, op: ir.Operation, b: Builder, program: Program, instructions: Mapping[str, Any]
    ) -> None:
        self.x = x
        self.op = op
        self.b: Builder = b
        self.instructions = instructions
        self.types = program.registers
        self.values: dict[str, ir.Value] = {}
        shared = x.function.ptx_registers
        for name in program.outside:
            if name not in shared:
                width = BITS.get(self.types[name], 32)
                shared[name] = x.at_entry(b.location).alloca(int_type(width)), width
        hidden = program.registers.keys() - program.outside
        self.cells = {name: cell for name, cell in shared.items() if name not in hidden}
        """Where registers lie that are in memory, and their widths."""
        self.modifiers: Sequence[str] = ()
        """The modifiers of the instruction that is expanded."""

    # -- reading ---------------------------------------------------------------------------------------------

    def bits(self, operand: Operand, width: int) -> ir.Value:
        """Return an operand as an integer of a width."""
        b = self.b
        if isinstance(operand, Immediate):
            return b.const(int_type(width), self._pattern(operand, width))
        if isinstance(operand, Vector):
            return self._joined(operand, width)
        if not isinstance(operand, Register):
            raise Refused(f"{operand} where a register is expected")
        value = self._value(operand.name)
        if value is None:
            value = self._special(operand.name)
        if value is None:
            value = b.const(int_type(BITS.get(self.types.get(operand.name, "b32"), 32)), 0)
        if operand.negated:
            value = b.binary("xori", value, b.const(value.type, -1))
        return resized(b, value, width)

    def _value(self, name: str) -> ir.Value | None:
        if name in self.cells:
            cell, width = self.cells[name]
            return self.b.load(int_type(width), cell)
        return self.values.get(name)

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
        """Return an operand as an f32 or f64; f16 and bf16 are widened."""
        if isinstance(operand, Immediate) and operand.width == 32 and kind == "f64":
            raise Refused("an f32 immediate where an f64 is expected")
        if isinstance(operand, Immediate) and operand.width == 0:
            operand = Immediate(float(operand.value), -1)
        return as_float(self.b, self.x, self.bits(operand, BITS[kind]), kind)

    def pointer(self, operand: Operand, space: str) -> ir.Value:
        """Return the host address that `[base + offset]` is in a state space; "": generic.

        Where an instruction does not say `.shared`, an address of 64 bits is generic.
        """
        if not isinstance(operand, Address):
            raise Refused(f"{operand} where an address is expected")
        width = 32 if isinstance(operand.base, Register) and self._width(operand.base) == 32 else 64
        address = self.bits(operand.base, width)
        says_shared = any(part.startswith("shared") for part in self.modifiers)
        if width == 32 or (space.startswith("shared") and says_shared):
            base = shared_pointer(self.x, self.op, self.b, resized(self.b, address, 32))
        else:
            base = self.b.value("llvm.inttoptr", ptr_type(), (address,))
        return self.b.byte_gep(base, operand.offset) if operand.offset else base

    def operand(self, operand: Operand, type_: str) -> Any:
        """Return an operand as a type of a form says."""
        if type_ == "imm":
            return operand.value if isinstance(operand, Immediate) else None
        if type_ == "tmem" and isinstance(operand, Address):
            base = self.bits(operand.base, 32)
            return self.b.binary("addi", base, operand.offset) if operand.offset else base
        if isinstance(operand, Address):
            return self.pointer(operand, {"generic": "", "cluster": "shared"}.get(type_, type_))
        return self.float(operand, type_) if type_ in ("f32", "f64") else self.bits(operand, BITS[type_])

    def _width(self, operand: Register) -> int:
        if operand.name in self.cells:
            return self.cells[operand.name][1]
        value = self.values.get(operand.name)
        return value.type.width if value is not None else BITS.get(self.types.get(operand.name, "b64"), 64)  # pyright: ignore[reportAttributeAccessIssue]

    # -- writing ---------------------------------------------------------------------------------------------

    def set(self, operand: Operand, value: ir.Value | tuple[ir.Value, ir.Value] | list[ir.Value]) -> None:
        """Set a destination. A vector takes a list or takes a value apart; of a pair `d|p` takes both, `d` the first."""
        if isinstance(value, list):
            for part, each in zip(operand.parts if isinstance(operand, Vector) else (operand,), value, strict=True):
                self.set(part, each)
            return
        if isinstance(value, tuple):
            first, second = value
            if isinstance(operand, Pair):
                self.set(operand.second, second)
                operand = operand.first
            self.set(operand, first)
            return
        if isinstance(operand, Vector):
            part = value.type.width // len(operand.parts)  # pyright: ignore[reportAttributeAccessIssue]
            for number, piece in enumerate(operand.parts):
                moved = self.b.binary("shrui", value, self.b.const(value.type, number * part))
                self.set(piece, resized(self.b, moved, part))
            return
        if not isinstance(operand, Register):
            raise Refused(f"{operand} where a destination is expected")
        if operand.name == "_":
            return
        if operand.name in self.cells:
            cell, width = self.cells[operand.name]
            self.b.store(resized(self.b, value, width), cell)
            return
        self.values[operand.name] = value

    # -- special registers -----------------------------------------------------------------------------------

    def _special(self, name: str) -> ir.Value | None:
        if name == "WARP_SZ":
            return self.b.i32(32)
        if not name.startswith("%"):
            if name.startswith("$") or name in self.types:
                return None
            raise Refused(f"{name} is not declared")
        b = self.b
        x = self.x
        root, _, axis = name[1:].partition(".")
        triples = {"tid": "thread_idx", "ntid": "block_dim", "ctaid": "block_idx", "nctaid": "grid_dim"}
        if root in triples and axis in ("x", "y", "z"):
            return x.function.indices[triples[root]]["xyz".index(axis)]
        block_dim = x.function.indices["block_dim"]
        linear = b.linear(x.function.indices["thread_idx"], block_dim)
        lane = b.binary("andi", linear, 31)
        if root == "laneid":
            return lane
        if root == "warpid":
            return b.binary("shrui", linear, 5)
        if root == "nwarpid":
            return b.binary("shrui", b.binary("addi", b.product(block_dim), 31), 5)
        if root.startswith("lanemask_"):
            here = b.binary("shli", b.i32(1), lane)
            below = b.binary("subi", here, 1)
            through = b.binary("ori", below, here)
            return {
                "lt": below,
                "le": through,
                "eq": here,
                "gt": b.binary("xori", through, -1),
                "ge": b.binary("xori", below, -1),
            }[root.removeprefix("lanemask_")]
        if root in ("clock", "clock64", "globaltimer", "globaltimer_lo"):
            now = x.call(b, "kiln_cpu_now", [], int_type(64))
            return now if root in ("clock64", "globaltimer") else resized(b, now, 32)
        if root in ("smid", "gridid", "nsmid"):
            return b.i32(root == "nsmid")
        record = block_of(b, x.frame_of(self.op))
        if root == "dynamic_smem_size":
            return record.load("dynamic_smem")
        if root in ("total_smem_size", "aggr_smem_size"):
            start, dynamic = (b.value("llvm.ptrtoint", int_type(64), (record.load(at),)) for at in ("smem", "dynamic"))
            return b.binary("addi", resized(b, b.binary("subi", dynamic, start), 32), record.load("dynamic_smem"))
        if root == "cluster_ctarank":
            return record.load("rank")
        sizes = [record.load(f"cluster_{a}") for a in "xyz"]
        if root == "cluster_nctarank":
            return b.product(sizes)
        if axis in ("x", "y", "z"):
            at = "xyz".index(axis)
            block = x.function.indices["block_idx"][at]
            grid = x.function.indices["grid_dim"][at]
            counts = {"cluster_ctaid": ("remui", block), "clusterid": ("divui", block), "nclusterid": ("divui", grid)}
            if root == "cluster_nctaid":
                return sizes[at]
            if root in counts:
                name, value = counts[root]
                return b.binary(name, value, sizes[at])
        raise Refused(f"the special register {name}")

    # -- running ---------------------------------------------------------------------------------------------

    def keep_in_memory(self, widths: dict[str, int]) -> None:
        """Keep registers in memory from now on: declared ones, and operands by their widths."""
        declared = {name: BITS.get(kind, 32) for name, kind in self.types.items() if name not in self.cells}
        for name, width in {**declared, **widths}.items():
            cell = self.x.at_entry(self.b.location).alloca(int_type(width))
            self.b.store(
                resized(self.b, self.values[name], width) if name in self.values else self.b.const(int_type(width), 0),
                cell,
            )
            self.cells[name] = cell, width
        self.values.clear()

    def _expand(self, statement: Statement) -> None:
        self.modifiers = statement.modifiers
        try:
            reading = FORMS.read(statement)
        except UnknownForm as reason:
            raise Refused(str(reason)) from None
        handler = self.instructions.get(statement.name if reading is None else reading.form.line)
        if handler is None and reading is not None and reading.form.line in _OPERATIONS:
            expand = self.x.module.handlers[_OPERATIONS[reading.form.line].OPERATION_NAME].of_fields
            handler = Handler(lambda machine, fields: expand(machine.x, machine.op, machine.b, fields))
        if handler is None:
            opcodes = [] if reading else FORMS.opcodes(statement.name)
            there_are = f": there are {', '.join(opcodes)}" if opcodes else ""
            raise Refused(f"the instruction is not known to the CPU target{there_are}")
        result = handler.expand(self, statement if reading is None else Fields(self, reading))
        if result is not None:
            self.set(statement.operands[0], result)

    def run(self, statement: Statement) -> None:
        """Expand one statement. Its handler returns the value of the first operand, two values for `d|p`, or None."""
        if statement.guard is None:
            self._expand(statement)
            return
        # under a guard: in a branch, with destinations in memory
        condition = self.i1(statement.guard)
        outer = self.b
        before = dict(self.values)
        inner = outer.if_(condition)
        self.b = inner
        self._expand(statement)
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


class Fields:
    """An instruction as its form names its parts: values of modifiers, and operands, which are read when they are asked for.

    A register is an integer of the type's width, an f32 or f64 a float, an address a host pointer, `imm` a number, a
    vector a list. Destinations and operands without a type are as they are written. What is missing is None, also what
    only other forms of the instruction have.
    """

    def __init__(self, machine: Machine, reading: Reading) -> None:
        self.form = reading.form
        self._machine = machine
        self._reading = reading
        self._read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._read:
            self._read[name] = self._value(name)
        return self._read[name]

    def _value(self, name: str) -> Any:
        operands = self._reading.operands
        place = next((place for place in self.form.places if place.name == name), None)
        if place is None:
            if name not in FORMS.names(self.form.opcode[0]):
                raise AttributeError(f"{self.form} has no {name}")
            return self._reading.fields.get(name)
        operand = operands.get(name)
        if operand is None or place.out or not place.type:
            return operand
        if isinstance(operand, tuple):
            return [self._machine.operand(part, place.type) for part in operand]
        return self._machine.operand(operand, place.type)


def reads(table: Handlers, *forms: Form) -> Callable[[Any], Any]:
    """Return a decorator that enters the handler of instructions of some forms; it takes the machine and `Fields`."""
    return table.expands(*(form.line for form in forms))


def resized(b: Builder, value: ir.Value, width: int) -> ir.Value:
    """Return an integer zero-extended or truncated to a width."""
    have = value.type.width  # pyright: ignore[reportAttributeAccessIssue]
    if have == width:
        return value
    return b.value("arith.extui" if have < width else "arith.trunci", int_type(width), (value,))


def expanded(x: Expander, b: Builder, name: str, result: ir.Type, *operands: ir.Value, **attributes: Any) -> ir.Value:
    """Return the result of an operation, expanded as the same operation of a program would be."""
    op = b.op(name, (result,), operands, attributes or None)
    handler = Handler(in_f32) if computes_in_f32(op) else x.module.handlers.get(name)
    value = handler.expand(x, op, Builder(ir.InsertionPoint(op), b.location)) if handler else KEEP
    if value is KEEP:
        return op.result
    op.erase()
    return value


def float_type(kind: str) -> ir.Type:
    return {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "tf32": ir.F32Type, "f64": ir.F64Type}[kind].get(
        context()
    )


def as_float(b: Builder, x: Expander, bits: ir.Value, kind: str) -> ir.Value:
    """Return the bits of a float as an f32; an f64 stays one."""
    value = b.value("arith.bitcast", float_type(kind), (bits,))
    return value if kind in ("f32", "tf32", "f64") else expanded(x, b, "arith.extf", float_type("f32"), value)


def float_bits(b: Builder, x: Expander, value: ir.Value, kind: str) -> ir.Value:
    """Return an f32 (or f64) as the bits of a float, rounded to nearest."""
    want = float_type(kind)
    if value.type != want:
        value = expanded(x, b, "arith.truncf" if value.type.width > want.width else "arith.extf", want, value)  # pyright: ignore[reportAttributeAccessIssue]
    return b.value("arith.bitcast", int_type(want.width), (value,))  # pyright: ignore[reportAttributeAccessIssue]


def is_float(kind: str) -> bool:
    return kind.startswith(("f", "bf", "tf"))


def typed(s: Statement) -> str:
    """Return the type an instruction names last."""
    for part in reversed(s.modifiers):
        if part in BITS:
            return part
    raise Refused("it names no type")
