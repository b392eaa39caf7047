"""Instructions of the arithmetic units that upstream dialects lack."""

from ...base_dsl.trace import emit_value
from ...mlir import ir
from ..declaration import PURE, Build, Operand, Result, attributes
from ..definition import F32, I32, one_of
from .dialect import CuteNvgpu


class Prmt(CuteNvgpu.Operation, name="prmt", traits=PURE):
    """Choose four of the eight bytes of `low` and `high`: nibble n of `selector` selects byte n of the result.

    Bits 0 to 2 of a nibble choose the byte; bit 3 replaces it by eight copies of its sign.
    """

    low: Operand[I32]
    high: Operand[I32]
    selector: Operand[I32]
    result: Result[I32]


prmt: Build = Prmt.build


class Lop3(CuteNvgpu.Operation, name="lop3", traits=PURE):
    """Apply a bitwise function of three words, given by `lut`: its value for a = 0xF0, b = 0xCC, c = 0xAA."""

    a: Operand[I32]
    b: Operand[I32]
    c: Operand[I32]
    result: Result[I32]
    lut: ir.IntegerAttr

    def check(self) -> str:
        table = self.lut
        return "" if 0 <= table < 256 else f"has the table {table}: it has 8 bits"


lop3: Build = Lop3.build


class Approx(CuteNvgpu.Operation, name="approx", traits=PURE):
    """Compute an f32 function by the hardware's approximate instruction.

    Subnormals count as zero. Relative error at most 2^-22 for rcp, rsqrt, sqrt, ex2; lg2 absolute 2^-22 where the
    result is small; tanh 2^-11; sin and cos absolute 2^-20.9 in [-pi, pi].
    """

    value: Operand[F32]
    result: Result[F32]
    kind: one_of("rcp", "rsqrt", "sqrt", "ex2", "lg2", "sin", "cos", "tanh")


def approx(kind: str, value: ir.Value) -> ir.Value:
    """Return the approximation `kind` of an f32."""
    return emit_value("cute_nvgpu.approx", value.type, (value,), attributes(kind=kind))


class PackedF32x2(CuteNvgpu.Operation, name="packed_f32x2", traits=PURE):
    """Compute add (a + b), sub, mul or fma (a * b + c) of two f32 at once; only fma reads `c`.

    `ftz` flushes subnormals to zero.
    """

    a: Operand[ir.VectorType]
    b: Operand[ir.VectorType]
    c: Operand[ir.VectorType]
    result: Result[ir.VectorType]
    kind: one_of("add", "sub", "mul", "fma")
    rounding: one_of("rn", "rz", "rm", "rp")
    ftz: ir.IntegerAttr

    def check(self) -> str:
        for value in (self.a, self.b, self.c, self.result):
            if str(value.type) != "vector<2xf32>":
                return f"is of {value.type}: all are vector<2xf32>"
        return ""


def packed_f32x2(kind: str, a: ir.Value, b: ir.Value, c: ir.Value, rounding: str, ftz: bool) -> ir.Value:
    """Add a `packed_f32x2` of `vector<2xf32>` values."""
    attrs = attributes(kind=kind, rounding=rounding, ftz=ftz)
    return emit_value("cute_nvgpu.packed_f32x2", a.type, (a, b, c), attrs)
