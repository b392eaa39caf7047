"""The NVIDIA target's own functions, run on the host: the same expansion, another code generator.

`exp2` and `rsqrt` are single instructions of the GPU and are left to `tests/gpu`.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from nvidia_testing import run_on_host, stated_errors

from kiln.targets.nvidia.math import f32 as device_math


def run(name: str, *arguments: np.ndarray) -> np.ndarray:
    """Apply a function of `kiln.targets.nvidia.math.f32` to arrays of f32."""
    return run_on_host(device_math._FUNCTIONS[name], np.float32, *arguments)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units of the last place of the exact result; infinite where special values differ."""
    want32 = want.astype(np.float32)
    special = ~np.isfinite(want32)
    if not np.array_equal(got[special], want32[special], equal_nan=True):
        return float("inf")
    plain = ~special
    got, want, want32 = got[plain], want[plain], want32[plain]
    if not len(got):
        return 0.0
    spacing = np.spacing(np.maximum(np.abs(want32), np.float32(1.1754944e-38))).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / spacing))


def sweep(low: float, high: float, count: int = 200_000) -> np.ndarray:
    """Arguments in an interval: evenly spread, and of every magnitude down to the smallest."""
    random = np.random.default_rng(7)
    even = random.uniform(low, high, count)
    limit = max(abs(low), abs(high))
    magnitudes = np.exp2(random.uniform(-140, np.log2(limit), count // 4))
    both = np.concatenate([even, magnitudes, -magnitudes])
    return np.unique(both[(both >= low) & (both <= high)].astype(np.float32))


SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.0, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32
)
_erf = np.vectorize(__import__("math").erf, otypes=[np.float64])

CASES = [
    ("exp", np.exp, -104, 89, 1.0),
    ("expm1", np.expm1, -90, 89, 2.0),
    ("log", np.log, 0, 3e38, 1.0),
    ("log2", np.log2, 0, 3e38, 2.0),
    ("log10", np.log10, 0, 3e38, 2.0),
    ("log1p", np.log1p, -1, 1e6, 2.0),
    ("sin", np.sin, -1e5, 1e5, 2.0),
    ("cos", np.cos, -1e5, 1e5, 2.0),
    ("tan", np.tan, -1e4, 1e4, 4.0),
    ("tanh", np.tanh, -12, 12, 2.0),
    ("sinh", np.sinh, -90, 90, 4.0),
    ("cosh", np.cosh, -90, 90, 4.0),
    ("atan", np.arctan, -1e6, 1e6, 3.0),
    ("asin", np.arcsin, -1, 1, 3.0),
    ("acos", np.arccos, -1, 1, 4.0),
    ("erf", _erf, -5, 5, 2.0),
]


@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), CASES, ids=[case[0] for case in CASES])
def test_error_of_each_function(name, reference, low, high, bound):
    x = sweep(low, high)
    with np.errstate(all="ignore"):
        error = ulps(run(name, x), reference(x.astype(np.float64)))
    assert error <= bound, error


@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), CASES, ids=[case[0] for case in CASES])
def test_special_values(name, reference, low, high, bound):
    with np.errstate(all="ignore"):
        want = reference(SPECIAL.astype(np.float64))
        got = run(name, SPECIAL)
        assert ulps(got, want) <= bound
    zeros = want == 0
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


def test_angles_of_any_size():
    # exact reduction of the largest arguments takes more digits of pi than f64 has
    x = np.array([1e6, 1e10, 1e20, 3.4e38, -2.5e30, 7.0e37, 48040.0], np.float32)
    pi = Fraction(
        314159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798, 10**101
    )
    reference = np.array([np.sin(float(Fraction(float(v)) % (2 * pi))) for v in x])
    assert ulps(run("sin", x), reference) <= 2.0


def test_power():
    random = np.random.default_rng(3)
    x = np.exp2(random.uniform(-60, 60, 100_000)).astype(np.float32)
    y = random.uniform(-4, 4, 100_000).astype(np.float32)
    with np.errstate(all="ignore"):
        assert ulps(run("powf", x, y), np.power(x.astype(np.float64), y.astype(np.float64))) <= 1.0
    bases = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, np.inf, -np.inf, np.nan, -8.0, 3.0], np.float32)
    powers = np.array([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 2.0**25], np.float32)
    a, e = (grid.ravel() for grid in np.meshgrid(bases, powers))
    with np.errstate(all="ignore"):
        assert ulps(run("powf", a, e), np.power(a.astype(np.float64), e.astype(np.float64))) <= 1.0


def test_angle_of_a_point():
    random = np.random.default_rng(5)
    y, x = (np.exp2(random.uniform(-60, 60, 100_000)) * random.choice([-1, 1], 100_000) for _ in range(2))
    y, x = y.astype(np.float32), x.astype(np.float32)
    assert ulps(run("atan2", y, x), np.arctan2(y.astype(np.float64), x.astype(np.float64))) <= 4.0
    edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32)
    a, c = (grid.ravel() for grid in np.meshgrid(edges, edges))
    got, want = run("atan2", a, c), np.arctan2(a.astype(np.float64), c.astype(np.float64))
    assert ulps(got, want) <= 4.0
    signed = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[signed]), np.signbit(want[signed]))


def test_the_errors_are_those_that_the_page_states():
    stated = stated_errors("f32")
    assert len(stated) > 10
    for name, _, _, _, bound in CASES:
        assert bound <= stated.get(name, bound), name
