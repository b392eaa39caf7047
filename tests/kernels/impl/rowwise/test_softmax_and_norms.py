"""Softmax and norms against float64 on the CPU target: lengths, types, weights; reductions over threads."""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np
import pytest
import row_formulas

import kiln
from kiln import cute, kernels
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.kernels import RowwiseConfig, StreamingRowwiseConfig
from kiln.utils.reductions import reduce_in_block, reduce_in_warp

RNG = np.random.default_rng(0)
ROW = np.zeros((1, 2001), np.float32)
LONG = np.zeros((1, 100000), np.float32)
LENGTHS = [1, 130, 1024, 4000, 4096, 5000]


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def tolerance(dtype) -> float:
    return 4 * float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("n", "dtype"),
    [*((n, np.float32) for n in LENGTHS), (130, np.float16), (3, ml_dtypes.bfloat16), (1024, ml_dtypes.bfloat16)],
)
def test_softmax(n, dtype):
    x = RNG.standard_normal((3, n)).astype(dtype)
    np.testing.assert_allclose(
        kernels.softmax(x).astype(np.float64), row_formulas.softmax(x), rtol=tolerance(dtype), atol=1e-6
    )


def test_softmax_of_masked_and_large_values():
    x = np.array([[-np.inf, 1.0, 2.0], [300.0, 301.0, -1000.0]], np.float32)
    np.testing.assert_allclose(kernels.softmax(x), row_formulas.softmax(x), rtol=1e-5, atol=1e-7)
    x = np.array([[-np.inf] * 3, [1.0, np.nan, 2.0], [1.0, np.inf, 2.0]], np.float32)
    assert np.isnan(kernels.softmax(x)).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_norms(n):
    x = (RNG.standard_normal((2, 3, n)) + 3).astype(np.float32)
    weight, bias = (RNG.standard_normal(n).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(kernels.rms_norm(x, weight), row_formulas.rms_norm(x, weight), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        kernels.layer_norm(x, weight, bias), row_formulas.layer_norm(x, weight, bias), rtol=2e-5, atol=2e-5
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "config",
    [
        RowwiseConfig(64, 16),  # several rows in a block
        RowwiseConfig(64, 64, 2),  # blocks of a cluster share a row
        RowwiseConfig(32, 32, 4, 16),  # all in shared memory
        RowwiseConfig(64, 64, 2, 1),  # one vector in registers, one in shared memory
        RowwiseConfig(64, 32, 1, 5),
        RowwiseConfig(32, 4),  # rows too long to be held
        RowwiseConfig(32, 32, 2),
        StreamingRowwiseConfig(64, 16),  # blocks take rows in turn
        StreamingRowwiseConfig(64, 64, 2, 3, overlapped=True),
        StreamingRowwiseConfig(32, 32, 4, 5),
    ],
)
def test_tilings(config):
    rows = 140 if isinstance(config, StreamingRowwiseConfig) else 5
    n = {RowwiseConfig(32, 32, 2): 4100, RowwiseConfig(64, 16): 260, StreamingRowwiseConfig(64, 16): 260}.get(
        config, 1000
    )
    x = (RNG.standard_normal((rows, n)) + 2).astype(np.float32)
    weight, bias = (RNG.standard_normal(n).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(kernels.rms_norm(x, config=config), row_formulas.rms_norm(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(kernels.softmax(x, config=config), row_formulas.softmax(x), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(
        kernels.layer_norm(x, weight, bias, config=config),
        row_formulas.layer_norm(x, weight, bias),
        rtol=2e-5,
        atol=2e-5,
    )


def test_rows_that_begin_anywhere():
    x = RNG.standard_normal((3, 2001)).astype(np.float16)
    np.testing.assert_allclose(kernels.rms_norm(x).astype(np.float64), row_formulas.rms_norm(x), rtol=2e-3, atol=1e-3)


def test_a_large_mean_and_outliers_cost_no_accuracy():
    x = np.random.default_rng(7).standard_normal((3, 600)).astype(np.float32)
    x[0] += 3000
    x[1, 0] = 1e4
    ones = np.ones(600)
    found, exact = kernels.layer_norm(x), row_formulas.layer_norm(x, ones, 0 * ones)
    # the mean is a float32: nobody gets closer than its last bit, and the deviations here are about 1
    np.testing.assert_allclose(found[0], exact[0], rtol=1e-3, atol=2 * np.spacing(np.float32(3000)))
    np.testing.assert_allclose(found[1:], exact[1:], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "n", [37, 100, 600, 1023, 2049]
)  # several ways of cutting rows, among them such that begin anywhere
def test_rows_of_one_number_and_near_it(n):
    constant = np.full((3, n), 12345.678, np.float32)
    np.testing.assert_array_equal(kernels.layer_norm(constant), 0 * constant)
    x = np.random.default_rng(n).standard_normal((9, n)).astype(np.float32) + constant[0, 0]
    wanted = row_formulas.layer_norm(x)
    np.testing.assert_allclose(kernels.layer_norm(x), wanted, rtol=1e-3, atol=2 * np.spacing(constant[0, 0]))


def test_without_weights_into_an_array_and_of_views():
    whole = RNG.standard_normal((6, 64)).astype(np.float16)
    x, out = whole[::2, 8:40], np.zeros((3, 32), np.float32)
    assert kernels.rms_norm(x, out=out) is out
    np.testing.assert_allclose(out, row_formulas.rms_norm(x), rtol=1e-3)
    turned = np.asfortranarray(x)
    np.testing.assert_allclose(
        kernels.softmax(turned).astype(np.float64), row_formulas.softmax(x), rtol=2e-3, atol=1e-6
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.softmax(np.zeros((2, 0), np.float32)), "shape"),
        (lambda: kernels.softmax(np.zeros((2, 4), np.float64)), "Float64"),
        (lambda: kernels.rms_norm(np.zeros((2, 4), np.float32), np.zeros(3, np.float32)), "each of the 4 columns"),
        (lambda: kernels.softmax(np.zeros((2, 4), np.float32), out=np.zeros((2, 5), np.float32)), "into"),
        (lambda: kernels.softmax(np.zeros((2, 4), np.int32)), "Int32 elements"),
        (lambda: kernels.softmax(np.float32(1)), "without modes"),
        (lambda: kernels.softmax([1.0]), "no arrays"),
        (lambda: kernels.softmax(ROW, config=RowwiseConfig(96, 32)), "threads is 96"),
        (lambda: kernels.softmax(ROW, config=RowwiseConfig(64, 128)), "row_threads is 128, more than the 64 threads"),
        (lambda: kernels.softmax(ROW, config=RowwiseConfig(64, 32, 2)), "share one row"),
        (lambda: kernels.softmax(ROW, config=RowwiseConfig(64, 64, 32)), "at most 16 CTAs"),
        (lambda: kernels.softmax(ROW, config=RowwiseConfig(64, 64, smem_vectors=-1)), "smem_vectors is -1"),
        (
            lambda: kernels.softmax(ROW[:, :2000], config=RowwiseConfig(32, 8, smem_vectors=99)),
            "holds at most 128 elements",
        ),
        (
            lambda: kernels.softmax(ROW[:, :2000], config=RowwiseConfig(32, 16, smem_vectors=1)),
            "64 of them in registers",
        ),
        (
            lambda: kernels.softmax(ROW.astype(np.float16), config=RowwiseConfig(64, 64, smem_vectors=1)),
            "take 4 bytes or more",
        ),
        (lambda: kernels.softmax(LONG, config=RowwiseConfig(1024, 1024, smem_vectors=16)), "bytes of shared memory"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


@pytest.mark.parametrize("threads", [1, 4, 32, 64, 128])
def test_reductions_over_threads(threads):
    x = RNG.integers(-1000, 1000, 128).astype(np.int32)
    sums, within = np.zeros(128, np.int32), np.zeros(128, np.int32)

    @cute.kernel
    def kernel(x: cute.Tensor, sums: cute.Tensor, within: cute.Tensor):
        thread = arch.thread_idx()[0]
        sums[thread] = reduce_in_block(x[thread], operator.add, threads, 128)
        within[thread] = reduce_in_warp(x[thread], operator.add, min(threads, 32))

    @cute.jit
    def f(x: cute.Tensor, sums: cute.Tensor, within: cute.Tensor):
        kernel(x, sums, within).launch(grid=(1, 1, 1), block=(128, 1, 1))

    f(*(from_dlpack(a) for a in (x, sums, within)))
    np.testing.assert_array_equal(sums, x.reshape(-1, threads).sum(1).repeat(threads))
    few = min(threads, 32)
    np.testing.assert_array_equal(within, x.reshape(-1, few).sum(1).repeat(few))


@pytest.mark.parametrize(
    "config",
    [
        None,
        RowwiseConfig(64, 64, 2, 1),
        RowwiseConfig(64, 64, 1, 2),
        StreamingRowwiseConfig(64, 64, 2, 1, overlapped=True),
    ],
)
def test_clean_under_the_sanitizer(config):
    x = RNG.standard_normal((3, 700)).astype(np.float32)
    with kiln.sanitize():
        made = kernels.softmax(x, config=config)
        kernels.rms_norm(x, x[0], config=config)
    np.testing.assert_allclose(made, row_formulas.softmax(x), rtol=1e-5, atol=1e-7)
