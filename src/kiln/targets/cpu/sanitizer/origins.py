"""Where the addresses and values of a program come from, followed through its operations, and what names they have."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Container

from ....base_dsl.diagnostics import Span
from ....mlir import ir, terminator
from ...lowering.expansion import AnyOp

_MOVING = {
    "llvm.getelementptr",
    "llvm.bitcast",
    "llvm.extractvalue",
    "builtin.unrealized_conversion_cast",
    "cute.ptr_add",
    "cute.cast_ptr",
    "cute.view",
    "cute.cast_memref",
    "cute.iter",
    "cute.ptr_to_int",
    "llvm.ptrtoint",
    "llvm.inttoptr",
}
"""Operations whose result points into the memory of their first operand; a tensor's address comes first."""
MOST_MERGES = 8


def passed_on(value: ir.Value) -> list[ir.Value]:
    """Return the values that an address may be derived from; a loop's initial value comes first."""
    if isinstance(value.owner, ir.Block):
        block = value.owner
        number = ir.BlockArgument(value).arg_number
        parent = block.owner.operation
        if parent.name == "scf.for" and number:
            return [parent.operands[number + 2], terminator(block).operands[number - 1]]
        if parent.name == "scf.while":
            before, after = (region.blocks[0] for region in parent.regions)
            if block == after:
                return [terminator(before).operands[number + 1]]
            return [parent.operands[number], terminator(after).operands[number]]
        return []
    op = value.owner.operation
    if op.name in _MOVING:
        return [op.operands[0]]
    if op.name == "llvm.insertvalue":
        return [op.operands[1] if list(op.attributes["position"]) == [0] else op.operands[0]]  # pyright: ignore[reportArgumentType]
    if op.name in ("scf.for", "scf.while", "scf.if"):
        number = list(op.results).index(value)
        if op.name == "scf.for":
            return [op.operands[number + 3], terminator(op.regions[0].blocks[0]).operands[number]]
        if op.name == "scf.while":
            return [terminator(op.regions[0].blocks[0]).operands[number + 1]]
        return [terminator(region.blocks[0]).operands[number] for region in op.regions]
    return []


_PURE = ("arith.", "llvm.getelementptr", "llvm.ptrtoint", "llvm.inttoptr", "llvm.extractvalue", "cute.", "builtin.")
"""Operations that give all threads the same if their operands are the same; those of `cute` that load are not among them."""


def is_uniform(
    value: ir.Value, entry: ir.Block, threads: Container[ir.Value], seen: dict[ir.Value, bool] | None = None
) -> bool:
    """Return whether a value is known to be the same for all threads of a kernel with these thread indices."""
    seen = {} if seen is None else seen
    if value not in seen:
        seen[value] = False  # also of what depends on itself
        if isinstance(value.owner, ir.Block):
            parent = value.owner.owner.operation
            if value.owner == entry:
                seen[value] = value not in threads
            elif parent.name == "scf.for" and not ir.BlockArgument(value).arg_number:
                seen[value] = all(is_uniform(each, entry, threads, seen) for each in list(parent.operands)[:3])
        else:
            op = value.owner.operation
            pure = op.name.startswith(_PURE) and op.name not in ("cute.load", "cute.thread_idx") and not len(op.regions)
            seen[value] = pure and all(is_uniform(each, entry, threads, seen) for each in op.operands)
    return seen[value]


def register_arrays(address: ir.Value) -> list[ir.Value]:
    """Return the register arrays that an address may point into."""
    seen = set[ir.Value]()
    todo = [address]
    found = list[ir.Value]()
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo += passed_on(value)
            if not isinstance(value.owner, ir.Block) and value.owner.operation.name == "cute.alloc_rmem":
                found.append(value)
    return found


def is_only_printed(op: AnyOp) -> bool:
    """Return whether what an operation loads is only printed: a program may show what nobody has written."""
    todo = list(op.operation.results)
    printed = False
    while todo:
        for use in todo.pop().uses:
            user = use.owner.operation
            if user.name == "cute.printf":
                printed = True
            elif user.name.startswith(("arith.ext", "arith.trunc", "vector.extract", "builtin.unrealized")):
                todo += list(user.results)
            else:
                return False
    return printed


def location_name(location: ir.Location) -> str:
    location = ir.Location.from_attr(location.attr, location.context)
    return location.name_str if isinstance(location, ir.NameLoc) else ""


def assigned_name(span: Span | None) -> str:
    """Return the variable that the statement at a source line assigns, if it is one name."""
    if span is None:
        return ""
    text = linecache.getline(span.filename, span.line).strip()
    try:
        statement = ast.parse(text).body
    except SyntaxError:
        found = re.match(r"(\w+)\s*=[^=]", text)
        return found.group(1) if found else ""
    if len(statement) == 1 and isinstance(statement[0], ast.Assign) and len(statement[0].targets) == 1:
        target = statement[0].targets[0]
        if isinstance(target, ast.Name):
            return target.id
    return ""
