"""Arithmetic of native code against Python's integers: it wraps, and mixed types meet as `docs/native.md` says."""

# pyright: reportReturnType=false
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kiln.native import i8, i32, i64, native, u32, u64
from kiln.targets.host import jit  # noqa: F401 - it loads native functions


def wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


ints = st.integers(-(1 << 31), (1 << 31) - 1) | st.sampled_from([0, 1, -1, -(1 << 31), (1 << 31) - 1])
naturals = st.integers(0, (1 << 32) - 1) | st.sampled_from([0, 1, (1 << 31), (1 << 32) - 1])
wide = st.integers(-(1 << 63), (1 << 63) - 1)
runs = settings(max_examples=60, deadline=None)


@native
def polynomial(a: i32, b: i32, c: u32) -> i64:
    signed = a * b + a - b * 7
    mixed = u64(c * u32(a) - b)
    return i64(signed) ^ i64(mixed << 1)


@given(ints, ints, naturals)
@runs
def test_sums_and_products_wrap(a, b, c):
    signed, mixed = wrapped(a * b + a - b * 7, 32, True), wrapped(c * a - b, 32, False)
    assert polynomial(a, b, c) == wrapped(signed ^ mixed << 1, 64, True)


@native
def divisions(a: i32, b: i32, c: u32) -> i64:
    if b == 0 or b == -1:
        return i64(a) // 8 + i64(a) % 8
    return i64(a // b) * 1000 + a % b + i64(c // 7) + c % 7


@given(ints, ints, naturals)
@runs
def test_divisions_round_down(a, b, c):
    expected = a // 8 + a % 8 if b in (0, -1) else a // b * 1000 + a % b + c // 7 + c % 7
    assert divisions(a, b, c) == expected


@native
def comparisons(a: i32, b: u32, c: i64, d: i8) -> i32:
    result = i32(0)
    for number, holds in enumerate((a < b, a == b, b >= c, d > b, d <= a, c != a, min(a, d) < 0, max(i64(b), c) > 0)):
        if holds:
            result |= 1 << number
    return result


@given(ints, naturals, wide, st.integers(-128, 127))
@runs
def test_comparisons_are_exact(a, b, c, d):
    expected = (a < b, a == b, b >= c, d > b, d <= a, c != a, min(a, d) < 0, max(b, c) > 0)
    assert comparisons(a, b, c, d) == sum(holds << number for number, holds in enumerate(expected))


@native
def shifts(a: i32, b: u32, n: i32) -> u64:
    return u64(u32(a >> n)) << 32 ^ u64(b >> n) ^ u64(u32(a) << n)


@given(ints, naturals, st.integers(0, 40))
@runs
def test_shifts_by_the_width_and_more(a, b, n):
    high, low, left = wrapped(a >> n, 32, False), b >> n, wrapped(a << n, 32, False)
    assert shifts(a, b, n) == high << 32 ^ low ^ left
