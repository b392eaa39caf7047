"""The GEMM on the tensor cores against float64, on the CPU target: layouts, ragged shapes, types, epilogues."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, kernels
from kiln.kernels.dispatch.devices import Device, device_of
from kiln.kernels.dispatch.problem import TensorLayout
from kiln.kernels.impl.gemm import REGISTRY, GemmProblem

SMALL = kernels.Sm80GemmConfig((32, 32, 32), (1, 2), 3)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(shape: Any, dtype: Any) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def operand(rows: int, columns: int, dtype: Any, transposed: bool, batch: tuple[int, ...] = ()) -> np.ndarray:
    """A matrix whose rows, or columns, are contiguous."""
    if not transposed:
        return normal((*batch, rows, columns), dtype)
    return normal((*batch, columns, rows), dtype).swapaxes(-1, -2)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def close(got: np.ndarray, wanted: np.ndarray, ulps: float = 4.0) -> None:
    """Within the rounding of the result's type, accumulated in f32."""
    step = float(ml_dtypes.finfo(got.dtype).eps) if got.dtype.kind in "fV" else 0.0
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=ulps * step, atol=ulps * step * 8 + 1e-5)


def rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest number with 10 bits of mantissa, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & 0xFFFFE000).view(np.float32)


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
def test_layouts(a_transposed, b_transposed):
    a, b = operand(64, 72, np.float16, a_transposed), operand(72, 40, np.float16, b_transposed)
    close(kernels.gemm(a, b, config=SMALL), exact(a, b))


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize("a_transposed", [False, True])
def test_f32_as_it_is(a_transposed, b_transposed):
    m, n, k = (64, 40, 24) if a_transposed == b_transposed else (33, 17, 5)
    config = kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 3)
    a, b = operand(m, k, np.float32, a_transposed), operand(k, n, np.float32, b_transposed)
    got = kernels.gemm(a, b, config=config)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    assert (np.abs(got - exact(a, b)) <= k * 2.0**-24 * scale).all()


def test_f32_with_everything():
    a, b = normal((2, 36, 20), np.float32), normal((20, 28), np.float32)
    c, bias = normal((2, 36, 28), np.float32), normal((28,), np.float32)
    out = np.zeros((2, 28, 36), np.float32).swapaxes(1, 2)  # columns contiguous
    kernels.gemm(
        a,
        b,
        alpha=2.0,
        beta=-1.0,
        c=c,
        bias=bias,
        activation="relu",
        out=out,
        config=kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2),
    )
    close(out, np.maximum(2.0 * exact(a, b) - c + bias, 0), 64.0)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 17, 5), (31, 70, 100)])
def test_ragged_shapes(m, n, k):
    a, b = normal((m, k), np.float16), normal((k, n), np.float16)
    close(kernels.gemm(a, b, config=SMALL), exact(a, b))


@pytest.mark.parametrize(
    ("dtype", "k", "transposed"),
    [
        (ml_dtypes.bfloat16, 32, False),
        (np.float32, 16, False),
        (np.float32, 16, True),
        (ml_dtypes.float8_e5m2, 64, False),
        (ml_dtypes.float8_e4m3fn, 64, True),
    ],
)
def test_types(dtype, k, transposed):
    config = kernels.Sm80GemmConfig((32, 32, k), (1, 2), 2)
    a, b = operand(40, 80, dtype, transposed), operand(80, 24, dtype, not transposed)
    got = kernels.gemm(a, b, config=config, precision="tf32")
    if dtype is np.float32:
        a, b = rounded(a), rounded(b)
    assert got.dtype == (np.float32 if a.itemsize == 1 else dtype)
    close(got, exact(a, b), 64.0 if dtype is np.float32 or a.itemsize == 1 else 4.0)


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_8_bit_floats_as_they_are_and_as_f16(arch, monkeypatch):
    """The tensor cores of one take them; for the other they are converted in registers. Accumulators are the same."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    a, b = normal((40, 80), ml_dtypes.float8_e4m3fn), operand(80, 24, ml_dtypes.float8_e5m2, True)
    config = kernels.Sm80GemmConfig((32, 32, 64), (1, 2), 2)
    close(kernels.gemm(a, b, config=config), exact(a, b), 64.0)


@pytest.mark.parametrize(("a_type", "b_type"), [(np.uint8, np.int8)])
def test_integers_are_exact(a_type, b_type):
    low = {np.int8: -128, np.uint8: 0}
    a = RNG.integers(low[a_type], low[a_type] + 256, (40, 80)).astype(a_type)
    b = RNG.integers(low[b_type], low[b_type] + 256, (80, 24)).astype(b_type)
    got = kernels.gemm(a, b, config=kernels.Sm80GemmConfig((32, 32, 64), (1, 2), 2))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.quick(0)
@pytest.mark.parametrize(
    ("dtype", "config"), [(np.float32, None), (np.float16, kernels.Sm80GemmConfig((16, 16, 32), (1, 1), 2, 2))]
)
def test_more_batches_than_a_mode_of_a_grid(dtype, config):
    a, b = normal((65539, 1, 8), dtype), normal((65539, 8, 2), dtype)
    close(kernels.gemm(a, b, config=config), exact(a, b))


def test_activations_of_what_is_no_number():
    """Stays none, as in PyTorch; infinities are as there."""
    given = np.array([np.nan, -np.inf, np.inf, -2.0, 3.0, 0.0, -0.0, -100.0], np.float32)
    a, b, c = np.zeros((1, 8), np.float32), np.zeros((8, 8), np.float32), given[None]
    relu, silu, gelu = (kernels.gemm(a, b, c=c, activation=name)[0] for name in ("relu", "silu", "gelu"))
    np.testing.assert_array_equal(relu, np.maximum(given, 0))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(silu, given / (1 + np.exp(-given)), rtol=1e-5, atol=1e-30)
    np.testing.assert_allclose(gelu, [np.nan, np.nan, np.inf, -0.0455003, 2.9959502, 0, 0, 0], rtol=1e-5, atol=1e-30)


@pytest.mark.quick(0)
def test_scales_of_no_blocks():
    """K of 0 has none: what is added is left."""
    a, b = np.zeros((5, 0), ml_dtypes.float8_e4m3fn), np.zeros((0, 130), ml_dtypes.float8_e4m3fn)
    bias = normal((130,), np.float32)
    none = [np.zeros(shape, np.float32) for shape in ((5, 0), (0, 2))]
    got = kernels.gemm(a, b, scale_a=none[0], scale_b=none[1], bias=bias)
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (5, 130)))
    with pytest.raises(TypeError, match="not broadcast"):
        kernels.gemm(a, b, scale_a=none[0], scale_b=none[0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.float8_e4m3fn])
def test_scales_of_one_block_are_those_of_rows(dtype):
    """Of elements of all types, and with columns of the result contiguous."""
    a, b = normal((40, 48), dtype), normal((32, 48), dtype).T
    rows, one = normal((40, 1), np.float32), normal((1, 1), np.float32)
    got = kernels.gemm(a, b, scale_a=rows, scale_b=one, out=np.empty((32, 40), np.float32).T)
    np.testing.assert_allclose(got, exact(a, b) * rows * one, rtol=1e-3, atol=1e-3)


def test_batches():
    a, b = normal((3, 40, 24), np.float16), normal((24, 16), np.float16)
    close(kernels.gemm(a, b, config=SMALL), exact(a, b))


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(False, True), (True, False)])
def test_the_smallest_tiles(a_transposed, b_transposed):
    a, b = operand(16, 136, np.float16, a_transposed), operand(136, 64, np.float16, b_transposed)
    close(kernels.gemm(a, b, config=kernels.Sm80GemmConfig((16, 64, 128), (1, 4), 2)), exact(a, b))


@pytest.mark.quick(2)
@pytest.mark.parametrize(("dtype", "splits"), [(np.float16, 3), (np.float16, 9), (np.float32, 2), (np.float32, 9)])
def test_split_k(dtype, splits):
    """Partials are added by the CTAs of a cluster; more than those, by a second kernel."""
    small = SMALL if dtype is np.float16 else kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2)
    config = dataclasses.replace(small, split_k=splits)
    k = 16 * splits * (2 if splits < 9 else 1)
    a, b = operand(40, k, dtype, True), operand(k, 24, dtype, False)
    bias, gate = normal((24,), np.float32), normal((40, 1), dtype)
    options: Any = {"alpha": 0.5, "bias": bias, "epilogue": lambda value, gate: value * gate, "extras": [gate]}
    wanted = (0.5 * exact(a, b) + bias) * gate.astype(np.float64)
    with kiln.sanitize("race,memory"):
        close(kernels.gemm(a, b, config=config, **options), wanted, 4.0 if dtype is np.float16 else 64.0)
    batch = kernels.gemm(a[None], b[None], config=config, **options)
    assert batch.shape == (1, 40, 24)
    close(batch[0], wanted, 4.0 if dtype is np.float16 else 64.0)


@pytest.mark.parametrize("k", [203, 30])
def test_ragged_split_k_in_clusters(k):
    """Any K, also less than `split_k`; batches; columns of the result contiguous."""
    a, b, c = normal((2, 41, k), np.float16), normal((k, 71), np.float16), normal((2, 41, 71), np.float32)
    out = np.zeros((2, 71, 41), np.float32).swapaxes(1, 2)
    kernels.gemm(a, b, c=c, beta=2.0, out=out, config=dataclasses.replace(SMALL, split_k=5))
    close(out, exact(a, b) + 2.0 * c, 64.0)


def test_split_k_of_integers_is_exact():
    a, b = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((40, 200), (200, 72)))
    got = kernels.gemm(a, b, config=kernels.Sm80GemmConfig((32, 32, 64), (1, 2), 2, 3))
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


def test_tiles_that_are_no_powers_of_two():
    a, b = operand(100, 72, np.float16, True), operand(72, 200, np.float16, True)
    close(kernels.gemm(a, b, config=kernels.Sm80GemmConfig((48, 96, 32), (1, 2), 2)), exact(a, b))


@pytest.mark.parametrize(("a_transposed", "b_transposed"), [(False, False), (True, True)])
def test_bytes_whose_k_is_not_contiguous(a_transposed, b_transposed):
    shapes = ((72, 100), (100, 88))
    left, right = (RNG.integers(-128, 128, s[::-1] if t else s) for s, t in zip(shapes, (a_transposed, b_transposed)))
    a, b = (x.astype(np.int8).T if t else x.astype(np.int8) for x, t in ((left, a_transposed), (right, b_transposed)))
    bias = normal((88,), np.float32)
    got = kernels.gemm(a, b, bias=bias, out_dtype=np.float32, config=kernels.Sm80GemmConfig((64, 64, 64), (2, 2), 2))
    close(got, exact(a, b) + bias, 64.0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_truth_values(dtype):
    """As results: of accumulators as they are, and of an epilogue, also one of a second kernel."""
    a, b = RNG.integers(-1, 2, (9, 256)).astype(dtype), RNG.integers(-1, 2, (256, 24)).astype(dtype)
    small = SMALL if dtype is np.float16 else kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2)
    assert (kernels.gemm(a, b, out_dtype=np.dtype(bool), config=small) == (exact(a, b) != 0)).all()
    for splits in (2, 16):
        config = dataclasses.replace(small, split_k=splits)
        got = kernels.gemm(a, b, out_dtype=np.dtype(bool), epilogue=lambda v: v > 1.0, config=config)
        assert (got == (exact(a, b) > 1)).all()


def test_slices_of_arrays():
    whole = normal((50, 100), np.float16)
    a, b = whole[3:40, 7:60], normal((53, 20), np.float16)
    close(kernels.gemm(a, b, config=SMALL), exact(a, b))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2, ::2],
        lambda x: x[:, ::-1],
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: np.broadcast_to(x[:, :, :1], x.shape),
        lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
        lambda x: np.broadcast_to(x[:1, ::2, ::2], (2, 16, 20)),
    ],
)
def test_arrays_of_any_strides(view):
    a, b = view(normal((2, 32, 40), np.float16)), view(normal((2, 40, 32), np.float16).swapaxes(1, 2)).swapaxes(1, 2)
    close(kernels.gemm(a, b, config=SMALL), exact(a, b))


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, ml_dtypes.float8_e4m3fn])
def test_a_k_of_zero(dtype):
    a, b, bias = np.zeros((2, 40, 0), dtype), np.zeros((0, 24), dtype), normal((24,), np.float32)
    got = kernels.gemm(a, b, bias=bias, out_dtype=np.float32)
    np.testing.assert_array_equal(got, np.broadcast_to(bias, (2, 40, 24)))


@pytest.mark.parametrize("order", ["C", "F"])
def test_into_an_array(order):
    a, b = normal((40, 24), np.float16), normal((24, 56), np.float16)
    out = np.zeros((40, 56), np.float32, order=order)
    row = normal((56,), np.float32)
    assert kernels.gemm(a, b, bias=row, out=out, config=SMALL) is out
    close(out, exact(a, b) + row, 64.0)


def test_epilogues():
    a, b, c = normal((40, 24), np.float16), normal((24, 40), np.float16), normal((40, 40), np.float16)
    bias, scale = normal((40,), np.float32), normal((40, 1), np.float32)
    sums = 0.5 * exact(a, b) + 2.0 * c.astype(np.float64) + bias
    got = kernels.gemm(
        a,
        b,
        alpha=0.5,
        beta=2.0,
        c=c,
        bias=bias,
        activation="relu",
        epilogue=lambda value, scale: value * scale + 1.0,
        extras=[scale],
        out_dtype=np.float32,
        config=SMALL,
    )
    close(got, np.maximum(sums, 0) * scale.astype(np.float64) + 1.0, 64.0)


def test_several_results_and_row_sums():
    """A tuple of arrays; those that do not lie in rows too; functions that branch; what is given for each, and how many there are."""
    a, b = RNG.standard_normal((9, 40)).astype(np.float16), RNG.standard_normal((40, 21)).astype(np.float16)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    other = np.empty((21, 9), np.float32).T

    def halves(value):
        return value, max(value, 0.0)

    got = kernels.gemm(a, b, epilogue=halves, out=(None, other), row_reduction=lambda x: x + 1.0)
    assert got[1] is other
    np.testing.assert_allclose(got[0], wanted, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(other, np.maximum(wanted, 0.0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[2], wanted.sum(1) + 21, rtol=1e-4, atol=1e-4)
    both = kernels.gemm(np.stack([a, a]), b, row_reduction="squares")
    assert both[1].shape == (2, 9)
    np.testing.assert_allclose(both[1][1], (wanted**2).sum(1), rtol=1e-4)
    assert not kernels.gemm(a, np.zeros((40, 0), np.float16), row_reduction="squares")[1].any()
    with pytest.raises(TypeError, match="returned 2 values for 3 results"):
        kernels.gemm(a, b, epilogue=halves, out_dtype=(np.float16,) * 3)
    with pytest.raises(TypeError, match="row_reduction is 'cubes'; it must be one of squares"):
        kernels.gemm(a, b, row_reduction="cubes")


def test_epilogues_of_arrays_of_other_types_and_in_place():
    a, b, c = normal((33, 24), np.float16), normal((24, 40), np.float16), normal((33, 40), np.float32)
    mask, shift, scale = np.arange(40) % 2 == 0, np.arange(80, dtype=np.int32)[::2], np.array(3.0)
    wanted = (exact(a, b) + c) * mask * 3.0 + shift
    options: Any = {"epilogue": lambda v, mask, shift, scale: v * mask * scale + shift, "extras": [mask, shift, scale]}
    assert kernels.gemm(a, b, c=c, out=c, config=SMALL, **options) is c
    close(c, wanted, 64.0)
    close(kernels.gemm(a, b, epilogue=lambda v: 2, out_dtype=np.float32, config=SMALL), np.full((33, 40), 2.0))


@pytest.mark.parametrize("activation", ["silu", "gelu", lambda x: cute.math.tanh(x)])
def test_activations(activation):
    from math import erf

    a, b = normal((16, 16), np.float16), normal((16, 16), np.float16)
    sums = exact(a, b)
    wanted = {"silu": sums / (1 + np.exp(-sums)), "gelu": sums * 0.5 * (1 + np.vectorize(erf)(sums / np.sqrt(2)))}.get(
        activation, np.tanh(sums)
    )
    close(kernels.gemm(a, b, activation=activation, out_dtype=np.float32, config=SMALL), wanted, 64.0)


def test_calls_with_arrays_alike_share_a_config_and_functions_are_told_apart():
    a, b, scale = normal((16, 16), np.float16), normal((16, 16), np.float16), 2.0
    before = len(kernels.gemm._programs)
    for factor in (1.0, 3.0, 1.0):
        got = kernels.gemm(a, b, epilogue=lambda value: value * factor, out_dtype=np.float32, config=SMALL)  # noqa: B023
        close(got, exact(a, b) * factor, 64.0)
    assert len(kernels.gemm._programs) == before + 2

    def scaled(value: Any) -> Any:
        return value * scale

    for scale in (2.0, 5.0):  # noqa: B007 - the function sees it
        close(kernels.gemm(a, b, epilogue=scaled, out_dtype=np.float32, config=SMALL), exact(a, b) * scale, 64.0)


def f32_with(config: kernels.Sm80GemmConfig | None, **options: Any) -> None:
    kernels.gemm(np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32), config=config, **options)


F32_TILING = kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2)
SQUARE = np.zeros((4, 4), np.float32)
REFUSED = [
    (lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((5, 4), np.float16)), "shapes"),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float32)), "a is Float16 and b is Float32"),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float64), np.zeros((4, 4), np.float64)), "Float64"),
    (lambda: kernels.gemm(np.zeros(4, np.float16), np.zeros((4, 4), np.float16)), "modes"),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float16), np.zeros((4, 4), np.float16), activation="sine"), "activation"),
    (
        lambda: kernels.gemm(
            np.zeros((4, 4), np.float16),
            np.zeros((4, 4), np.float16),
            config=kernels.Sm80GemmConfig((32, 32, 16), (1, 1), 2),
        ),
        "at least two",
    ),
    (
        lambda: kernels.gemm(
            np.zeros((4, 4), np.float16),
            np.zeros((4, 4), np.float16),
            config=kernels.Sm80GemmConfig((256, 256, 64), (2, 2), 16),
        ),
        "shared memory",
    ),
    (lambda: kernels.gemm(np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32), precision="quick"), "precision"),
    (lambda: f32_with(kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2, 9)), "parts"),
    (
        lambda: f32_with(kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 2, 0)),
        "split_k is 0; it must be a positive integer",
    ),
    (lambda: f32_with(None, bias=np.zeros(3, np.float32)), "bias of shape"),
    (lambda: f32_with(None, c=np.zeros((4, 1, 4, 4), np.float32)), "c of shape"),
    (lambda: f32_with(None, extras=[np.zeros(4, np.float32)]), "no epilogue"),
    (lambda: f32_with(None, extras=np.zeros(4, np.float32), epilogue=lambda v, x: v), "no list of arrays"),
    (lambda: f32_with(None, epilogue=lambda v, x: v), "called with the value: missing"),
    (lambda: f32_with(None, epilogue=lambda v: v, extras=[np.zeros(4, np.float32)]), "1 extras: too many"),
    (lambda: f32_with(F32_TILING, epilogue=lambda v: None), "the epilogue returned None"),
    (lambda: f32_with(F32_TILING, activation=lambda v: (v, v)), "the activation returned tuple"),
    (lambda: f32_with((32, 32, 8)), "config is tuple"),  # pyright: ignore[reportArgumentType]
    (lambda: kernels.gemm(SQUARE, SQUARE, out=SQUARE), "out begins where a does"),
    (lambda: f32_with(kernels.Sm80GemmConfig((48, 32, 8), (1, 1), 2)), "divide"),
    (lambda: f32_with(kernels.Sm80GemmConfig((128, 256, 8), (2, 2), 2)), "256 accumulators"),
    (lambda: f32_with(kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 1)), "at least 2 stages"),
    (lambda: f32_with(kernels.Sm80GemmConfig((64, 128, 8), (2, 8), 2)), "copy"),
    (lambda: f32_with(kernels.Sm80GemmConfig((64, 0, 8), (2, 8), 2)), "positive"),
]


@pytest.mark.parametrize(("call", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


H200, A100, ADA = map(device_of, ("sm_90a", "sm_80", "sm_89"))


def problem_of(dtype: Any, shape: tuple[int, int, int], k: int, out: Any = kiln.Float32, **options: Any) -> GemmProblem:
    """The problem of arrays without gaps."""
    batches, m, n = shape
    a, b = TensorLayout.dense(dtype, batches, m, k), TensorLayout.dense(dtype, batches, k, n)
    return GemmProblem(a, b, TensorLayout.dense(out, batches, m, n), **options)


def test_chosen_configs_fit():
    shapes = ((1, 8192, 8192), (1, 3000, 3000), (1, 100, 100), (16, 512, 512), (1, 64, 4096), (1, 1, 1))
    for device in (H200, A100, ADA):
        for shape in shapes:
            for dtype in (kiln.Float16, kiln.Float32, kiln.Int8, kiln.Float8E4M3FN):
                for k in (8, 4096) if device is not A100 or dtype.width > 8 or dtype.is_integer else ():
                    problem = problem_of(dtype, shape, k, precision="tf32" if dtype is kiln.Float32 else "ieee")
                    chosen = REGISTRY.choose(problem, device)
                    chosen.implementation.check(problem, chosen.config, device)
                    assert chosen.cost == chosen.implementation.cost(problem, chosen.config, device)
            REGISTRY.choose(problem_of(kiln.Float32, shape, 4096), device)

    def config(shape: tuple[int, int, int], k: int, device: Device) -> Any:
        return REGISTRY.choose(problem_of(kiln.Float16, shape, k, kiln.Float16), device).config

    for n in (3072, 8192):
        assert sorted(config((1, n, n), n, H200).tile_shape_mnk) == [64, 128, 192]
    assert config((1, 64, 256), 8192, H200).split_k > 1
    assert config((1, 64, 256), 8192, A100).split_k > 1
    assert config((2, 64, 256), 8192, A100).split_k == 1


def test_8_bit_floats_need_a_device_that_knows_them():
    problem = problem_of(kiln.Float8E4M3FN, (1, 64, 64), 64)
    with pytest.raises(TypeError, match="converted from sm_89 on, and .* is sm_80"):
        REGISTRY.choose(problem, A100)
    REGISTRY.choose(problem, ADA)


def test_problems_count_their_work():
    problem = problem_of(kiln.Float16, (2, 64, 48), 32)
    assert problem.flops == 2 * 2 * 64 * 48 * 32
    assert problem.bytes == 2 * (2 * (64 + 48) * 32 + 2 * 64 * 48 * 2)
    row = TensorLayout(kiln.Float16, (2, 64, 48), (0, 0, 1))
    assert dataclasses.replace(problem, epilogue_inputs=(row,)).bytes == problem.bytes + 2 * 48


def test_configs_are_for_tuners():
    """Every config works, the first is the one that is taken, and configs print as what makes them."""
    problem = problem_of(kiln.Float16, (1, 100, 100), 1024)
    choices = REGISTRY.choices(problem, H200)
    assert choices[0] == REGISTRY.choose(problem, H200)
    assert len({choice.config for choice in choices}) == len(choices) > 10
    for choice in choices:
        choice.implementation.check(problem, choice.config, H200)
    assert eval(repr(choices[0].config), {"Sm80GemmConfig": kernels.Sm80GemmConfig}) == choices[0].config


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda: problem_of(kiln.Float64, (1, 8, 8), 8), "a is Float64 and b is Float64"),
        (lambda: problem_of(kiln.Float16, (1, 8, 8), 8, precision="quick"), "precision is 'quick'"),
        (
            lambda: dataclasses.replace(
                problem_of(kiln.Float16, (1, 8, 8), 8), b=TensorLayout.dense(kiln.Float16, 1, 9, 8)
            ),
            "a is .* b is .* out is",
        ),
        (
            lambda: dataclasses.replace(
                problem_of(kiln.Float16, (1, 8, 8), 8), out=TensorLayout(kiln.Float16, (1, 8, 8), (128, 16, 2))
            ),
            "rows or columns must be contiguous",
        ),
    ],
)
def test_problems_that_make_no_sense(asked, says):
    with pytest.raises(TypeError, match=says):
        asked()


def test_split_k_with_contiguous_columns():
    """A second kernel adds partials, into a result whose columns are contiguous, too."""
    a, b, bias = normal((16, 1024), np.float16), normal((1024, 24), np.float16), normal((24,), np.float32)
    out = np.zeros((24, 16), np.float32).T
    kernels.gemm(a, b, bias=bias, out=out, config=kernels.Sm80GemmConfig((32, 32, 32), (1, 2), 2, 16))
    close(out, exact(a, b) + bias, 64.0)


def test_empty_results():
    assert kernels.gemm(np.zeros((0, 8), np.float16), np.zeros((8, 4), np.float16)).shape == (0, 4)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("dtype", "k", "splits"), [(np.float16, 72, 1), (np.float16, 37, 2), (np.float32, 20, 2), (np.float32, 9, 1)]
)
def test_clean_under_the_sanitizer(dtype, k, splits):
    a, b = normal((40, k), dtype), normal((k, 24), dtype)
    config = SMALL if dtype is np.float16 else kernels.Sm80GemmConfig((32, 32, 8), (1, 2), 3)
    config = dataclasses.replace(config, split_k=splits)
    with kiln.sanitize("all"):
        close(kernels.gemm(a, b, config=config), exact(a, b), 4.0 if dtype is np.float16 else 64.0)
