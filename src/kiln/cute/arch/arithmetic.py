"""Instructions of the arithmetic units that Python has no operator for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, Int8, Int32, Int64, Integer, Uint32, Uint64
from ..deferred_dialects import nvgpu
from .values import choice, f32, i32, kernel_only, number

N = TypeVar("N", bound=Integer)

__all__ = [
    "add_packed_f32x2",
    "calc_packed_f32x2_op",
    "clz",
    "exp",
    "exp2",
    "exp_packed_f32x2",
    "fma_packed_f32x2",
    "fmax",
    "fmin",
    "log2_approx",
    "log2_of_pow2_int",
    "lop3",
    "mul_hi",
    "mul_packed_f32x2",
    "mul_wide",
    "popc",
    "prmt",
    "rcp_approx",
    "rsqrt_approx",
    "sext_unpacked_i4_i8_intrinsic",
    "sub_packed_f32x2",
]

Pair = tuple[Float32, Float32]


def popc(value: Integer, *, loc: object = None, ip: object = None) -> Int32:
    """Return how many bits of `value`, an integer, are set."""
    typed = number(value)
    return type(typed)._make(tracing.emit_value("math.ctpop", type(typed).mlir_type, (typed.ir_value(),)))


def clz(value: Integer, *, loc: object = None, ip: object = None) -> Int32:
    """Return the number of zeros above the highest set bit of `value`, an integer; its width for 0."""
    typed = number(value)
    return type(typed)._make(tracing.emit_value("math.ctlz", type(typed).mlir_type, (typed.ir_value(),)))


def log2_of_pow2_int(a: Integer | int, *, loc: object = None, ip: object = None) -> Int32:
    """Return the logarithm to base 2 of `a`, a positive integer of 32 bits that is a power of two."""
    return 31 - clz(Int32(a))


def prmt(src: object, src_reg_shifted: object, prmt_indices: object, *, loc: object = None, ip: object = None) -> Int32:
    """Return four of the eight bytes of two words, as a word.

    Args:
        src: the word with bytes 0 to 3.
        src_reg_shifted: the word with bytes 4 to 7.
        prmt_indices: a word with the number of a byte in each of its four lower nibbles, lowest first.
    """
    kernel_only("prmt")
    kind = Uint32 if isinstance(src, Uint32) else Int32
    return kind._make(nvgpu.units.prmt(i32(src), i32(src_reg_shifted), i32(prmt_indices)))


def lop3(a: object, b: object, c: object, lut: int, *, loc: object = None, ip: object = None) -> Int32:
    """Return a bitwise function of the words `a`, `b` and `c`, chosen by a table.

    Args:
        a: a 32-bit word.
        b: a 32-bit word.
        c: a 32-bit word.
        lut: the function's value for `a` = 0xF0, `b` = 0xCC, `c` = 0xAA: `(0xF0 & 0xCC) | 0xAA` for `(a & b) | c`.
    """
    kernel_only("lop3")
    kind = Uint32 if isinstance(a, Uint32) else Int32
    return kind._make(nvgpu.units.lop3(i32(a), i32(b), i32(c), lut))


def mul_hi(a: N, b: N | int, *, loc: object = None, ip: object = None) -> N:
    """Return the upper half of `a` times `b`, two integers of the same width."""
    left = number(a)
    kind: Any = type(left)
    name = "arith.mulsi_extended" if kind.signed else "arith.mului_extended"
    product = tracing.emit(name, (kind.mlir_type, kind.mlir_type), (left.ir_value(), kind(b).ir_value()))
    return kind._make(product.results[1])


def mul_wide(a: object, b: object, *, loc: object = None, ip: object = None) -> Int64:
    """Return all bits of `a` times `b`, two integers, in twice their width."""
    left = number(a)
    kind: Any = type(left)
    wide: Any = {(16, True): Int32, (16, False): Uint32, (32, True): Int64, (32, False): Uint64}.get(
        (kind.width, kind.signed)
    )
    if wide is None:
        raise type_error(f"mul_wide() takes integers of 16 or 32 bits, not {kind.__name__}")
    return wide(left) * wide(kind(b))


def _extreme(name: str, a: object, b: object, abs_: bool, nan: bool) -> Float32:
    left = f32(a)
    right = f32(b)
    if abs_:
        left, right = (tracing.emit_value("math.absf", Float32.mlir_type, (v,)) for v in (left, right))
    operation = {
        ("max", True): "arith.maximumf",
        ("max", False): "arith.maxnumf",
        ("min", True): "arith.minimumf",
        ("min", False): "arith.minnumf",
    }
    return Float32._make(tracing.emit_value(operation[name, nan], Float32.mlir_type, (left, right)))


def fmax(
    a: object,
    b: object,
    *,
    abs: bool = False,
    nan: bool = False,
    ftz: bool = False,
    loc: object = None,
    ip: object = None,
) -> Float32:
    """Return the larger of `a` and `b`; a NaN only if both are.

    Args:
        a: a Float32.
        b: a Float32.
        abs: compare and return magnitudes.
        nan: return NaN if one of the two is.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _extreme("max", a, b, abs, nan)


def fmin(
    a: object,
    b: object,
    *,
    abs: bool = False,
    nan: bool = False,
    ftz: bool = False,
    loc: object = None,
    ip: object = None,
) -> Float32:
    """Return the smaller of `a` and `b`; a NaN only if both are.

    Args:
        a: a Float32.
        b: a Float32.
        abs: compare and return magnitudes.
        nan: return NaN if one of the two is.
        ftz: no effect here; with it CuTe DSL flushes subnormals to zero.
    """
    return _extreme("min", a, b, abs, nan)


def _approx(kind: str, value: object) -> Float32:
    kernel_only(kind)
    return Float32._make(nvgpu.units.approx(kind, f32(value)))


def rcp_approx(a: object, *, loc: object = None, ip: object = None) -> Float32:
    """Return 1 / `a`, a Float32, by the hardware: relative error at most 2^-22, subnormals are zero."""
    return _approx("rcp", a)


def rsqrt_approx(a: object, *, loc: object = None, ip: object = None) -> Float32:
    """Return 1 / sqrt(`a`), a Float32, by the hardware's approximation."""
    return _approx("rsqrt", a)


def exp2(a: object, *, loc: object = None, ip: object = None) -> Float32:
    """Return 2 to the power of `a`, a Float32, by the hardware: relative error at most 2^-22, subnormals are zero."""
    return _approx("ex2", a)


def exp(a: object, *, loc: object = None, ip: object = None) -> Float32:
    """Return e to the power of `a`, a Float32, by the hardware's power of 2."""
    return _approx("ex2", Float32(a) * 1.4426950408889634)


def log2_approx(a: object, *, loc: object = None, ip: object = None) -> Float32:
    """Return the logarithm of `a`, a Float32, to base 2 by the hardware's approximation."""
    return _approx("lg2", a)


def _pack(pair: Any) -> ir.Value:
    first, second = pair
    return tracing.emit_value(
        "vector.from_elements", ir.VectorType.get([2], Float32.mlir_type), (f32(first), f32(second))
    )


def _unpack(vector: ir.Value) -> Pair:
    def part(n: int) -> Float32:
        position = {"static_position": ir.DenseI64ArrayAttr.get([n])}
        return Float32._make(tracing.emit_value("vector.extract", Float32.mlir_type, (vector,), position))

    return part(0), part(1)


def _packed(kind: str, operands: Sequence[object], rnd: object, ftz: bool | None) -> Pair:
    kernel_only(f"{kind}_packed_f32x2")
    rounding = choice("rnd", rnd if rnd not in (None, "none") else "rn", ("rn", "rz", "rm", "rp"))
    a, b, *c = (_pack(pair) for pair in operands)
    return _unpack(nvgpu.units.packed_f32x2(kind, a, b, c[0] if c else a, rounding, bool(ftz)))


def add_packed_f32x2(
    src_a: object,
    src_b: object,
    *,
    rnd: object = "rn",
    ftz: bool | None = None,
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` + `src_b` for pairs of Float32, in one instruction on sm_100 and later.

    Args:
        src_a: a pair of Float32.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
        ftz: flush subnormals to zero.
    """
    return _packed("add", (src_a, src_b), rnd, ftz)


def sub_packed_f32x2(
    src_a: object,
    src_b: object,
    *,
    rnd: object = "rn",
    ftz: bool | None = None,
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` - `src_b` for pairs of Float32, in one instruction on sm_100 and later.

    Args:
        src_a: a pair of Float32.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
        ftz: flush subnormals to zero.
    """
    return _packed("sub", (src_a, src_b), rnd, ftz)


def mul_packed_f32x2(
    src_a: object,
    src_b: object,
    *,
    rnd: object = "rn",
    ftz: bool | None = None,
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` * `src_b` for pairs of Float32, in one instruction on sm_100 and later.

    Args:
        src_a: a pair of Float32.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
        ftz: flush subnormals to zero.
    """
    return _packed("mul", (src_a, src_b), rnd, ftz)


def fma_packed_f32x2(
    src_a: object,
    src_b: object,
    src_c: object,
    *,
    rnd: object = "rn",
    ftz: bool | None = None,
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` * `src_b` + `src_c`, rounded once, for pairs of Float32, in one instruction on sm_100 and later.

    Args:
        src_a: a pair of Float32.
        src_b: a pair of Float32.
        src_c: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
        ftz: flush subnormals to zero.
    """
    return _packed("fma", (src_a, src_b, src_c), rnd, ftz)


def calc_packed_f32x2_op(
    src_a: object,
    src_b: object,
    src_c: object,
    calc_func: Callable[..., Pair],
    *,
    rnd: object = "rn",
    ftz: bool | None = None,
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return what a packed operation makes of pairs of Float32.

    Args:
        src_a: a pair of Float32.
        src_b: a pair of Float32.
        src_c: a pair of Float32, or None for an operation of two.
        calc_func: `nvvm.sub_packed_f32x2`, or another packed operation.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
        ftz: flush subnormals to zero.
    """
    operands = (src_a, src_b) if src_c is None else (src_a, src_b, src_c)
    return calc_func(*operands, rnd=rnd, ftz=ftz)


def exp_packed_f32x2(a: object, *, loc: object = None, ip: object = None) -> Pair:
    """Return e to the power of both elements of `a`, a pair of Float32, by the hardware's power of 2."""
    scaled = mul_packed_f32x2(a, (Float32(1.4426950408889634), Float32(1.4426950408889634)))
    return exp2(scaled[0]), exp2(scaled[1])


def sext_unpacked_i4_i8_intrinsic(
    vec_unpacked_i4: object, length: int, *, loc: object = None, ip: object = None
) -> ir.Value:
    """Return a vector of Int8 from Int4 values in the lower halves of bytes, with their signs.

    Args:
        vec_unpacked_i4: the vector of bytes, or a `TensorSSA` of them.
        length: how many bytes it has.
    """
    type_ = ir.VectorType.get([length], Int8.mlir_type)
    value = getattr(vec_unpacked_i4, "ir_value", lambda: vec_unpacked_i4)()
    shift = ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(Int8.mlir_type, 4))
    four = tracing.emit_value("arith.constant", type_, (), {"value": shift})
    raised = tracing.emit_value("arith.shli", type_, (value, four))
    return tracing.emit_value("arith.shrsi", type_, (raised, four))
