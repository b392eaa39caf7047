"""Gradients of softmax and norms against their formulas in float64, on the CPU target."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_formulas import close, layer_norm, norm_gradients, normal, softmax_gradient, uneven

import kiln
from kiln import kernels
from kiln.kernels import RowwiseConfig, StreamingRowwiseConfig

SHARED = StreamingRowwiseConfig(64, 64, 2, 0, overlapped=True)  # two blocks share a row
WARPS = StreamingRowwiseConfig(64, 32, 1, 1)  # a warp to a row


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def check_norms(dy: np.ndarray, x: np.ndarray, weight: np.ndarray, config: Any = None, tolerance: float = 3e-5) -> None:
    """Gradients of both norms, in the type of the rows."""
    wanted = norm_gradients(dy, x, weight, 1e-6, centred=False)[:2]
    made = kernels.rms_norm_backward(dy, x, weight, config=config)
    wanted += norm_gradients(dy, x, weight, 1e-5, centred=True)
    made += kernels.layer_norm_backward(dy, x, weight, bias=True, config=config)
    for got, value in zip(made, wanted, strict=True):
        assert got.dtype == x.dtype
        close(got, value, tolerance)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "n", "config"),
    [
        (7, 256, None),
        (5, 29, None),
        (1, 512, SHARED),  # one row, fewer than there are blocks
        (300, 512, SHARED),  # rows in turn, more than findings are kept of
        (140, 1000, SHARED),  # that do not fill the threads
        (140, 1000, StreamingRowwiseConfig(64, 64, 2)),
        (600, 100, WARPS),
        (150, 260, StreamingRowwiseConfig(128, 64, 1, 3, True)),  # two warps to a row, several rows to a block
        (601, 20, StreamingRowwiseConfig(64, 4)),  # eight rows to a warp
        (9, 34, StreamingRowwiseConfig(32, 32)),  # two elements at once
    ],
)
def test_norms(rows, n, config):
    check_norms(normal(rows, n), normal(rows, n) + 2, normal(n), config)


@pytest.mark.parametrize("config", [RowwiseConfig(64, 64, 2, 1), RowwiseConfig(64, 8)])
def test_rows_that_are_read_again_for_sums(config):
    """Without blocks that take rows in turn; rows that are held, and rows that are not."""
    check_norms(normal(35, 1000), normal(35, 1000) + 1, normal(1000), config)


@pytest.mark.parametrize("taken", ["x", "dy", "summed"])
@pytest.mark.parametrize("config", [RowwiseConfig(64, 8), None])
def test_gradients_in_the_place_of_what_is_read_again(config, taken):
    """Sums over rows are of what was there before; rows lie apart in memory. In every call, also after some whose results lie elsewhere."""
    for elsewhere in (False, False, True, True, True, False, False):
        given = {"dy": normal(9, 72)[:, :64], "x": normal(9, 72)[:, :64] + 1, "summed": normal(9, 72)[:, :64]}
        weight, more = normal(64), normal(9, 64)
        x = given["summed" if taken == "summed" else "x"]
        wanted = norm_gradients(given["dy"], x, weight, 1e-5, centred=True)
        out = normal(9, 72)[:, :64] if elsewhere else given[taken]
        if taken == "summed":
            wanted = (wanted[0] + more, *wanted[1:])
            got = kernels.fused_add_layer_norm_backward(given["dy"], more, x, weight, bias=True, out=out, config=config)
        else:
            got = kernels.layer_norm_backward(given["dy"], x, weight, bias=True, out=out, config=config)
        assert got[0] is out
        for made, value in zip(got, wanted, strict=True):
            close(made, value, 3e-5)


@pytest.mark.quick(0)
def test_types_and_rows_that_begin_anywhere():
    check_norms(uneven(4, 67, np.float16), uneven(4, 67, np.float16), normal(67, dtype=np.float16), None, 5e-3)
    bf16 = ml_dtypes.bfloat16
    check_norms(uneven(19, 2101, bf16), uneven(19, 2101, bf16), normal(2101, dtype=bf16), None, 3e-2)
    check_norms(normal(6, 64, dtype=bf16), normal(6, 64, dtype=bf16), normal(64, dtype=bf16), None, 3e-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "n", "dtype", "config", "tolerance"),
    [
        (19, 1027, ml_dtypes.bfloat16, None, 3e-2),  # several rows to a block
        (5, 1030, np.float32, SHARED, 3e-5),  # fewer rows than begin differently
        (30, 507, np.float32, StreamingRowwiseConfig(64, 64, 1, 2, True), 3e-5),  # no thread has a vector before a row
    ],
)
def test_odd_rows_are_streamed(rows, n, dtype, config, tolerance):
    """Rows that begin anywhere, with the mean far from zero: what is at their edges counts, and what lies beside them does not."""
    dy, x, weight = normal(rows, n, dtype=dtype), normal(rows, n, dtype=dtype) + dtype(9), normal(n, dtype=dtype)
    assert (
        type(kernels.explain(kernels.rms_norm_backward, dy, x, weight, config=config).config) is StreamingRowwiseConfig
    )
    check_norms(dy, x, weight, config, tolerance)


@pytest.mark.parametrize(
    ("n", "config"),
    [(31, None), (700, None), *((700, t) for t in (RowwiseConfig(64, 64, 2, 1), RowwiseConfig(32, 32), SHARED))],
)
def test_softmax(n, config):
    x, dy = normal(3, n), normal(3, n)
    y = kernels.softmax(x)
    close(kernels.softmax_backward(dy, y, config=config), softmax_gradient(dy, y), 1e-6)


def test_a_large_mean_costs_no_accuracy():
    """The mean is a thousand times the spread: sums of squares would have no digits left."""
    x, dy, weight = normal(4, 512) + 1000, normal(4, 512), normal(512)
    dx, _, _ = kernels.layer_norm_backward(dy, x, weight)
    close(dx, norm_gradients(dy, x, weight, 1e-5, centred=True)[0], 1e-3)
    close(kernels.layer_norm(x, weight), layer_norm(x, weight), 1e-3)


def test_without_weights_views_and_nothing():
    x, dy = normal(40, 3).T.reshape(3, 1, 40), normal(3, 1, 40)
    wanted, _, sums = norm_gradients(dy[:, 0], x[:, 0], np.ones(40), 1e-5, centred=True)
    for config in (None, RowwiseConfig(32, 32)):
        out = np.empty((40, 3), np.float32).T[:, None]
        dx, dweight, dbias = kernels.layer_norm_backward(dy, x, out=out, config=config)
        assert dx is out
        close(dx[:, 0], wanted)
        assert dweight is None
        assert dbias is None
        dx, dweight, dbias = kernels.layer_norm_backward(dy, x, bias=True, config=config)
        assert dweight is None
        close(dbias, sums)
    none = np.zeros((0, 8), np.float32)
    _, dweight = kernels.rms_norm_backward(none, none, np.ones(8, np.float32))
    assert (dweight == 0).all()


X = np.zeros((3, 8), np.float32)
W, H = np.zeros((1, 4096), np.float32), np.zeros((2, 7), np.float16)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.rms_norm_backward(X[:2], X), r"\(2, 8\)"),
        (lambda: kernels.rms_norm_backward(X, X, config=RowwiseConfig(2048, 16)), "not 2048"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(2048, 16)), "not 2048"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(48, 16)), "threads is 48"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(64, 128)), "row_threads is 128"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(64, 32, 2)), "row_threads must be 64"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(64, 64, 32)), "at most 16 CTAs"),
        (lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(64, 64, 1, -1)), "prefetch is -1"),
        (
            lambda: kernels.rms_norm_backward(X, X, config=StreamingRowwiseConfig(512, 512, 1, 50)),
            "bytes of shared memory",
        ),
        (lambda: kernels.rms_norm_backward(W, W, config=StreamingRowwiseConfig(32, 32)), "at most 64 elements"),
        (lambda: kernels.rms_norm_backward(H, H, config=StreamingRowwiseConfig(32, 32)), "4 bytes or more"),
        (lambda: kernels.softmax_backward(X, X.astype(np.int32)), "Int32 elements"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.quick(0)
def test_clean_under_the_sanitizer():
    x, dy, weight = normal(5, 100), normal(5, 100), normal(100)
    with kiln.sanitize():
        dx, _, _ = kernels.layer_norm_backward(dy, x, weight, bias=True, config=StreamingRowwiseConfig(64, 64))
        for config in (StreamingRowwiseConfig(32, 16), RowwiseConfig(64, 64, 2)):
            kernels.rms_norm_backward(dy, x, weight, config=config)
        for config in (SHARED, StreamingRowwiseConfig(64, 64, 2)):  # more rows than findings are kept of
            kernels.rms_norm_backward(np.tile(dy, (70, 1)), np.tile(x, (70, 1)), weight, config=config)
        odd = normal(9, 515)
        kernels.rms_norm_backward(odd, odd, normal(515), config=StreamingRowwiseConfig(64, 64, 2))
    close(dx, norm_gradients(dy, x, weight, 1e-5, centred=True)[0])
