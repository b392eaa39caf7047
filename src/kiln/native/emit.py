"""Operations of the `llvm` dialect that native code is made of, at the insertion point of the trace."""

from __future__ import annotations

import functools
from typing import Any

from ..base_dsl.trace import emit, emit_value, require
from ..mlir import context, ir

_DYNAMIC = -(1 << 31)
"""Marks an index of a getelementptr that is an operand."""
ORDERS = {"relaxed": 2, "acquire": 4, "release": 5, "acq_rel": 6, "seq_cst": 7}
OPERATIONS = {
    "xchg": 0,
    "add": 1,
    "sub": 2,
    "and": 3,
    "nand": 4,
    "or": 5,
    "xor": 6,
    "max": 7,
    "min": 8,
    "umax": 9,
    "umin": 10,
}


@functools.lru_cache(maxsize=64)
def type_(text: str) -> ir.Type:
    """Return a type by its spelling."""
    return ir.Type.parse(text, context())


def pointer_type() -> ir.Type:
    return type_("!llvm.ptr")


@functools.lru_cache(maxsize=64)
def number(value: int, width: int = 64) -> ir.Attribute:
    """Return an integer attribute."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(width, context()), value)


@functools.lru_cache(maxsize=1024)
def _offset(index: int, bytes_: int) -> dict[str, ir.Attribute]:
    element = type_("i8") if bytes_ == 1 else type_(f"!llvm.array<{bytes_} x i8>")
    return {
        "rawConstantIndices": ir.DenseI32ArrayAttr.get([index], context()),
        "elem_type": ir.TypeAttr.get(element, context()),
    }


def offset(pointer: ir.Value, index: Any, bytes_: int) -> ir.Value:
    """Return the pointer `index` elements of some bytes on: a Python number, or a number of the program."""
    if isinstance(index, int):
        if index == 0:
            return pointer
        return emit_value("llvm.getelementptr", pointer_type(), (pointer,), _offset(index * bytes_, 1))
    kind = type(index)
    value = index.ir_value()
    if kind.width < 32 or (not kind.signed and kind.width < 64):  # an index counts as signed
        value = emit_value("arith.extsi" if kind.signed else "arith.extui", type_("i64"), (value,))
    return emit_value("llvm.getelementptr", pointer_type(), (pointer, value), _offset(_DYNAMIC, bytes_))


def _access(bytes_: int, volatile: bool, order: str | None) -> dict[str, ir.Attribute] | None:
    attributes: dict[str, ir.Attribute] = {}
    if volatile:
        attributes["volatile_"] = ir.UnitAttr.get(context())
    if order is not None:
        attributes |= {"ordering": number(ORDERS[order]), "alignment": number(bytes_)}
    return attributes or None


def load(result: ir.Type, pointer: ir.Value, bytes_: int, volatile: bool = False, order: str | None = None) -> ir.Value:
    return emit_value("llvm.load", result, (pointer,), _access(bytes_, volatile, order))


def store(value: ir.Value, pointer: ir.Value, bytes_: int, volatile: bool = False, order: str | None = None) -> None:
    emit("llvm.store", (), (value, pointer), _access(bytes_, volatile, order))


def allocate(bytes_: int, alignment: int) -> ir.Value:
    """Memory of the current call, at the start of its function."""
    entry = require("memory of a call").function.entry
    with ir.InsertionPoint.at_block_begin(entry):
        one = emit_value("llvm.mlir.constant", type_("i64"), (), {"value": number(1)})
        attributes = {
            "elem_type": ir.TypeAttr.get(type_(f"!llvm.array<{bytes_} x i8>")),
            "alignment": number(alignment),
        }
        return emit_value("llvm.alloca", pointer_type(), (one,), attributes)


def allocate_here(bytes_: ir.Value, alignment: int) -> ir.Value:
    """Memory of the current call, of a size that the program knows."""
    attributes = {"elem_type": ir.TypeAttr.get(type_("i8")), "alignment": number(alignment)}
    return emit_value("llvm.alloca", pointer_type(), (bytes_,), attributes)


def null() -> ir.Value:
    return emit_value("llvm.mlir.zero", pointer_type())


def address_of(symbol: str) -> ir.Value:
    """Return the address of a global variable."""
    name = {"global_name": ir.FlatSymbolRefAttr.get(symbol, context())}
    return emit_value("llvm.mlir.addressof", pointer_type(), (), name)


def address_of_function(symbol: str, inputs: list[ir.Type], results: list[ir.Type]) -> ir.Value:
    """Return the address of a function of the module."""
    name = {"value": ir.FlatSymbolRefAttr.get(symbol, context())}
    function = emit_value("func.constant", ir.FunctionType.get(inputs, results, context()), (), name)
    return emit_value("builtin.unrealized_conversion_cast", pointer_type(), (function,))


def call(symbol: str, operands: list[ir.Value], results: list[ir.Type]) -> list[ir.Value]:
    """Call of a function of the module."""
    name = {"callee": ir.FlatSymbolRefAttr.get(symbol, context())}
    return list(emit("func.call", results, operands, name).results)


def call_pointer(pointer: ir.Value, operands: list[ir.Value], results: list[ir.Type]) -> list[ir.Value]:
    """Call of a function by its address."""
    segments = ir.DenseI32ArrayAttr.get([len(operands) + 1, 0], context())
    attributes = {"operandSegmentSizes": segments, "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context())}
    return list(emit("llvm.call", results, [pointer, *operands], attributes).results)


def variable(
    module: ir.Module, name: str, kind: ir.Type, value: ir.Attribute | None, linkage: str, constant: bool
) -> None:
    """A global variable at the start of a module; without a value it is another module's."""
    attributes: dict[str, ir.Attribute] = {
        "sym_name": ir.StringAttr.get(name, context()),
        "global_type": ir.TypeAttr.get(kind, context()),
        "linkage": ir.Attribute.parse(f"#llvm.linkage<{linkage}>", context()),
        "addr_space": number(0, 32),
        "visibility_": number(0),
    }
    if value is not None:
        attributes["value"] = value
    if constant:
        attributes["constant"] = ir.UnitAttr.get(context())
    at_start = ir.InsertionPoint.at_block_begin(module.body)
    unknown = ir.Location.unknown(context())
    ir.Operation.create("llvm.mlir.global", attributes=attributes, regions=1, loc=unknown, ip=at_start)


@functools.lru_cache(maxsize=16)
def position(index: int) -> ir.Attribute:
    """Return which part of a struct value."""
    return ir.DenseI64ArrayAttr.get([index], context())
