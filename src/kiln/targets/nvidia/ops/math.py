"""Arithmetic: quotients, conversions, and what the hardware has instructions for.

Integer division by zero is not detected on the device: its result is unspecified.
"""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ...lowering.arithmetic import ROUNDED_QUOTIENTS, rounded_quotient, saturated
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, as_bits, f32, from_bits
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(*(f"arith.{name}" for name in ROUNDED_QUOTIENTS))
def _rounded_quotient(_x: Expander, op: ir.Operation, b: DeviceBuilder) -> ir.Value:
    return rounded_quotient(b, op.name.removeprefix("arith."), *op.operands)


@HANDLERS.expands("arith.fptosi", "arith.fptoui")
def _float_to_int(_x: Expander, op: ir.Operation, b: DeviceBuilder) -> ir.Value:
    return saturated(b, op.name.removeprefix("arith."), op.operands[0], op.results[0].type)


@HANDLERS.expands(nvgpu.units.Prmt)
def _prmt(_x: Expander, op: nvgpu.units.Prmt, b: DeviceBuilder) -> list[ir.Value]:
    return b.asm("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [op.low, op.high, op.selector], [int_type(32)], pure=True)


@HANDLERS.expands(nvgpu.units.Lop3)
def _lop3(_x: Expander, op: nvgpu.units.Lop3, b: DeviceBuilder) -> list[ir.Value]:
    code = f"lop3.b32 $0, $1, $2, $3, {op.lut & 255};"
    return b.asm(code, "=r,r,r,r", [op.a, op.b, op.c], [int_type(32)], pure=True)


@HANDLERS.expands(nvgpu.units.Approx)
def _approx(_x: Expander, op: nvgpu.units.Approx, b: DeviceBuilder) -> ir.Value:
    return approx(b, op.kind, op.value)


def approx(b: DeviceBuilder, kind: str, value: ir.Value, *, ftz: bool = True) -> ir.Value:
    """Return an approximate function of the hardware."""
    flush = ".ftz" if ftz and kind != "tanh" else ""
    (result,) = b.asm(f"{kind}.approx{flush}.f32 $0, $1;", "=f,f", [value], [f32()], pure=True)
    return result


@HANDLERS.expands(nvgpu.units.PackedF32x2)
def _packed(x: Expander, op: nvgpu.units.PackedF32x2, b: DeviceBuilder) -> ir.Value:
    kind = op.kind
    rounding = op.rounding
    ftz = ".ftz" if op.ftz else ""
    operands = [op.a, op.b, op.c] if kind == "fma" else [op.a, op.b, op.c][:2]
    if features.FLOAT32_PAIRS.on(x.arch) and kind != "sub":
        words = [as_bits(b, value) for value in operands]
        inputs = ",".join(["l"] * len(words))
        names = ", ".join(f"${n + 1}" for n in range(len(words)))
        (result,) = b.asm(
            f"{kind}.{rounding}{ftz}.f32x2 $0, {names};", f"=l,{inputs}", words, [int_type(64)], pure=True
        )
        return from_bits(b, result, op.result.type)
    parts: list[ir.Value] = []
    for n in range(2):
        values = [b.element(value, n) for value in operands]
        names = ", ".join(f"${n + 1}" for n in range(len(values)))
        letters = ",".join(["f"] * len(values))
        parts += b.asm(f"{kind}.{rounding}{ftz}.f32 $0, {names};", f"=f,{letters}", values, [f32()], pure=True)
    return b.value("vector.from_elements", op.result.type, parts)
