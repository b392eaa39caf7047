"""Inline PTX as host code: its statements are expanded one by one, like operations of `cute_nvgpu`.

An instruction whose form `kiln.ptx` does not know, or that has no handler here, is refused with its text and the user's
line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....mlir import context, ir
from ....ptx.syntax import Label, PtxSyntaxError, Register, Statement, parse
from ...lowering.builder import Builder, int_type
from ...lowering.expansion import Handlers, combined
from ...lowering.memory import from_carrier, to_carrier
from ..expand import OPEN_LOOP, Expander
from . import arithmetic, copies, launch_control, matrices, mbarrier, memory, multicast, tcgen05, tma, warps
from .machine import Machine, Refused, resized

HANDLERS = Handlers()
_INSTRUCTIONS = combined(
    arithmetic.INSTRUCTIONS,
    memory.INSTRUCTIONS,
    multicast.INSTRUCTIONS,
    copies.INSTRUCTIONS,
    mbarrier.INSTRUCTIONS,
    tma.INSTRUCTIONS,
    warps.INSTRUCTIONS,
    matrices.INSTRUCTIONS,
    tcgen05.INSTRUCTIONS,
    launch_control.INSTRUCTIONS,
)


@HANDLERS.expands("llvm.inline_asm")
def _inline_asm(x: Expander, op: ir.Operation, b: Builder) -> ir.Value | None:
    text = op.attributes["asm_string"].value
    constraints = [part.strip() for part in op.attributes["constraints"].value.split(",") if part.strip()]
    constraints = [part for part in constraints if not part.startswith("~")]
    if not x.function.is_kernel:
        raise report_at(op.location, DSLNotImplemented, "inline assembly is only possible in a kernel, as PTX")
    try:
        program = parse(text)
    except PtxSyntaxError as reason:
        raise report_at(op.location, DSLNotImplemented, f"inline PTX cannot be read: {reason}") from None
    machine = Machine(x, op, b, program, _INSTRUCTIONS)
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
    if any(isinstance(statement, Statement) and statement.name in _BRANCHES for statement in program.statements):
        widths = {f"${n}": _output_width(p) for n, p in enumerate(constraints) if not p.isdigit()}
        machine.keep_in_memory(widths)
        _run_pieces(machine, program.statements)
    else:
        for statement in program.statements:
            if isinstance(statement, Statement):
                with _expanding(machine, statement):
                    machine.run(statement)
    if not len(op.results):
        return None
    registers = [machine.bits(Register(f"${n}"), _output_width(p)) for n, p in enumerate(outputs)]
    result = op.result.type
    if not str(result).startswith("!llvm.struct"):
        return _value(b, registers[0], result)
    types = _struct_types(result)
    whole = b.value("llvm.mlir.undef", result)
    for number, (bits, type_) in enumerate(zip(registers, types, strict=True)):
        whole = b.insert(whole, _value(b, bits, type_), number)
    return whole


@contextlib.contextmanager
def _expanding(machine: Machine, statement: Statement) -> Iterator[None]:
    """While open, report at the user's line why a statement cannot be expanded."""
    refused = f"inline PTX `{statement.text}` is not executed on the CPU"
    try:
        yield
    except Refused as reason:
        raise report_at(machine.op.location, DSLNotImplemented, f"{refused}: {reason}") from None
    except (KeyError, IndexError, ValueError) as reason:
        message = f"{refused}: its form is not known ({reason})"
        raise report_at(machine.op.location, DSLNotImplemented, message) from None


def _run_pieces(machine: Machine, statements: Sequence[Statement | Label]) -> None:
    """Expand a program with branches: a loop around its pieces, each of which sets the next; past the last it ends."""
    op = machine.op
    b = machine.b
    x = machine.x
    pieces: list[list[Statement]] = [[]]
    labels: dict[str, int] = {}
    for statement in statements:
        if isinstance(statement, Label):
            if pieces[-1]:
                pieces.append([])
            if statement.name in labels:
                message = f"inline PTX defines the label {statement.name} twice"
                raise report_at(op.location, DSLNotImplemented, message)
            labels[statement.name] = len(pieces) - 1
        else:
            pieces[-1].append(statement)
            if statement.name in _BRANCHES:
                pieces.append([])
    end = len(pieces)
    targets = {id(s): _target(op, s, labels, end) for piece in pieces for s in piece if s.name in _BRANCHES}
    if any(targets[id(piece[-1])] <= n for n, piece in enumerate(pieces) if piece and id(piece[-1]) in targets):
        # it may wait for another thread
        op.attributes[OPEN_LOOP] = ir.UnitAttr.get(context())
    i32 = int_type(32)
    following = x.at_entry(op.location).alloca(i32)
    b.store(b.i32(0), following)
    body, _ = b.while_(lambda c: (c.compare("slt", c.load(i32, following), end),))
    if OPEN_LOOP in op.attributes:
        x.stop_if_asked(op, body, None)
    for number, piece in enumerate(pieces):
        inside = body.if_(body.compare("eq", body.load(i32, following), number))
        inside.store(inside.i32(number + 1), following)
        machine.b = inside
        for statement in piece:
            with _expanding(machine, statement):
                if statement.name not in _BRANCHES:
                    machine.run(statement)
                    continue
                taken = inside if statement.guard is None else inside.if_(machine.i1(statement.guard))
                taken.store(taken.i32(targets[id(statement)]), following)
    machine.b = b


_BRANCHES = ("bra", "ret")


def _target(op: ir.Operation, branch: Statement, labels: dict[str, int], end: int) -> int:
    """Return the piece that a branch goes to."""
    if branch.name != "bra":
        message = f"inline PTX `{branch.text}` is not executed on the CPU: it would end the program's thread"
        raise report_at(op.location, DSLNotImplemented, message)
    target = branch.operands[0] if branch.operands else None
    if not isinstance(target, Register) or target.name not in labels:
        labels_text = f"there are {', '.join(labels)}" if labels else "there are none"
        message = f"inline PTX `{branch.text}`: no such label in this piece of assembly"
        raise report_at(op.location, DSLNotImplemented, message, labels_text)
    return labels[target.name]


_LETTERS = {"b": 1, "c": 8, "h": 16, "r": 32, "f": 32, "l": 64, "d": 64, "q": 128}


def _output_width(constraint: str) -> int:
    """Return the width of an operand by its constraint."""
    return _LETTERS[constraint.lstrip("=+&")]


def _struct_types(type_: ir.Type) -> list[ir.Type]:
    inside = str(type_).removeprefix("!llvm.struct<(").removesuffix(")>")
    return [ir.Type.parse(part.strip(), context()) for part in inside.split(",")]


def _register(b: Builder, value: ir.Value) -> ir.Value:
    """Return a value of the program as the bits of a register."""
    if str(value.type).startswith("!llvm.ptr"):
        return b.value("llvm.ptrtoint", int_type(64), (value,))
    value = to_carrier(b, value)
    type_ = value.type
    if isinstance(type_, ir.IntegerType):
        return value
    width = type_.width if not isinstance(type_, ir.VectorType) else type_.shape[0] * type_.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return b.value("llvm.bitcast", int_type(width), (value,))


def _value(b: Builder, bits: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the bits of a register as a value of the program."""
    if str(type_).startswith("!llvm.ptr"):
        return b.value("llvm.inttoptr", type_, (bits,))
    if isinstance(type_, ir.IntegerType):
        return resized(b, bits, type_.width)
    width = type_.width if not isinstance(type_, ir.VectorType) else type_.shape[0] * type_.element_type.width  # pyright: ignore[reportAttributeAccessIssue]
    return from_carrier(b, b.value("llvm.bitcast", type_, (resized(b, bits, width),)), type_)
