"""Scores of any finite size: probabilities and LSE as in float64, where the largest score of a row has a probability of 1.

The last bit of a scaled score is more than a power of two from 2**24 on: rounded otherwise than row_max, P would be infinite or 0.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_testing import close, exact, normal

import kiln
from kiln import kernels

BF16, F16, F8 = ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn
KEYS = 300
SIZES = (1e3, 1e6, 5e7, 1.2e8, 2e8, 1e9, 3e9, 1e10, 1e20, 1e30, 1e37)
"""Largest scores, times the scale."""
SM80 = kernels.Sm80AttentionConfig(16, 32, 1, 1)
FORWARD: dict[str, dict[str, Any]] = {
    "chosen": {},
    "sm90": {"config": kernels.Sm90AttentionConfig()},
    "sm90 eager": {"config": kernels.Sm90AttentionConfig(lazy_rescale=False)},
    "sm90 causal": {"config": kernels.Sm90AttentionConfig(), "causal": True},
    "sm80": {"config": SM80},
    "sm80 window": {"config": SM80, "window": (40, 0)},
    "splits": {"config": kernels.Sm80AttentionConfig(16, 32, 1, 1, num_splits=4)},
}


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    with kiln.target("cpu"):
        yield


def operands(size: float, scale: float, dtype: Any = BF16, head_dim: int = 64, queries: int = 40) -> Any:
    """Queries and keys with one element each, so that scores are exact: some rows are all negative, others small."""
    random = np.random.default_rng(1)
    q, k = np.zeros((1, queries, 2, head_dim), dtype), np.zeros((1, KEYS, 1, head_dim), dtype)
    factors = np.array([1.0, -1.0, 0.5, 2.0**-20])[np.arange(2 * queries) % 4].reshape(queries, 2)
    most = min(size / scale, 32768.0) if dtype is F16 else size / scale
    k[0, :, 0, 0] = random.permutation(np.arange(-150, 150)) % 127 / 128 + 1 / 128
    k[0, ::3, 0, 0] *= dtype(-1)
    if dtype is F16:
        k[0, :, 0, 0] = k[0, :, 0, 0].astype(np.float32) * (size / scale / most)
    q[0, :, :, 0] = factors * most
    return q, k, normal(1, KEYS, 1, head_dim, dtype=dtype)


@pytest.mark.parametrize("scale", [1.0, 0.088])
@pytest.mark.parametrize("kind", FORWARD)
def test_forward(kind, scale):
    for size in SIZES:
        q, k, v = operands(size, scale)
        options = FORWARD[kind]
        got = kernels.flash_attention(q, k, v, scale=scale, return_lse=True, **options)
        masks = {name: options[name] for name in ("causal", "window") if name in options}
        close(got, exact(q, k, v, scale=scale, **masks))


@pytest.mark.parametrize("kind", ["sm90", "sm80"])
def test_f16_holds_the_powers(kind):
    for size in (1e7, 1.2e8, 1.3e8, 2.6e8, 1e9):
        q, k, v = operands(size, 1.0, F16)
        close(kernels.flash_attention(q, k, v, scale=1.0, return_lse=True, **FORWARD[kind]), exact(q, k, v, scale=1.0))


def test_scores_that_grow_and_sinks():
    """From small ones to the largest, and back, in tiles of keys one after the other."""
    sizes = np.logspace(-3, 30, KEYS)
    for order in (1, -1):
        q, k, v = operands(1.0, 1.0)
        k[0, :, 0, 0] = sizes[::order]
        sinks = np.array([1e20, -5.0], np.float32)
        for options in FORWARD.values():
            got = kernels.flash_attention(q, k, v, scale=1.0, return_lse=True, sinks=sinks, **options)
            masks = {name: options[name] for name in ("causal", "window") if name in options}
            close(got, exact(q, k, v, scale=1.0, sinks=sinks, **masks))


def test_scale_factors_of_8_bit_operands():
    for size in (1e3, 1e8, 1e20):
        q, k, v = (x.astype(F8) for x in operands(1.0, 1.0, BF16))
        one = np.ones((1, 1), np.float32)
        got = kernels.flash_attention(
            q, k, v, scale=1.0, return_lse=True, q_descale=one * np.float32(size), k_descale=one, v_descale=one
        )
        wanted = exact(q.astype(np.float64) * size, k, v, scale=1.0)
        np.testing.assert_allclose(got[0].astype(np.float64), wanted[0], rtol=0.07, atol=0.07)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-5, atol=0.05)


@pytest.mark.parametrize("swap_ab", [True, False])
@pytest.mark.parametrize("cache_dtype", [BF16, F8])
def test_mla(swap_ab, cache_dtype):
    """Rows with scores beyond 2**27 / log2(e) are NaN."""
    for size in SIZES[1:] if cache_dtype is BF16 else (5e7, 1.2e8, 1e20):
        q, k, _ = operands(size, 1.0, head_dim=192, queries=2)
        pages = np.zeros((5, 64, 192), cache_dtype)
        pages.reshape(-1, 192)[:KEYS] = k[0, :, 0].astype(cache_dtype)
        pages[..., 1:128] = normal(5, 64, 127, dtype=np.float32).astype(cache_dtype)
        table, lengths = np.arange(5, dtype=np.int32)[None], np.array([KEYS], np.int32)
        config = kernels.Sm90MlaConfig(num_splits=3, swap_ab=swap_ab)
        options = {} if cache_dtype is BF16 else {"cache_scale": np.ones(1, np.float32)}
        got = kernels.mla_decode(
            q, pages, table, lengths, value_dim=128, scale=1.0, causal=False, return_lse=True, config=config, **options
        )
        rows = pages.reshape(-1, 192)[None, :KEYS, None]
        wanted = exact(q, rows, rows[..., :128], scale=1.0)
        beyond = np.abs(wanted[1]) * np.log2(np.e) > 2**27
        assert beyond.any() == (size > 1e8)
        wanted[0][np.moveaxis(beyond, 1, 2)] = wanted[1][beyond] = np.nan
        np.testing.assert_allclose(got[0].astype(np.float64), wanted[0], rtol=0.02, atol=0.02)
        np.testing.assert_allclose(got[1], wanted[1], rtol=1e-5, atol=1e-3)
