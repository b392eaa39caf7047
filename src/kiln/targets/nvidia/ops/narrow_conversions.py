"""Conversions of narrow floats for which the hardware has an instruction with the language's rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import context, ir
from ...lowering.builder import int_type
from ..device_builder import DeviceBuilder

if TYPE_CHECKING:
    from ....hardware.architectures import Architecture


def narrow_conversion(arch: Architecture, op: ir.Operation, source: str, target: str) -> ir.Value | None:
    """The result of a conversion, or None where there is no instruction for it."""
    if (source, target) == ("f32", "tf32") and features.TFLOAT32_TO_EVEN.on(arch):
        return _each(op, "cvt.rn.tf32.f32 $0, $1;")
    return None


def _each(op: ir.Operation, code: str) -> ir.Value | None:
    """An instruction from f32 to bits of f32, for each element of a vector of one mode or for a number."""
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    value = op.operands[0]
    kind = ir.F32Type.get(context())

    def convert(x: ir.Value) -> ir.Value:
        (bits,) = b.asm(code, "=r,f", [x], [int_type(32)], pure=True)
        return b.value("arith.bitcast", kind, (bits,))

    if not isinstance(value.type, ir.VectorType):
        return convert(value)
    if len(value.type.shape) != 1:
        return None
    parts = [
        convert(
            b.value("vector.extract", kind, (value,), {"static_position": ir.DenseI64ArrayAttr.get([n], context())})
        )
        for n in range(value.type.shape[0])
    ]
    return b.value("vector.from_elements", value.type, parts)
