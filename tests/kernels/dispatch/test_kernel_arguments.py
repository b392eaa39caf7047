"""What kernels make of unusual arguments: functions that branch, masks, arrays that overlap, wrong numbers and types."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, kernels

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


# --- functions that branch -------------------------------------------------------------------------------------------


def halved_until_small(v, limit):
    steps = 0
    while v > limit:
        v = v / 2
        steps += 1
        if steps == 3:
            break
    return v + steps


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda v: v if v > 0 else v * 0.1, lambda x: np.where(x > 0, x, x * np.float32(0.1))),
        (lambda v: v > 0 and v < 1, lambda x: (x > 0) & (x < 1)),
        (lambda v: -1.0 < v < 1.0, lambda x: (x > -1) & (x < 1)),
        (lambda v: not v > 0, lambda x: ~(x > 0)),
        (lambda v: min(max(v, -0.5), 0.5), lambda x: np.clip(x, -0.5, 0.5)),
        (lambda v: (v if v > 1 else v * 2) if v > 0 else 0.0, lambda x: np.where(x > 0, np.where(x > 1, x, 2 * x), 0)),
    ],
)
def test_functions_may_branch(function, wanted):
    x = normal(3, 37)
    np.testing.assert_array_equal(kernels.elementwise(function, x), wanted(x))


def test_functions_may_loop():
    x = np.abs(normal(5, 9)) * 4
    limits = np.full(9, 0.5, np.float32)
    made = kernels.elementwise(halved_until_small, x, limits)
    np.testing.assert_array_equal(made, np.vectorize(halved_until_small)(x, limits))
    out = np.empty((5, 9), np.float16)
    kernels.elementwise(halved_until_small, x, limits, out=out)
    np.testing.assert_array_equal(out, made.astype(np.float16))


class Limited:
    def __init__(self, limit: float) -> None:
        self.limit = limit

    def clip(self, v):
        return self.limit if v > self.limit else v


def test_methods_and_partial_functions_may_branch():
    x = np.abs(normal(3, 37)) * 2
    made = kernels.elementwise(functools.partial(halved_until_small, limit=0.25), x)
    np.testing.assert_array_equal(made, np.vectorize(halved_until_small)(x, np.float32(0.25)))
    limited = Limited(0.5)
    np.testing.assert_array_equal(kernels.elementwise(limited.clip, x), np.minimum(x, 0.5))
    limited.limit = 0.75
    np.testing.assert_array_equal(kernels.elementwise(limited.clip, x), np.minimum(x, 0.75))


def test_what_a_branching_function_reads_is_seen():
    x = normal(16)
    for limit in (0.0, 0.5, 0.0):
        made = kernels.elementwise(lambda v: v if v > limit else -v, x)  # noqa: B023
        np.testing.assert_array_equal(made, np.where(x > limit, x, -x))


@pytest.mark.parametrize(("function", "what"), [(lambda v: None, "None"), (lambda v: (v, v), "tuple")])
def test_functions_return_one_value(function, what):
    with pytest.raises(kiln.DSLUserCodeTypeError, match=f"returned {what}"):
        kernels.elementwise(function, normal(4))


def test_types_of_results_are_those_of_either_library():
    x = normal(4)
    assert kernels.elementwise(lambda v: v, x, out_dtype=cute.Float16).dtype == np.float16
    assert kernels.gemm(normal(2, 2), normal(2, 2), out_dtype=cute.BFloat16).dtype == ml_dtypes.bfloat16


def test_epilogues_may_branch_and_take_masks():
    a, b, other = normal(20, 24, dtype=np.float16), normal(24, 8, dtype=np.float16), normal(20, 8)
    keep, numbers = other > 0, np.full((20, 8), 2**24 + 1)
    product = a.astype(np.float64) @ b.astype(np.float64)
    for epilogue, extras, wanted in (
        (lambda v, k, x: v if k else x, [keep, other], np.where(keep, product, other)),
        (lambda v, k, n: cute.where(k, cute.where(n == 2**24 + 1, v, 0.0), v * k), [keep, numbers], product * keep),
    ):
        made = kernels.gemm(a, b, epilogue=epilogue, extras=extras, out_dtype=np.float32)
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
    made = kernels.gemm(a, b, activation=lambda v: v if v > 0 else 0.0, out_dtype=np.float32)
    np.testing.assert_allclose(made, np.maximum(product, 0), rtol=1e-5, atol=1e-5)


def test_functions_that_branch_beside_others():
    """Which are given vectors: one element at a time is for those alone that branch."""
    a, b, other = normal(20, 24, dtype=np.float16), normal(24, 8, dtype=np.float16), normal(20, 8)
    product = a.astype(np.float64) @ b.astype(np.float64)
    for activation, active in (
        ("relu", np.maximum(product, 0.0)),
        (lambda v: cute.where(v > 0.0, v, v * 0.5), np.where(product > 0, product, 0.5 * product)),
    ):
        made, sums = kernels.gemm(
            a, b, activation=activation, epilogue=lambda v, x: v if v > x else x, extras=[other], out_dtype=np.float32,
            row_reduction=lambda v: v if v > 1.0 else 0.0,
        )  # fmt: skip
        wanted = np.maximum(active, other)
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(sums, np.where(wanted > 1, wanted, 0).sum(1), rtol=1e-5, atol=1e-5)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_c_is_not_read_with_a_beta_of_zero():
    a, b = normal(8, 8), normal(8, 8)
    c = np.full((8, 8), np.nan, np.float32)
    for beta in (0, 0.0):
        np.testing.assert_allclose(kernels.gemm(a, b, c=c, beta=beta), a @ b, rtol=1e-5, atol=1e-5)
    assert np.isnan(kernels.gemm(a, b, c=c, beta=0.5)).all()
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"beta is 2\.0, and there is no c"):
        kernels.gemm(a, b, beta=2.0)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("starts", "parts"), [([0, 5, 40], 1), ([-9, 5, 12], 1), ([0, 12, 5], 1), ([70, 90, 100], 1), ([0, 5, 40], 2)]
)
def test_the_sanitizer_sees_wrong_starts_of_sequences_stay_within_the_arrays(starts, parts):
    """It reports accesses outside of arrays: of queries or of keys."""
    q = normal(12, 2, 32, dtype=np.float16)
    wrong, right = np.array(starts, np.int32), np.array([0, 5, 12], np.int32)
    config = kernels.Sm80AttentionConfig(64, 32, 4, num_splits=parts)
    with kiln.sanitize():
        for starts_q, starts_k in ((wrong, right), (right, wrong)):
            kernels.flash_attention(
                q, q, q, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, max_seqlen_q=12, return_lse=True, config=config
            )


# --- arrays that overlap ---------------------------------------------------------------------------------------------


def test_out_that_overlaps_is_refused():
    memory = normal(80)
    x = memory[:64].reshape(8, 8)
    moved = memory[1:65].reshape(8, 8)
    for call in (
        lambda: kernels.elementwise(lambda v: v + 1, x, out=moved),
        lambda: kernels.elementwise(lambda v: v + 1, x, out=x.T),
        lambda: kernels.elementwise(lambda v: v + 1, x[:1], out=x),
        lambda: kernels.softmax(x, out=moved),
        lambda: kernels.gemm(normal(8, 8), x, out=moved),
        lambda: kernels.sum(x, 1, out=x[0]),
        lambda: kernels.softmax(x.view(np.float16)[:, :8], out=x),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="memory in common"):
            call()


def test_out_whose_elements_are_the_same_is_refused():
    x, row = normal(8, 8), normal(1, 8)
    for call in (
        lambda out: kernels.softmax(x, out=out),
        lambda out: kernels.rms_norm(x, out=out),
        lambda out: kernels.elementwise(lambda v: v + 1, x, out=out),
        lambda out: kernels.gemm(x, x, out=out),
    ):
        with pytest.raises(kiln.DSLUserCodeTypeError, match="its elements lie apart"):
            call(np.lib.stride_tricks.as_strided(row, (8, 8), (0, 4)))


def test_out_may_be_an_input_or_lie_between_its_elements():
    x = normal(8, 8)
    y = x.copy()
    assert kernels.elementwise(lambda v: v + 1, y, out=y) is y
    np.testing.assert_array_equal(y, x + 1)
    kernels.elementwise(lambda v: v * 2, y[:, ::2], out=y[:, 1::2])
    np.testing.assert_array_equal(y[:, 1::2], (x + 1)[:, ::2] * 2)


def test_attention_does_not_write_into_keys():
    q, k = normal(1, 8, 2, 32, dtype=np.float16), normal(1, 8, 2, 32, dtype=np.float16)
    for where in ("k", "v"):
        keys = {"k": k.copy(), "v": k.copy()}
        with pytest.raises(kiln.DSLUserCodeTypeError, match=f"out shares memory with {where}"):
            kernels.flash_attention(q, **keys, out=keys[where])
    wanted = kernels.flash_attention(q, k, k)
    np.testing.assert_array_equal(kernels.flash_attention(q, k, k, out=q), wanted)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: kernels.softmax(x.astype(np.complex64)), "complex64"),
        (lambda x: kernels.gemm(x[None, None], x[None, None]), "reshape several batch modes"),
        (lambda x: kernels.layer_norm_backward(x, x, x[0], bias=x[0]), "bias is ndarray"),
        (lambda x: kernels.softmax(np.ma.masked_array(x, mask=x > 0)), "masked array"),
        (lambda x: kernels.softmax(x, config=kernels.Sm80GemmConfig()), "config is Sm80GemmConfig"),
        (lambda x: kernels.sum(x, config=64), "config is int"),
        (lambda x: kernels.gemm(x, x, config=(64, 64, 32)), "config is tuple"),
        (lambda x: kernels.rms_norm_backward(x, x, config=kernels.ElementwiseConfig()), "config is ElementwiseConfig"),
        (lambda x: kernels.Sm80GemmConfig((64, 64)), "tile_shape_mnk"),  # type: ignore[arg-type]
        (lambda x: kernels.Sm80GemmConfig(warp_layout_mn=2), "warp_layout_mn"),  # type: ignore[arg-type]
        (lambda x: kernels.Sm80GemmConfig(stages=2.5), "stages"),  # type: ignore[arg-type]
    ],
)
def test_refused(call, message):
    with pytest.raises(kiln.DSLUserCodeTypeError, match=message):
        call(normal(4, 4))
