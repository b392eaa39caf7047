"""Operators as functions of `cute.math`, rounded in each direction, and of integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.cute import math as cmath

MODES = (None, cmath.RoundingMode.NEAREST_EVEN, cmath.RoundingMode.ZERO, cmath.RoundingMode.DOWN, cmath.RoundingMode.UP)
NAMES = ("add", "sub", "mul", "div", "fma", "rcp", "sqrt")
PAIRS = [(1.0, 3.0), (-1.0, 3.0), (2.0, -7.0), (1.0, 2.0**-30), (-0.1, 0.2), (1.5, 1.5), (16777217.0, 0.3), (-5.0, 7.0)]


@cute.kernel
def of_modes(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    x, y = a[t], b[t]
    row = cute.make_rmem_tensor(2, cute.Float32)
    row[0], row[1] = x, y
    pair = row.load()
    for m, mode in enumerate(MODES):
        for n, name in enumerate(("add", "sub", "mul", "div")):
            out[t, m, n] = getattr(cmath, name)(x, y, rounding=mode)
        out[t, m, 4] = cmath.fma(x, y, y, rounding=mode)
        out[t, m, 5] = cmath.rcp(y, rounding=mode)
        out[t, m, 6] = cmath.sqrt(cmath.abs(y), rounding=mode)
        both = cmath.div(pair, 3.0, rounding=mode)
        out[t, m, 7], out[t, m, 8] = both[0], both[1]


@cute.jit
def modes(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    of_modes(a, b, out).launch(grid=1, block=8)


def rounded(exact: Fraction, mode: object) -> float:
    """Return the Float32 that a number rounds to."""
    near = np.float32(float(exact))
    around = sorted({np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))})
    below = max(v for v in around if Fraction(float(v)) <= exact)
    above = min(v for v in around if Fraction(float(v)) >= exact)
    if mode is cmath.RoundingMode.UP or (mode is cmath.RoundingMode.ZERO and exact < 0):
        return float(above)
    if mode in (cmath.RoundingMode.DOWN, cmath.RoundingMode.ZERO):
        return float(below)
    down, up = exact - Fraction(float(below)), Fraction(float(above)) - exact
    even = below if not below.view(np.uint32) & 1 else above
    return float(below if down < up else above if up < down else even)


def test_every_direction():
    a, b = (np.array(column, np.float32) for column in zip(*PAIRS, strict=True))
    out = np.zeros((8, 5, 9), np.float32)
    with kiln.target("cpu"):
        modes(a, b, out)
    for t, (x, y) in enumerate(zip(a, b, strict=True)):
        p, q = Fraction(float(x)), Fraction(float(y))
        scale = 1 << 200
        root = Fraction(math.isqrt(abs(q.numerator) * scale * q.denominator), math.isqrt(scale) * q.denominator)
        exact = [p + q, p - q, p * q, p / q, p * q + q, 1 / q, root, p / 3, q / 3]
        wanted = [[rounded(value, mode) for value in exact] for mode in MODES]
        np.testing.assert_array_equal(out[t], wanted, f"{x} {y}")


@cute.kernel
def of_integers(x: cute.Tensor, out: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    v = x[t]
    f = cute.Float32(v) * 0.75
    row = cute.make_rmem_tensor(2, cute.Int32)
    row[0], row[1] = v, v + 1
    pair = row.load()
    values = (
        cmath.add(v, 2), cmath.sub(v, 2), cmath.mul(v, 3), cmath.rem(v, 4), cmath.neg(v), cmath.absi(v), cmath.clamp(v, -3, 5),
        cmath.ipowi(v, 5), cmath.ipowi(v, -3), cmath.ipowi(v, 0), cmath.rem(pair, 4)[1], cmath.ipowi(pair, -2)[0],
    )  # fmt: skip
    for n, value in enumerate(values):
        out[n, t] = cute.Float32(value)
    out[12, t] = cmath.rem(f, 2.0)
    out[13, t] = cmath.fpowi(f, 3)
    out[14, t] = cmath.mul(f, f, fastmath=True)
    sine, cosine = cmath.sincos(f)
    out[15, t] = sine * sine + cosine * cosine
    out[16, t] = cute.Float32(cmath.isnormal(f))
    out[17, t] = cmath.div(v, 4)


@cute.jit
def integers(x: cute.Tensor, out: cute.Tensor):
    of_integers(x, out).launch(grid=1, block=16)


def test_integers_and_others():
    x, out = np.arange(-8, 8, dtype=np.int32), np.zeros((18, 16), np.float32)
    with kiln.target("cpu"):
        integers(x, out)
    f = x * np.float32(0.75)
    remainder = lambda v: np.fmod(v, 4)
    inverse = lambda v, n: np.where(abs(v) == 1, v**n, 0)
    wanted = [
        x + 2, x - 2, x * 3, remainder(x), -x, abs(x), np.clip(x, -3, 5), x**5, inverse(x, 3), x**0, remainder(x + 1),
        inverse(x, 2), np.fmod(f, 2), f**3, f * f, np.ones(16), f != 0, x / 4,
    ]  # fmt: skip
    np.testing.assert_allclose(out, np.array(wanted, np.float32), rtol=1e-6)


def test_numbers_of_python():
    assert (cmath.add(1, 2), cmath.sub(1.0, 3), cmath.mul(2, 4), cmath.div(1, 4), cmath.neg(3)) == (
        3,
        -2.0,
        8,
        0.25,
        -3,
    )
    assert (cmath.rem(-7, 3), cmath.rem(-7.5, 2), cmath.ipowi(3, 4), cmath.ipowi(-1, -3), cmath.ipowi(5, -1)) == (
        -1,
        -1.5,
        81,
        -1,
        0,
    )
    assert (cmath.absi(-4), cmath.clamp(9, 1, 3), cmath.fpowi(2.0, -1)) == (4, 3, 0.5)
    assert [cmath.isnormal(v) for v in (1.0, 0.0, 1e-310, math.inf, math.nan)] == [True, False, False, False, False]
    assert cmath.RoundingMode.NEAREST_EVEN is cmath.RoundingMode.RN


@needs_ptxas
def test_gpus_round_in_each_direction():
    a, b = (np.array(column, np.float32) for column in zip(*PAIRS, strict=True))
    text = compile_for(modes, a, b, np.zeros((8, 5, 9), np.float32), arch="sm_80").__ptx__
    for name in NAMES:
        assert all(f"{name}.{way}.f32" in text for way in ("rz", "rm", "rp"))
