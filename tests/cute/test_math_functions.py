"""The error of each mathematical function, in units in the last place, against float64."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute import math as cmath
from kiln.cute.runtime import from_dlpack

rng = np.random.default_rng(7)
N = 64


def sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1.0) / (1 + small)


# function, reference, largest error in ulp for Float32 (the table of docs/tensors.md)
UNARY = {
    "exp": (np.exp, 1), "exp2": (np.exp2, 1), "expm1": (np.expm1, 1), "log": (np.log, 1), "log2": (np.log2, 1),
    "log10": (np.log10, 2), "log1p": (np.log1p, 1), "sin": (np.sin, 1), "cos": (np.cos, 1), "tan": (np.tan, 1.5),
    "asin": (np.arcsin, 1), "acos": (np.arccos, 1), "atan": (np.arctan, 1), "sinh": (np.sinh, 2), "cosh": (np.cosh, 2),
    "tanh": (np.tanh, 2.5), "asinh": (np.arcsinh, 2), "acosh": (np.arccosh, 2), "atanh": (np.arctanh, 2),
    "erf": (np.vectorize(math.erf), 1), "erfc": (np.vectorize(math.erfc), 3), "cbrt": (np.cbrt, 1),
    "sqrt": (np.sqrt, 0.5), "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5), "rcp": (lambda x: 1 / x, 0.5),
    "sigmoid": (sigmoid, 2.5), "floor": (np.floor, 0), "ceil": (np.ceil, 0), "trunc": (np.trunc, 0),
    "roundeven": (np.rint, 0), "round": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), 0), "abs": (np.abs, 0),
}  # fmt: skip
SPECIAL = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, 0.5, -0.5, 1.5, 2.5, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38,
           -3.4028235e38, 88.72283, 88.72284, -87.3, -88.8, -103.97, -104.1, 127.99999, 128, -126, -149, -150, 1e30, 16777217]  # fmt: skip


def sample(dtype, count: int) -> np.ndarray:
    """Numbers of all sizes (every one there is, of 16 bits), and of those where the functions do something."""
    if np.dtype(dtype).itemsize == 2:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = rng.integers(0, 1 << 63, count, dtype=np.uint64).view(np.float64) * rng.choice([-1, 1], count)
    if dtype is np.float32:
        wide = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = [
        rng.uniform(-110, 110, count),
        rng.uniform(-4, 4, count),
        rng.uniform(-1, 1, count),
        rng.normal(1, 1e-3, count),
    ]
    with np.errstate(all="ignore"):
        return np.concatenate([wide, *near, SPECIAL]).astype(dtype)


@functools.cache
def results(dtype) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All functions of a sample, computed by one program."""
    x = sample(dtype, 2000)
    out = np.zeros((len(UNARY), len(x)), dtype)

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        for i in range(cute.size(x)):
            for row, name in enumerate(UNARY):
                out[row, i] = getattr(cmath, name)(x[i])

    f(x, out)
    return x, dict(zip(UNARY, out, strict=True))


def spacing(x: np.ndarray) -> np.ndarray:
    """The distance of a finite number to the next larger one of its type."""
    if x.dtype != ml_dtypes.bfloat16:
        with np.errstate(all="ignore"):
            return np.spacing(np.abs(x)).astype(np.float64)
    _, exponent = np.frexp(np.maximum(np.abs(x.astype(np.float64)), 2.0**-126))
    return 2.0 ** (exponent - 8.0)


def errors(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The error of each number in ulp; NaN, infinities, overflow and the sign of zero must be right."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32 if got.dtype == ml_dtypes.bfloat16 else got.dtype).astype(got.dtype)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    finite = np.isfinite(nearest) & ~np.isnan(exact)
    assert np.array_equal(got[~finite & ~np.isnan(exact)], nearest[~finite & ~np.isnan(exact)])
    zero = nearest == 0
    assert np.array_equal(np.signbit(got[zero & (got == 0)]), np.signbit(nearest[zero & (got == 0)]))
    return np.abs(got[finite].astype(np.float64) - exact[finite]) / spacing(nearest[finite])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda t: t.__name__)
def test_error_in_ulps(name, dtype):
    x, got = results(dtype)
    reference, allowed = UNARY[name]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    # 16 bits: computed in Float32 and rounded once, so that hardly anything is left of the error before
    assert errors(got[name], exact).max() <= (allowed + 1e-6 if dtype is np.float32 else min(allowed, 0.501))


@pytest.mark.parametrize("name", [name for name in UNARY if UNARY[name][1]])
def test_error_of_double_precision(name):
    """Float64 has the same table, against 50 digits."""
    mpmath = pytest.importorskip("mpmath")
    x, got = results(np.float64)
    every = np.arange(0, len(x), 41)
    functions = {
        "exp2": lambda v: mpmath.mpf(2) ** v, "log2": lambda v: mpmath.log(v, 2), "rsqrt": lambda v: 1 / mpmath.sqrt(v),
        "rcp": lambda v: 1 / v, "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
        "cbrt": lambda v: mpmath.sign(v) * mpmath.cbrt(abs(v)),
    }  # fmt: skip
    function = functions.get(name) or getattr(mpmath, name)
    with np.errstate(all="ignore"):
        inside = [
            k for k in every if np.isfinite(UNARY[name][0](x[k])) and np.isfinite(x[k]) and abs(got[name][k]) > 1e-300
        ]
    assert len(inside) > 60
    worst = 0
    with mpmath.workdps(50):
        for k in inside:
            exact = function(mpmath.mpf(float(x[k])))
            worst = max(
                worst, abs(mpmath.mpf(float(got[name][k])) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact)))))
            )
    assert worst <= (
        4 if name == "cbrt" else UNARY[name][1] + 1e-6
    )  # the C library's cbrt is less exact than its cbrtf


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    return float(errors(got, exact).max())


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


@pytest.mark.quick(12)
@pytest.mark.parametrize("name", UNARY)
def test_vectors_are_computed_like_scalars(name):
    x, got = results(np.float32)
    some = np.ascontiguousarray(x[-60:])
    assert np.array_equal(apply(getattr(cmath, name), some), got[name][-60:], equal_nan=True)


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


FAST = [name for name in UNARY if name != "abs"]


def fast_results(name: str, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """A function under `fastmath`, of numbers with all exponents. With many threads their loop is vectorized."""
    steps = np.array([1, 1.1, 1.5, 1.999], np.float32).view(np.uint32) & 0x7FFFFF
    x = (np.arange(255, dtype=np.uint32)[:, None] << 23 | steps).view(np.float32).ravel()
    x = np.concatenate([x, -x, np.array([89, -89, 100, -100, 1e-45, 0, -0.0, 2e-39], np.float32)])
    out = np.zeros_like(x)

    @cute.kernel
    def k(x: cute.Tensor, out: cute.Tensor):
        n = cute.arch.block_idx()[0] * threads + cute.arch.thread_idx()[0]
        out[n] = getattr(cmath, name)(x[n], fastmath=True)

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        k(x, out).launch(grid=cute.size(x) // threads, block=threads)

    for _ in range(2):  # the first call has checks and is not vectorized
        f(x, out)
    return x, out


@pytest.mark.isa
@pytest.mark.parametrize("threads", [4, 64])
@pytest.mark.parametrize("name", FAST)
def test_fastmath_at_all_exponents(name, threads):
    x, got = fast_results(name, threads)
    reference, allowed = UNARY[name]
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
    if name == "sigmoid":  # 1 / (1 + exp(-x)): zero where exp(-x) is infinite
        exact = np.where(x < -88.7, got * (got < 3e-39), exact)
    assert errors(got, exact).max() <= allowed + 1e-6


def test_fastmath_keeps_what_other_operations_round():
    x = np.linspace(0.1, 3, 8).astype(np.float32)
    magic = np.float32(12582912.0)
    assert (
        apply(lambda v: cute.math.fma(v - 12582912.0, 1.0, 12582912.0, fastmath=True), x) == x - magic + magic
    ).all()
    assert (apply(lambda v: cute.math.floor(v + 12582912.0, fastmath=True) - 12582912.0, x) == x + magic - magic).all()


def test_outside_a_trace():
    assert cute.math.sqrt(4.0) == 2.0
    assert float(cute.math.exp(kiln.Float32(0.0))) == 1.0


@pytest.mark.parametrize("dtype", [kiln.Float32, kiln.Float64, kiln.Float16, kiln.BFloat16])
def test_a_number_outside_a_trace_gives_what_it_gives_inside(dtype):
    """Python's own functions would raise OverflowError or ValueError for many of these."""
    numbers = [*SPECIAL, 1000.0, -1000.0, 65504.0]

    @cute.jit
    def inside(x: dtype, results: cute.Tensor):
        for number, name in enumerate(UNARY):
            results[number] = getattr(cmath, name)(x).to(kiln.Float64)

    out = np.zeros(len(UNARY))
    for number in numbers:
        x = dtype(number)
        inside(x, out)
        outside = [getattr(cmath, name)(x) for name in UNARY]
        assert all(type(v) is dtype for v in outside)
        assert [repr(float(v)) for v in outside] == [repr(v) for v in out.tolist()], number


def test_several_arguments_outside_a_trace():
    inf, nan = math.inf, math.nan
    assert type(cmath.pow(kiln.Float32(2), kiln.Float64(0.1))) is kiln.Float64
    assert float(cmath.pow(kiln.Float32(-8), 1 / 3)) != float(cmath.pow(kiln.Float32(-8), 3)) == -512
    assert [cmath.pow(-0.0, -1.0), cmath.pow(10.0, 400.0), cmath.pow(0.0, 0.0)] == [-inf, inf, 1]
    assert float(cmath.atan2(kiln.Float32(-0.0), -1.0)) == -float(np.float32(math.pi))
    assert math.isnan(cmath.max(kiln.Float32(1), nan, propagate_nan=True)) and cmath.max(kiln.Float32(1), nan) == 1
    close = kiln.Float32(1 + 2**-12)  # the square and this number are rounded once: in double precision it is twice
    assert float(cmath.fma(close, close, kiln.Float32(2**-60))) == 1 + 2**-11 + 2**-23
    assert type(cmath.sqrt(kiln.Int32(2))) is kiln.Float32 and float(cmath.sqrt(kiln.Int32(2))) == float(
        np.sqrt(np.float32(2))
    )
    assert type(cmath.isnan(kiln.Float32(nan))) is kiln.Boolean and cmath.isnan(nan) is True
    assert [cmath.sigmoid(-1000.0), cmath.sigmoid(1000.0), cmath.exp(1000.0), cmath.rcp(-0.0)] == [0, 1, inf, -inf]
    assert math.isnan(cmath.log(-1.0)) and cmath.round(-2.5) == -3.0 and type(cmath.floor(2.5)) is float


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda v: cute.math.exp("a"), "takes a number or a vector"),
        (lambda v: cute.math.sqrt(v.to(kiln.Float16), rounding=cmath.RoundingMode.RZ), "Float32 or Float64"),
        (lambda v: cute.math.add(v, v, rounding="up"), "rounding is 'up'"),
        (lambda v: cute.math.absi(v), "takes integers"),
        (lambda v: cute.math.fpowi(v, 0.5), "the exponent of fpowi"),
        (lambda v: cute.math.ipowi(v, 2), "an integer"),
        (lambda v: cute.math.pow(v, cute.full((3,), 1, kiln.Float32)), "do not go together"),
    ],
)
def test_refused(function, message):
    with pytest.raises(kiln.DSLUserCodeError, match=message):
        apply(function, np.ones(2, np.float32))


def test_refused_outside_a_trace():
    with pytest.raises(kiln.DSLUserCodeError, match="takes a number or a vector, got str"):
        cmath.exp("a")


def test_the_stated_errors_are_the_tested_ones():
    page = (Path(__file__).parents[2] / "docs" / "tensors.md").read_text()
    table = {}
    for error, names in re.findall(r"^\| ([\d.]+) \| (.*) \|$", page, re.MULTILINE):
        table |= {name: float(error) for name in names.split(", ")}
    assert {name: allowed for name, (_, allowed) in UNARY.items()} == {name: table[name] for name in UNARY}
