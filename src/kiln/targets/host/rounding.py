"""Directed rounding of floats, as in `add.rz.f32`.

LLVM's plain operations round to nearest, and LLVM may move or fold them. A function of its own sets the rounding mode
of the processor around a constrained operation, which stays between what sets the mode and what puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...mlir import context, ir
from ..lowering.arithmetic import intrinsic
from ..lowering.builder import Builder, function, int_attr, int_type

if TYPE_CHECKING:
    from .expand import Expander

_MODES = {"rz": 0, "rp": 2, "rm": 3}
"""PTX's directions (towards zero, up, down), as `llvm.set.rounding` numbers them."""
_DYNAMIC = 7
_STRICT = 2
"""A constrained operation that rounds by the mode in force, and that nothing may be moved across or folded."""
_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
"""PTX's names where LLVM's are others."""


def rounding_of(modifiers: Sequence[str]) -> str:
    """Return the direction that an instruction names; empty: to nearest."""
    return next((part for part in modifiers if part in _MODES), "")


def rounded(x: Expander, b: Builder, name: str, rounding: str, type_: ir.Type, *values: ir.Value) -> ir.Value:
    """Return a PTX operation on f32 or f64, or a conversion to them (fptrunc, sitofp, uitofp), rounded in a
    direction."""
    inputs = [value.type for value in values]
    callee = f"kiln_cpu_rounded_{name}_{rounding}_{type_}_{inputs[0]}"
    if callee not in x.module.declared:
        x.module.declared.add(callee)
        x.module.outlined.add(callee)
        _define(x.module.module, callee, name, _MODES[rounding], type_, inputs)
    return b.call(callee, [type_], values).results[0]


def _define(module: ir.Module, callee: str, name: str, mode: int, type_: ir.Type, inputs: Sequence[ir.Type]) -> None:
    defined = function(module, callee, inputs, [type_])
    defined.attributes["llvm.passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get("strictfp", context())], context())
    entry = defined.regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown(context()))
    before = intrinsic(b, "llvm.get.rounding", int_type(32), [])
    intrinsic(b, "llvm.set.rounding", None, [b.i32(mode)])
    result = b.value(
        f"llvm.intr.experimental.constrained.{_OPERATIONS.get(name, name)}",
        type_,
        list(entry.arguments),
        {"roundingmode": int_attr(int_type(64), _DYNAMIC), "fpExceptionBehavior": int_attr(int_type(64), _STRICT)},
    )
    intrinsic(b, "llvm.set.rounding", None, [before])
    b.op("func.return", (), (result,))


def step(b: Builder, bits: ir.Value, exact: ir.Value, rounded: ir.Value, rounding: str) -> ir.Value:
    """Return the bits of a float that was rounded to nearest, moved by one where that was in the wrong direction.

    `exact` is the number, `rounded` what was made of it, in a type that has both.
    """
    type_ = bits.type
    one = b.const(type_, 1)
    # from zero, and to it
    away = b.binary("addi", bits, one)
    towards = b.binary("subi", bits, one)
    negative = b.compare("slt", bits, b.const(type_, 0))

    def is_less(first: ir.Value, second: ir.Value) -> ir.Value:
        predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 4)}  # olt: false for NaN
        return b.value("arith.cmpf", ir.IntegerType.get_signless(1), (first, second), predicate)

    low = is_less(rounded, exact)
    high = is_less(exact, rounded)
    if rounding == "rz":
        wrong = b.select(negative, low, high)
        return b.select(wrong, towards, bits)
    if rounding == "rp":
        return b.select(low, b.select(negative, towards, away), bits)
    return b.select(high, b.select(negative, away, towards), bits)
