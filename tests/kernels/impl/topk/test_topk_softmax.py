"""The largest of the softmax of rows against float64, on the CPU target: columns exactly, values within 3e-6."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import row_formulas

import kiln
from kiln import kernels
from kiln.kernels import RowwiseConfig

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def check(x: np.ndarray, k: int, renormalize: bool, **options: Any) -> None:
    chances = row_formulas.softmax(x)
    columns = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    wanted = np.take_along_axis(chances, columns, -1)
    if renormalize:
        wanted = wanted / wanted.sum(-1, keepdims=True)
    values, indices = kernels.topk_softmax(x, k, renormalize, **options)
    assert (values.dtype, indices.dtype) == (F32, np.int32)
    np.testing.assert_array_equal(indices, columns)
    np.testing.assert_allclose(values, wanted, rtol=3e-6, atol=1e-30)


@pytest.mark.quick(6)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype", "k", "config"),
    [
        ((3, 5, 64), BF16, 8, None),  # several rows to a warp
        ((9, 129), F32, 2, None),
        ((2, 1000), F16, 150, None),  # more than a row has threads
        ((2, 1030), F32, 3, None),  # two warps to a row
        ((2, 700), F32, 5, RowwiseConfig(64, 64)),
        ((2, 700), F32, 40, RowwiseConfig(32, 4)),  # too long to be held
        ((2, 4500), F32, 20, RowwiseConfig(64, 64)),  # the same, with threads enough
    ],
)
def test_values_and_columns(shape, dtype, k, config, renormalize):
    x = RNG.standard_normal(shape).astype(dtype)
    x[0] = np.round(x[0].astype(F32) * 2) / 2  # many equals
    check(x, k, renormalize, config=config)


def test_all_of_a_row_and_views():
    x = RNG.standard_normal((12, 7)).astype(F32)
    check(x.T, 12, False)
    check(x[:, :1], 1, True)
    values, indices = np.empty((12, 3), F32), np.empty((12, 3), np.int64)
    assert kernels.topk_softmax(x, 3, values=values, indices=indices)[1] is indices
    np.testing.assert_array_equal(indices, np.argsort(-x, axis=-1, kind="stable")[:, :3])
    assert kernels.topk_softmax(x[:0], 3)[0].shape == (0, 3)


def test_numbers_that_are_none_and_zeros():
    inf, nan = np.inf, np.nan
    x = np.array(
        [[-0.0, 0.0, -1, -inf], [1, inf, 2, inf], [1, -nan, 3, nan], [-inf] * 4, [1e-45, -1e-45, 0, 3e38]], F32
    )
    for renormalize in (False, True):
        values, indices = kernels.topk_softmax(x, 3, renormalize)
        np.testing.assert_array_equal(indices[:4], [[0, 1, 2], [1, 3, 2], [1, 3, 2], [0, 1, 2]])
        np.testing.assert_array_equal(indices[4], [3, 0, 2])
        np.testing.assert_array_equal(np.isnan(values).any(-1), [False, True, True, True, False])
        np.testing.assert_allclose(values[4], [1, 0, 0])


@pytest.mark.parametrize("config", [RowwiseConfig(32, 8), RowwiseConfig(64, 64)])
def test_thresholds_that_are_zero_or_infinite(config):
    """Of equal elements the first counts, zeros of both signs are equal, and most elements may be masked."""
    x = np.full((4, 256), -np.inf, F32)
    x[:, ::3] = -1
    x[0, ::5], x[0, 1::5] = 0.0, -0.0
    x[1, [200, 31, 77]] = np.inf
    x[2, 8:] = -np.inf
    x[3, ::7] = np.arange(37) % 4
    _, indices = kernels.topk_softmax(x, 8, config=config)
    np.testing.assert_array_equal(indices, np.argsort(-x, axis=-1, kind="stable")[:, :8])


X = np.zeros((3, 8), F32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.topk_softmax(X, 9), "k is 9 for rows of 8"),
        (lambda: kernels.topk_softmax(X, 0), "k is 0 for rows"),
        (lambda: kernels.topk_softmax(X.astype(np.int32), 1), "Int32 elements"),
        (lambda: kernels.topk_softmax(X, 2, indices=X[:, :2].copy()), "indices is Float32"),
        (lambda: kernels.topk_softmax(X, 2, values=X.copy()[:, :2]), "must be contiguous"),
        (lambda: kernels.topk_softmax(X, 2, config=RowwiseConfig(64, 64, 2)), "registers of one CTA"),
        (lambda: kernels.topk_softmax(X, 2, config=RowwiseConfig(128, 64)), "row_threads must be 128"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_clean_under_the_sanitizer():
    x = RNG.standard_normal((3, 300)).astype(F32)
    with kiln.sanitize():
        for config in (None, RowwiseConfig(64, 64)):
            kernels.topk_softmax(x, 3, config=config)
    assert "TopKSoftmax" in str(kernels.explain(kernels.topk_softmax, x, 3))


def test_sums_have_the_same_bits_in_any_order_of_threads(monkeypatch):
    """Elements are put beside each other as threads come, and added in the order of their places."""
    x, found = RNG.standard_normal((8, 2000)).astype(F32), set()
    for seed in range(4):
        monkeypatch.setenv("KILN_CPU_SEED", str(seed))
        found.add(kernels.topk_softmax(x, 8, True)[0].tobytes())
    assert len(found) == 1
