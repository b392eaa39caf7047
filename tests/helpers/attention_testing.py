"""Attention in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def exact(
    q, k, v, causal=False, window=None, scale=None, softcap=0.0, alibi_slopes=None, score=None, sinks=None
) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (batch, queries, heads, D) and logarithms (batch, heads, queries) in float64; `score` is given arrays."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    shared = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, shared, 2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    distance = np.arange(k.shape[1])[None] - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    if alibi_slopes is not None:
        slopes = alibi_slopes.astype(np.float64)
        scores = scores - (slopes[None] if slopes.ndim == 1 else slopes)[..., None, None] * np.abs(distance)
    if score is not None:
        scores = score(scores, *np.ogrid[tuple(slice(n) for n in scores.shape)])
    seen = np.ones(distance.shape, bool)
    if right is not None:
        seen &= distance <= right
    if left is not None:
        seen &= distance >= -left
    highest = np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=-1e38)
    if sinks is not None:
        highest = np.maximum(highest, sinks.astype(np.float64)[:, None, None])
    powers = np.exp(np.where(seen, scores - highest, -np.inf))
    sums = powers.sum(-1)
    if sinks is not None:
        sums = sums + np.exp(sinks.astype(np.float64)[:, None] - highest[..., 0])
    with np.errstate(divide="ignore"):
        logarithms = np.log(sums) + highest[..., 0]
    probabilities = powers / np.where(sums == 0.0, 1.0, sums)[..., None]
    return np.einsum("bhqk,bkhd->bqhd", probabilities, v), logarithms


def close(got: Any, wanted: tuple[np.ndarray, np.ndarray]) -> None:
    """Within the rounding of probabilities and outputs to their type."""
    outputs, logarithms = got
    step = float(ml_dtypes.finfo(outputs.dtype).eps)
    np.testing.assert_allclose(outputs.astype(np.float64), wanted[0], rtol=2 * step, atol=2 * step)
    np.testing.assert_allclose(logarithms, wanted[1], rtol=1e-5, atol=1e-5)
