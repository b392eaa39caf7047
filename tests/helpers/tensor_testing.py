"""What the tests of tensors share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import kiln
from kiln import cute

DTYPES: dict[Any, Any] = {
    kiln.Boolean: np.bool_,
    kiln.Int8: np.int8,
    kiln.Int16: np.int16,
    kiln.Int32: np.int32,
    kiln.Int64: np.int64,
    kiln.Uint8: np.uint8,
    kiln.Uint16: np.uint16,
    kiln.Uint32: np.uint32,
    kiln.Uint64: np.uint64,
    kiln.Float64: np.float64,
    kiln.Float32: np.float32,
    kiln.Float16: np.float16,
    kiln.BFloat16: ml_dtypes.bfloat16,
    kiln.Float8E4M3FN: ml_dtypes.float8_e4m3fn,
    kiln.Float8E5M2: ml_dtypes.float8_e5m2,
    kiln.Float8E8M0FNU: ml_dtypes.float8_e8m0fnu,
}


def sample(dtype: Any, shape: Any, seed: int = 0) -> np.ndarray:
    """Values of a numpy type that all its operations take well."""
    rng = np.random.default_rng(seed)
    if dtype is np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype is ml_dtypes.float8_e8m0fnu:
        return np.exp2(rng.integers(-3, 4, shape)).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 100, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def bits(x: np.ndarray) -> np.ndarray:
    """The bit patterns, to compare exactly."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def aligned(shape: Any, dtype: Any, alignment: int = 64) -> np.ndarray:
    """Zeros at a multiple of `alignment`."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + count].view(dtype).reshape(shape)


@cute.jit
def copy_elements(src: cute.Tensor, dst: cute.Tensor):
    """Element by element, by index."""
    for i in range(cute.size(src)):
        dst[i] = src[i]


@cute.jit
def copy_values(src: cute.Tensor, dst: cute.Tensor):
    """All at once."""
    dst.store(src.load())
