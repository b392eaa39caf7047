"""Arithmetic: quotients, conversions, and what the hardware has instructions for.

Integer division by zero is not detected on the device: its result is unspecified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import context, ir
from ...lowering.arithmetic import ROUNDED_QUOTIENTS, rounded_quotient, saturated
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, as_bits, f32, from_bits

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(*(f"arith.{name}" for name in ROUNDED_QUOTIENTS))
def _rounded_quotient(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [rounded_quotient(b, op.name.removeprefix("arith."), *op.operands)]


@HANDLERS.expands("arith.fptosi", "arith.fptoui")
def _float_to_int(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [saturated(b, op.name.removeprefix("arith."), op.operands[0], op.results[0].type)]


@HANDLERS.expands("cute_nvgpu.prmt")
def _prmt(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return b.asm("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", list(op.operands), [int_type(32)], pure=True)


@HANDLERS.expands("cute_nvgpu.lop3")
def _lop3(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    code = f"lop3.b32 $0, $1, $2, $3, {op.attributes['lut'].value & 255};"
    return b.asm(code, "=r,r,r,r", list(op.operands), [int_type(32)], pure=True)


@HANDLERS.expands("cute_nvgpu.approx")
def _approx(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    return [approx(b, op.attributes["kind"].value, op.operands[0])]


def approx(b: DeviceBuilder, kind: str, value: ir.Value, *, ftz: bool = True) -> ir.Value:
    """A fast function of the hardware."""
    flush = ".ftz" if ftz and kind != "tanh" else ""
    (made,) = b.asm(f"{kind}.approx{flush}.f32 $0, $1;", "=f,f", [value], [f32()], pure=True)
    return made


@HANDLERS.expands("cute_nvgpu.packed_f32x2")
def _packed(x: Expander, op: ir.Operation, _o: Types, results: Types, b: DeviceBuilder) -> list[ir.Value]:
    kind, rounding = op.attributes["kind"].value, op.attributes["rounding"].value
    ftz = ".ftz" if op.attributes["ftz"].value else ""
    operands = list(op.operands) if kind == "fma" else list(op.operands)[:2]
    if features.FLOAT32_PAIRS.on(x.arch) and kind != "sub":
        words = [as_bits(b, value) for value in operands]
        inputs = ",".join(["l"] * len(words))
        names = ", ".join(f"${n + 1}" for n in range(len(words)))
        (made,) = b.asm(f"{kind}.{rounding}{ftz}.f32x2 $0, {names};", f"=l,{inputs}", words, [int_type(64)], pure=True)
        return [from_bits(b, made, results[0])]
    parts: list[ir.Value] = []
    for n in range(2):
        position = {"static_position": ir.DenseI64ArrayAttr.get([n], context())}
        values = [b.value("vector.extract", f32(), (value,), position) for value in operands]
        names = ", ".join(f"${n + 1}" for n in range(len(values)))
        letters = ",".join(["f"] * len(values))
        parts += b.asm(f"{kind}.{rounding}{ftz}.f32 $0, {names};", f"=f,{letters}", values, [f32()], pure=True)
    return [b.value("vector.from_elements", results[0], parts)]
