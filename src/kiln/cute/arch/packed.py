"""Arithmetic of two 16-bit floats in a word, alone or with pairs of Float32."""

from __future__ import annotations

from collections.abc import Sequence

from ...base_dsl import trace as tracing
from ...base_dsl.typing import BFloat16, Float16, Float32, Int32, Int64, NumericMeta
from ...hardware import current, features
from .arithmetic import N, Pair, _packed, _unpack
from .inline_assembly import instruction
from .values import choice, kernel_only

__all__ = [
    "add_packed_f32x2_bf16x2_f32x2",
    "add_packed_f32x2_f16x2_f32x2",
    "fma_packed_f32x2_bf16x2_f32x2_f32x2",
    "fma_packed_f32x2_f16x2_f32x2_f32x2",
    "sub_packed_f32x2_bf16x2_f32x2",
    "sub_packed_f32x2_f16x2_f32x2",
]


def mul_bf16x2(a: object, b: object, *, loc: object = None, ip: object = None) -> Int32:
    """Multiply two BFloat16 in a word by two in another, and return a word. Needs sm_90 or later.

    Args:
        a: a word with two BFloat16.
        b: a word with two BFloat16.
    """
    kernel_only("mul_bf16x2")
    return instruction("mul.rn.bf16x2", Int32, Int32(a), Int32(b))


def add_packed_f32x2_bf16x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` + `src_b` for a pair of BFloat16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of BFloat16.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("add", BFloat16, (src_a, src_b), rnd)


def add_packed_f32x2_f16x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` + `src_b` for a pair of Float16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of Float16.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("add", Float16, (src_a, src_b), rnd)


def sub_packed_f32x2_bf16x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` - `src_b` for a pair of BFloat16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of BFloat16.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("sub", BFloat16, (src_a, src_b), rnd)


def sub_packed_f32x2_f16x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` - `src_b` for a pair of Float16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of Float16.
        src_b: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("sub", Float16, (src_a, src_b), rnd)


def fma_packed_f32x2_bf16x2_f32x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    src_c: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` * `src_b` + `src_c` for a pair of BFloat16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of BFloat16.
        src_b: a pair of Float32.
        src_c: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("fma", BFloat16, (src_a, src_b, src_c), rnd)


def fma_packed_f32x2_f16x2_f32x2_f32x2(
    src_a: Sequence[object],
    src_b: Sequence[object],
    src_c: Sequence[object],
    *,
    rnd: object = "rn",
    loc: object = None,
    ip: object = None,
    **_: object,
) -> Pair:
    """Return `src_a` * `src_b` + `src_c` for a pair of Float16 and pairs of Float32, rounded once, in one instruction on sm_107.

    Args:
        src_a: a pair of Float16.
        src_b: a pair of Float32.
        src_c: a pair of Float32.
        rnd: how to round: "rn" (to nearest even), "rz", "rm" or "rp".
    """
    return _mixed("fma", Float16, (src_a, src_b, src_c), rnd)


def _mixed(kind: str, narrow: NumericMeta, operands: Sequence[Sequence[object]], rnd: object) -> Pair:
    """Add, subtract or multiply and add where the first pair is of floats of 16 bits, which are exact as Float32."""
    first, *others = operands
    if not features.FLOAT32_MIXED_PAIRS.on(current.architecture()):
        return _packed(kind, [[narrow(x).to(Float32) for x in first], *others], rnd, False)
    kernel_only(f"{kind}_packed_f32x2")
    rounding = choice("rnd", rnd if rnd not in (None, "none") else "rn", ("rn", "rz", "rm", "rp"))
    types = ".".join(["f32x2", "bf16x2" if narrow is BFloat16 else "f16x2", *["f32x2"] * len(others)])
    words = [_word(first, narrow, Int32), *(_word(pair, Float32, Int64) for pair in others)]
    bits = instruction(f"{kind}.{rounding}.{types}", Int64, *words).ir_value()
    return _unpack(tracing.emit_value("llvm.bitcast", Float32.vector_type(2), (bits,)))


def _word(pair: Sequence[object], element: NumericMeta, word: type[N]) -> N:
    """Return a pair as the bits of one number."""
    values = tuple(element(x).ir_value() for x in pair)
    vector = tracing.emit_value("vector.from_elements", element.vector_type(2), values)
    return word._make(tracing.emit_value("llvm.bitcast", word.mlir_type, (vector,)))
