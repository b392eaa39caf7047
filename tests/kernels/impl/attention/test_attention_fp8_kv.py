"""Attention of few queries to keys and values of 8 bits, which are widened: against float64 on the CPU target."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import close, exact, normal

import kiln
from kiln import Float8E4M3FN, kernels
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.kernels.dispatch.devices import device_of
from kiln.kernels.impl.attention import REGISTRY, AttentionProblem

E4M3, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
Sm80AttentionConfig = kernels.Sm80AttentionConfig


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def narrow(*shape: int) -> np.ndarray:
    return normal(*shape, dtype=np.float32).astype(E4M3)


def factors(heads: int = 2) -> np.ndarray:
    return (0.5 + np.random.default_rng(1).random((2, heads))).astype(np.float32)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("dims", "config", "options"),
    [
        ((32, 32), Sm80AttentionConfig(16, 16, 1, 2, 1, True), {"causal": True}),
        # parts, 32 rows to a warp; of what is copied some is padding
        (
            (48, 64),
            Sm80AttentionConfig(64, 16, 2, 1, 3, True),
            {"window": (70, 0), "softcap": 3.0, "alibi_slopes": np.float32([0.1, 0.2, 0.3, 0.4])},
        ),
    ],
)
def test_queries_keys_and_values(dims, config, options):
    """In the long stage the first under the sanitizer, which finds nothing."""
    q, k, v = narrow(2, 5, 4, dims[0]), narrow(2, 150, 2, dims[0]), narrow(2, 150, 2, dims[1])
    of_q, of_k, of_v = factors(), factors(), factors()
    watched = config.num_splits == 1 and os.environ.get("KILN_LONG_TESTS")
    with kiln.sanitize() if watched else contextlib.nullcontext():
        got = kernels.flash_attention(
            q, k, v, return_lse=True, config=config, q_descale=of_q, k_descale=of_k, v_descale=of_v, **options
        )
    wide_k, wide_v = (x.astype(np.float64) * f[:, None, :, None] for x, f in ((k, of_q * of_k), (v, of_v)))
    close(got, exact(q, wide_k, wide_v, **options))


def in_pages(x: np.ndarray, size: int, table: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Rows of sequences in pages; all others are no numbers."""
    pages = np.full((table.max() + 1, size, *x.shape[2:]), np.nan, np.float32).astype(E4M3)
    for n, length in enumerate(used):
        at = np.arange(length)
        pages[table[n][at // size], at % size] = x[n, :length]
    return pages


@pytest.mark.quick(1)
@pytest.mark.parametrize(("factor", "num_splits"), [(0.0, 1), (1e-42, 3)])
def test_factors_that_are_zero_hide_no_less(factor, num_splits):
    """All keys that are seen weigh the same, others nothing."""
    q, k, v = narrow(2, 5, 4, 32), narrow(2, 90, 2, 32), narrow(2, 90, 2, 32)
    of_q, of_k, of_v = factors(), factors(), factors()
    of_q[0, 0] = of_k[1, 1] = of_v[1, 0] = factor
    options: dict[str, Any] = {"window": (40, 0), "return_lse": True}
    got = kernels.flash_attention(
        q,
        k,
        v,
        config=Sm80AttentionConfig(32, 16, 2, 1, num_splits, True),
        q_descale=of_q,
        k_descale=of_k,
        v_descale=of_v,
        **options,
    )
    wide_k, wide_v = (x.astype(np.float64) * f[:, None, :, None] for x, f in ((k, of_q * of_k), (v, of_v)))
    close(got, exact(q, wide_k, wide_v, window=(40, 0)))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 1), (BF16, 16)])
def test_caches_of_8_bits(dtype, size):
    """Queries keep their type; one is larger than an f16 can be."""
    q, k, v = normal(2, 3, 4, 32, dtype=np.float32).astype(dtype), narrow(2, 160, 2, 32), narrow(2, 160, 2, 48)
    used = np.array([150, 37], np.int32)
    table = np.random.default_rng(0).permutation(2 * 160 // size).astype(np.int32).reshape(2, -1)
    if dtype is BF16:
        q[1, 0] *= 1e-3
        q[1, 0, 0, 0] = 1e6
    caches = (in_pages(x, size, table, used) for x in (k, v))
    scales = factors(), factors()
    scales[0][0, 1] = 0.0
    options: dict[str, Any] = {"k_descale": scales[0], "v_descale": scales[1], "scale": 0.1}
    config = Sm80AttentionConfig(16, 16, 1, 2, 2, True)
    out, lse = kernels.paged_attention(q, *caches, table, used, return_lse=True, config=config, **options)
    assert out.dtype == dtype
    held = np.clip(q.astype(np.float64), -65504, 65504)
    for n, length in enumerate(used):
        rows = (x[n : n + 1, :length].astype(np.float64) * f[n, :, None] for x, f in zip((k, v), scales, strict=True))
        close((out[n : n + 1], lse[n : n + 1]), exact(held[n : n + 1], *rows, causal=True, scale=0.1))


def test_few_queries_are_widened_and_many_are_not():
    device, serving = device_of("sm_90a"), AttentionProblem(1, 1, 32768, 32, 8, 128, 128, Float8E4M3FN)
    few = REGISTRY.choose(serving, device).config
    assert isinstance(few, Sm80AttentionConfig)
    assert few.num_splits > 8
    many = AttentionProblem(4, 4096, 4096, 16, 16, 128, 128, Float8E4M3FN)
    assert isinstance(REGISTRY.choose(many, device).config, kernels.Sm90AttentionConfig)
    assert "cannot convert" in REGISTRY.validate(serving, few, device_of("sm_80"))[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"q": normal(2, 1, 2, 32, dtype=np.float32)}, "float16 or bfloat16"),
        ({"v_cache": normal(6, 4, 1, 32)}, "they must be of one type, or the caches of float8_e4m3fn"),
        ({"k_descale": np.ones((1, 1), np.float32)}, "k_descale is float32 of shape .1, 1.; it must be a contiguous array of float32, .2, 1."),
        ({"k_cache": normal(6, 4, 1, 32), "v_cache": normal(6, 4, 1, 32), "v_descale": np.ones((2, 1), np.float32)}, "K and V must be float8_e4m3fn for that, not float16"),
    ],
)  # fmt: skip
def test_what_is_refused(wrong, message):
    given = {
        "q": normal(2, 1, 2, 32), "k_cache": narrow(6, 4, 1, 32), "v_cache": narrow(6, 4, 1, 32),
        "page_table": np.zeros((2, 3), np.int32), "lengths": np.full(2, 9, np.int32),
    }  # fmt: skip
    with pytest.raises(DSLUserCodeTypeError, match=message):
        kernels.paged_attention(**{**given, **wrong})
