"""Arithmetic that LLVM leaves undefined or lacks, with one meaning on all targets.

Shifts by the width or more give 0 (-1 for an arithmetic shift of a negative number). Floats outside an integer type
saturate, NaN gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base_dsl.numeric.emit import SIGNED_AMOUNT
from ...mlir import context, ir
from .builder import Builder, constant_values, flat_type, int_type, reshape
from .expansion import KEEP, Expander, Handlers

HANDLERS = Handlers()


def element_of(type_: ir.Type) -> Any:
    """Return the element type of a vector; other types are themselves."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


ROUNDED_QUOTIENTS = ("floordivsi", "ceildivsi", "ceildivui")


def rounded_quotient(
    b: Builder, name: str, a: ir.Value, d: ir.Value, divide: Callable[[str], ir.Value] | None = None
) -> ir.Value:
    """Return a rounded quotient, from the truncating one (`divide` makes it) and the remainder.

    MLIR's own expansion is wrong for i128.
    """
    type_ = d.type
    values = constant_values(d)
    if name == "floordivsi" and values and len(values) == 1 and values[0] > 0 and not values[0] & (values[0] - 1):
        return b.binary("shrsi", a, b.const(type_, values[0].bit_length() - 1))
    plain = "divui" if name == "ceildivui" else "divsi"
    quotient = b.binary(plain, a, d) if divide is None else divide(f"arith.{plain}")
    rest = b.binary("subi", a, b.binary("muli", quotient, d))
    zero = b.const(type_, 0)
    adjust = b.compare("ne", rest, zero)
    if name != "ceildivui":  # the remainder has the sign of `a`: where it differs from that of `d`, C rounded up
        signs = b.binary("xori", rest, d)
        adjust = b.binary("andi", adjust, b.compare("slt" if name == "floordivsi" else "sge", signs, zero))
    step = b.select(adjust, b.const(type_, 1), zero)
    return b.binary("subi" if name == "floordivsi" else "addi", quotient, step)


@HANDLERS.expands("arith.shli", "arith.shrui", "arith.shrsi")
def _shift(x: Expander, op: ir.Operation, b: Builder) -> object:
    value, amount = op.operands
    if SIGNED_AMOUNT in op.attributes:
        limit = None if isinstance(amount.owner, ir.Block) else amount.owner.operation
        asked = limit.operands[0] if limit is not None and limit.name == "arith.minui" else amount
        constants = constant_values(asked)
        if constants is None or min(constants) < 0:
            x.shifts_by(op, asked, b)
    element = element_of(value.type)
    width = 64 if isinstance(element, ir.IndexType) else element.width
    values = constant_values(amount)
    if values is not None and all(0 <= v < width for v in values):
        return KEEP
    if op.name == "arith.shrsi":
        clamped = b.binary("minui", amount, b.const(amount.type, width - 1))
        return b.value(op.name, value.type, (value, clamped))
    inside = b.compare("ult", amount, b.const(amount.type, width))
    # the unselected arm may be poison; the result is not
    return b.select(inside, b.value(op.name, value.type, (value, amount)), b.const(value.type, 0))


def mangle(type_: ir.Type) -> str:
    """Return a type in the name of an intrinsic."""
    return f"v{type_.shape[0]}{type_.element_type}" if isinstance(type_, ir.VectorType) else str(type_)


def intrinsic(b: Builder, name: str, result: ir.Type | None, operands: list[ir.Value]) -> Any:
    """Call an LLVM intrinsic by its mangled name, and return its result, if it has one."""
    called = b.op(
        "llvm.call_intrinsic",
        () if result is None else (result,),
        operands,
        {
            "intrin": ir.StringAttr.get(name, context()),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0], context()),
        },
    )
    return None if result is None else called.result


def saturated(b: Builder, kind: str, value: ir.Value, result: ir.Type) -> ir.Value:
    """Return a float as an integer: `kind` is "fptosi" or "fptoui"."""
    value = reshape(b, value, flat_type(value.type))
    flat = flat_type(result)
    clamped = intrinsic(b, f"llvm.{kind}.sat.{mangle(flat)}.{mangle(value.type)}", flat, [value])
    return reshape(b, clamped, result)


# Bits of LLVM's is.fpclass: negative and positive of infinity, normal, subnormal, zero, around two kinds of NaN.
_CLASSES = {"math.isnan": 0x003, "math.isinf": 0x204, "math.isnormal": 0x108, "math.isfinite": 0x1F8}


@HANDLERS.expands(*_CLASSES)
def _classify(_x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
    value = op.operands[0]
    result = op.results[0].type
    flat = reshape(b, value, flat_type(value.type))
    bit = {"bit": ir.IntegerAttr.get(int_type(32), _CLASSES[op.name])}
    return reshape(b, b.value("llvm.intr.is.fpclass", flat_type(result), (flat,), bit), result)
