"""Inline PTX whose modifiers change what arithmetic and conversions give: limits, packed integers, mixed types."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run

from kiln import cute
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch

ONE, TWO, MINUS, NAN, INF, HUGE = 0x3F800000, 0x40000000, 0xBF800000, 0x7FC00000, 0x7F800000, 0x7F000000
H_ONE, H_MINUS, H_NAN = 0x3C00, 0xBC00, 0x7E00
_TO_HALF = "{{ .reg .b16 h; cvt.{}.f32 h, $1; mov.b32 $0, {{h, h}}; and.b32 $0, $0, 0xFFFF; }}"

CASES = [
    # text, $1, $2, the result
    ("add.sat.s32 $0, $1, $2;", 0x7FFFFFFF, 5, 0x7FFFFFFF),
    ("add.sat.s32 $0, $1, $2;", 7, 5, 12),
    ("sub.sat.s32 $0, $1, $2;", 0x80000000, 5, 0x80000000),
    ("min.relu.s32 $0, $1, $2;", 0xFFFFFFFB, 3, 0),
    ("max.relu.s32 $0, $1, $2;", 0xFFFFFFFB, 3, 3),
    ("add.u16x2 $0, $1, $2;", 0x0001F001, 0x00011001, 0x00020002),
    ("max.s16x2 $0, $1, $2;", 0x0001F001, 0xFFFF0002, 0x00010002),
    ("min.u16x2 $0, $1, $2;", 0x0001F001, 0xFFFF0002, 0x00010002),
    ("min.relu.s16x2 $0, $1, $2;", 0x0003F001, 0x00020002, 0x00020000),
    ("add.sat.f32 $0, $1, $2;", NAN, ONE, 0),
    ("fma.rn.relu.f16x2 $0, $1, $2, $2;", H_NAN << 16 | H_MINUS, H_ONE << 16 | H_ONE, H_NAN << 16),
    ("min.f32 $0, $1, $2, 0fBF800000;", ONE, TWO, MINUS),
    ("{ .reg .b16 h, g; mov.b32 {h, g}, $1; add.rn.f32.f16 $0, h, $2; }", H_ONE, 0x33800000, 0x3F800000),
    ("{ .reg .b16 h, g; mov.b32 {h, g}, $1; add.rp.f32.f16 $0, h, $2; }", H_ONE, 0x33000000, 0x3F800001),
    ("{ .reg .b16 h, g; mov.b32 {h, g}, $1; sub.f32.bf16 $0, h, $2; }", ONE >> 16, TWO, MINUS),
    ("{ .reg .b16 h, g; mov.b32 {h, g}, $1; fma.rn.f32.f16 $0, h, g, $2; }", H_MINUS << 16 | H_ONE, TWO, ONE),
    # 1 + 2**-10 times (1 - 2**-10) * 2**-11, and 1 + 2**-10: just below half way between two halves
    ("{ .reg .b16 h, g; mov.b32 {h, g}, $1; fma.rn.f16 h, h, g, h; mov.b32 $0, {h, g}; }", 0x0FFE3C01, 0, 0x0FFE3C01),
    (_TO_HALF.format("rn.f16"), HUGE, 0, 0x7C00),
    (_TO_HALF.format("rn.satfinite.f16"), HUGE, 0, 0x7BFF),
    (_TO_HALF.format("rn.satfinite.bf16"), INF, 0, 0x7F7F),
    (_TO_HALF.format("rn.relu.f16"), MINUS, 0, 0),
    (_TO_HALF.format("rn.relu.bf16"), NAN, 0, 0x7FC0),
    (_TO_HALF.format("rn.sat.f16"), TWO, 0, H_ONE),
    ("cvt.sat.f32.f32 $0, $1;", TWO, 0, ONE),
    ("cvt.rn.sat.f32.s32 $0, $1;", 0xFFFFFFF0, 0, 0),
    ("cvt.rn.relu.f16x2.f32 $0, $1, $2;", MINUS, ONE, H_ONE),
    ("{ .reg .b16 h; cvt.rn.bf16.u32 h, $1; mov.b32 $0, {h, h}; }", 0x01010001, 0, 0x4B814B81),  # not by way of f32
    ("{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f16x2 h, $1; mov.b32 $0, {h, h}; }", H_MINUS << 16 | H_ONE, 0, 0xB838B838),
]  # fmt: skip


def test_modifiers_are_obeyed():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        for n, (text, *_) in enumerate(CASES):
            out[n] = cute.Uint32._make(asm(cute.Int32.mlir_type, [x[n], y[n]], text, "=r,r,r"))

    x, y, want = (np.array(column, np.uint32) for column in list(zip(*CASES, strict=True))[1:])
    out = np.zeros(len(CASES), np.uint32)
    run(kernel, x, y, out, block=1)
    for case, got in zip(CASES, out, strict=True):
        assert got == case[-1], (case[0], hex(got), hex(case[-1]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("min.xorsign.abs.f32 $0, $1, $1;", r"the modifier \.xorsign"),
        ("fma.rn.oob.f16x2 $0, $1, $1, $1;", r"the modifier \.oob"),
        ("mad.hi.sat.s32 $0, $1, $1, $1;", r"mad\.sat of s32"),
        ("add.sat.u32 $0, $1, $1;", r"add\.sat of u32"),
        ("cvt.rs.f16x2.f32 $0, $1, $1, $1;", r"the modifier \.rs"),
        ("cvt.rn.relu.tf32.f32 $0, $1;", "this conversion to tf32"),
        ("add.rz.bf16x2 $0, $1, $1;", r"rounding \.rz of bf16"),
    ],
)
def test_modifiers_that_are_not_known_are_refused(text, words):
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = cute.Int32._make(asm(cute.Int32.mlir_type, [t], text, "=r,r"))

    with pytest.raises(DSLNotImplemented, match=words):
        run(kernel, np.zeros(32, np.int32))
