"""Reductions against numpy in float64 on the CPU target: axes, layouts, types, NaN, parts; bad input."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import kernels

RNG = np.random.default_rng(0)
NAMES = ["sum", "mean", "max", "min", "argmax", "argmin"]


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def check(name: str, x: np.ndarray, axis: Any, **options: Any) -> None:
    got = getattr(kernels, name)(x, axis, **options)
    options.pop("config", None)
    exact = x.astype(np.float64) if x.dtype.kind in "fV" else x
    wanted = getattr(np, name)(exact, axis=axis, **options)
    assert got.shape == np.shape(wanted)
    if name.startswith("arg"):
        assert got.dtype == np.int64
        np.testing.assert_array_equal(got, wanted)
        return
    # sums are made in f32, and rounded once to the type of the result
    step = float(ml_dtypes.finfo(x.dtype).eps) if x.dtype.kind in "fV" else 1e-7
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2 * step + 1e-6, atol=1e-5)


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    ("name", "axis"), [*((name, 1) for name in NAMES), ("sum", None), ("argmax", None), ("mean", -1), ("argmin", -1)]
)
def test_axes(name, axis):
    check(name, normal(3, 37, 24), axis, keepdims=axis == 1)


@pytest.mark.parametrize("axis", [(0, 2), (-1, 1), ()])
def test_several_axes(axis):
    x = normal(3, 5, 24)
    check("sum", x, tuple(axis))
    check("max", x, tuple(axis), keepdims=True)


@pytest.mark.parametrize("name", ["sum", "argmax"])
def test_layouts(name):
    x = normal(6, 10, 26)
    for view, axis in ((x.transpose(2, 0, 1), 0), (x[:, ::2, 1:], 1), (x[..., ::3], 1), (x[::-1], 0)):
        check(name, view, axis)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["mean", "argmin"])
@pytest.mark.parametrize(("axis", "rows"), [(1, 64), (0, 0), (None, 8)])
def test_parts_are_merged(name, axis, rows):
    """A second kernel merges what some blocks found."""
    check(name, normal(9, 300), axis, config=kernels.ReductionConfig(64, rows, 1, 3))


@pytest.mark.parametrize("axis", [0, 1])
def test_the_same_input_gives_the_same_bits(axis):
    x = normal(7, 1000)
    config = kernels.ReductionConfig(64, parts=4, vectors=1)
    first = kernels.sum(x, axis, config=config)
    np.testing.assert_array_equal(first, kernels.sum(x.copy(), axis, config=config))


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nan_comes_first(name):
    x = normal(4, 70)
    x[1, 40] = x[1, 60] = np.nan
    x[2] = np.inf
    x[3] = -np.inf
    check(name, x, 1)
    check(name, x, 0)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float64, np.int8, np.uint8, np.int64])
def test_types(dtype):
    x = np.abs(RNG.standard_normal((3, 130)) * 20).astype(dtype)
    if x.dtype.kind in "iu":
        assert kernels.sum(x, 1).dtype == np.int64
        np.testing.assert_array_equal(kernels.sum(x, 1), x.astype(np.int64).sum(1))
        np.testing.assert_allclose(kernels.mean(x, 1), x.mean(1), rtol=1e-6)
        np.testing.assert_array_equal(kernels.max(x, 1), x.max(1))
        assert kernels.max(x, 1).dtype == dtype
        return
    check("sum", x, 1)
    check("argmin", x, 1)
    assert kernels.sum(x, 1).dtype == dtype


def test_truth_values():
    x = RNG.integers(0, 2, (3, 40)).astype(bool)
    np.testing.assert_array_equal(kernels.sum(x, 1), x.sum(1))
    np.testing.assert_array_equal(kernels.max(x, 1), x.max(1))
    np.testing.assert_array_equal(kernels.argmax(x, 1), x.argmax(1))


def test_nothing_to_reduce():
    nothing = np.zeros((3, 0), np.float32)
    np.testing.assert_array_equal(kernels.sum(nothing, 1), np.zeros(3))
    assert np.isnan(kernels.mean(nothing, 1)).all()
    assert kernels.sum(nothing, 0).shape == (0,)
    assert kernels.argmax(np.zeros((0, 3), np.float32), 1).shape == (0,)
    assert float(kernels.sum(np.float32(3))) == 3


@pytest.mark.parametrize("name", ["sum", "argmax"])
def test_more_elements_than_32_bits_count(name, monkeypatch):
    """As if 32 bits were fewer: everything is counted in 64."""
    monkeypatch.setattr("kiln.kernels.impl.reduction.problem._INT32", 50)
    x = normal(3, 1111)
    check(name, x, 1, config=kernels.ReductionConfig(64, 32, 1, 3))
    check(name, x, None)


def test_out():
    x, out = normal(4, 9, dtype=np.float16), np.zeros((8, 2), np.float32)[::2, 0]
    assert kernels.sum(x, 1, out=out) is out
    np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-6)


def test_torch():
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 33, dtype=torch.bfloat16)
    torch.testing.assert_close(kernels.argmax(x, 1), x.float().argmax(1))
    torch.testing.assert_close(kernels.sum(x, (0, 1)).float(), x.float().sum(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: kernels.sum(x, 2), "axis 2 of an array of 2 modes"),
        (lambda x: kernels.sum(x, (1, -1)), "twice"),
        (lambda x: kernels.argmax(x, (0, 1)), "one axis"),
        (lambda x: kernels.sum(x, "rows"), "axes are integers"),
        (lambda x: kernels.max(x[:, :0], 1), "no elements to choose from"),
        (lambda x: kernels.sum(x, 1, out=np.zeros(5, np.float32)), r"\(4,\) into an array of shape \(5,\)"),
        (lambda x: kernels.sum(x, 1, config=kernels.ReductionConfig(100)), "threads is 100"),
        (lambda x: kernels.sum(x, 1, config=kernels.ReductionConfig(parts=-1)), "parts is -1"),
        (lambda x: kernels.sum([1.0, 2.0]), "sum of list: no arrays"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call(normal(4, 6))


@pytest.mark.parametrize("axis", [0, 1])
def test_clean_under_the_sanitizer(axis):
    with kiln.sanitize():
        check("sum", normal(5, 130), axis, config=kernels.ReductionConfig(64, 64 * axis, 2, 2))
        check("argmax", normal(5, 130), axis, config=kernels.ReductionConfig(64, 64 * axis, 2, 2))
