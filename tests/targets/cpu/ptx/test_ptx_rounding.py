"""Inline PTX that rounds in one direction (`.rz`, `.rm`, `.rp`), against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from kernel_testing import asm, run

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute import arch

DIRECTIONS = ("rz", "rm", "rp")
_TINY, _HUGE = 2.0**-140, float(np.finfo(np.float32).max)
PAIRS = [
    (1.0, 3.0), (-1.0, 3.0), (2.0, -7.0), (1.0, 2.0**-30), (-1.0, 2.0**-30), (1.0, -(2.0**-30)), (0.1, 0.2),
    (_HUGE, _HUGE), (-_HUGE, 3.0), (_TINY, 3.0), (_TINY, -(2.0**-20)), (1.5, 1.5), (16777217.0, 0.3), (-5.0, 7.0),
]  # fmt: skip


def directed(exact: Fraction, direction: str, kind: type, large: float) -> float:
    """A number rounded in a direction: the neighbours of the nearest float are compared with it."""
    near = kind(math.copysign(large, exact) if abs(exact) > large else float(exact))
    up, down = kind(np.inf), kind(-np.inf)
    with np.errstate(over="ignore"):
        around = [np.nextafter(near, down), near, np.nextafter(near, up)]
    if direction == "rm" or (direction == "rz" and exact > 0):
        return float(max(v for v in around if v == down or (v != up and Fraction(float(v)) <= exact)))
    return float(min(v for v in around if v == up or (v != down and Fraction(float(v)) >= exact)))


def _square_root(x: Fraction) -> Fraction:
    """Exact enough: a float next to it is never as close as 2**-200 unless it is the root itself."""
    scale = 1 << 400
    root = Fraction(math.isqrt(x.numerator * scale * x.denominator), math.isqrt(scale) * x.denominator)
    return root


F32 = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b: a * b + b,
    "rcp": lambda a, b: 1 / a,
    "sqrt": lambda a, b: _square_root(abs(a)),
}


def _text(name: str, direction: str, kind: str) -> str:
    call = {"fma": "$1, $2, $2", "rcp": "$1", "sqrt": "p"}.get(name, "$1, $2")
    text = f"{name}.{direction}.{kind} $0, {call};"
    return f"{{ .reg .{kind} p; abs.{kind} p, $1; {text} }}" if name == "sqrt" else text


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_arithmetic(kind):
    texts = [_text(name, way, kind) for name in F32 for way in DIRECTIONS]
    number, dtype, letter = (cute.Float32, np.float32, "f") if kind == "f32" else (cute.Float64, np.float64, "d")

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, text in enumerate(texts):
            made = asm(number.mlir_type, [a[t], b[t]], text, f"={letter},{letter},{letter}")
            y[t, n] = number._make(made)

    a, b = (np.array(column, dtype) for column in zip(*PAIRS, strict=True))
    if kind == "f64":
        a, b = a * dtype(1.1), b * dtype(0.7)
    y = np.zeros((len(PAIRS), len(texts)), dtype)
    run(kernel, a, b, y, block=len(PAIRS))
    for row, (p, q) in enumerate(zip(a, b, strict=True)):
        exact = [function(Fraction(float(p)), Fraction(float(q))) for function in F32.values()]
        wanted = [directed(e, way, dtype, float(np.finfo(dtype).max)) for e in exact for way in DIRECTIONS]
        np.testing.assert_array_equal(y[row], wanted, err_msg=f"{p} {q}")


def test_packed_arithmetic():
    ways = [(name, way) for name in ("add", "sub", "mul", "fma") for way in DIRECTIONS]

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        t = arch.thread_idx()[0]
        p, q = (a[t], b[t]), (b[t], a[t])
        for n, (name, way) in enumerate(ways):
            operation = getattr(arch, f"{name}_packed_f32x2")
            y[t, n, 0], y[t, n, 1] = operation(p, q, q, rnd=way) if name == "fma" else operation(p, q, rnd=way)

    a, b = (np.array(column, np.float32) for column in zip(*PAIRS, strict=True))
    y = np.zeros((len(PAIRS), len(ways), 2), np.float32)
    run(kernel, a, b, y, block=len(PAIRS))
    large = float(np.finfo(np.float32).max)
    for row, (p, q) in enumerate(zip(a, b, strict=True)):
        for half, (first, second) in enumerate(((p, q), (q, p))):
            exact = [F32[name](Fraction(float(first)), Fraction(float(second))) for name, _ in ways]
            wanted = [directed(e, way, np.float32, large) for e, (_, way) in zip(exact, ways, strict=True)]
            np.testing.assert_array_equal(y[row, :, half], wanted, err_msg=f"{p} {q}")


@pytest.mark.parametrize("architecture", ["sm_107a", "sm_100a"])
def test_mixed_packed_arithmetic(monkeypatch, architecture):
    """The first pair is of 16 bits; sm_107 has instructions for it, which are also read as inline PTX."""
    monkeypatch.setenv("CUTE_DSL_ARCH", architecture)
    halves = {"bf16": (cute.BFloat16, ml_dtypes.bfloat16), "f16": (cute.Float16, np.float16)}
    ways = [(name, half, way) for name in ("add", "sub", "fma") for half in halves for way in DIRECTIONS]

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, (name, half, way) in enumerate(ways):
            p, q = [cute.Float32(x).to(halves[half][0]) for x in (a[t], b[t])], (b[t], a[t])
            operation = getattr(arch, f"{name}_packed_f32x2_{half}x2_f32x2{'_f32x2' * (name == 'fma')}")
            y[t, n, 0], y[t, n, 1] = operation(p, q, q, rnd=way) if name == "fma" else operation(p, q, rnd=way)

    a, b = (np.array(column, np.float32) for column in zip(*PAIRS, strict=True))
    y = np.zeros((len(PAIRS), len(ways), 2), np.float32)
    run(kernel, a, b, y, block=len(PAIRS))
    large = float(np.finfo(np.float32).max)
    for row, pair in enumerate(zip(a, b, strict=True)):
        for half, (first, second) in enumerate((pair, pair[::-1])):
            for n, (name, kind, way) in enumerate(ways):
                with np.errstate(over="ignore"):
                    narrow = np.float32(first.astype(halves[kind][1]))
                if not np.isfinite(narrow):
                    continue
                exact = F32[name](Fraction(float(narrow)), Fraction(float(second)))
                assert y[row, n, half] == directed(exact, way, np.float32, large), (name, kind, way, first, second)


def test_packed_types_that_no_instruction_has_are_refused():
    @cute.kernel
    def kernel(y: cute.Tensor):
        y[0] = cute.Int64._make(asm(cute.Int64.mlir_type, [y[0]], "mul.rn.f32x2.bf16x2.f32x2 $0, 1, $1;", "=l,l"))

    with pytest.raises(Exception, match="mul of f32x2 and bf16x2 and f32x2"):
        run(kernel, np.zeros(1, np.int64), block=1)


NUMBERS = [1 / 3, -1 / 3, 65519.0, -65519.0, 1e-8, -1e-8, 2.0**-25, 1.0, 0.0, 1e6, -1e6, 3e38, 1.00390625, -1.0078125]


def test_conversions_to_halves():
    kinds = {"f16": (np.float16, 65504.0), "bf16": (ml_dtypes.bfloat16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max))}
    ways = [(kind, way) for kind in kinds for way in DIRECTIONS]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, packed: cute.Tensor):
        t = arch.thread_idx()[0]
        for n, (kind, way) in enumerate(ways):
            text = f"{{ .reg .b16 h; cvt.{way}.{kind}.f32 h, $1; cvt.f32.{kind} $0, h; }}"
            y[t, n] = cute.Float32._make(asm(cute.Float32.mlir_type, [x[t]], text, "=f,f"))
        word = asm(cute.Int32.mlir_type, [x[t]], "cvt.rz.bf16x2.f32 $0, $1, 0f3F800000;", "=r,f")
        packed[t] = cute.Int32._make(word)

    x = np.array(NUMBERS, np.float32)
    y, packed = np.zeros((len(x), len(ways)), np.float32), np.zeros(len(x), np.int32)
    run(kernel, x, y, packed, block=len(x))
    for row, value in enumerate(x):
        exact = Fraction(float(value))
        wanted = [directed(exact, way, *kinds[kind]) for kind, way in ways]
        np.testing.assert_array_equal(y[row], np.array(wanted, np.float32), err_msg=str(value))
    np.testing.assert_array_equal((packed.view(np.uint32) >> 16) << 16, x.view(np.uint32) & 0xFFFF0000)
    assert (packed & 0xFFFF == 0x3F80).all()


def test_other_conversions():
    texts = [
        f"{{ .reg .f64 d; cvt.f64.f32 d, $1; add.f64 d, d, 0d3E70000000000000; cvt.{way}.f32.f64 $0, d; }}"
        for way in DIRECTIONS
    ]
    texts += [f"{{ .reg .s32 i; mov.b32 i, 0x7FFFFFFF; cvt.{way}.f32.s32 $0, i; }}" for way in DIRECTIONS]
    texts += ["cvt.rz.tf32.f32 $0, $1;", "cvt.rn.tf32.f32 $0, $1;", "cvt.rna.tf32.f32 $0, $1;"]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        for n, text in enumerate(texts):
            y[n] = cute.Float32._make(asm(cute.Float32.mlir_type, [x[0]], text, "=f,f"))

    y = np.zeros(len(texts), np.float32)
    x = np.array([0x3F801000], np.uint32).view(np.float32)  # half way between two numbers of tf32
    run(kernel, x, y, block=1)
    exact = Fraction(float(x[0])) + Fraction(2) ** -24
    up = np.nextafter(x[0], np.float32(2))
    np.testing.assert_array_equal(y[:3], [x[0], x[0], up])
    assert Fraction(float(x[0])) < exact < Fraction(float(up))
    np.testing.assert_array_equal(y[3:6], [2147483520.0, 2147483520.0, 2147483648.0])
    np.testing.assert_array_equal(y[6:].view(np.uint32), [0x3F800000, 0x3F800000, 0x3F802000])


def test_the_rounding_mode_is_put_back():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        for n in kiln.range_constexpr(2):
            y[2 * n] = cute.Float32._make(asm(cute.Float32.mlir_type, [x[0], x[1]], "div.rp.f32 $0, $1, $2;", "=f,f,f"))
            y[2 * n + 1] = x[0] / x[1]

    x, y = np.array([2, 3], np.float32), np.zeros(4, np.float32)
    run(kernel, x, y, block=1)
    near = np.float32(2) / np.float32(3)  # which is above two thirds
    assert near > Fraction(2, 3)
    np.testing.assert_array_equal(y, [near] * 4)
    run(kernel, -x, y, block=1)
    assert np.float32(0.1) + np.float32(0.2) == np.float32(0.3)


def test_what_no_processor_has_is_refused():
    @cute.kernel
    def kernel(x: cute.Tensor):
        x[0] = cute.Float32._make(asm(cute.Float32.mlir_type, [x[0]], "cvt.rp.tf32.f32 $0, $1;", "=f,f"))

    with pytest.raises(DSLNotImplemented, match=r"rounding \.rp of tf32"):
        run(kernel, np.ones(1, np.float32), block=1)


NEAR_HALF = [
    # a, b, c: a * b + c lies next to half way between two results, or far below what c shows; then where f32 ends
    (1 + 2**-7, 1 - 2**-8, 2**-30), (1 + 2**-7, 1 - 2**-8, -(2**-30)), (1 + 2**-7, 1 + 2**-7, 2**-40),
    (1.5, 1 + 2**-7, 2**-60), (1.5, 1 + 2**-7, -(2**-60)), (-1.5, 1 + 2**-7, 2**-60), (1, 2**-8, 1), (3, 2**-8, 1),
    (2**-60, -(2**-70), 1), (2**-70, 2**-64 * 1.5, 2**-133), (2**-70, 2**-64, 2**-130), (2**-100, 2**-100, 0),
    (-(2**-100), 2**-100, 2**-133), (2**127, 2, 0), (2**127 * 1.5, 1.25, 2**119), (1, 2, -2), (0, -3, -0.0),
    (2**-67 * (1 + 2**-7), 2**-67 * (1 - 2**-8), 0), (2**-67, 2**-67 * (1 + 2**-7), 0),
    (float("inf"), 0, 1), (float("inf"), 1, 2), (float("nan"), 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_pairs_are_rounded_once(kind):
    """fma, mul, add and sub of pairs of 16-bit floats against rational arithmetic, which is rounded once."""
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bf16" else np.float16)
    rng = np.random.default_rng(7)
    values = rng.integers(0, 1 << 16, (300, 3), dtype=np.uint16).view(dtype)
    close = (rng.integers(-255, 256, (300, 3)) * 2.0 ** rng.integers(-9, 1, (300, 3))).astype(dtype)
    triples = np.concatenate([np.array(NEAR_HALF, np.float64).astype(dtype), values, close])
    a, b, c = (np.repeat(column.view(np.uint16), 2).view(np.uint32) for column in triples.T.copy())
    texts = [
        f"{name}.rn.{kind}x2 $0, $1, $2{third};"
        for name, third in (("fma", ", $3"), ("mul", ""), ("add", ""), ("sub", ""))
    ]

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor):
        i = cute.arch.thread_idx()[0]
        for n, text in enumerate(texts):
            operands = [a[i], b[i], c[i]] if n == 0 else [a[i], b[i]]
            out[n, i] = cute.Uint32._make(asm(cute.Int32.mlir_type, operands, text, "=r" + ",r" * len(operands)))

    out = np.zeros((4, len(triples)), np.uint32)
    run(kernel, a, b, c, out, block=len(triples))

    def exact(x, y, z):
        if not np.isfinite([x, y, z]).all():
            with np.errstate(all="ignore"):
                return x * y + z
        return Fraction(x) * Fraction(y) + Fraction(z)

    for n in range(4):
        for (x, y, z), bits in zip(triples.astype(np.float64).tolist(), out[n].tolist(), strict=True):
            value = [exact(x, y, z), exact(x, y, 0.0), exact(x, 1.0, y), exact(x, 1.0, -y)][n]
            assert bits >> 16 == bits & 0xFFFF
            got = float(np.array(bits & 0xFFFF, np.uint16).view(dtype))
            if isinstance(value, Fraction):
                assert got == nearest(value, dtype), (kind, texts[n], x, y, z)
            else:
                assert got == value or (got != got and value != value), (kind, texts[n], x, y, z)


def nearest(value, dtype):
    """A rational number rounded to a float of 16 bits, to nearest even."""
    precision, least, most = (8, -133, 127) if dtype != np.float16 else (11, -24, 15)
    if not value:
        return 0.0
    exponent = math.frexp(value.numerator)[1] - math.frexp(value.denominator)[1]
    exponent += (abs(value) >= Fraction(2) ** exponent) - (abs(value) < Fraction(2) ** (exponent - 1))
    unit = Fraction(2) ** max(exponent - precision, least)
    rounded = round(value / unit) * unit
    return float(rounded) if abs(rounded) < Fraction(2) ** (most + 1) else math.copysign(math.inf, value)
