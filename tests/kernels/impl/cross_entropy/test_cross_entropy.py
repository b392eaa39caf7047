"""Cross-entropy and its gradient against their formulas in float64, on the CPU target."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_formulas import close, loss_and_gradient, normal, uneven

import kiln
from kiln import kernels
from kiln.kernels import RowwiseConfig


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


@pytest.mark.quick(1)
@pytest.mark.parametrize(("n", "smoothing"), [(32, 0.0), (261, 0.2)])
def test_cross_entropy(n, smoothing):
    logits = uneven(5, n) * 3 if n % 2 else normal(5, n) * 3
    target, ignored = np.array([0, n - 1, 4, 7, 7]), 4
    losses, gradient, sums = loss_and_gradient(logits, target, smoothing, ignored)
    options: dict[str, Any] = {"label_smoothing": smoothing, "ignore_index": ignored}
    loss, lse = kernels.cross_entropy(logits, target, return_lse=True, **options)
    assert loss.dtype == np.float32
    assert loss.shape == ()
    close(loss, losses.sum() / 4, 3e-6)
    close(lse, sums, 3e-6)
    close(kernels.cross_entropy(logits, target, reduction="sum", **options), losses.sum(), 3e-6)
    close(kernels.cross_entropy(logits, target.astype(np.int32), reduction="none", **options), losses, 3e-6)
    close(kernels.cross_entropy_backward(2.0, logits, target, lse, **options), gradient / 2, 3e-6)
    close(kernels.cross_entropy_backward(2.0, logits, target, reduction="sum", **options), gradient * 2, 3e-6)
    each = normal(5)
    made = kernels.cross_entropy_backward(each, logits, target, reduction="none", **options)
    close(made, gradient * each[:, None], 3e-6)


@pytest.mark.parametrize("config", [RowwiseConfig(64, 64, 2), RowwiseConfig(64, 8), RowwiseConfig(128, 128)])
def test_cross_entropy_is_cut(config):
    logits, target = normal(5, 1001), np.random.default_rng(0).integers(0, 1001, 5).astype(np.int32)
    close(kernels.cross_entropy(logits, target, config=config), loss_and_gradient(logits, target, 0.0)[0].mean(), 2e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_types_of_logits(dtype):
    logits, target = normal(4, 100, dtype=dtype), np.array([3, 99, 0, 50])
    losses, gradient, _ = loss_and_gradient(logits, target, 0.0)
    loss = kernels.cross_entropy(logits, target)
    assert loss.dtype == np.float32
    close(loss, losses.mean(), 1e-5)
    made = kernels.cross_entropy_backward(1.0, logits, target, out=logits)  # in the place of the logits
    assert made is logits
    close(made, gradient / 4, 2 * float(ml_dtypes.finfo(dtype).eps))


def test_classes_that_do_not_exist_and_masked_logits():
    losses = kernels.cross_entropy(normal(3, 10), np.array([4, 10, -1]), reduction="none")
    assert np.isnan(losses).tolist() == [False, True, True]
    masked = np.array([[-np.inf, 1.0, 2.0]], np.float32)
    close(kernels.cross_entropy(masked, np.array([2])), np.log(1 + np.exp(-1.0)), 1e-6)


def test_no_rows():
    logits, target = np.zeros((0, 5), np.float32), np.zeros(0, np.int64)
    assert np.isnan(kernels.cross_entropy(logits, target))
    assert kernels.cross_entropy(logits, target, reduction="sum") == 0
    assert kernels.cross_entropy_backward(1.0, logits, target).shape == (0, 5)


X, T = np.zeros((3, 8), np.float32), np.zeros(3, np.int64)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.cross_entropy(X, T[:2]), r"targets of shape \(2,\)"),
        (lambda: kernels.cross_entropy(X, T.astype(np.float32)), "Float32 targets"),
        (lambda: kernels.cross_entropy(X.astype(np.float64), T), "Float64 logits"),
        (lambda: kernels.cross_entropy(X[:, :0], T), "no classes"),
        (lambda: kernels.cross_entropy(X, T, reduction="average"), "'average'"),
        (lambda: kernels.cross_entropy(X, T, label_smoothing=1.5), "0 to 1"),
        (lambda: kernels.cross_entropy(X, T, config=RowwiseConfig(64, 64, smem_vectors=1)), "smem_vectors must be 0"),
        (lambda: kernels.cross_entropy_backward(X, X, T), "dloss has shape"),
        (lambda: kernels.cross_entropy_backward(1.0, X, T, X[0]), "lse is Float32 of shape"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_clean_under_the_sanitizer():
    logits, target = uneven(3, 29), np.array([3, -100, 28])
    with kiln.sanitize():
        loss, lse = kernels.cross_entropy(logits, target, return_lse=True, config=RowwiseConfig(64, 64, 2))
        kernels.cross_entropy_backward(1.0, logits, target, lse)
    close(loss, loss_and_gradient(logits, target, 0.0)[0].sum() / 2, 3e-6)
