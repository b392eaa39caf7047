"""The error of each mathematical function, in units in the last place, against float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute import math as cmath
from kiln.cute.runtime import from_dlpack

rng = np.random.default_rng(7)
N = 64
WIDE = np.concatenate([rng.uniform(-10, 10, N // 2), rng.normal(size=N // 2)])
POSITIVE = np.concatenate([rng.uniform(1e-3, 100, N // 2), np.exp(rng.uniform(-60, 60, N // 2))])
UNIT = rng.uniform(-0.99, 0.99, N)

# function, inputs, reference, allowed error in ulp for Float32 (the table of docs/tensors.md)
UNARY = [
    ("exp", WIDE, np.exp, 1), ("exp2", WIDE, np.exp2, 1), ("expm1", WIDE, np.expm1, 1), ("log", POSITIVE, np.log, 1),
    ("log2", POSITIVE, np.log2, 1), ("log10", POSITIVE, np.log10, 2), ("log1p", POSITIVE, np.log1p, 1),
    ("sin", WIDE, np.sin, 1), ("cos", WIDE, np.cos, 1), ("tan", WIDE, np.tan, 1.5), ("asin", UNIT, np.arcsin, 1),
    ("acos", UNIT, np.arccos, 1), ("atan", WIDE, np.arctan, 1), ("sinh", WIDE, np.sinh, 2),
    ("cosh", WIDE, np.cosh, 1.5), ("tanh", WIDE, np.tanh, 2.5), ("asinh", WIDE, np.arcsinh, 2),
    ("acosh", POSITIVE + 1, np.arccosh, 2), ("atanh", UNIT, np.arctanh, 2), ("erf", WIDE, np.vectorize(math.erf), 1),
    ("erfc", UNIT, np.vectorize(math.erfc), 3), ("cbrt", WIDE, np.cbrt, 1), ("sqrt", POSITIVE, np.sqrt, 0.5),
    ("rsqrt", POSITIVE, lambda x: 1 / np.sqrt(x), 1.5), ("rcp", POSITIVE, lambda x: 1 / x, 0.5),
    ("sigmoid", WIDE, lambda x: 1 / (1 + np.exp(-x)), 3), ("floor", WIDE, np.floor, 0), ("ceil", WIDE, np.ceil, 0),
    ("trunc", WIDE, np.trunc, 0), ("roundeven", WIDE, np.rint, 0), ("abs", WIDE, np.abs, 0),
]  # fmt: skip


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    spacing = np.spacing(np.abs(exact.astype(got.dtype))).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - exact) / spacing))


def apply(function, *arrays):
    out = np.zeros_like(arrays[0])
    scalars = np.zeros_like(arrays[0])

    @cute.jit
    def f(out: cute.Tensor, scalars: cute.Tensor, arrays):
        out.store(function(*[a.load() for a in arrays]))
        scalars[0] = function(*[a[0] for a in arrays])

    f(from_dlpack(out), from_dlpack(scalars), [from_dlpack(a) for a in arrays])
    assert np.array_equal(scalars[:1], out[:1], equal_nan=True)  # a scalar and an element of a vector agree
    return out


@pytest.mark.parametrize(("name", "inputs", "reference", "allowed"), UNARY, ids=[row[0] for row in UNARY])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
def test_error_in_ulps(name, inputs, reference, allowed, dtype):
    x = inputs if dtype is np.float32 else inputs[(np.abs(inputs) < 8) & (np.abs(inputs) > 1e-2)]
    x = x.astype(dtype)
    exact = reference(x.astype(np.float64))
    assert ulps(apply(getattr(cmath, name), x), exact) <= allowed + (0.5 if dtype is np.float16 else 1e-6)


def test_double_precision():
    x = POSITIVE
    for name, reference in (("exp2", np.exp2), ("log", np.log), ("sqrt", np.sqrt), ("sin", np.sin)):
        inputs = x if name != "exp2" else WIDE
        assert np.allclose(apply(getattr(cmath, name), inputs), reference(inputs), rtol=1e-14)


def test_narrow_types_are_computed_in_float32():
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        x = np.linspace(0.25, 4, 16).astype(dtype)
        want = np.exp(x.astype(np.float32)).astype(dtype)
        assert (apply(cmath.exp, x).view(f"u{x.itemsize}") == want.view(f"u{x.itemsize}")).all()


def test_functions_of_several_arguments():
    x, y, z = (rng.normal(size=N).astype(np.float32) for _ in range(3))
    wide = [v.astype(np.float64) for v in (x, y, z)]
    assert ulps(apply(cmath.fma, x, y, z), wide[0] * wide[1] + wide[2]) <= 0.5 + 1e-6
    assert ulps(apply(cmath.atan2, x, y), np.arctan2(wide[0], wide[1])) <= 1.5
    assert ulps(apply(cmath.pow, np.abs(x), y), np.abs(wide[0]) ** wide[1]) <= 1
    assert (apply(cmath.copysign, x, y) == np.copysign(x, y)).all()
    assert (apply(cmath.max, x, y) == np.maximum(x, y)).all()
    assert (apply(cmath.min, x, y) == np.minimum(x, y)).all()
    assert (apply(lambda v: cmath.max(v, 0.0), x) == np.maximum(x, 0)).all()
    assert (apply(lambda v: cmath.pow(v, 2), np.abs(x)) == np.abs(x) ** 2).all()


def test_nan_loses_unless_propagated():
    x, y = np.array([np.nan, 1.0], np.float32), np.array([2.0, np.nan], np.float32)
    assert apply(cmath.max, x, y).tolist() == [2.0, 1.0]
    assert np.isnan(apply(lambda a, b: cmath.max(a, b, propagate_nan=True), x, y)).all()


def test_integers_become_floats():
    out = np.zeros(4, np.float32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        out.store(cute.math.sqrt(a.load()))

    f(from_dlpack(np.array([0, 1, 4, 9], np.int32)), from_dlpack(out))
    assert out.tolist() == [0, 1, 2, 3]


def test_classes_of_numbers():
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    out = np.zeros((3, 4), np.bool_)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        v = a.load()
        out[0, None] = cute.math.isnan(v)
        out[1, None] = cute.math.isinf(v)
        out[2, None] = cute.math.isfinite(v)

    f(from_dlpack(x), from_dlpack(out))
    assert (out == [np.isnan(x), np.isinf(x), np.isfinite(x)]).all()


def test_fastmath_and_other_names():
    x = np.linspace(0.5, 3, 8).astype(np.float32)
    assert np.allclose(apply(lambda v: cute.exp(v, fastmath=True), x), np.exp(x), rtol=1e-5)
    assert np.allclose(apply(lambda v: cute.math.exp2(v, approx=True, ftz=True), x), np.exp2(x), rtol=1e-5)
    assert np.allclose(
        apply(lambda v: cute.rsqrt(v) + cute.tanh(v) + cute.erf(v), x),
        1 / np.sqrt(x) + np.tanh(x) + [math.erf(v) for v in x],
        rtol=1e-5,
    )


def test_outside_a_trace():
    assert cute.math.sqrt(4.0) == 2.0
    assert float(cute.math.exp(kiln.Float32(0.0))) == 1.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: cute.math.exp("a"), "takes a number or a vector"),
        (lambda v: cute.math.sqrt(v, rounding=cmath.RoundingMode.RZ), "nearest even"),
        (lambda v: cute.math.pow(v, cute.full((3,), 1, kiln.Float32)), "do not go together"),
    ],
)
def test_refused(function, message):
    with pytest.raises(kiln.DSLUserCodeError, match=message):
        apply(function, np.ones(2, np.float32))
