"""Calls of device functions from outside: `llvm.call` of declarations that say where the function is defined."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...base_dsl import trace as tracing
from ...mlir import context, find, ir
from .types import info, is_ptr

SYMBOL = "cute.symbol"
"""The attribute of a declaration that has the name to link."""
LIBRARY = "cute.library"
"""The attribute of a declaration that has the path of the bitcode; empty for one that some library defines."""
_DIGEST = "cute.digest"


class Call(NamedTuple):
    """A call of a device function from outside."""

    operation: ir.Operation
    symbol: str
    library: str
    """The path of the bitcode that defines it; empty if unknown."""
    digest: str
    """A hash of its content."""


def digest(path: str | Path) -> str:
    """Return a hash of the content of a file; it is read again when it has changed."""
    whole = os.path.abspath(path)
    state = os.stat(whole)
    return _digest(whole, state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=64)
def _digest(path: str, _changed: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def call(
    symbol: str, operands: Sequence[ir.Value], result: ir.Type | None, library: str, digest: str
) -> ir.Value | None:
    """Call the function `symbol` of bitcode with the hash `digest`, and return its result, if it has one."""
    trace = tracing.current()
    assert trace is not None
    taken = ", ".join(str(value.type) for value in operands)
    signature = f"!llvm.func<{'void' if result is None else result} ({taken})>"
    texts = {SYMBOL: symbol, LIBRARY: library, _DIGEST: digest}
    table = ir.SymbolTable(trace.module.operation)
    name = symbol
    while name in table:
        attributes = table[name].operation.attributes
        same_texts = all(key in attributes and attributes[key].value == text for key, text in texts.items())
        if same_texts and str(attributes["function_type"].value) == signature:
            break
        name += "_"
    else:
        with context(), ir.Location.unknown():
            ir.Operation.create(
                "llvm.func",
                attributes={
                    "sym_name": ir.StringAttr.get(name),
                    "function_type": ir.TypeAttr.get(ir.Type.parse(signature)),
                    **{key: ir.StringAttr.get(text) for key, text in texts.items()},
                },
                regions=1,
                ip=ir.InsertionPoint.at_block_begin(trace.module.body),
            )
    attributes = {
        "callee": ir.FlatSymbolRefAttr.get(name, context()),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0], context()),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
    }
    operation = tracing.emit("llvm.call", () if result is None else (result,), operands, attributes)
    return None if result is None else operation.results[0]


def calls_in(module: ir.Module) -> list[Call]:
    """Return the calls of device functions from outside in a module."""
    table = {
        op.attributes["sym_name"].value: tuple(op.attributes[key].value for key in (SYMBOL, LIBRARY, _DIGEST))
        for op in find(module.operation, ("llvm.func",))
        if LIBRARY in op.attributes
    }
    if not table:
        return []
    callees = (
        (op, op.attributes["callee"].value)
        for op in find(module.operation, ("llvm.call",))
        if "callee" in op.attributes
    )
    return [Call(op, *table[callee]) for op, callee in callees if callee in table]


def drop_declarations(module: ir.Module) -> None:
    """Remove the declarations, when no call of them is left."""
    for op in find(module.operation, ("llvm.func",)):
        if LIBRARY in op.attributes:
            op.erase()


def is_llvm_pointer(*types: object) -> bool:
    """Return whether all types are `!llvm.ptr`, of any address space."""
    return all(str(type_).startswith("!llvm.ptr") for type_ in types)


def is_pointer(type_: object) -> bool:
    """Return whether a type is `!cute.ptr`."""
    return isinstance(type_, ir.Type) and is_ptr(type_)


def pointer_parts(type_: ir.Type) -> tuple[ir.Type, str]:
    """Return element type and memory space of a `!cute.ptr`."""
    parts = info(type_)
    return parts.element, parts.space


def as_generic(value: ir.Value) -> ir.Value:
    """Return a `!llvm.ptr` of any address space as a generic one."""
    if str(value.type) == "!llvm.ptr":
        return value
    return tracing.emit_value("llvm.addrspacecast", ir.Type.parse("!llvm.ptr", context()), (value,))
