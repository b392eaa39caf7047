"""Arithmetic that GPUs have instructions for: permutations of bytes, logical functions, approximations, packed floats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...mlir import ir
from ..lowering.builder import Builder, int_type
from ..lowering.expansion import Handlers, Types
from .rounding import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .expand import Expander

HANDLERS = Handlers()


def prmt(b: Builder, low: ir.Value, high: ir.Value, selector: ir.Value) -> ir.Value:
    """Four of eight bytes."""
    i64 = int_type(64)
    both = b.binary(
        "ori", b.value("arith.extui", i64, (low,)), b.binary("shli", b.value("arith.extui", i64, (high,)), b.i64(32))
    )
    result = b.i32(0)
    for n in range(4):
        nibble = b.binary("andi", b.binary("shrui", selector, b.i32(4 * n)), b.i32(15))
        shift = b.value("arith.extui", i64, (b.binary("shli", b.binary("andi", nibble, b.i32(7)), b.i32(3)),))
        byte = b.binary("andi", b.value("arith.trunci", int_type(32), (b.binary("shrui", both, shift),)), b.i32(255))
        sign = b.binary("subi", b.i32(0), b.binary("shrui", byte, b.i32(7)))
        copies = b.compare("ne", b.binary("andi", nibble, b.i32(8)), b.i32(0))
        byte = b.select(copies, b.binary("andi", sign, b.i32(255)), byte)
        result = b.binary("ori", result, b.binary("shli", byte, b.i32(8 * n)))
    return result


@HANDLERS.expands("cute_nvgpu.prmt")
def _prmt(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    return [prmt(b, *op.operands)]


def lop3(b: Builder, table: int, words: Sequence[ir.Value]) -> ir.Value:
    """A logical function of three words by its table."""
    negated = [b.binary("xori", w, b.i32(-1)) for w in words]
    result = b.i32(0)
    for n in range(8):
        if not table >> n & 1:
            continue
        term = b.i32(-1)
        for position, (word, inverse) in enumerate(zip(words, negated, strict=True)):
            term = b.binary("andi", term, word if n >> (2 - position) & 1 else inverse)
        result = b.binary("ori", result, term)
    return result


@HANDLERS.expands("cute_nvgpu.lop3")
def _lop3(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    return [lop3(b, op.attributes["lut"].value, list(op.operands))]


def approx(b: Builder, kind: str, value: ir.Value) -> ir.Value:
    """The correctly rounded function, or the C library's: closer than the hardware, within its stated error."""
    f32 = value.type
    one = b.value("arith.constant", f32, (), {"value": ir.FloatAttr.get(f32, 1.0, b.location)})
    if kind == "rcp":
        return b.value("arith.divf", f32, (one, value))
    if kind in ("sqrt", "rsqrt"):
        root = b.value("math.sqrt", f32, (value,))
        return root if kind == "sqrt" else b.value("arith.divf", f32, (one, root))
    name = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}[kind]
    return b.value(f"math.{name}", f32, (value,))


@HANDLERS.expands("cute_nvgpu.approx")
def _approx(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    return [approx(b, op.attributes["kind"].value, op.operands[0])]


@HANDLERS.expands("cute_nvgpu.packed_f32x2")
def _packed_f32x2(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: Builder) -> list[ir.Value]:
    first, second, third = op.operands
    kind, rounding = op.attributes["kind"].value, op.attributes["rounding"].value
    if rounding != "rn":
        operands = [first, second, third] if kind == "fma" else [first, second]
        made, f32 = first, first.type.element_type  # pyright: ignore[reportAttributeAccessIssue]
        for n in range(2):
            place = {"static_position": ir.DenseI64ArrayAttr.get([n])}
            parts = [b.value("vector.extract", f32, (v,), place) for v in operands]
            made = b.value("vector.insert", first.type, (rounded(x, b, kind, rounding, f32, *parts), made), place)
        return [made]
    if kind == "fma":
        return [b.value("math.fma", first.type, (first, second, third))]
    return [b.value(f"arith.{kind}f", first.type, (first, second))]
