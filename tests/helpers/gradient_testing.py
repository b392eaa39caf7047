"""Gradients of attention in float64, and how far from them an implementation may be."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NAMES = ("dq", "dk", "dv")


def exact_gradients(dout, q, k, v, causal=False, window=None, scale=None, softcap=0.0) -> tuple[list[Any], list[Any]]:
    """The gradients of q, k and v, (batch, rows, heads, D), and of each the error that a step of 1 in the rounding of operands makes.

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
    highest = np.where(seen, scores, -np.inf).max(-1, keepdims=True, initial=-1e9)
    powers = np.exp(np.where(seen, scores - highest, -np.inf))
    sums = powers.sum(-1, keepdims=True)
    weights = powers / np.where(sums == 0.0, 1.0, sums)
    outputs = np.einsum("bhqk,bkhd->bqhd", weights, values)
    products = np.einsum("bqhd,bkhd->bhqk", dout, values)
    taken = np.einsum("bqhd,bqhd->bhq", dout, outputs)[..., None]
    changes = weights * (products - taken) * slopes
    inexact = np.abs(changes) + weights * slopes * np.einsum("bqhd,bqhd->bhq", abs(dout), abs(outputs))[..., None]

    def results(weights: Any, changes: Any, dout: Any, q: Any, keys: Any) -> list[Any]:
        gathered = lambda x: x.reshape(*x.shape[:2], k.shape[2], shared, x.shape[3]).sum(3)  # noqa: E731
        return [
            dtype_scale * np.einsum("bhqk,bkhd->bqhd", changes, keys),
            gathered(dtype_scale * np.einsum("bhqk,bqhd->bkhd", changes, q)),
            gathered(np.einsum("bhqk,bqhd->bkhd", weights, dout)),
        ]

    return results(weights, changes, dout, q, keys), results(weights, inexact, abs(dout), abs(q), abs(keys))


def close_gradients(got: Any, wanted: tuple[list[Any], list[Any]]) -> None:
    """Within the rounding of operands and of the results, and no worse on average than half of it."""
    for name, x, exact, spread in zip(NAMES, got, *wanted, strict=True):
        step = float(ml_dtypes.finfo(x.dtype).eps)
        error = np.abs(x.astype(np.float64) - exact)
        bound = step * (spread + np.abs(exact)) + 1e-6
        assert np.isfinite(error).all(), name
        assert (error <= bound).all(), f"{name}: {(error / bound).max():.2f} times what rounding explains"
