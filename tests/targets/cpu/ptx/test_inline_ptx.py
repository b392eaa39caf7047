"""Inline PTX executed on the CPU, against numpy and Python models."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from kernel_testing import asm, launcher, run, runs

import kiln
from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch
from kiln.mlir import ir
from kiln.ptx.syntax import Address, Immediate, Pair, PtxSyntaxError, Register, Vector, parse

FEW = [(1, 0), (1, 1), (2, 2)]


# --- the text ----------------------------------------------------------------------------------------------------------


def test_statements_and_operands():
    program = parse("""{
        .reg .pred p, q; // two
        .reg .b32 %r<3>;
        @!p ld.global.v2.u32 {%r0, %r1}, [$1+16];
        mov.f32 $0, 0f3F800000;
        shfl.sync.bfly.b32 %r2|q, $2, 0x1F, 31, -1;
    }""")
    assert program.registers == {"p": "pred", "q": "pred", "%r0": "b32", "%r1": "b32", "%r2": "b32"}
    load, move, shuffle = program.statements
    assert load.guard == Register("p", True) and load.name == "ld" and load.modifiers == ("global", "v2", "u32")
    assert load.operands == (Vector((Register("%r0"), Register("%r1"))), Address(Register("$1"), 16))
    assert move.operands[1] == Immediate(0x3F800000, 32)
    assert shuffle.operands == (
        Pair(Register("%r2"), Register("q")), Register("$2"), Immediate(31), Immediate(31), Immediate(-1),
    )  # fmt: skip


@pytest.mark.parametrize("text", ["mov.u32 {a, $0;", "{ mov.u32 $0, 1 }", "1 + 2;", "mov.u32 $0, (1);"])
def test_text_that_is_no_ptx(text):
    with pytest.raises(PtxSyntaxError):
        parse(text)


def test_declarations_outside_of_braces_are_told_apart():
    program = parse(".reg .b32 a, b<2>; { .reg .b32 c; mov.b32 c, {h, l}; } .reg .pred p;")
    assert program.outside == {"a", "b0", "b1", "p"} and "c" in program.registers


# --- arithmetic --------------------------------------------------------------------------------------------------------

M = 0xFFFFFFFF
WORDS = {
    "add.s32 $0, $1, $2;": lambda a, b: a + b,
    "sub.u32 $0, $1, $2;": lambda a, b: a - b,
    "mul.lo.u32 $0, $1, $2;": lambda a, b: a * b,
    "mul.hi.u32 $0, $1, $2;": lambda a, b: (a * b) >> 32,
    "mad.lo.s32 $0, $1, $2, 7;": lambda a, b: a * b + 7,
    "and.b32 $0, $1, $2;": lambda a, b: a & b,
    "or.b32 $0, $1, $2;": lambda a, b: a | b,
    "xor.b32 $0, $1, 0xFF00FF00;": lambda a, b: a ^ 0xFF00FF00,
    "not.b32 $0, $1;": lambda a, b: ~a,
    "shl.b32 $0, $1, 5;": lambda a, b: a << 5,
    "shl.b32 $0, $1, 32;": lambda a, b: 0,
    "shr.u32 $0, $1, 3;": lambda a, b: a >> 3,
    "shr.s32 $0, $1, 40;": lambda a, b: -1 if a >> 31 else 0,
    "shf.l.wrap.b32 $0, $1, $2, 9;": lambda a, b: (b << 9) | (a >> 23),
    "shf.r.wrap.b32 $0, $1, $2, 9;": lambda a, b: (a >> 9) | (b << 23),
    "min.u32 $0, $1, $2;": min,
    "max.u32 $0, $1, $2;": max,
    "popc.b32 $0, $1;": lambda a, b: bin(a).count("1"),
    "clz.b32 $0, $1;": lambda a, b: 32 - a.bit_length(),
    "brev.b32 $0, $1;": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "bfe.u32 $0, $1, 4, 9;": lambda a, b: a >> 4 & 511,
    "div.u32 $0, $1, 7;": lambda a, b: a // 7,
    "rem.u32 $0, $1, 7;": lambda a, b: a % 7,
    "prmt.b32 $0, $1, $2, 0x7531;": lambda a, b: int.from_bytes(
        bytes((a | b << 32).to_bytes(8, "little")[n] for n in (1, 3, 5, 7)), "little"
    ),
    "prmt.b32.f4e $0, $1, $2, $1;": lambda a, b: permuted(a, b, lambda n, sel: sel + n),
    "prmt.b32.b4e $0, $1, $2, $1;": lambda a, b: permuted(a, b, lambda n, sel: (sel - n) % 8),
    "prmt.b32.rc8 $0, $1, $2, $1;": lambda a, b: permuted(a, b, lambda n, sel: sel),
    "prmt.b32.ecl $0, $1, $2, $1;": lambda a, b: permuted(a, b, max),
    "prmt.b32.ecr $0, $1, $2, $1;": lambda a, b: permuted(a, b, min),
    "prmt.b32.rc16 $0, $1, $2, $1;": lambda a, b: permuted(a, b, lambda n, sel: n % 2 + sel % 2 * 2),
    "lop3.b32 $0, $1, $2, 0x0F0F0F0F, 0x96;": lambda a, b: a ^ b ^ 0x0F0F0F0F,
    "lop3.b32 $0, $1, $2, 0, 0xC0;": lambda a, b: a & b,
    "{ .reg .pred p; setp.lt.s32 p, $1, $2; selp.b32 $0, 1, 2, p; }": lambda a, b: 1 if signed(a) < signed(b) else 2,
    "{ .reg .pred p; setp.hi.u32 p, $1, $2; @p mov.u32 $0, 5; @!p mov.u32 $0, 6; }": lambda a, b: 5 if a > b else 6,
    "{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {h, l}; }": lambda a, b: a >> 16 | a << 16,
    "{ .reg .b64 d; mov.b64 d, {$1, $2}; shr.u64 d, d, 16; cvt.u32.u64 $0, d; }": lambda a, b: (a | b << 32) >> 16,
    "{ .reg .u64 d; mul.wide.u32 d, $1, $2; mov.b64 {_, $0}, d; }": lambda a, b: (a * b) >> 32,
}  # fmt: skip


def permuted(a: int, b: int, place: Callable[[int, int], int]) -> int:
    """Return four bytes of (b, a): byte n is the one at place(n, the lowest two bits of a)."""
    both = (a | b << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(both[place(n, a & 3)] for n in range(4)), "little")


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def test_words():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, text in enumerate(WORDS):
            made = asm(cute.Int32.mlir_type, [x[t], y[t]], text, "=r,r,r")
            out[n * 32 + t] = cute.Uint32._make(made)

    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
    x[:2], y[1] = (0, M), M
    out = np.zeros(32 * len(WORDS), np.uint32)
    run(kernel, x, y, out)
    for (text, model), row in zip(WORDS.items(), out.reshape(-1, 32), strict=True):
        want = [model(int(a), int(b)) & M for a, b in zip(x, y, strict=True)]
        np.testing.assert_array_equal(row, np.array(want, np.uint32), err_msg=text)


def test_comparisons_of_packed_halves():
    """`p|q` are the lower and the upper half; `set` gives masks, or ones."""
    texts = {
        "{{ .reg .pred p, q; .reg .b32 t; setp.{0}.{1} p|q, $1, $2; selp.b32 t, 1, 0, p;"
        " @q add.u32 t, t, 2; mov.b32 $0, t; }}":
            lambda low, high: low + 2 * high,
        "set.{0}.u32.{1} $0, $1, $2;": lambda low, high: 0xFFFF * low + 0xFFFF0000 * high,
    }  # fmt: skip
    types = {"f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}
    tests = {"eq": np.equal, "ge": np.greater_equal, "neu": np.not_equal}
    cases = [
        (text.format(test, kind), model, test, kind)
        for text, model in texts.items()
        for test in tests
        for kind in types
    ]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, (text, *_) in enumerate(cases):
            made = asm(cute.Int32.mlir_type, [x[t], y[t]], text, "=r,r,r")
            out[n * 32 + t] = cute.Uint32._make(made)

    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
    y[:8], y[8:16] = x[:8], (x[8:16] & 0xFFFF) | (y[8:16] & 0xFFFF0000)
    x[16] = y[16] = 0x7FFF7FFF  # NaNs
    x[17], y[17] = 0x80008000, 0  # zeros of both signs
    out = np.zeros(32 * len(cases), np.uint32)
    run(kernel, x, y, out)
    for (text, model, test, kind), row in zip(cases, out.reshape(-1, 32), strict=True):
        low, high = tests[test](x.view(types[kind]), y.view(types[kind])).reshape(-1, 2).T.astype(np.uint32)
        np.testing.assert_array_equal(row, model(low, high), err_msg=text)


def test_set_of_whole_registers():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, text in enumerate(
            ("set.gt.u32.f32 $0, $1, 0f3F800000;", "set.lt.f32.s32 $0, $1, 0;", "set.eq.u32.u32 $0, $1, 3;")
        ):
            out[n * 32 + t] = cute.Uint32._make(asm(cute.Int32.mlir_type, [x[t]], text, "=r,r"))

    x, out = np.arange(32, dtype=np.uint32), np.zeros(96, np.uint32)
    x[16:24], x[24:] = np.linspace(0, 2, 8, dtype=np.float32).view(np.uint32), x[24:] + (1 << 31)
    run(kernel, x, out)
    with np.errstate(invalid="ignore"):
        above = x.view(np.float32) > 1
    np.testing.assert_array_equal(out[:32], np.where(above, M, 0))
    np.testing.assert_array_equal(out[32:64].view(np.float32), (x.view(np.int32) < 0).astype(np.float32))
    np.testing.assert_array_equal(out[64:], np.where(x == 3, M, 0))


FLOATS = {
    "add.f32 $0, $1, $2;": lambda a, b: a + b, "sub.rn.f32 $0, $1, $2;": lambda a, b: a - b,
    "mul.ftz.f32 $0, $1, $2;": lambda a, b: a * b, "div.rn.f32 $0, $1, $2;": lambda a, b: a / b,
    "fma.rn.f32 $0, $1, $2, 0f3F800000;": lambda a, b: (a.astype(np.float64) * b + 1).astype(np.float32),
    "min.f32 $0, $1, $2;": np.fmin, "max.f32 $0, $1, $2;": np.fmax, "neg.f32 $0, $1;": lambda a, b: -a,
    "abs.f32 $0, $1;": lambda a, b: abs(a), "add.sat.f32 $0, $1, $2;": lambda a, b: np.clip(a + b, 0, 1),
    "{ .reg .pred p; setp.gt.f32 p, $1, $2; selp.f32 $0, $1, $2, p; }": np.fmax,
    "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.f32.f16 $0, h; }": lambda a, b: a.astype(np.float16).astype(np.float32),
    "{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.f32.bf16 $0, h; }":
        lambda a, b: a.astype(ml_dtypes.bfloat16).astype(np.float32),
    "{ .reg .s32 i; cvt.rzi.s32.f32 i, $1; cvt.rn.f32.s32 $0, i; }": lambda a, b: np.trunc(a),
    "{ .reg .s32 i; cvt.rni.s32.f32 i, $1; cvt.rn.f32.s32 $0, i; }": lambda a, b: np.round(a),
}  # fmt: skip
APPROXIMATE = {
    "ex2.approx.ftz.f32 $0, $1;": lambda a, b: np.exp2(a), "tanh.approx.f32 $0, $1;": lambda a, b: np.tanh(a),
    "rcp.approx.ftz.f32 $0, $1;": lambda a, b: 1 / a, "lg2.approx.f32 $0, $2;": lambda a, b: np.log2(b),
    "rsqrt.approx.f32 $0, $2;": lambda a, b: 1 / np.sqrt(b), "sqrt.approx.f32 $0, $2;": lambda a, b: np.sqrt(b),
    "sin.approx.f32 $0, $1;": lambda a, b: np.sin(a), "cos.approx.f32 $0, $1;": lambda a, b: np.cos(a),
}  # fmt: skip


def test_floats():
    texts = {**FLOATS, **APPROXIMATE}

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, text in enumerate(texts):
            made = asm(cute.Float32.mlir_type, [x[t], y[t]], text, "=f,f,f")
            out[n * 32 + t] = cute.Float32._make(made)

    rng = np.random.default_rng(1)
    x = (rng.standard_normal(32) * 3).astype(np.float32)
    y = abs(rng.standard_normal(32)).astype(np.float32) + 0.1
    out = np.zeros(32 * len(texts), np.float32)
    run(kernel, x, y, out)
    for (text, model), row in zip(texts.items(), out.reshape(-1, 32), strict=True):
        if text in FLOATS:
            np.testing.assert_array_equal(row, model(x, y), err_msg=text)
        else:
            np.testing.assert_allclose(row, model(x.astype(np.float64), y.astype(np.float64)), rtol=3e-6, err_msg=text)


def test_packed_conversions_and_arithmetic():
    """What public programs write: pairs of f32 to f16x2, bf16x2, e4m3x2, e5m2x2, and back."""
    f32x4 = "!llvm.struct<(f32, f32, f32, f32)>"
    narrow = {
        kind: (
            f"{{ .reg .b16 lo, hi; cvt.rn.satfinite.{kind}x2.f32 lo, $2, $1; cvt.rn.satfinite.{kind}x2.f32 hi, $4, $3;"
            " mov.b32 $0, {lo, hi}; }",
            f"{{ .reg .b16 lo, hi; .reg .b32 a, b; .reg .b16 h0, h1, h2, h3; mov.b32 {{lo, hi}}, $4;"
            f" cvt.rn.f16x2.{kind}x2 a, lo; cvt.rn.f16x2.{kind}x2 b, hi; mov.b32 {{h0, h1}}, a; mov.b32 {{h2, h3}}, b;"
            " cvt.f32.f16 $0, h0; cvt.f32.f16 $1, h1; cvt.f32.f16 $2, h2; cvt.f32.f16 $3, h3; }",
        )
        for kind in ("e4m3", "e5m2")
    }

    @cute.kernel
    def kernel(x: cute.Tensor, words: cute.Tensor, back: cute.Tensor):
        t = arch.thread_idx()[0]
        values = [x[t * 4 + n] for n in range(4)]
        i32 = cute.Int32.mlir_type
        words[t * 4] = cute.Int32._make(asm(i32, values[:2], "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f"))
        words[t * 4 + 1] = cute.Int32._make(asm(i32, values[:2], "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f"))
        for n, kind in enumerate(narrow):
            packed = asm(i32, values, narrow[kind][0], "=r,f,f,f,f")
            words[t * 4 + 2 + n] = cute.Int32._make(packed)
            wide = asm(ir.Type.parse(f32x4), [packed], narrow[kind][1], "=f,=f,=f,=f,r")
            for i in kiln.range_constexpr(4):
                part = tracing.emit_value(
                    "llvm.extractvalue", cute.Float32.mlir_type, (wide,), {"position": ir.DenseI64ArrayAttr.get([i])}
                )
                back[(t * 2 + n) * 4 + i] = cute.Float32._make(part)
        pair = asm(
            ir.Type.parse("!llvm.struct<(f32, f32)>"), values,
            "{ .reg .b64 ab, bb, db; mov.b64 ab, {$2, $3}; mov.b64 bb, {$4, $5}; add.rn.f32x2 db, ab, bb;"
            " mov.b64 {$0, $1}, db; }", "=f,=f,f,f,f,f",
        )  # fmt: skip
        for i in kiln.range_constexpr(2):
            part = tracing.emit_value(
                "llvm.extractvalue", cute.Float32.mlir_type, (pair,), {"position": ir.DenseI64ArrayAttr.get([i])}
            )
            back[256 + t * 2 + i] = cute.Float32._make(part)

    rng = np.random.default_rng(2)
    x = (rng.standard_normal(128) * 100).astype(np.float32)
    x[:4] = 0.001, -1e6, 448, 3
    words, back = np.zeros(128, np.int32), np.zeros(256 + 64, np.float32)
    run(kernel, x, words, back)
    fours = x.reshape(32, 4)
    got = words.reshape(32, 4)
    np.testing.assert_array_equal(got[:, 0].copy().view(np.float16).reshape(32, 2), fours[:, :2].astype(np.float16))
    np.testing.assert_array_equal(
        got[:, 1].copy().view(ml_dtypes.bfloat16).reshape(32, 2), fours[:, :2].astype(ml_dtypes.bfloat16)
    )
    for n, dtype in enumerate((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)):
        limit = float(ml_dtypes.finfo(dtype).max)
        want = np.clip(fours, -limit, limit).astype(dtype)
        np.testing.assert_array_equal(got[:, 2 + n].copy().view(dtype).reshape(32, 4), want)
        np.testing.assert_array_equal(back[:256].reshape(32, 2, 4)[:, n], want.astype(np.float32))
    np.testing.assert_array_equal(back[256:].reshape(32, 2), fours[:, :2] + fours[:, 2:])


def test_halves():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        texts = [
            "add.f16x2 $0, $1, $2;",
            "fma.rn.f16x2 $0, $1, $2, $1;",
            "max.f16x2 $0, $1, $2;",
            "mul.bf16x2 $0, $1, $2;",
        ]
        for n, text in enumerate(texts):
            out[n * 32 + t] = cute.Int32._make(asm(cute.Int32.mlir_type, [x[t], y[t]], text, "=r,r,r"))

    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(64).astype(np.float16) for _ in range(2))
    out = np.zeros(128, np.int32)
    run(kernel, x.view(np.int32), y.view(np.int32), out)
    rows = out.reshape(4, 32)
    wide = x.astype(np.float32), y.astype(np.float32)
    np.testing.assert_array_equal(rows[0].view(np.float16), x + y)
    np.testing.assert_allclose(rows[1].view(np.float16), wide[0] * wide[1] + wide[0], rtol=2e-3, atol=1e-3)
    np.testing.assert_array_equal(rows[2].view(np.float16), np.maximum(x, y))
    a, b = (v.view(ml_dtypes.bfloat16) for v in (x, y))
    np.testing.assert_array_equal(
        rows[3].view(ml_dtypes.bfloat16).view(np.uint16),
        (a.astype(np.float32) * b.astype(np.float32)).astype(ml_dtypes.bfloat16).view(np.uint16),
    )


# --- threads -----------------------------------------------------------------------------------------------------------

REGISTERS = [
    "%tid.x",
    "%tid.y",
    "%ntid.x",
    "%ctaid.x",
    "%nctaid.x",
    "%laneid",
    "%warpid",
    "%lanemask_lt",
    "%lanemask_ge",
]


def test_special_registers():
    @cute.kernel
    def kernel(out: cute.Tensor):
        x, y, _ = arch.thread_idx()
        b = arch.block_idx()[0]
        for n, name in enumerate(REGISTERS):
            made = asm(cute.Int32.mlir_type, [], f"mov.u32 $0, {name};", "=r")
            out[((b * 2 + y) * 20 + x) * len(REGISTERS) + n] = cute.Int32._make(made)

    out = np.zeros(3 * 40 * len(REGISTERS), np.int32)
    run(kernel, out, grid=3, block=(20, 2, 1))
    got = out.view(np.uint32).reshape(3, 2, 20, len(REGISTERS))
    for b, y, x in np.ndindex(3, 2, 20):
        lane = (y * 20 + x) % 32
        want = [x, y, 20, b, 3, lane, (y * 20 + x) // 32, (1 << lane) - 1, M & ~((1 << lane) - 1)]
        assert got[b, y, x].tolist() == want


def test_votes_as_the_public_tutorial_writes_them():
    def vote(kind, predicate):
        text = f"""{{\n\t
            .reg .pred ps;\n\t
            .reg .pred pd;\n\t
            setp.ne.b32 ps, $1, 0;\n\t
            vote.sync.{kind}.pred pd, ps, $2;\n\t
            selp.b32 $0, 1, 0, pd;\n\t
            }}"""
        return cute.Boolean._make(asm(cute.Boolean.mlir_type, [predicate, cute.Int32(-1)], text, "=r,r,i"))

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, kind in enumerate(("any", "all", "uni")):
            out[n * 32 + t] = cute.Int32(vote(kind, cute.Boolean(t < 10)))
        text = "{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, $2; }"
        ballot = asm(cute.Int32.mlir_type, [cute.Boolean(t < 10), cute.Int32(-1)], text, "=r,r,i")
        out[96 + t] = cute.Int32._make(ballot)

    for (out,) in runs(kernel, np.zeros(128, np.int32)):
        np.testing.assert_array_equal(out.reshape(4, 32), np.repeat([[1], [0], [0], [1023]], 32, axis=1))


def test_shuffles_reductions_matches_and_elections():
    texts = {
        "activemask.b32 $0;": lambda v, n: M,
        "shfl.sync.down.b32 $0, $1, 3, 31, 0xffffffff;": lambda v, n: v[n + 3] if n + 3 < 32 else v[n],
        "{ .reg .pred p; shfl.sync.up.b32 $0|p, $1, 1, 0, -1; @!p mov.b32 $0, 77; }": lambda v, n: (
            v[n - 1] if n else 77
        ),
        "redux.sync.max.s32 $0, $1, -1;": lambda v, n: v.max(),
        "redux.sync.add.s32 $0, $1, 0xffffffff;": lambda v, n: v.sum(),
        "match.any.sync.b32 $0, $1, -1;": lambda v, n: sum(1 << i for i in range(32) if v[i] == v[n]),
        "{ .reg .pred p; elect.sync _|p, -1; selp.b32 $0, 1, 0, p; }": lambda v, n: int(n == 0),
    }

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, text in enumerate(texts):
            out[n * 32 + t] = cute.Int32._make(asm(cute.Int32.mlir_type, [x[t]], text, "=r,r"))

    x = np.random.default_rng(4).integers(0, 9, 32).astype(np.int32)
    for _, out in runs(kernel, x, np.zeros(32 * len(texts), np.int32), schedules=FEW):
        for row, (text, model) in zip(out.view(np.uint32).reshape(-1, 32), texts.items(), strict=True):
            want = np.array([int(model(x, n)) & M for n in range(32)], np.uint32)
            np.testing.assert_array_equal(row, want, err_msg=text)


# --- memory ------------------------------------------------------------------------------------------------------------


def test_loads_stores_and_atomics():
    i32 = cute.Int32.mlir_type
    four = "!llvm.struct<(i32,i32,i32,i32)>"

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor, counter: cute.Tensor):
        t = arch.thread_idx()[0]
        source, target = (x.iterator + t * 4).toint(), (out.iterator + t * 4).toint()
        words = asm(ir.Type.parse(four), [source], "ld.weak.global.v4.u32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l")
        parts = [
            tracing.emit_value("llvm.extractvalue", i32, (words,), {"position": ir.DenseI64ArrayAttr.get([n])})
            for n in (3, 2, 1, 0)
        ]
        asm(None, [target, *parts], "st.weak.global.v4.u32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r")
        address = counter.iterator.toint()
        old = asm(i32, [address, cute.Int32(2)], "atom.add.release.gpu.u32 $0, [$1], $2;", "=r,l,r")
        out[128 + t] = cute.Int32._make(old)
        asm(None, [address, t], "red.global.max.s32 [$0 + 4], $1;", "l,r")
        asm(None, [address, cute.Float32(1.5)], "red.global.add.f32 [$0+8], $1;", "l,f")
        seen = asm(i32, [address], "ld.global.acquire.gpu.b32 $0, [$1];", "=r,l")
        out[160 + t] = cute.Int32._make(seen)
        asm(
            None,
            [address, t],
            "{ .reg .pred p; setp.eq.s32 p, $1, 7; @p st.release.gpu.global.u32 [$0+12], $1; }",
            "l,r",
        )

    x = np.arange(128, dtype=np.int32)
    arrays = x, np.zeros(192, np.int32), np.zeros(4, np.int32)
    for _, out, counter in runs(kernel, *arrays, schedules=FEW):
        np.testing.assert_array_equal(out[:128].reshape(32, 4), x.reshape(32, 4)[:, ::-1])
        np.testing.assert_array_equal(np.sort(out[128:160]), np.arange(0, 64, 2))
        assert (out[160:] > out[128:160]).all()
        assert counter.tolist()[:2] == [64, 31] and counter[2:3].view(np.float32)[0] == 48 and counter[3] == 7


def test_remote_stores_into_a_cluster():
    """`mapa` and `st.async` with addresses of 32 bits, as the public reduction does."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        box = cute.make_tensor(arch.alloc_smem(cute.Float32, 4, 16), cute.make_layout(4))
        barrier = arch.alloc_smem(cute.Int64, 1)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        rank = arch.block_idx_in_cluster()
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_arrive_and_expect_tx(barrier, 16)
        arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if t < 4:
            i32 = cute.Int32.mlir_type
            mapped = [
                asm(i32, [pointer.toint(), t], "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r")
                for pointer in (box.iterator + rank, barrier)
            ]
            text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];"
            asm(None, [mapped[0], cute.Float32(rank * 10 + t), mapped[1]], text, "r,f,r")
        arch.mbarrier_wait(barrier, 0)
        if t < 4:
            out[b * 4 + t] = box[t]
        arch.cluster_arrive()
        arch.cluster_wait()

    for (out,) in runs(kernel, np.zeros(32, np.float32), grid=8, cluster=(4, 1, 1)):
        want = [[sender * 10 + b % 4 for sender in range(4)] for b in range(8)]
        np.testing.assert_array_equal(out.reshape(8, 4), want)


def test_barriers_copies_and_mbarriers():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile = cute.make_tensor(arch.alloc_smem(cute.Int32, 64, 16), cute.make_layout(64))
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        mine, word = barrier.toint(), (tile.iterator + t).toint()
        asm(None, [word, (x.iterator + t).toint()], "cp.async.ca.shared.global [$0], [$1], 4;", "r,l")
        asm(None, [], "cp.async.commit_group;", "")
        asm(None, [], "cp.async.wait_group 0;", "")
        asm(None, [], "bar.sync 0;", "")
        out[t] = tile[63 - t]
        asm(None, [cute.Int32(3), cute.Int32(64)], "barrier.sync $0, $1;", "r,r")
        if t == 0:
            asm(None, [mine, cute.Int32(64)], "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r")
            asm(None, [], "fence.mbarrier_init.release.cluster;", "")
        asm(None, [], "bar.sync 0, 64;", "")
        value = asm(cute.Int32.mlir_type, [word], "ld.shared.u32 $0, [$1];", "=r,r")
        asm(None, [word, value], "{ .reg .u32 v; add.u32 v, $1, $1; st.shared.u32 [$0], v; }", "r,r")
        asm(None, [mine], "mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];", "r")
        done = cute.Int32(0)
        while done == 0:
            text = "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [$1], 0; selp.b32 $0, 1, 0, p; }"
            done = cute.Int32._make(asm(cute.Int32.mlir_type, [mine], text, "=r,r"))
        out[64 + t] = tile[63 - t]

    x = np.arange(64, dtype=np.int32) + 5
    for _, out in runs(kernel, x, np.zeros(128, np.int32), block=64, schedules=FEW):
        np.testing.assert_array_equal(out, np.concatenate([x[::-1], 2 * x[::-1]]))


def test_operands_of_the_arch_function():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        got = arch.inline_ptx("add.s32 {$w0}, {$r0}, {$r1};", write_only_types=[cute.Int32], read_only_args=[x[t], t])
        out[t] = got
        (both,) = (
            arch.inline_ptx("add.s32 {$rw0}, {$rw0}, {$r0};", read_write_args=[x[t]], read_only_args=[cute.Int32(9)]),
        )
        out[32 + t] = both

    x, out = np.arange(32, dtype=np.int32) * 7, np.zeros(64, np.int32)
    run(kernel, x, out)
    np.testing.assert_array_equal(out, np.concatenate([np.arange(32) * 8, x + 9]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tex.1d.v4.f32.s32 {$0, $0, $0, $0}, [$0, {$0}];", "is not known to the CPU target"),
        ("{ .reg .b16 h; add.rz.f16 h, h, h; }", "rounding .rz of"),
        ("mov.u32 $0, undeclared;", "undeclared is not declared"),
        ("bra nowhere;", "no such label"),
        ("twice: mov.u32 $0, 1; twice: bra twice;", "twice"),
        ("@p bra done; done: mov.u32 $0, 1;", "p is not declared"),
        ("ret;", "would end the program's thread"),
        ("mov.u32 $0, (1);", "cannot be read"),
    ],
)
def test_what_is_refused_says_the_instruction_and_the_line(text, words):
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = cute.Int32._make(asm(cute.Int32.mlir_type, [t], text, "=r,r"))

    with pytest.raises(DSLNotImplemented, match=words) as caught:
        run(kernel, np.zeros(32, np.int32))
    assert caught.value.span is not None and caught.value.span.filename == asm.__code__.co_filename


# --- more instructions ---------------------------------------------------------------------------------------------------


def test_fields_of_bits_distances_and_dot_products():
    """Against Python's integers."""
    text = """{
        .reg .b32 start, length;
        and.b32 start, $3, 63;
        shr.u32 length, $3, 8;
        and.b32 length, length, 63;
        bfe.u32 $0, $1, start, length;
    }"""
    variants = {
        "bfe.u32": text,
        "bfe.s32": text.replace("bfe.u32", "bfe.s32"),
        "bfi.b32": text.replace("bfe.u32 $0, $1,", "bfi.b32 $0, $1, $2,"),
        "bfind.u32": "bfind.u32 $0, $1;",
        "bfind.s32": "bfind.s32 $0, $1;",
        "bfind.shiftamt.u32": "bfind.shiftamt.u32 $0, $1;",
        "sad.s32": "sad.s32 $0, $1, $2, $3;",
        "sad.u32": "sad.u32 $0, $1, $2, $3;",
        "dp4a.s32.u32": "dp4a.s32.u32 $0, $1, $2, $3;",
        "dp2a.hi.u32.s32": "dp2a.hi.u32.s32 $0, $1, $2, $3;",
        "copysign.f32": "copysign.f32 $0, $1, $2;",
        "mad.wide": "{ .reg .u64 t; .reg .u32 low; cvt.u64.u32 t, $3; mad.wide.u32 t, $1, $2, t; shr.u64 t, t, 20; cvt.u32.u64 $0, t; }",
    }  # fmt: skip

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        values = [x[t], x[64 + t], x[128 + t]]
        for n, code in enumerate(variants.values()):
            out[n * 64 + t] = cute.Int32._make(asm(cute.Int32.mlir_type, values, code, "=r,r,r,r"))

    rng = np.random.default_rng(8)
    x = rng.integers(-(1 << 31), 1 << 31, 192).astype(np.int32)
    x[:4] = [0, -1, 1, -(1 << 31)]
    out = np.zeros(64 * len(variants), np.int32)
    run(kernel, x, out, block=64)

    def signed(value, width=32):
        value &= (1 << width) - 1
        return value - (1 << width) if value >> (width - 1) else value

    def model(name, a, b, c):
        ua, ub, uc = (v & 0xFFFFFFFF for v in (a, b, c))
        start, length = min(uc & 63, 32), min(uc >> 8 & 63, 32)
        mask = (1 << length) - 1
        if name == "bfe.u32":
            return ua >> start & mask
        if name == "bfe.s32":
            taken = a >> start & mask
            return taken - (1 << length) if length and taken >> (length - 1) else taken
        if name == "bfi.b32":
            return (ub & ~(mask << start)) | (ua & mask) << start
        if name.startswith("bfind"):
            value = ~a if name.endswith("s32") and a < 0 else ua
            place = value.bit_length() - 1
            return 31 - place if "shiftamt" in name and place >= 0 else place
        if name.startswith("sad"):
            return (abs(a - b) if name.endswith("s32") else abs(ua - ub)) + c
        if name.startswith("dp4a"):
            return c + sum(signed(a >> 8 * n, 8) * (b >> 8 * n & 255) for n in range(4))
        if name.startswith("dp2a"):
            return c + sum((a >> 16 * n & 0xFFFF) * signed(b >> 8 * (n + 2), 8) for n in range(2))
        if name == "copysign.f32":
            return (ua & 1 << 31) | (ub & (1 << 31) - 1)
        return (ua * ub + uc & (1 << 64) - 1) >> 20

    for n, name in enumerate(variants):
        want = [signed(model(name, *(int(v) for v in x.reshape(3, 64)[:, t]))) for t in range(64)]
        np.testing.assert_array_equal(out.reshape(-1, 64)[n], want, name)


def test_waits_by_state_and_expectations_that_grow():
    arrive = "mbarrier.arrive.shared::cta.b64 $0, [$1];"
    wait = """{
        .reg .pred p;
    again: mbarrier.test_wait.shared::cta.b64 p, [$0], $1;
        @!p bra again;
    }"""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        tile = cute.make_tensor(arch.alloc_smem(cute.Int32, 64, 16), cute.make_layout(64))
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 64)
        arch.sync_threads()
        for step in range(2):
            word = (tile.iterator + t).toint()
            asm(None, [word, (x.iterator + (step * 64 + t)).toint()], "cp.async.ca.shared.global [$0], [$1], 4;", "r,l")
            asm(None, [barrier.toint()], "cp.async.mbarrier.arrive.shared::cta.b64 [$0];", "r")
            state = asm(cute.Int64.mlir_type, [barrier.toint()], arrive, "=l,r")
            left = cute.Int32._make(asm(cute.Int32.mlir_type, [state], "mbarrier.pending_count.b64 $0, $1;", "=r,l"))
            asm(None, [barrier.toint(), state], wait, "r,l")
            out[step * 64 + t] = tile[63 - t] + (cute.Int32(1000000) if left < 1 or left > 128 else cute.Int32(0))
            arch.sync_threads()

    x = np.arange(128, dtype=np.int32) + 7
    for _, out in runs(kernel, x, np.zeros(128, np.int32), block=64):
        np.testing.assert_array_equal(out.reshape(2, 64), x.reshape(2, 64)[:, ::-1])


def test_vectors_of_atomics_ranks_and_policies():
    @cute.kernel
    def kernel(sums: cute.Tensor, out: cute.Tensor):
        box = arch.alloc_smem(cute.Int32, 4)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        one, two = cute.Float32(1), cute.Float32(2)
        place = (sums.iterator + t % 4 * 4).toint()
        asm(None, [place, one, two], "red.relaxed.gpu.global.add.v4.f32 [$0], {$1, $2, $1, $2};", "l,f,f")
        there = arch.map_dsmem_ptr(box, (b + 1) % 2).toint()
        rank = asm(cute.Int32.mlir_type, [there], "getctarank.shared::cluster.u32 $0, $1;", "=r,r")
        policy = asm(cute.Int64.mlir_type, [], "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", "=l")
        asm(
            None,
            [sums.iterator.toint(), policy],
            "cp.async.bulk.prefetch.L2.global.L2::cache_hint [$0], 16, $1;",
            "l,l",
        )
        out[b * 32 + t] = cute.Int32._make(rank)
        arch.cluster_arrive()
        arch.cluster_wait()

    arrays = np.zeros(16, np.float32), np.zeros(64, np.int32)
    for sums, out in runs(kernel, *arrays, grid=2, cluster=(2, 1, 1), schedules=FEW):
        np.testing.assert_array_equal(sums.reshape(4, 4), [[16, 32, 16, 32]] * 4)
        np.testing.assert_array_equal(out, np.repeat([1, 0], 32))


def test_a_trap_is_a_fault():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        asm(None, [t], "{ .reg .pred p; setp.eq.s32 p, $0, 5; @p trap; }", "r")
        out[t] = t

    with pytest.raises(AssertionError, match=r"trap.*thread \(5, 0, 0\)"):
        run(kernel, np.zeros(32, np.int32))


@pytest.mark.isa
def test_ordered_accesses_of_vectors_have_fences():
    """No processor orders them by themselves, and only some keep the order of all accesses."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        address = x.iterator.toint()
        pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
        words = asm(pair, [address], "ld.acquire.gpu.global.v2.b32 {$0, $1}, [$2];", "=r,=r,l")
        low, high = (
            tracing.emit_value(
                "llvm.extractvalue", cute.Int32.mlir_type, (words,), {"position": ir.DenseI64ArrayAttr.get([k])}
            )
            for k in (0, 1)
        )
        asm(None, [address, high, low], "st.release.gpu.global.v2.b32 [$0], {$1, $2};", "l,r,r")

    with kiln.target("cpu"):
        x = np.array([1, 2], np.int32)
        compiled = cute.compile(launcher(kernel, 1, grid=1, block=1), x)
        compiled(x)
    assert x.tolist() == [2, 1]
    text = compiled.artifacts["llvm"]
    assert text.index("fence acquire") < text.index("fence release")


def test_conversions_of_narrow_floats_and_scale_factors():
    """Pairs of 4- and 6-bit floats, powers of two, fixed-point bytes: every code one way, values and ends the other."""
    kinds = {
        "e2m1": (ml_dtypes.float4_e2m1fn, 4, "rn.satfinite"), "e2m3": (ml_dtypes.float6_e2m3fn, 6, "rn.satfinite"),
        "e3m2": (ml_dtypes.float6_e3m2fn, 6, "rn.satfinite"), "ue8m0": (ml_dtypes.float8_e8m0fnu, 8, "rp.satfinite"),
        "ue5m3": (None, 8, "rn.satfinite"),
    }  # fmt: skip

    def to_pair(kind, text="f32 {}, $1, $2;"):
        code = f"cvt.{kinds[kind][2]}.{kind}x2." + text
        if kind == "e2m1":
            return "{ .reg .b8 t, z; mov.b16 {z, t}, 0; " + code.format("t") + " mov.b16 $0, {t, z}; }"
        return code.format("$0")

    def from_pair(kind):
        wide = "bf16" if kind in ("ue8m0", "ue5m3") else "f16"
        if kind == "e2m1":
            return "{ .reg .b8 t, z; mov.b16 {t, z}, $1; cvt.rn.f16x2.e2m1x2 $0, t; }"
        return f"cvt.rn.{wide}x2.{kind}x2 $0, $1;"

    @cute.kernel
    def kernel(x: cute.Tensor, codes: cute.Tensor, made: cute.Tensor, back: cute.Tensor):
        t = arch.thread_idx()[0]
        i16, i32 = cute.Int16.mlir_type, cute.Int32.mlir_type
        pair = [x[2 * t + 1], x[2 * t]]
        for n, kind in enumerate(kinds):
            made[n, t] = cute.Int16._make(asm(i16, pair, to_pair(kind), "=h,f,f"))
            back[n, t] = cute.Int32._make(asm(i32, [codes[n, t]], from_pair(kind), "=r,h"))
        made[6, t] = cute.Int16._make(asm(i16, pair, "cvt.rz.ue8m0x2.f32 $0, $1, $2;", "=h,f,f"))
        fixed = asm(i16, pair, "cvt.rn.satfinite.s2f6x2.f32 $0, $1, $2;", "=h,f,f")
        made[5, t] = cute.Int16._make(fixed)
        scaled = "cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2 $0, $1, $2;"
        back[5, t] = cute.Int32._make(asm(i32, [cute.Int16._make(fixed), codes[3, t]], scaled, "=r,h,h"))

    rng = np.random.default_rng(4)
    x = np.concatenate([rng.standard_normal(222) * 4, [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 2.0**-127, 3.4e38]])
    x = np.concatenate([x, 0.25 * np.arange(26)]).astype(np.float32)
    codes = np.zeros((5, 256), np.uint8)
    for n, (_, bits, _) in enumerate(kinds.values()):
        codes[n] = np.arange(256) & (1 << bits) - 1
    words = codes.view(np.int16).copy()
    words[0] = codes[0, ::2] | codes[0, 1::2].astype(np.int16) << 4
    made, back = np.zeros((7, 128), np.int16), np.zeros((6, 128), np.int32)
    run(kernel, x, words, made, back, block=128)
    with np.errstate(invalid="ignore", over="ignore"):
        for n, (dtype, _, _) in enumerate(list(kinds.values())[:3]):
            limit = float(ml_dtypes.finfo(dtype).max)
            want = np.where(np.isnan(x), limit, np.clip(x, -limit, limit)).astype(dtype).view(np.uint8)
            got = made[n].view(np.uint8)
            got = np.stack([got[::2] & 15, got[::2] >> 4], 1).reshape(-1) if n == 0 else got
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(back[n].view(np.float16), codes[n].view(dtype).astype(np.float16))
        wanted = codes[3].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        np.testing.assert_array_equal(back[3].view(ml_dtypes.bfloat16).astype(np.float32), wanted)
        ue5m3 = cute.FloatNV8E5M3FNU._format
        values = np.array([ue5m3.decode(code) for code in range(256)], np.float32)
        np.testing.assert_array_equal(back[4].view(ml_dtypes.bfloat16).astype(np.float32), values)
        np.testing.assert_array_equal(made[4].view(np.uint8), [ue5m3.encode(ue5m3.round(float(v))) for v in x])
        size = np.maximum(np.abs(x.astype(np.float64)), 2.0**-127)
        for row, rounded in ((3, np.ceil), (6, np.floor)):
            want = np.clip(rounded(np.log2(size)) + 127, 0, 254 if row == 3 else 255)
            want = np.where(np.isnan(x), 255, np.where(np.isinf(x) & (row == 6), 255, want))
            np.testing.assert_array_equal(made[row].view(np.uint8), want.astype(np.uint8))
        fixed = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0) * 64), -128, 127)
        np.testing.assert_array_equal(made[5].view(np.int8), fixed.astype(np.int8))
        got = back[5].view(ml_dtypes.bfloat16).astype(np.float32)
        exact = (fixed / 64).astype(np.float32) * wanted
        np.testing.assert_array_equal(got, exact.astype(ml_dtypes.bfloat16).astype(np.float32))


# --- registers of the function ------------------------------------------------------------------------------------------


def test_registers_outside_of_braces_are_the_functions():
    """Later inline PTX has them, also in loops and branches, and a declaration in braces hides one of the same name."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        i32 = cute.Int32.mlir_type
        asm(None, [x[t]], ".reg .b32 sum, part<2>; mov.b32 sum, $0; mov.b32 part1, 7;", "r")
        for i in range(x[t] % 4):
            if i != 1:
                asm(None, [i], "add.s32 sum, sum, $0; add.s32 sum, sum, part1;", "r")
        asm(None, [], "{ .reg .b32 sum; mov.b32 sum, 5; }", "")
        out[t] = cute.Int32._make(asm(i32, [], "mov.b32 $0, sum;", "=r"))

    x = np.arange(32, dtype=np.int32)
    out = np.zeros_like(x)
    run(kernel, x, out)
    added = [sum(i + 7 for i in range(n % 4) if i != 1) for n in range(32)]
    np.testing.assert_array_equal(out, x + added)


def test_registers_that_come_later_are_not_declared():
    @cute.kernel
    def kernel(out: cute.Tensor):
        out[0] = cute.Int32._make(asm(cute.Int32.mlir_type, [], "mov.b32 $0, later;", "=r"))
        asm(None, [], ".reg .b32 later; mov.b32 later, 1;", "")

    with pytest.raises(DSLNotImplemented, match="later is not declared"):
        run(kernel, np.zeros(1, np.int32))
