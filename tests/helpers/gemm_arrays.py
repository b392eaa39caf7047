"""Arrays for tests of GEMM kernels with TMA, and the check of what they compute."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np


def padded(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose rows begin at multiples of 16 bytes."""
    each = 16 // np.dtype(dtype).itemsize
    whole = (*shape[:-1], -(-shape[-1] // each) * each)
    size = int(np.prod(whole)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 16, np.uint8)
    first = -memory.ctypes.data % 16
    return memory[first : first + size].view(dtype).reshape(whole)[..., : shape[-1]]


def operand(
    rng: np.random.Generator,
    rows: int,
    columns: int,
    dtype: Any = np.float16,
    way: str = "N",
    batch: tuple[int, ...] = (),
) -> np.ndarray:
    """Normal data; N: rows are contiguous, T: columns."""
    x = padded((*batch, rows, columns) if way == "N" else (*batch, columns, rows), dtype)
    x[...] = rng.integers(-9, 9, x.shape) if np.dtype(dtype).kind in "iu" else rng.standard_normal(x.shape)
    return x if way == "N" else x.swapaxes(-1, -2)


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def close(got: np.ndarray, wanted: np.ndarray, ulps: float = 4.0) -> None:
    """Within the rounding of the result's type, accumulated in f32."""
    step = float(ml_dtypes.finfo(got.dtype).eps) if np.dtype(got.dtype).kind in "fV" else 0.0
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=ulps * step, atol=ulps * step * 8 + 1e-5)
