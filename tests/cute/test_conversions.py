"""Conversions between floats, for every number of 8 and 16 bits: one at a time and as vectors, to every float type."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack

NARROW = [kiln.Float8E4M3FN, kiln.Float8E4M3, kiln.Float8E5M2, kiln.Float8E4M3B11FNUZ, kiln.Float8E8M0FNU]
SOURCES = [*NARROW, kiln.Float16, kiln.BFloat16]
TARGETS = [*NARROW, kiln.Float16, kiln.BFloat16, kiln.Float32, kiln.Float64]
SIXTEEN = {kiln.Float16: (10, -14, 65504.0), kiln.BFloat16: (7, -126, (2 - 2.0**-7) * 2.0**127)}
"""Bits of the mantissa, the smallest exponent, the largest number."""


def values(t: Any) -> np.ndarray:
    """All numbers of a type, by their bits."""
    return widened(np.arange(1 << t.width, dtype=f"u{t.width // 8}").view(t.numpy_dtype))


def widened(x: np.ndarray) -> np.ndarray:
    """As float64; numpy warns of signalling NaN."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


@functools.cache
def numbers(t: Any) -> tuple[np.ndarray, np.ndarray]:
    """The finite numbers from 0 up, and whether the bits of each are even."""
    half = values(t)[: 1 << (t.width - int(t.signed))]
    finite = np.isfinite(half)
    return half[finite], np.arange(len(half))[finite] % 2 == 0


def rounded(t: Any, x: np.ndarray) -> np.ndarray:
    """The nearest number of a type, from the table of all: ties to even (up, of powers of two).

    Beyond the largest number: the largest, in types of less than 16 bits. NaN where there is none: the largest.
    """
    table, even = numbers(t)
    size = np.abs(x)
    low = np.clip(np.searchsorted(table, size, "right") - 1, 0, len(table) - 2)
    below, above = table[low], table[low + 1]
    to_below, to_above = size - below, above - size  # exact: these have few bits
    up = (to_above < to_below) | ((to_above == to_below) & (even[low + 1] | (not t.signed)))
    found = np.where(size >= table[-1], table[-1], np.where(up & (size > table[0]), above, below))
    if t.width == 16:
        limit = table[-1] + (table[-1] - table[-2]) / 2
        found = np.where(size >= limit, np.inf, found)
    elif not t.signed:
        found = np.where(x < 0, np.nan, found)
    found = np.where(np.signbit(x) & t.signed, -found, found)
    found = np.where(np.isnan(x), table[-1] if t._format.nan == "none" else np.nan, found)
    return np.where(found == 0, 0.0, found) if t._format.nan == "negative_zero" else found


@functools.cache
def converted(source: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every number of a type converted to another, by elements and by vectors of 16."""
    count = 1 << source.width
    x = np.arange(count, dtype=f"u{source.width // 8}").reshape(-1, 16)
    storage = target.numpy_dtype if target.width > 8 else np.uint8
    one, many = np.zeros(x.shape, storage), np.zeros(x.shape, storage)

    @cute.jit
    def f(x: cute.Tensor, one: cute.Tensor, many: cute.Tensor):
        for i in range(x.shape[0]):
            row = x[i, None]
            many[i, None].store(row.load().to(target))
            for j in kiln.range_constexpr(16):
                one[i, j] = row[j].to(target)

    def typed(array: np.ndarray, t: Any) -> Any:
        tensor = from_dlpack(array)
        tensor.element_type = t
        return tensor

    f(typed(x, source), typed(one, target), typed(many, target))
    made = [widened(a.view(target.numpy_dtype)).reshape(-1) for a in (one, many)]
    return made[0], made[1]


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert np.array_equal(got, want, equal_nan=True)
    number = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.quick(16)
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_number(source: Any, target: Any):
    one, many = converted(source, target)
    exact = values(source)
    want = exact if target.width >= 32 or source is target else rounded(target, exact)
    same(one, want)
    same(many, want)


def halfway_and_beside(t: Any) -> np.ndarray:
    """Numbers of 32 bits that lie halfway between two of a type, one step beside that, and at the ends."""
    mantissa, smallest, largest = SIXTEEN[t]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, 2000, dtype=np.uint16)
    bits = widened(bits.view(t.numpy_dtype))
    bits = bits[np.isfinite(bits) & (np.abs(bits) < largest)]
    _, exponent = np.frexp(bits)
    step = 2.0 ** (np.maximum(exponent - 1, smallest) - mantissa)
    half = (bits + np.copysign(step / 2, bits)).astype(np.float32)
    ends = np.array([largest, largest * (1 + 2.0 ** -(mantissa + 2)), 2.0**smallest, 0, np.inf, np.nan], np.float32)
    made = np.concatenate(
        [half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(np.inf)), ends, -ends]
    )
    return np.concatenate([made, rng.integers(0, 1 << 32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)])


@pytest.mark.parametrize("t", SIXTEEN, ids=str)
def test_halfway_between_numbers_of_sixteen_bits(t: Any):
    x = halfway_and_beside(t)
    x = np.resize(x, (len(x) // 16, 16))
    one, many = np.zeros(x.shape, t.numpy_dtype), np.zeros(x.shape, t.numpy_dtype)

    @cute.jit
    def f(x: cute.Tensor, one: cute.Tensor, many: cute.Tensor):
        for i in range(x.shape[0]):
            many[i, None].store(x[i, None].load().to(t))
            for j in kiln.range_constexpr(16):
                one[i, j] = x[i, j].to(t)

    f(*(from_dlpack(a) for a in (x, one, many)))
    want = rounded(t, widened(x))
    same(widened(one), want)
    same(widened(many), want)
