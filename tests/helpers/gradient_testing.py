"""Gradients of attention in float64, and how far from them an implementation may be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NAMES = ("dq", "dk", "dv", "dsinks")


def bent(s, b, h, q, k):
    return 0.1 * s * s + s - 0.25 * b + 0.5 * h - 0.01 * (q - k)


def bent_gradient(s, b, h, q, k):
    return 0.2 * s + 1.0


def changes(heads: int) -> dict[str, Any]:
    """All that may be done to scores of two sequences."""
    slopes, sinks = (np.float32(np.random.default_rng(n).uniform(0, 0.1, heads)) for n in range(2))
    slopes = np.stack([slopes, 2 * slopes])
    return {"alibi_slopes": slopes, "sinks": sinks, "softcap": 3.0, "score": bent, "score_gradient": bent_gradient}


def exact_gradients(
    dout, q, k, v, causal=False, window=None, scale=None, softcap=0.0, alibi_slopes=None, score=None, score_gradient=None, sinks=None
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The gradients of q, k and v, (batch, rows, heads, D), and of sinks, and of each the error that a step of 1 in the rounding of operands makes.

    Weights and gradients of scores are rounded before they are multiplied, and so were the outputs, whose sums with their gradients
    are taken from each gradient of a score.
    """
    dtype_scale = q.shape[3] ** -0.5 if scale is None else scale
    dout, q, k, v = (x.astype(np.float64) for x in (dout, q, k, v))
    shared = q.shape[2] // k.shape[2]
    keys, values = (np.repeat(x, shared, 2) for x in (k, v))
    raw = np.einsum("bqhd,bkhd->bhqk", q, keys) * dtype_scale
    scores = softcap * np.tanh(raw / softcap) if softcap else raw
    slopes = 1.0 - np.square(scores / softcap) if softcap else 1.0
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    distance = np.arange(k.shape[1])[None] - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    seen = np.ones(distance.shape, bool)
    if right is not None:
        seen &= distance <= right
    if left is not None:
        seen &= distance >= -left
    if alibi_slopes is not None:
        scores = scores - np.atleast_2d(alibi_slopes)[:, :, None, None] * abs(distance)
    if score is not None and score_gradient is not None:
        place = np.meshgrid(*map(np.arange, scores.shape), indexing="ij")
        scores, slopes = score(scores, *place), slopes * score_gradient(scores, *place)
    slopes = np.where(seen, slopes, 0.0)
    highest = np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=-1e9)
    if sinks is not None:
        highest = np.maximum(highest, sinks[None, :, None, None])
    powers = np.exp(np.where(seen, scores - highest, -np.inf))
    of_sinks = 0.0 if sinks is None else np.exp(np.float64(sinks)[None, :, None, None] - highest)
    sums = powers.sum(-1, keepdims=True) + of_sinks
    weights = powers / np.where(sums == 0.0, 1.0, sums)
    outputs = np.einsum("bhqk,bkhd->bqhd", weights, values)
    products = np.einsum("bqhd,bkhd->bhqk", dout, values)
    taken = np.einsum("bqhd,bqhd->bhq", dout, outputs)[..., None]
    changes = weights * (products - taken) * slopes
    inexact = np.abs(changes) + weights * abs(slopes) * np.einsum("bqhd,bqhd->bhq", abs(dout), abs(outputs))[..., None]

    unused = of_sinks / np.where(sums == 0.0, 1.0, sums)  # weights of sinks

    def results(weights: Any, changes: Any, dout: Any, q: Any, keys: Any) -> list[Any]:
        gathered = lambda x: x.reshape(*x.shape[:2], k.shape[2], shared, x.shape[3]).sum(3)  # noqa: E731
        return [
            dtype_scale * np.einsum("bhqk,bkhd->bqhd", changes, keys),
            gathered(dtype_scale * np.einsum("bhqk,bqhd->bkhd", changes, q)),
            gathered(np.einsum("bhqk,bqhd->bkhd", weights, dout)),
        ]

    found, spread = results(weights, changes, dout, q, keys), results(weights, inexact, abs(dout), abs(q), abs(keys))
    if sinks is not None:
        found.append(-(unused * taken).sum((0, 2, 3)))
        spread.append((unused[..., 0] * np.einsum("bqhd,bqhd->bhq", abs(dout), abs(outputs))).sum((0, 2)))
    return found, spread


def close_gradients(got: Any, wanted: tuple[list[Any], list[Any]]) -> None:
    """Within the rounding of operands and of the results, and no worse on average than half of it."""
    step = float(ml_dtypes.finfo(got[0].dtype).eps)
    for name, x, exact, spread in zip(NAMES[: len(got)], got, *wanted, strict=True):
        error = np.abs(x.astype(np.float64) - exact)
        bound = step * (spread + np.abs(exact)) + 1e-6
        assert np.isfinite(error).all(), name
        assert (error <= bound).all(), f"{name}: {(error / bound).max():.2f} times what rounding explains"
