"""Conversions to narrow floats for which the hardware has an instruction with the language's rounding."""

from __future__ import annotations

from ....hardware import features
from ....hardware.architectures import Architecture
from ....mlir import context, ir
from ...lowering.builder import int_type
from ..device_builder import DeviceBuilder

_BYTES = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}
_WIDER = ("f32", "f16", "bf16")


def narrow_conversion(arch: Architecture, op: ir.Operation, source: str, target: str) -> ir.Value | None:
    """Return the result of a conversion, or None where there is no instruction for it."""
    value = op.operands[0]
    if isinstance(value.type, ir.VectorType) and len(value.type.shape) != 1:
        return None
    b = DeviceBuilder(ir.InsertionPoint(op), op.location)
    if (source, target) == ("f32", "tf32") and features.TFLOAT32_TO_EVEN.on(arch):
        return _to_tf32(b, value)
    if source in _WIDER and target in _BYTES and features.BYTE_FLOAT_CONVERSIONS.on(arch):
        return _to_bytes(b, value, op.results[0].type, _BYTES[target])
    return None


def _elements(b: DeviceBuilder, value: ir.Value) -> list[ir.Value]:
    """Return the elements of a vector, or a number."""
    return b.elements(value) if isinstance(value.type, ir.VectorType) else [value]


def _to_tf32(b: DeviceBuilder, value: ir.Value) -> ir.Value:
    """Round f32 to tf32, kept in an f32."""
    kind = ir.F32Type.get(context())
    made: list[ir.Value] = []
    for x in _elements(b, value):
        (bits,) = b.asm("cvt.rn.tf32.f32 $0, $1;", "=r,f", [x], [int_type(32)], pure=True)
        made.append(b.value("arith.bitcast", kind, (bits,)))
    return b.vector(made) if isinstance(value.type, ir.VectorType) else made[0]


def _to_bytes(b: DeviceBuilder, value: ir.Value, type_: ir.Type, name: str) -> ir.Value:
    """Convert to 8-bit floats, four to a register: an instruction converts two."""
    parts, kind = _elements(b, value), ir.F32Type.get(context())
    parts = [x if x.type == kind else b.value("arith.extf", kind, (x,)) for x in parts]
    cvt = f"cvt.rn.satfinite.{name}x2.f32"
    if not isinstance(type_, ir.VectorType):
        (pair,) = b.asm(f"{cvt} $0, 0f00000000, $1;", "=h,f", parts, [int_type(16)], pure=True)
        return b.value("arith.bitcast", type_, (b.value("arith.trunci", int_type(8), (pair,)),))
    count = len(parts)
    parts += [parts[-1]] * (-count % 4)
    code = f"{{ .reg .b16 low, high; {cvt} low, $2, $1; {cvt} high, $4, $3; mov.b32 $0, {{low, high}}; }}"
    words = [b.asm(code, "=r,f,f,f,f", parts[n : n + 4], [int_type(32)], pure=True)[0] for n in range(0, len(parts), 4)]
    whole = ir.VectorType.get([len(parts)], int_type(8), loc=b.location)
    made = b.value("vector.bitcast", whole, (b.vector(words),))
    if count < len(parts):
        made = b.vector(_elements(b, made)[:count])
    return b.value("arith.bitcast", type_, (made,))
