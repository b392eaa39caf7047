"""Floats rounded in one direction, as `add.rz.f32` and its relatives do.

LLVM's operations round to nearest. A function of its own sets the rounding mode of the processor around one operation that
LLVM may not move; it is written as LLVM IR, which has such operations where the bindings have none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .expand import carrier_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...mlir import ir
    from ..llvm_build import Builder
    from .expand import Expander

DIRECTED = ("rz", "rm", "rp")
"""PTX's names: towards zero, down, up."""
_MODES = {"rz": 0, "rp": 2, "rm": 3}
_PREFIX = "kiln_cpu_rounded_"
_OPERATIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "fma": "fma", "sqrt": "sqrt"}
_TYPES = {"f32": "float", "f64": "double"}
_CONVERSIONS = {"fptrunc", "sitofp", "uitofp"}
_DECLARATION = re.compile(rf"^declare .*@({_PREFIX}\w+)\(.*$", re.MULTILINE)


def rounding_of(modifiers: Sequence[str]) -> str:
    """The direction that an instruction names; empty: to nearest."""
    return next((part for part in modifiers if part in DIRECTED), "")


def rounded(x: Expander, b: Builder, name: str, rounding: str, type_: ir.Type, *values: ir.Value) -> ir.Value:
    """An operation of PTX on f32 or f64, or a conversion to them, rounded in a direction."""
    kinds = f"{type_}_{values[0].type}" if name in _CONVERSIONS else str(type_)
    function = f"{_PREFIX}{name}_{rounding}_{kinds}_{len(values)}"
    x.module.declare(function, [carrier_type(v.type) for v in values], [type_])
    return b.call(function, [type_], list(values)).results[0]


def with_definitions(text: str) -> str:
    """LLVM IR with the functions defined that `rounded` calls."""
    found = sorted(set(_DECLARATION.findall(text)))
    if not found:
        return text
    parts = [_DECLARATION.sub("", text), "declare i32 @llvm.get.rounding()\ndeclare void @llvm.set.rounding(i32)"]
    declared: set[str] = set()
    for function in found:
        name, rounding, *kinds, count = function.removeprefix(_PREFIX).split("_")
        types = [_TYPES.get(kind) or kind for kind in kinds]
        result, given = types[0], types[-1]
        intrinsic = f"@llvm.experimental.constrained.{_OPERATIONS.get(name, name)}.{'.'.join(kinds)}"
        inputs = [f"{given} %{i}" for i in range(int(count))]
        if intrinsic not in declared:
            declared.add(intrinsic)
            parts.append(f"declare {result} {intrinsic}({', '.join([given] * int(count))}, metadata, metadata)")
        operands = ", ".join([*inputs, 'metadata !"round.dynamic"', 'metadata !"fpexcept.strict"'])
        parts.append(
            f"define internal {result} @{function}({', '.join(inputs)}) noinline strictfp {{\n"
            f"  %before = call i32 @llvm.get.rounding() strictfp\n"
            f"  call void @llvm.set.rounding(i32 {_MODES[rounding]}) strictfp\n"
            f"  %made = call {result} {intrinsic}({operands}) strictfp\n"
            f"  call void @llvm.set.rounding(i32 %before) strictfp\n"
            f"  ret {result} %made\n}}"
        )
    return "\n\n".join(parts) + "\n"


def step(b: Builder, bits: ir.Value, exact: ir.Value, made: ir.Value, rounding: str) -> ir.Value:
    """The bits of a float that was rounded to nearest, moved by one where that was in the wrong direction.

    `exact` is the number, `made` what was made of it, in a type that has both.
    """
    from ...mlir import ir

    type_ = bits.type
    one = b.const(type_, 1)
    away, towards = b.binary("addi", bits, one), b.binary("subi", bits, one)  # from zero, and to it
    negative = b.compare("slt", bits, b.const(type_, 0))

    def is_less(first: ir.Value, second: ir.Value) -> ir.Value:
        predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 4)}  # olt: false for NaN
        return b.value("arith.cmpf", ir.IntegerType.get_signless(1), (first, second), predicate)

    low, high = is_less(made, exact), is_less(exact, made)
    if rounding == "rz":
        wrong = b.select(negative, low, high)
        return b.select(wrong, towards, bits)
    if rounding == "rp":
        return b.select(low, b.select(negative, towards, away), bits)
    return b.select(high, b.select(negative, away, towards), bits)
