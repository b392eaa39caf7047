"""Softmax and cross-entropy of finite values of any size, as in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import kernels

SIZES = (1e3, 1e7, 3e9, 1e10, 1e20, 1e30, 1.5e38)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def rows(size: float, n: int, dtype: type) -> np.ndarray:
    """Rows whose largest value is `size`, `-size / 2`, or there twice."""
    x = np.random.default_rng(0).uniform(-1, 1, (4, n)).astype(np.float32)
    x[0, n // 3], x[1], x[2, ::7], x[3] = 1, -0.5 - 0.5 * np.abs(x[1]), 1, -1.0
    return (x * np.float32(size)).astype(dtype)


def reference(x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, LSE and losses."""
    exact = x.astype(np.float64)
    most = exact.max(1, keepdims=True)
    powers = np.exp(exact - most)
    label = exact[np.arange(len(x)), target]
    logarithm = np.log(powers.sum(1))
    return powers / powers.sum(1, keepdims=True), most[:, 0] + logarithm, most[:, 0] - label + logarithm


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [96, 1031, 5000])
def test_softmax_and_losses(n, dtype):
    target = np.arange(4, dtype=np.int64) * (n // 5)
    for size in SIZES:
        x = rows(size, n, dtype)
        p, lse, wanted_loss = reference(x, target)
        step = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(kernels.softmax(x).astype(np.float64), p, rtol=4 * max(step, 1e-5), atol=1e-6)
        loss, got = kernels.cross_entropy(x, target, reduction="none", return_lse=True)
        np.testing.assert_allclose(got, lse, rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(loss, wanted_loss, rtol=1e-6, atol=1e-3)
        gradient = kernels.cross_entropy_backward(np.ones(4, np.float32), x, target, got, reduction="none")
        assert np.isfinite(gradient.astype(np.float64)).all()
        if size < 1e6:  # LSE has digits of the logarithm, which divides equal probabilities
            wanted = p - (np.arange(n) == target[:, None])
            np.testing.assert_allclose(gradient.astype(np.float64), wanted, rtol=0.02, atol=1e-3)


def test_the_least_value_of_a_type():
    """A row of nothing else is uniform, and -inf beside it counts nothing."""
    least = np.finfo(np.float32).min
    x = np.full((2, 64), least, np.float32)
    x[1, ::2] = -np.inf
    wanted = np.stack([np.full(64, 1 / 64), np.where(np.arange(64) % 2, 1 / 32, 0.0)])
    np.testing.assert_allclose(kernels.softmax(x), wanted, rtol=1e-5)
    losses = kernels.cross_entropy(x, np.ones(2, np.int64), reduction="none")
    np.testing.assert_allclose(losses, np.log([64, 32]), rtol=1e-5)
