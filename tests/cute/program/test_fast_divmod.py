"""Divisions by numbers that stay the same."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import cute

EDGES = [1, 2, 3, 5, 7, 8, 10, 641, 65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1, (1 << 31) - 1]


@cute.kernel
def divide(x: cute.Tensor, quotients: cute.Tensor, remainders: cute.Tensor, divisor: cute.FastDivmodDivisor):
    for i in range(cute.size(x)):
        quotients[i], remainders[i] = divmod(x[i], divisor)
        assert x[i] // divisor == quotients[i] and x[i] % divisor == remainders[i]


@cute.jit
def launch(x: cute.Tensor, quotients: cute.Tensor, remainders: cute.Tensor, divisor: cute.Int32):
    made = cute.fast_divmod_create_divisor(divisor)
    assert made.divisor == divisor
    divide(x, quotients, remainders, made).launch(grid=1, block=1)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32], ids=lambda t: t.__name__)
def test_divisions_are_exact(dtype: type):
    rng = np.random.default_rng(0)
    top = np.iinfo(dtype).max
    for divisor in [*EDGES, *map(int, rng.integers(1, 1 << 31, 40)), *map(int, rng.integers(1, 1000, 40))]:
        multiples = (rng.integers(0, top // divisor + 1, 20).astype(object)) * divisor
        near = [m + k for m in multiples for k in (-1, 0, 1) if 0 <= m + k <= top]
        x = np.array([0, 1, 2, top - 1, top, *near, *rng.integers(0, top, 40)], dtype)
        quotients, remainders = np.zeros_like(x), np.zeros_like(x)
        launch(x, quotients, remainders, divisor)
        assert np.array_equal(quotients, x // dtype(divisor)), divisor
        assert np.array_equal(remainders, x % dtype(divisor)), divisor


def test_one_value_crosses_functions_and_static_divisors_stay_static():
    counts = []

    @cute.jit
    def f(x: cute.Int32, out: cute.Tensor):
        seven = cute.FastDivmodDivisor(7)
        counts.append(len(kiln.extract_mlir_values(seven)))
        assert seven.divisor == 7 and kiln.new_from_mlir_values(seven, kiln.extract_mlir_values(seven)).divisor == 7
        kinds = (type(x // seven), type(kiln.Uint32(x) // seven), type(100 // seven))
        assert kinds == (kiln.Int32, kiln.Uint32, kiln.Uint32)
        for _ in range(2):
            out[0] = out[0] + x // seven

    out = np.zeros(1, np.int32)
    f(100, out)
    assert counts == [1] and out[0] == 28


def test_static_divisors_that_a_branch_or_loop_chooses_between():
    @cute.jit
    def f(n: cute.Int32, out: cute.Tensor):
        divisor = cute.FastDivmodDivisor(3)
        if n > 50:
            divisor = cute.FastDivmodDivisor(7)
        out[0], out[1] = kiln.Int32(divisor.divisor), n // divisor
        for i in range(n):
            divisor = cute.FastDivmodDivisor(i + 1)
        out[2], out[3] = kiln.Int32(divisor.divisor), kiln.Int32(1000) // divisor

    for n in (20, 100):
        out = np.zeros(4, np.int32)
        f(n, out)
        chosen = 7 if n > 50 else 3
        assert out.tolist() == [chosen, n // chosen, n, 1000 // n]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: cute.FastDivmodDivisor(0), "at least 1"),
        (lambda: cute.FastDivmodDivisor(kiln.Int64(3)), "32 bits, got Int64"),
        (lambda: cute.FastDivmodDivisor(2.0), "an integer, got float"),
        (lambda: kiln.Int64(5) // cute.FastDivmodDivisor(3), "up to 32 bits, got Int64"),
        (lambda: kiln.Float32(5) // cute.FastDivmodDivisor(3), "got Float32"),
    ],
)
def test_refused(bad, says: str):
    @cute.jit
    def f():
        bad()

    with pytest.raises(kiln.DSLUserCodeTypeError, match=says):
        f()
