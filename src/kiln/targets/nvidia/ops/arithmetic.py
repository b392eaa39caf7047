"""Arithmetic that LLVM leaves undefined or NVPTX lacks, with the meaning it has on every target.

Shifts by the width or more give 0 (-1 for an arithmetic shift of a negative number). Floats outside an integer type
saturate, NaN gives 0. Integer division by zero is not detected on the device: its result is unspecified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....mlir import context, ir
from ...lowering.builder import constant_values, flat_type, int_type, reshape
from ..expand import Types, element_of, expands

if TYPE_CHECKING:
    from ..expand import DeviceBuilder, Expander


@expands("arith.floordivsi", "arith.ceildivsi", "arith.ceildivui")
def _rounded_quotient(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    """Quotients that C does not have, from the one it has and the remainder."""
    name = op.name.removeprefix("arith.")
    a, d = op.operands
    values = constant_values(d)
    if name == "floordivsi" and values and len(values) == 1 and values[0] > 0 and not values[0] & (values[0] - 1):
        return [b.binary("shrsi", a, b.const(d.type, values[0].bit_length() - 1))]
    quotient = b.binary("divui" if name == "ceildivui" else "divsi", a, d)
    rest = b.binary("subi", a, b.binary("muli", quotient, d))
    zero = b.const(d.type, 0)
    adjust = b.compare("ne", rest, zero)
    if name != "ceildivui":  # the remainder has the sign of `a`: where it differs from that of `d`, C rounded up
        adjust = b.binary(
            "andi", adjust, b.compare("slt" if name == "floordivsi" else "sge", b.binary("xori", rest, d), zero)
        )
    step = b.select(adjust, b.const(d.type, 1), zero)
    return [b.binary("subi" if name == "floordivsi" else "addi", quotient, step)]


@expands("arith.shli", "arith.shrui", "arith.shrsi")
def _shift(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value] | None:
    value, amount = op.operands
    element = element_of(value.type)
    width = 64 if isinstance(element, ir.IndexType) else element.width
    values = constant_values(amount)
    if values is not None and all(0 <= v < width for v in values):
        return None
    if op.name == "arith.shrsi":
        return [b.value(op.name, value.type, (value, b.binary("minui", amount, b.const(amount.type, width - 1))))]
    inside = b.compare("ult", amount, b.const(amount.type, width))
    return [b.select(inside, b.value(op.name, value.type, (value, amount)), b.const(value.type, 0))]


def intrinsic(b: DeviceBuilder, name: str, result: ir.Type, operands: list[ir.Value]) -> ir.Value:
    """A call of an LLVM intrinsic by its mangled name."""
    return b.value(
        "llvm.call_intrinsic",
        result,
        operands,
        {
            "intrin": ir.StringAttr.get(name, context()),
            "op_bundle_sizes": ir.DenseI32ArrayAttr.get([], context()),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0], context()),
        },
    )


def mangle(type_: ir.Type) -> str:
    """A type in the name of an intrinsic."""
    return f"v{type_.shape[0]}{type_.element_type}" if isinstance(type_, ir.VectorType) else str(type_)


@expands("arith.fptosi", "arith.fptoui")
def _float_to_int(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, result = op.operands[0], op.results[0].type
    value, flat = reshape(b, value, flat_type(value.type)), flat_type(result)
    kind = op.name.removeprefix("arith.")
    made = intrinsic(b, f"llvm.{kind}.sat.{mangle(flat)}.{mangle(value.type)}", flat, [value])
    return [reshape(b, made, result)]


# Bits of LLVM's is.fpclass: negative and positive of infinity, normal, subnormal, zero, around two kinds of NaN.
_CLASSES = {"math.isnan": 0x003, "math.isinf": 0x204, "math.isnormal": 0x108, "math.isfinite": 0x1F8}


@expands(*_CLASSES)
def _classify(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    value, result = op.operands[0], op.results[0].type
    bit = {"bit": ir.IntegerAttr.get(int_type(32), _CLASSES[op.name])}
    flat = reshape(b, value, flat_type(value.type))
    return [reshape(b, b.value("llvm.intr.is.fpclass", flat_type(result), (flat,), bit), result)]
