"""Checks of lesson 12."""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln

from ...checking import Exercise, Wrong, same, sanitized


def _merge(module: Any) -> None:
    rng = np.random.default_rng(0)
    for split, shift in ((3, 0.0), (7, 40.0), (5, -40.0), (4, 1000.0)):
        scores = rng.standard_normal(10)
        values = rng.standard_normal((10, 4))
        scores[split:] += shift
        parts: list[Any] = []
        for part in (slice(None, split), slice(split, None)):
            powers = np.exp(scores[part] - scores[part].max())
            parts += [scores[part].max(), powers.sum(), powers @ values[part]]
        m, l, o = module.merge(*parts)
        powers = np.exp(scores - scores.max())
        case = f"merge of {split} and {10 - split} keys"
        same(f"{case}: m", m, scores.max(), tolerance=1e-12)
        same(f"{case}: l", l, powers.sum(), tolerance=1e-9)
        same(f"{case}: o", o, powers @ values, tolerance=1e-9)


def _window(module: Any) -> None:
    rng = np.random.default_rng(0)
    n = 12
    q, k, v = (rng.standard_normal((n, 32), np.float32) for _ in range(3))
    k[6] += 20 * q[6]  # a score so large that exp2 of it is infinite, unless the maximum is subtracted
    scores = q.astype(np.float64) @ k.T / np.sqrt(32)
    for window in (1, 5, 20):
        seen = np.tri(n, dtype=bool) & ~np.tri(n, k=-window, dtype=bool)
        masked = np.where(seen, scores, -np.inf)
        powers = np.exp(masked - masked.max(axis=1, keepdims=True))
        o = np.full((n, 32), np.nan, np.float32)
        case = f"window_attention with window={window}"
        with sanitized(case, "race,memory,sync,numeric"):
            module.window_attention(q, k, v, o, window)
        same(case, o, powers / powers.sum(axis=1, keepdims=True) @ v, tolerance=1e-4)
    with kiln.coalescing() as report:
        module.window_attention(q, k, v, o, 5)
    loads = sum(place.accesses for place in report if place.operation == "ld")
    needed = n + 2 * int((np.tri(n, dtype=bool) & ~np.tri(n, k=-5, dtype=bool)).sum())
    if loads > 1.2 * needed:
        hint = "let the loop begin at the first key of the window: one that is masked was read for nothing"
        raise Wrong("rows of q, k and v that 12 queries read with window=5", expected=needed, got=loads, hint=hint)


EXERCISES = (
    Exercise(
        "merge two parts",
        _merge,
        (
            "Both row sums are relative to their own maximum. Multiply each by exp(its maximum - the common one).",
            "The common maximum is max(m1, m2): one of the factors is 1.",
        ),
    ),
    Exercise(
        "a sliding window",
        _window,
        (
            "The first key is row - window + 1, but not below 0: kiln.max takes dynamic numbers.",
            "The last key is row itself, so the range ends at row + 1.",
            "The body is that of the lesson: larger, scale, p, row_sum, acc, row_max.",
        ),
    ),
)
