"""What functions of rows come to, by their formulas in float64, and rows to try them on."""

from __future__ import annotations

from typing import Any

import numpy as np


def exact(*given: np.ndarray) -> list[np.ndarray]:
    """Arrays in float64."""
    return [x.astype(np.float64) for x in given]


def softmax(x: np.ndarray) -> np.ndarray:
    (x,) = exact(x)
    parts = np.exp(x - x.max(-1, keepdims=True))
    return parts / parts.sum(-1, keepdims=True)


def rms_norm(x: np.ndarray, weight: Any = 1.0, eps: float = 1e-6) -> np.ndarray:
    (x,) = exact(x)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * np.asarray(weight).astype(np.float64)


def layer_norm(x: np.ndarray, weight: Any = 1.0, bias: Any = 0.0, eps: float = 1e-5) -> np.ndarray:
    (x,) = exact(x)
    return rms_norm(x - x.mean(-1, keepdims=True), weight, eps) + np.asarray(bias).astype(np.float64)


def softmax_gradient(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
    dy, y = exact(dy, y)
    return y * (dy - (y * dy).sum(-1, keepdims=True))


def norm_gradients(dy: Any, x: Any, weight: Any, eps: float, centred: bool) -> tuple[Any, Any, Any]:
    """Of a norm's rows, weight and bias."""
    dy, x, weight = exact(dy, x, weight)
    if centred:
        x = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    y, g = x * scale, dy * weight
    dx = g - y * (g * y).mean(-1, keepdims=True) - (g.mean(-1, keepdims=True) if centred else 0)
    return scale * dx, (dy * y).sum(0), dy.sum(0)


def loss_and_gradient(logits: Any, target: Any, smoothing: float, ignored: int = -100) -> tuple[Any, Any, Any]:
    """Losses of rows, their gradients, and the logarithms of the sums."""
    (x,) = exact(logits)
    n = x.shape[-1]
    most = x.max(-1, keepdims=True)
    sums = np.log(np.exp(x - most).sum(-1)) + most[:, 0]
    counts = target != ignored
    wanted = np.full(x.shape, smoothing / n)
    wanted[np.arange(len(x)), np.where(counts, target, 0)] += 1 - smoothing
    return (sums - (wanted * x).sum(-1)) * counts, (np.exp(x - sums[:, None]) - wanted) * counts[:, None], sums


RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def uneven(rows: int, n: int, dtype: Any = np.float32) -> np.ndarray:
    """Rows that begin at no multiple of 16 bytes, with something between them."""
    return normal(rows * (n + 1) + 1, dtype=dtype)[1:].reshape(rows, n + 1)[:, :n]


def close(got: Any, wanted: Any, tolerance: float = 3e-5) -> None:
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), wanted, rtol=tolerance, atol=tolerance)
