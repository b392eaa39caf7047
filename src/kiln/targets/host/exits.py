"""Early exits: functions return where they call `END` at the end of a block."""

from __future__ import annotations

from ...mlir import ir, terminator

END = "kiln_end"
"""The function that is called where a thread, or host code, exits early."""


def calls(op: ir.Operation, name: str) -> bool:
    """Return whether an operation calls a function of a name."""
    return op.name == "llvm.call" and "callee" in op.attributes and op.attributes["callee"].value == name  # pyright: ignore[reportAttributeAccessIssue]


def return_at_ends(func: ir.Operation) -> None:
    """Let an `llvm.func` return zero where it calls `END`."""
    returned = {op.operands[0].type for block in func.regions[0].blocks for op in _returns(block) if len(op.operands)}
    return_at(func, END, ("llvm.mlir.zero", returned.pop(), {}) if returned else None)


def _returns(block: ir.Block) -> list[ir.Operation]:
    last = terminator(block)
    return [last] if last.name == "llvm.return" else []


def return_at(func: ir.Operation, name: str, result: tuple[str, ir.Type, dict[str, ir.Attribute]] | None) -> None:
    """Let an `llvm.func` return where it calls a function; the result is a new operation, given by name, type and
    attributes."""
    for block in func.regions[0].blocks:
        inside = block.operations
        count = len(inside)
        if count < 2 or not calls(call := inside[count - 2].operation, name):
            continue
        end = inside[count - 1].operation
        at = ir.InsertionPoint(end)
        values: list[ir.Value] = []
        if result is not None:
            kind, type_, attributes = result
            values = [ir.Operation.create(kind, (type_,), (), attributes, loc=end.location, ip=at).result]
        ir.Operation.create("llvm.return", (), values, loc=end.location, ip=at)
        end.erase()
        call.erase()
