"""The NVIDIA target's functions of f64, run on the host, against the C library's long double."""

from __future__ import annotations

import math

import numpy as np
import pytest
from nvidia_testing import run_on_host, stated_errors

from kiln.targets.nvidia.math.f64 import FUNCTIONS

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double: there is nothing to compare with"
)

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 5e-324, -5e-324, 1.7e308, -1.7e308]
)


def run(name: str, *arguments: np.ndarray) -> np.ndarray:
    return run_on_host(FUNCTIONS[name], np.float64, *arguments)


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in units of the last place of the exact result; infinite where special values differ."""
    rounded = want.astype(np.float64)
    special = ~np.isfinite(rounded)
    if not np.array_equal(got[special], rounded[special], equal_nan=True):
        return float("inf")
    got, want, rounded = got[~special], want[~special], rounded[~special]
    spacing = np.spacing(np.maximum(np.abs(rounded), 2.2250738585072014e-308))
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / spacing, initial=0))


def sweep(low: float, high: float, count: int = 6_000) -> np.ndarray:
    """Arguments in an interval: evenly spread, of every magnitude down to the smallest, and of everyday size."""
    random = np.random.default_rng(7)
    limit = np.log2(max(abs(low), abs(high)))
    tiny, usual = np.exp2(random.uniform(-1060, limit, count)), np.exp2(random.uniform(-12, min(limit, 12), count))
    near_one = 1 + random.uniform(-0.3, 0.42, count)
    even = random.uniform(low / 2, high / 2, count) * 2
    found = np.concatenate([even, tiny, -tiny, usual, -usual, near_one])
    return found[(found >= low) & (found <= high)]


# the C library's doubles are themselves not exact
_erf, _erfc = (np.vectorize(function, otypes=[np.float64]) for function in (math.erf, math.erfc))

CASES = [
    ("exp", np.exp, -745, 709.7, 1.0),
    ("exp2", np.exp2, -1074, 1023.9, 1.0),
    ("expm1", np.expm1, -60, 709.7, 1.5),
    ("log", np.log, 5e-324, 1.7e308, 1.0),
    ("log2", np.log2, 5e-324, 1.7e308, 0.51),
    ("log10", np.log10, 5e-324, 1.7e308, 0.51),
    ("log1p", np.log1p, -0.9999, 1e10, 1.5),
    ("sin", np.sin, -1e9, 1e9, 1.0),
    ("cos", np.cos, -1e9, 1e9, 1.0),
    ("tan", np.tan, -1e9, 1e9, 2.0),
    ("tanh", np.tanh, -25, 25, 2.5),
    ("sinh", np.sinh, -710, 710, 2.5),
    ("cosh", np.cosh, -710, 710, 1.5),
    ("atan", np.arctan, -1e6, 1e6, 2.0),
    ("asin", np.arcsin, -1, 1, 1.5),
    ("acos", np.arccos, -1, 1, 1.0),
    ("erf", _erf, -6, 6, 2.0),
    ("erfc", _erfc, -6, 26.5, 4.5),
    ("rsqrt", lambda x: 1 / np.sqrt(x), 5e-324, 1.7e308, 0.51),
    ("cbrt", np.cbrt, -1.7e308, 1.7e308, 0.51),
    ("asinh", np.arcsinh, -1e300, 1e300, 2.0),
    ("acosh", np.arccosh, 1, 1e300, 2.5),
    ("atanh", np.arctanh, -1, 1, 2.0),
]


@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), CASES, ids=[case[0] for case in CASES])
def test_error_of_each_function(name, reference, low, high, bound):
    x = sweep(low, high)
    with np.errstate(all="ignore"):
        error = ulps(run(name, x), reference(x.astype(np.longdouble)))
    assert error <= bound, error


@pytest.mark.parametrize(("name", "reference", "low", "high", "bound"), CASES, ids=[case[0] for case in CASES])
def test_special_values(name, reference, low, high, bound):
    with np.errstate(all="ignore"):
        want = reference(SPECIAL.astype(np.longdouble))
    got = run(name, SPECIAL)
    assert ulps(got, want) <= bound
    zeros = want == 0
    assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


@pytest.mark.parametrize(("name", "bound"), [("sin", 1.0), ("cos", 1.0), ("tan", 2.0)])
def test_angles_of_any_size(name, bound):
    random = np.random.default_rng(3)
    # the last is the double nearest to a multiple of pi/2
    large = np.concatenate([np.exp2(random.uniform(29, 1023.9, 3_000)), [6381956970095103 * 2.0**797]])
    quarters = np.arange(1, 3_000) * (np.pi / 2)
    x = np.concatenate([large, -large, quarters, np.nextafter(quarters, 0), quarters * 1e5])
    assert ulps(run(name, x), getattr(np, name)(x.astype(np.longdouble))) <= bound


def test_power():
    random = np.random.default_rng(5)
    x = np.concatenate([np.exp2(random.uniform(-60, 60, 8_000)), 1 + random.uniform(-0.3, 0.4, 8_000)])
    y = np.concatenate([random.uniform(-15, 15, 8_000), random.uniform(-1500, 1500, 8_000)])
    with np.errstate(all="ignore"):
        assert ulps(run("powf", x, y), np.power(x.astype(np.longdouble), y)) <= 1.0
    bases = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, np.inf, -np.inf, np.nan, -8.0, 3.0, 5e-324])
    powers = np.array(
        [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 2.0**54, 1e300, -1e300]
    )
    a, e = (grid.ravel() for grid in np.meshgrid(bases, powers))
    with np.errstate(all="ignore"):
        want = np.power(a, e)
    got = run("powf", a, e)
    assert ulps(got, want.astype(np.longdouble)) <= 0.0
    plain = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[plain]), np.signbit(want[plain]))


def test_angle_of_a_point():
    random = np.random.default_rng(5)
    y, x = (np.exp2(random.uniform(-60, 60, 8_000)) * random.choice([-1, 1], 8_000) for _ in range(2))
    assert ulps(run("atan2", y, x), np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))) <= 2.0
    edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
    a, c = (grid.ravel() for grid in np.meshgrid(edges, edges))
    got, want = run("atan2", a, c), np.arctan2(a, c)
    assert ulps(got, want.astype(np.longdouble)) <= 2.0
    plain = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[plain]), np.signbit(want[plain]))


def test_the_errors_are_those_that_the_page_states():
    stated, slack = (
        stated_errors("f64"),
        {"erf": 1.0, "erfc": 0.5},
    )  # the C library's own error, where there is no better reference
    assert len(stated) == 25
    for name, _, _, _, bound in CASES:
        assert bound - slack.get(name, 0.0) <= stated.get(name, bound), name
