"""Dequantisation in registers: 8- and 4-bit integers become pairs of f16 or bf16, exactly.

An integer is put below the bits of a power of two whose last mantissa bit counts ones; that power is then subtracted.
bf16 has room for 7 bits there: the upper bit of a byte says which power it is.
"""

from __future__ import annotations

from typing import Any

from ... import BFloat16, Float32, Int32, Uint8, cute
from ...cute import arch

_BYTE_PAIRS = 0x4140, 0x4342
"""`prmt` selectors of the first two and the last two bytes of a word, each below a byte of another."""
_AND_XOR = 0x6A
_AND_OR = 0xEA
"""`lop3` tables of (a & b) ^ c and of (a & b) | c."""


def _constant(bits: int) -> Int32:
    return Int32(bits - (1 << 32) if bits >> 31 else bits)


def _add(pair: Int32, other: Int32, dtype: type[cute.Numeric]) -> Int32:
    """Add two pairs; the results are exact."""
    if dtype is BFloat16:  # an addition of bf16 comes with sm_90
        code = "{ .reg .b32 ones; mov.b32 ones, 0x3F803F80; fma.rn.bf16x2 {$w0}, {$r0}, ones, {$r1}; }"
    else:
        code = "add.f16x2 {$w0}, {$r0}, {$r1};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[pair, other])


def int8_pairs(word: Int32, kind: type[cute.Numeric], dtype: type[cute.Numeric]) -> list[Int32]:
    """Return four bytes, Int8 or Uint8, as two pairs of neighbours."""
    signed = kind is not Uint8
    bf16 = dtype is BFloat16
    if signed != bf16:  # an unsigned byte is a signed one plus 128, and the other way round
        word = word ^ _constant(0x80808080)
    pairs = []
    for selector in _BYTE_PAIRS:
        pair = arch.prmt(word, Int32(0), Int32(selector))
        if bf16:  # 128 and 7 bits, less 128 or 256
            less = arch.lop3(pair, Int32(0x00800080), _constant(0xC300C300), _AND_OR)
            value = _add(arch.lop3(pair, Int32(0x007F007F), Int32(0x43004300), _AND_OR), less, dtype)
            pairs.append(value if signed else _add(value, Int32(0x43004300), dtype))
        else:
            less = _constant(0xE480E480 if signed else 0xE400E400)  # -1152, -1024
            pairs.append(_add(pair | Int32(0x64006400), less, dtype))
    return pairs


def int8_alternate_pairs(word: Any, kind: type[cute.Numeric], dtype: type[cute.Numeric]) -> list[Any]:
    """Return four bytes, Int8 or Uint8, as two pairs: number n and number n + 2, which need no permutation."""
    signed = kind is not Uint8
    pairs = []
    for n in range(2):
        own = word >> 8 if n else word
        if dtype is BFloat16:  # 128 and 7 bits, less 128 or 256 (an unsigned byte is a signed one plus 128)
            low = arch.lop3(own, Int32(0x007F007F), Int32(0x43004300), _AND_OR)
            less = arch.lop3(own, Int32(0x00800080), _constant(0xC300C300 if signed else 0xC380C380), _AND_XOR)
            value = _add(low, less, dtype)
            pairs.append(value if signed else _add(value, Int32(0x43004300), dtype))
        else:  # 1024 and 8 bits
            power, less = (0x64806480, 0xE480E480) if signed else (0x64006400, 0xE400E400)
            pair = arch.lop3(own, Int32(0x00FF00FF), Int32(power), _AND_XOR)
            pairs.append(_add(pair, _constant(less), dtype))
    return pairs


def int4_pairs(word: Int32, dtype: type[cute.Numeric]) -> list[Int32]:
    """Return eight signed 4-bit integers as four pairs: number n and number n + 4."""
    power, less = (0x43084308, 0xC308C308) if dtype is BFloat16 else (0x64086408, 0xE408E408)  # 136, 1032
    pairs = []
    for n in range(4):
        pair = arch.lop3(word >> (4 * n) if n else word, Int32(0x000F000F), Int32(power), _AND_XOR)
        pairs.append(_add(pair, _constant(less), dtype))
    return pairs


def scale_registers(scale: Float32, dtype: type[cute.Numeric]) -> list[Any]:
    """Return a scale as `scaled` takes it: as the sum of two bf16, twice each; for f16, of few exponents, in f32."""
    if dtype is not BFloat16:
        return [scale]
    code = (
        "{ .reg .b32 high; .reg .f32 rest; cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r0}; and.b32 high, {$w0}, 0xFFFF0000; "
        "mov.b32 rest, high; sub.f32 rest, {$r0}, rest; cvt.rn.bf16x2.f32 {$w1}, rest, rest; }"
    )
    return list(arch.inline_ptx(code, write_only_types=[Int32, Int32], read_only_args=[scale]))


def scaled(pair: Any, scale: list[Any], dtype: type[cute.Numeric]) -> Any:
    """Return a pair times a scale, rounded (of bf16, exactly to 2**-17 of it)."""
    if dtype is BFloat16:
        code = "{ .reg .b32 rest; mul.rn.bf16x2 rest, {$r0}, {$r2}; fma.rn.bf16x2 {$w0}, {$r0}, {$r1}, rest; }"
        return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[pair, *scale])
    both = cute.make_rmem_tensor((2,), dtype)
    word = cute.recast_tensor(both, Int32)
    word[0] = pair
    both.store((both.load().to(Float32) * scale[0]).to(dtype))
    return word[0]
