"""Gradients of softmax and norms, cross-entropy and its gradient, against their formulas in float64: without torch."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_formulas import loss_and_gradient, norm_gradients, softmax_gradient

import kiln
from kiln import kernels
from kiln.kernels import StreamTiling

RNG = np.random.default_rng(0)
SHARED = StreamTiling(64, 64, 2, 0, overlapped=True)  # two blocks share a row


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def uneven(rows: int, n: int, dtype: Any = np.float32) -> np.ndarray:
    """Rows that begin at no multiple of 16 bytes, with something between them."""
    return normal(rows * (n + 1) + 1, dtype=dtype)[1:].reshape(rows, n + 1)[:, :n]


def close(got: Any, wanted: Any, tolerance: float = 3e-5) -> None:
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("rows", "n", "tiling"),
    [
        (7, 256, None),
        (5, 29, None),
        (40, 512, SHARED),
    ],
)
def test_norms(rows, n, tiling):
    x, dy, weight = normal(rows, n) + 2, normal(rows, n), normal(n)
    dx, dweight = kernels.rms_norm_backward(dy, x, weight, tiling=tiling)
    wanted = norm_gradients(dy, x, weight, 1e-6, centred=False)
    close(dx, wanted[0])
    close(dweight, wanted[1])
    for got, value in zip(
        kernels.layer_norm_backward(dy, x, weight, bias=True, tiling=tiling),
        norm_gradients(dy, x, weight, 1e-5, centred=True),
        strict=True,
    ):
        close(got, value)


def test_types_and_rows_that_begin_anywhere():
    dtype, tolerance = np.float16, 5e-3
    x, dy, weight = uneven(4, 67, dtype), uneven(4, 67, dtype), normal(67, dtype=dtype)
    for got, value in zip(
        kernels.layer_norm_backward(dy, x, weight, bias=True),
        norm_gradients(dy, x, weight, 1e-5, centred=True),
        strict=True,
    ):
        assert got.dtype == dtype
        close(got, value, tolerance)


@pytest.mark.parametrize(("n", "tiling"), [(31, None), (700, SHARED)])
def test_softmax(n, tiling):
    x, dy = normal(3, n), normal(3, n)
    y = kernels.softmax(x)
    close(kernels.softmax_backward(dy, y, tiling=tiling), softmax_gradient(dy, y), 1e-6)


@pytest.mark.parametrize(("n", "smoothing"), [(32, 0.0), (261, 0.2)])
def test_cross_entropy(n, smoothing):
    logits = uneven(5, n) if n % 2 else normal(5, n)
    target = np.array([0, n - 1, -100, 7, 7])
    losses, gradient, sums = loss_and_gradient(logits, target, smoothing)
    options: dict[str, Any] = {"label_smoothing": smoothing}
    loss, lse = kernels.cross_entropy(logits, target, return_lse=True, **options)
    close(loss, losses.sum() / 4, 3e-6)
    close(lse, sums, 3e-6)
    close(kernels.cross_entropy(logits, target, reduction="sum", **options), losses.sum(), 3e-6)
    close(kernels.cross_entropy(logits, target.astype(np.int32), reduction="none", **options), losses, 3e-6)
    close(kernels.cross_entropy_backward(2.0, logits, target, lse, **options), gradient / 2, 3e-6)
    each = normal(5)
    made = kernels.cross_entropy_backward(each, logits, target, reduction="none", **options)
    close(made, gradient * each[:, None], 3e-6)


def test_types_of_logits():
    dtype, tolerance = ml_dtypes.bfloat16, 3e-2
    logits, target = normal(4, 100, dtype=dtype), np.array([3, 99, 0, 50])
    losses, gradient, _ = loss_and_gradient(logits, target, 0.0)
    loss = kernels.cross_entropy(logits, target)
    assert loss.dtype == np.float32
    close(loss, losses.mean(), 1e-5)
    made = kernels.cross_entropy_backward(1.0, logits, target, out=logits)  # in the place of the logits
    assert made is logits
    close(made, gradient / 4, tolerance)


def test_clean_under_the_sanitizer():
    x, dy, weight = normal(5, 100), normal(5, 100), normal(100)
    logits, target = uneven(3, 29), np.array([3, -100, 28])
    with kiln.sanitize():
        dx, _, _ = kernels.layer_norm_backward(dy, x, weight, bias=True, tiling=StreamTiling(64, 64))
        kernels.rms_norm_backward(dy, x, weight, tiling=SHARED)
        loss, lse = kernels.cross_entropy(logits, target, return_lse=True)
        kernels.cross_entropy_backward(1.0, logits, target, lse)
    close(dx, norm_gradients(dy, x, weight, 1e-5, centred=True)[0])
    close(loss, loss_and_gradient(logits, target, 0.0)[0].sum() / 2, 3e-6)
