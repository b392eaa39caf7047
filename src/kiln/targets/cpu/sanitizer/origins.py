"""Where the addresses and values of a program come from, followed through its operations, and what names they have."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Container

from ....analysis import effects, pointers, values
from ....base_dsl.diagnostics import Span
from ....dialects import cute
from ....mlir import ir
from ...lowering.expansion import AnyOp

MOST_MERGES = 8


_PURE = ("arith.", "llvm.getelementptr", "llvm.ptrtoint", "llvm.inttoptr", "llvm.extractvalue", "builtin.")
"""Operations of MLIR whose result depends on the operands alone."""


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
                seen[value] = all(is_uniform(each, entry, threads, seen) for each in values.bounds(parent))
        else:
            op = value.owner.operation
            pure = op.name.startswith(_PURE) or effects.is_same_in(op.name, "cta")
            seen[value] = pure and all(is_uniform(each, entry, threads, seen) for each in op.operands)
    return seen[value]


def register_arrays(address: ir.Value) -> list[ir.Value]:
    """Return the register arrays that an address may point into."""
    return [value for value in pointers.roots(address, pointers.address_sources) if cute.AllocRmem.making(value)]


def is_only_printed(op: AnyOp) -> bool:
    """Return whether what an operation loads is only printed: a program may show what nobody has written."""
    todo = list(op.operation.results)
    printed = False
    while todo:
        for use in todo.pop().uses:
            user = use.owner.operation
            if cute.Printf.of(user):
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
        match = re.match(r"(\w+)\s*=[^=]", text)
        return match.group(1) if match else ""
    if len(statement) == 1 and isinstance(statement[0], ast.Assign) and len(statement[0].targets) == 1:
        target = statement[0].targets[0]
        if isinstance(target, ast.Name):
            return target.id
    return ""
