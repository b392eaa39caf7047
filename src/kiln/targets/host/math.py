"""Arithmetic of GPU instructions on the host: `prmt`, `lop3`, approximations, packed f32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...dialects import nvgpu
from ...mlir import ir
from ..lowering.builder import Builder, int_type
from ..lowering.expansion import Handlers
from .rounding import rounded

if TYPE_CHECKING:
    from .expand import Expander

HANDLERS = Handlers()


def prmt(b: Builder, low: ir.Value, high: ir.Value, selector: ir.Value) -> ir.Value:
    """Return four of eight bytes."""
    i64 = int_type(64)
    both = b.binary(
        "ori", b.value("arith.extui", i64, (low,)), b.binary("shli", b.value("arith.extui", i64, (high,)), 32)
    )
    result = b.i32(0)
    for n in range(4):
        nibble = b.binary("andi", b.binary("shrui", selector, 4 * n), 15)
        shift = b.value("arith.extui", i64, (b.binary("shli", b.binary("andi", nibble, 7), 3),))
        byte = b.binary("andi", b.value("arith.trunci", int_type(32), (b.binary("shrui", both, shift),)), 255)
        sign = b.binary("subi", b.i32(0), b.binary("shrui", byte, 7))
        copies = b.compare("ne", b.binary("andi", nibble, 8), 0)
        byte = b.select(copies, b.binary("andi", sign, 255), byte)
        result = b.binary("ori", result, b.binary("shli", byte, 8 * n))
    return result


@HANDLERS.expands(nvgpu.units.Prmt)
def _prmt(_x: Expander, op: nvgpu.units.Prmt, b: Builder) -> ir.Value:
    return prmt(b, op.low, op.high, op.selector)


def lop3(b: Builder, table: int, words: Sequence[ir.Value]) -> ir.Value:
    """Return a logical function of three words by its table."""
    negated = [b.binary("xori", w, -1) for w in words]
    result = b.i32(0)
    for n in range(8):
        if not table >> n & 1:
            continue
        term = b.i32(-1)
        for position, (word, inverse) in enumerate(zip(words, negated, strict=True)):
            term = b.binary("andi", term, word if n >> (2 - position) & 1 else inverse)
        result = b.binary("ori", result, term)
    return result


@HANDLERS.expands(nvgpu.units.Lop3)
def _lop3(_x: Expander, op: nvgpu.units.Lop3, b: Builder) -> ir.Value:
    return lop3(b, op.lut, [op.a, op.b, op.c])


def approx(b: Builder, kind: str, value: ir.Value) -> ir.Value:
    """Return the correctly rounded function, or the C library's: closer than the hardware, within its stated error."""
    f32 = value.type
    one = b.value("arith.constant", f32, (), {"value": ir.FloatAttr.get(f32, 1.0, b.location)})
    if kind == "rcp":
        return b.value("arith.divf", f32, (one, value))
    if kind in ("sqrt", "rsqrt"):
        root = b.value("math.sqrt", f32, (value,))
        return root if kind == "sqrt" else b.value("arith.divf", f32, (one, root))
    name = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}[kind]
    return b.value(f"math.{name}", f32, (value,))


@HANDLERS.expands(nvgpu.units.Approx)
def _approx(_x: Expander, op: nvgpu.units.Approx, b: Builder) -> ir.Value:
    return approx(b, op.kind, op.value)


@HANDLERS.expands(nvgpu.units.PackedF32x2)
def _packed_f32x2(x: Expander, op: nvgpu.units.PackedF32x2, b: Builder) -> ir.Value:
    kind = op.kind
    rounding = op.rounding
    if rounding != "rn":
        operands = [op.a, op.b, op.c] if kind == "fma" else [op.a, op.b]
        result = op.a  # pyright: ignore[reportAttributeAccessIssue]
        f32 = op.a.type.element_type  # pyright: ignore[reportAttributeAccessIssue]
        for n in range(2):
            place = {"static_position": ir.DenseI64ArrayAttr.get([n])}
            parts = [b.value("vector.extract", f32, (v,), place) for v in operands]
            result = b.value("vector.insert", op.a.type, (rounded(x, b, kind, rounding, f32, *parts), result), place)
        return result
    if kind == "fma":
        return b.value("math.fma", op.a.type, (op.a, op.b, op.c))
    return b.value(f"arith.{kind}f", op.a.type, (op.a, op.b))
