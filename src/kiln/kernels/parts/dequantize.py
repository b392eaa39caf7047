"""Integers of 8 and 4 bits as pairs of f16 or bf16 in registers: a few instructions for a word, and exactly.

A byte or half of one is put below the bits of a power of two whose last bit counts ones; that power is then subtracted. bf16 has room for 7 bits
there: of a byte the upper bit says which power it is.
"""

from __future__ import annotations

from typing import Any

from ... import BFloat16, Float32, Int32, Uint8, cute
from ...cute import arch

_PAIRS = 0x4140, 0x4342
"""The first two and the last two bytes of a word, each below a byte of another."""
_AND_XOR = 0x6A
"""lop3: (a & b) ^ c."""
_AND_OR = 0xEA


def _added(pair: Any, other: Any, dtype: Any) -> Any:
    """The sums of two pairs, which are exact."""
    if dtype is BFloat16:  # an addition of bf16 comes with sm_90
        code = "{ .reg .b32 ones; mov.b32 ones, 0x3F803F80; fma.rn.bf16x2 {$w0}, {$r0}, ones, {$r1}; }"
    else:
        code = "add.f16x2 {$w0}, {$r0}, {$r1};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[pair, other])


def bytes_widened(word: Any, kind: Any, dtype: Any) -> list[Any]:
    """Four bytes, Int8 or Uint8, as two pairs of neighbours."""
    signed, bf16 = kind is not Uint8, dtype is BFloat16
    if signed != bf16:  # what is unsigned is 128 more than something signed, and the other way round
        word = word ^ Int32(0x80808080 - (1 << 32))
    found = []
    for pairs in _PAIRS:
        pair = arch.prmt(word, Int32(0), Int32(pairs))
        if bf16:  # 128 and 7 bits, less 128 or 256
            less = arch.lop3(pair, Int32(0x00800080), Int32(0xC300C300 - (1 << 32)), _AND_OR)
            made = _added(arch.lop3(pair, Int32(0x007F007F), Int32(0x43004300), _AND_OR), less, dtype)
            found.append(made if signed else _added(made, Int32(0x43004300), dtype))
        else:
            less = Int32((0xE480E480 if signed else 0xE400E400) - (1 << 32))  # -1152, -1024
            found.append(_added(pair | Int32(0x64006400), less, dtype))
    return found


def every_other_byte(word: Any, kind: Any, dtype: Any) -> list[Any]:
    """Four bytes, Int8 or Uint8, as two pairs: number n and number n + 2, which need no permutation."""
    signed, found = kind is not Uint8, []
    for n in range(2):
        own = word >> 8 if n else word
        if dtype is BFloat16:  # 128 and 7 bits, less 128 or 256 (or what is unsigned is 128 more)
            flip = 0 if signed else 0x00800080
            low = arch.lop3(own, Int32(0x007F007F), Int32(0x43004300), _AND_OR)
            less = arch.lop3(own, Int32(0x00800080), Int32((0xC300C300 ^ flip) - (1 << 32)), _AND_XOR)
            made = _added(low, less, dtype)
            found.append(made if signed else _added(made, Int32(0x43004300), dtype))
        else:  # 1024 and 8 bits
            power, less = (0x64806480, 0xE480E480) if signed else (0x64006400, 0xE400E400)
            pair = arch.lop3(own, Int32(0x00FF00FF), Int32(power), _AND_XOR)
            found.append(_added(pair, Int32(less - (1 << 32)), dtype))
    return found


def halves_widened(word: Any, dtype: Any) -> list[Any]:
    """Eight signed integers of 4 bits as four pairs: number n and number n + 4."""
    power, less = (0x43084308, 0xC308C308) if dtype is BFloat16 else (0x64086408, 0xE408E408)  # 136, 1032
    found = []
    for n in range(4):
        pair = arch.lop3(word >> (4 * n) if n else word, Int32(0x000F000F), Int32(power), _AND_XOR)
        found.append(_added(pair, Int32(less - (1 << 32)), dtype))
    return found


def factor_pairs(factor: Any, dtype: Any) -> list[Any]:
    """A factor for `scaled`: of bf16 as the sum of two, twice each, and of f16, which has too few exponents for that, as it is."""
    if dtype is not BFloat16:
        return [factor]
    code = (
        "{ .reg .b32 high; .reg .f32 rest; cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r0}; and.b32 high, {$w0}, 0xFFFF0000; "
        "mov.b32 rest, high; sub.f32 rest, {$r0}, rest; cvt.rn.bf16x2.f32 {$w1}, rest, rest; }"
    )
    return list(arch.inline_ptx(code, write_only_types=[Int32, Int32], read_only_args=[factor]))


def scaled(pair: Any, factor: list[Any], dtype: Any) -> Any:
    """A pair times a factor, rounded (of bf16 to 2**-17 of it exactly)."""
    if dtype is BFloat16:
        code = "{ .reg .b32 rest; mul.rn.bf16x2 rest, {$r0}, {$r2}; fma.rn.bf16x2 {$w0}, {$r0}, {$r1}, rest; }"
        return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[pair, *factor])
    both = cute.make_rmem_tensor((2,), dtype)
    word = cute.recast_tensor(both, Int32)
    word[0] = pair
    both.store((both.load().to(Float32) * factor[0]).to(dtype))
    return word[0]
