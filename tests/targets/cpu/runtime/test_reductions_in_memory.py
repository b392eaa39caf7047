"""Reductions in memory, against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kiln.targets.host.jit  # noqa: F401 - what compiles native functions
from kiln.dialects.nvgpu.async_copy import BULK_REDUCTIONS
from kiln.dialects.nvgpu.tma import ELEMENTS, REDUCTIONS
from kiln.targets.cpu.runtime.reductions import reduce_row

TYPES = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f32": np.float32, "f64": np.float64,
}  # fmt: skip
FUNCTIONS = {
    "add": np.add, "min": np.fmin, "max": np.fmax, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, limit: np.where(old >= limit, 0, old + 1).astype(old.dtype),
    "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1).astype(old.dtype),
}  # fmt: skip


def numbers(kind: type, count: int, seed: int) -> np.ndarray:
    """Bit patterns of all kinds, and numbers close to each other."""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, 256, count // 2 * np.dtype(kind).itemsize, np.uint8).view(kind)
    return np.concatenate([half, rng.integers(0, 9, count - count // 2).astype(kind)])


def reduce(target: np.ndarray, new: np.ndarray, count: int, how: str, element: str) -> None:
    reduce_row(target.ctypes.data, new.ctypes.data, count, list(ELEMENTS).index(element), REDUCTIONS.index(how) + 1)


@pytest.mark.parametrize(
    ("how", "element"), [(how, element) for how in BULK_REDUCTIONS for element in BULK_REDUCTIONS[how]]
)
def test_elements_are_combined(how, element):
    old, new = numbers(TYPES[element], 4096, 1), numbers(TYPES[element], 4096, 2)
    target = old.copy()
    reduce(target, new, target.size, how, element)
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[how](old, new)
    finite = ~np.isnan(wanted) if element.endswith(("16", "f32", "f64")) else np.ones(old.shape, bool)
    np.testing.assert_array_equal(target[finite], wanted[finite])
    assert np.isnan(target[~finite].astype(np.float64)).all()


def test_nothing_else_is_written():
    target, new = np.ones(8, np.uint16), np.full(8, 1, np.float16)
    reduce(target[2:], new, 2, "add", "f16")
    np.testing.assert_array_equal(target[[0, 1, 4, 5, 6, 7]], 1)
    assert (target[2:4] != 1).all()
