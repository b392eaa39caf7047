"""Norms of sums, gated units and quantized rows against their formulas in float64, on the CPU target.

Errors: sums are rounded to their type before a norm; results are within one rounding of theirs and 1e-5 of f32's arithmetic. A
quantized element is the nearest of its type, 2**-4 of it, or half of the smallest step, times the number of its row.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_formulas import close, layer_norm, norm_gradients, normal, rms_norm, uneven

import kiln
from kiln import cute, kernels
from kiln.kernels import RowwiseConfig

BF16, F16, F32 = ml_dtypes.bfloat16, np.float16, np.float32
E4M3 = ml_dtypes.float8_e4m3fn
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def step(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).eps)


def exact(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def close_quantized(q: Any, scales: Any, wanted: np.ndarray) -> None:
    """Rows divided by a number that takes the largest to the largest of the type."""
    limit = 448.0 if q.dtype == E4M3 else 57344.0
    assert scales.shape == (*wanted.shape[:-1], 1)
    np.testing.assert_allclose(exact(scales)[..., 0] * limit, np.maximum(abs(wanted).max(-1), 1e-12), rtol=1e-5)
    halves = float(ml_dtypes.finfo(q.dtype).eps) / 2
    error = abs(exact(q) * exact(scales) - wanted)
    assert (
        error <= halves * 1.001 * abs(wanted) + exact(scales) * float(ml_dtypes.finfo(q.dtype).smallest_subnormal)
    ).all()


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "config"),
    [
        (5, 256, F32, None),
        (9, 1027, BF16, None),  # between edges
        (3, 1000, F16, RowwiseConfig(32, 32)),  # read twice
    ],
)
def test_norms_of_sums(rows, n, dtype, config):
    x, residual, weight, bias = (
        normal(rows, n, dtype=dtype),
        normal(rows, n, dtype=dtype) + dtype(3),
        normal(n),
        normal(n),
    )
    weight, bias = weight.astype(dtype), bias.astype(dtype)
    summed = (x.astype(F32) + residual.astype(F32)).astype(dtype)
    for made, wanted in (
        (kernels.fused_add_rms_norm(x, residual, weight, 1e-6, config=config), rms_norm(summed, weight)),
        (kernels.fused_add_layer_norm(x, residual, weight, bias, config=config), layer_norm(summed, weight, bias)),
    ):
        y, total = made
        np.testing.assert_array_equal(total, summed)
        close(y, wanted, step(dtype) + 2e-5)
    x[0, 1], x[1, 2], before = np.nan, np.inf, y
    y, _ = kernels.fused_add_layer_norm(x, residual, weight, bias, config=config)
    assert np.isnan(exact(y[:2])).all()
    np.testing.assert_array_equal(y[2:], before[2:])  # other rows are as they were


def test_in_place_types_and_views():
    x, residual, weight = normal(4, 48, dtype=BF16), uneven(4, 48, F32), normal(48)
    summed = x.astype(F32) + residual
    y, total = kernels.fused_add_rms_norm(x, residual, weight, out=x, residual_out=residual)
    assert y is x
    assert total is residual
    np.testing.assert_array_equal(residual, summed)
    close(x, rms_norm(summed, weight), 1e-2)
    columns = normal(48, 5)[:, None].T  # rows that are not contiguous
    y, _ = kernels.fused_add_layer_norm(columns, columns)
    close(y, layer_norm(2 * columns))
    none = np.zeros((0, 8), F32)
    assert kernels.fused_add_rms_norm(none, none)[0].shape == (0, 8)


@pytest.mark.parametrize(
    ("n", "dtype", "config"),
    [(96, E4M3, None), (1040, ml_dtypes.float8_e5m2, RowwiseConfig(64, 64, 2)), (1040, E4M3, RowwiseConfig(32, 32))],
)
def test_quantized(n, dtype, config):
    x, residual, weight, bias = (normal(*s, dtype=BF16) for s in ((3, n), (3, n), (n,), (n,)))
    x[1] *= 0
    residual[1] *= 0  # a row of zeros
    summed = (x.astype(F32) + residual.astype(F32)).astype(BF16)
    q, scales, total = kernels.fused_add_rms_norm(x, residual, weight, quantize=dtype, config=config)
    np.testing.assert_array_equal(total, summed)
    assert q.dtype == dtype
    close_quantized(q, scales, rms_norm(summed, weight))
    if config is None:
        q, scales = kernels.rms_norm(x, weight, quantize=dtype)
        close_quantized(q, scales, rms_norm(x, weight))
        q, scales, _ = kernels.fused_add_layer_norm(x, residual, weight, bias, quantize=dtype)
        close_quantized(q, scales, layer_norm(summed, weight, bias))


@pytest.mark.parametrize(
    ("rows", "n", "config"),
    [
        (7, 512, RowwiseConfig(64, 64, 1, 2, 1, 4)),
        (3, 1000, RowwiseConfig(64, 64, 1, 2, 1, 2)),
        (5, 256, RowwiseConfig(32, 32, 1, 1, 1, 8)),
    ],
)
def test_quantized_in_turn(rows, n, config):
    """The last block has fewer rows than the others; some threads have no vector at the end."""
    x, residual, weight, bias = (normal(*s, dtype=BF16) for s in ((rows, n), (rows, n), (n,), (n,)))
    summed = (x.astype(F32) + residual.astype(F32)).astype(BF16)
    with kiln.sanitize():
        q, scales = kernels.layer_norm(x, weight, bias, quantize=E4M3, config=config)
        close_quantized(q, scales, layer_norm(x, weight, bias))
        q, scales, total = kernels.fused_add_layer_norm(x, residual, weight, bias, quantize=E4M3, config=config)
    close_quantized(q, scales, layer_norm(summed, weight, bias))
    np.testing.assert_array_equal(total, summed)


def test_quantized_rows_of_any_length_and_numbers():
    x = uneven(3, 37, F16)
    x[0] = 0
    x[0, 5] = 6e-8  # the least there is
    q, scales = kernels.swiglu(x, x + F16(1), quantize=cute.Float8E4M3FN)
    close_quantized(q, scales, gated(silu, x, x + F16(1)))
    q, scales = kernels.layer_norm(np.array([[1.0, 2.0, np.nan, 4.0]], F32), quantize=E4M3)
    assert np.isnan(exact(q)).all()
    q, scales = kernels.swiglu(np.array([[1.0, np.nan, 3.0]], F32), np.ones((1, 3), F32), quantize=E4M3)
    assert np.isnan(exact(q)).tolist() == [[False, True, False]]
    assert np.isfinite(scales).all()


def test_sums_with_a_large_mean_of_tiny_and_of_infinite_numbers():
    """A mean a thousand times the spread costs LayerNorm what its last bit is worth; subnormal sums stay what they are."""
    x, residual, one = normal(4, 512), normal(4, 512) + F32(3000), np.ones(512, F32)
    residual[1:] = 0
    x[1], x[2, 7], x[3, :2] = 1e-40, np.inf, (np.inf, -np.inf)
    summed = x + residual
    y, total = kernels.fused_add_layer_norm(x, residual, one)
    np.testing.assert_array_equal(total, summed)
    close(y[0], layer_norm(summed[0]), 2 * float(np.spacing(F32(3000))))
    close(y[1], np.zeros(512))
    assert np.isnan(y[2:]).all()
    y, total = kernels.fused_add_rms_norm(x, residual, one)
    np.testing.assert_array_equal(total, summed)
    close(y[:2], rms_norm(summed[:2]), 1e-5)
    assert np.isnan(y[2:]).tolist() == np.isinf(summed[2:]).tolist()
    q, scales, total = kernels.fused_add_rms_norm(x, residual, one, quantize=E4M3)
    np.testing.assert_array_equal(total, summed)
    close_quantized(q[:2], scales[:2], rms_norm(summed[:2]))
    assert np.isnan(exact(q[2:])).tolist() == np.isinf(summed[2:]).tolist()
    assert np.isfinite(scales).all()


def test_quantized_norms_of_extreme_rows():
    """Rows whose results are all below what counts, whose weights are far apart, and one without an element but 0."""
    x, weight = normal(3, 96), (10.0 ** RNG.uniform(-12, 8, 96)).astype(F32)
    x[1] *= F32(1e-30)
    x[2] = 0
    x[2, 95] = 1e15
    q, scales = kernels.rms_norm(x, weight, quantize=E4M3)
    close_quantized(q, scales, rms_norm(x, weight))
    q, scales = kernels.rms_norm(x, np.full(96, 1e-20, F32), quantize=E4M3)
    close_quantized(q, scales, rms_norm(x, np.full(96, 1e-20, F32)))
    assert (exact(q) == 0).all()


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    from math import erf

    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gated(activation: Any, gate: Any, up: Any) -> np.ndarray:
    return activation(exact(gate)) * exact(up)


def slope(activation: Any, x: np.ndarray) -> np.ndarray:
    """By differences, which are exact enough here."""
    return (activation(x + 1e-5) - activation(x - 1e-5)) / 2e-5


UNITS = [
    (silu, kernels.swiglu, kernels.swiglu_backward, {}),
    (gelu, kernels.geglu, kernels.geglu_backward, {}),
    (tanh_gelu, kernels.geglu, kernels.geglu_backward, {"approximate": "tanh"}),
]


@pytest.mark.parametrize(("activation", "forward", "backward", "options"), UNITS)
def test_gated_units(activation, forward, backward, options):
    for rows, n, dtype in (
        (3, 64, F32),
        *([(9, 1027, BF16)] if activation is silu else []),
    ):  # the second between edges
        gate, up, dy = (normal(rows, n, dtype=dtype) * dtype(2) for _ in range(3))
        close(forward(gate, up, **options), gated(activation, gate, up), step(dtype) + 5e-6)
        made = backward(dy, gate, up, **options)
        wanted = exact(dy) * exact(up) * slope(activation, exact(gate)), exact(dy) * activation(exact(gate))
        for got, value in zip(made, wanted, strict=True):
            close(got, value, step(dtype) + 5e-6)


def test_packed_units():
    both, dy = normal(2, 3, 48), normal(2, 3, 24)
    gate, up = both[..., :24], both[..., 24:]
    close(kernels.swiglu(both), gated(silu, gate, up), 5e-6)
    out = np.empty((2, 3, 24), BF16)
    assert kernels.swiglu(both, out=out) is out
    close(out, gated(silu, gate, up), step(BF16))
    dboth = kernels.swiglu_backward(dy, both)
    close(dboth[..., :24], exact(dy) * exact(up) * slope(silu, exact(gate)), 5e-6)
    close(dboth[..., 24:], exact(dy) * silu(exact(gate)), 5e-6)


def test_gates_far_out():
    gate = np.array([[-1e4, -100.0, -0.0, 0.0, 1e-40, 100.0, 3e38, np.inf]], F32)
    one = np.ones_like(gate)
    close(kernels.swiglu(gate, one), np.where(gate > 0, gate, 0.0))
    close(kernels.geglu(gate, one), np.where(gate > 0, gate, 0.0))
    close(kernels.swiglu_backward(one, gate, one)[0][:, :6], [[0, 0, 0.5, 0.5, 0.5, 1]])


def test_gates_without_numbers_and_quantized_infinities():
    gate = np.array([[np.nan, -np.inf, 1.0, 2.0]], F32)
    for unit in (kernels.swiglu, kernels.geglu):
        made = unit(gate, np.array([[1, 1, np.nan, 1]], F32))
        assert np.isnan(made).tolist() == [[True, True, True, False]]  # minus infinity times 0
    q, scales = kernels.swiglu(np.array([[np.inf, 1.0], [1e-30, -3.0]], F32), np.ones((2, 2), F32), quantize=E4M3)
    assert np.isinf(scales[0, 0])
    assert np.isnan(exact(q)).tolist() == [[True, False], [False, False]]


def test_the_normal_distribution_is_within_its_error():
    """`geglu` and its gradient are within 3e-7 of x (and of 1) from far below to far above 0: nothing is lost to a difference from 1."""
    gate = np.concatenate([np.linspace(-12, 12, 4001), [-1e-40, 1e-40]]).astype(F32)[None]
    one, wanted = np.ones_like(gate), gelu(exact(gate))
    assert (abs(exact(kernels.geglu(gate, one)) - wanted) <= 3e-7 * abs(gate) + 1e-45).all()
    slopes, _ = kernels.geglu_backward(one, gate, one)
    density = np.exp(-(exact(gate) ** 2) / 2) / np.sqrt(2 * np.pi)
    slope_wanted = np.where(gate == 0, 0.5, wanted / np.where(gate == 0, 1, gate)) + exact(gate) * density
    assert (abs(exact(slopes) - slope_wanted) <= 3e-7 * (1 + abs(gate))).all()


@pytest.mark.parametrize(("rows", "n", "dtype", "centred"), [(7, 256, F32, False), (19, 1027, BF16, True)])
def test_gradients_of_norms_of_sums(rows, n, dtype, centred):
    dy, dsum, summed, weight = (normal(*s, dtype=dtype) for s in ((rows, n), (rows, n), (rows, n), (n,)))
    wanted = norm_gradients(dy, summed, weight, 1e-5, centred=centred)
    if centred:
        made = kernels.fused_add_layer_norm_backward(dy, dsum, summed, weight, bias=True)
    else:
        made = kernels.fused_add_rms_norm_backward(dy, dsum, summed, weight, 1e-5)
    for k, (got, value) in enumerate(zip(made, wanted, strict=False)):
        close(got, value + exact(dsum) if k == 0 else value, {F32: 3e-5, BF16: 3e-2}[dtype])


X = np.zeros((3, 8), F32)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.fused_add_rms_norm(X, X[:2]), r"\(2, 8\)"),
        (lambda: kernels.rms_norm(X, quantize=F16), "quantize is Float16"),
        (lambda: kernels.rms_norm(X, quantize="fp8"), "quantize='fp8' is no type"),
        (lambda: kernels.rms_norm(X, quantize=E4M3, out=X), "out must be None with quantize"),
        (lambda: kernels.rms_norm(X, out=X.astype(E4M3)), "Float8E4M3FN elements"),
        (
            lambda: kernels.rms_norm(X, quantize=E4M3, config=kernels.StreamingRowwiseConfig(32, 32)),
            "need all results of a row",
        ),
        (
            lambda: kernels.rms_norm(X, quantize=E4M3, config=RowwiseConfig(32, 32, 1, 1, rows_per_cta=4)),
            "largest result is found after",
        ),
        (
            lambda: kernels.layer_norm(X, quantize=E4M3, config=RowwiseConfig(32, 32, rows_per_cta=4)),
            "all of it in shared memory",
        ),
        (lambda: kernels.layer_norm(X, quantize=E4M3, config=RowwiseConfig(32, 32, 1, 1, 1, 0)), "rows_per_cta is 0"),
        (lambda: kernels.swiglu(X[:, :7]), "must be even"),
        (lambda: kernels.geglu(X, X, approximate="erf"), "approximate='erf'"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_clean_under_the_sanitizer():
    x = normal(2, 40)
    with kiln.sanitize():
        kernels.fused_add_rms_norm(x, x, quantize=E4M3, config=RowwiseConfig(64, 64, 2))
        kernels.swiglu(x[:, :34])


def test_what_a_call_does_is_explained():
    x = normal(16, 512, dtype=BF16)
    for call in (kernels.fused_add_rms_norm, kernels.swiglu):
        told = kernels.explain(call, x, x)
        assert type(told.config) is RowwiseConfig
        assert "ResidentRows" in str(told)
