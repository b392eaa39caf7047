"""Conversions of narrow floats, against ml_dtypes: every bit pattern, and many values of f32 and f64."""

from __future__ import annotations

import bisect
import math
import struct
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numeric_testing import Compiled

from kiln.base_dsl.numeric import host
from kiln.base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E5M2,
    Float8E8M0FNU,
    Float16,
    Float32,
    Float64,
    FloatNV8E5M3FNU,
    TFloat32,
    Uint32,
)

pytestmark = pytest.mark.isa

NARROW = [
    Float8E4M3FN,
    Float8E4M3,
    Float8E5M2,
    Float8E4M3B11FNUZ,
    Float8E8M0FNU,
    FloatNV8E5M3FNU,
    Float6E3M2FN,
    Float6E2M3FN,
    Float4E2M1FN,
]


def values_of(t: Any) -> list[float]:
    """Every value by its code: of ml_dtypes, or by hand where it has no such type."""
    codes = np.arange(1 << t.width, dtype=np.uint8)
    if t is not FloatNV8E5M3FNU:
        return codes.view(t.numpy_dtype).astype(np.float64).tolist()
    subnormal = [m * 2.0**-17 for m in range(8)]
    return subnormal + [(1 + m / 8) * 2.0 ** (e - 15) for e in range(1, 32) for m in range(8)][:-1] + [math.nan]


VALUES = {t: values_of(t) for t in NARROW}


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def reference(t: Any, value: float, source: str) -> float:
    """The nearest value, from the table of all values: independent of how rounding is done.

    Ties go to the even code (up, for powers of two). Overflow saturates, NaN is the largest value where there is none.
    From f32, ml_dtypes has to agree wherever it has the same rules.
    """
    if math.isnan(value):
        return t.max if t._format.nan == "none" else math.nan
    if t is FloatNV8E5M3FNU:
        value = abs(value)
    if value < 0 and not t.signed:
        return math.nan
    codes = [code for code in range(1 << (t.width - int(t.signed))) if math.isfinite(VALUES[t][code])]
    table = [VALUES[t][code] for code in codes]
    magnitude = min(max(abs(value), table[0]), table[-1])
    above = bisect.bisect_left(table, magnitude)
    if table[above] == magnitude:
        nearest = above
    else:
        low, high = Fraction(magnitude) - Fraction(table[above - 1]), Fraction(table[above]) - Fraction(magnitude)
        tie_up = codes[above] % 2 == 0 or t is Float8E8M0FNU
        nearest = above if high < low or (high == low and tie_up) else above - 1
    negative = t.signed and math.copysign(1.0, value) < 0 and not (t._format.nan == "negative_zero" and nearest == 0)
    result = -table[nearest] if negative else table[nearest]
    if source == "float32" and abs(value) <= t.max and t.signed:
        assert same(result, float(np.float32(value).astype(t.numpy_dtype).astype(np.float64)))
    return result


def interesting_values(t: Any, source: str) -> np.ndarray:
    """All values of the format, everything near them and halfway between them, and random bit patterns of the source."""
    exact = np.array([host.from_bits(t, code) for code in range(1 << t.width)], dtype=np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    halfway = (exact[1:] + exact[:-1]) / 2
    beyond = [0.0, -0.0, t.max * 1.01, -t.max * 1.5, min(t.max * 1000, 1e38)]
    floats = np.concatenate([exact, halfway, beyond]).astype(source)
    near = [np.nextafter(floats, np.array(d, dtype=source)) for d in (np.inf, -np.inf)]
    words = np.random.default_rng(7).integers(0, 1 << 63, 3000, dtype=np.uint64) * np.uint64(2)
    random = (
        words.view(np.float64) if source == "float64" else (words >> np.uint64(32)).astype(np.uint32).view(np.float32)
    )
    small = (np.random.default_rng(8).standard_normal(3000) * 4).astype(source)
    special = np.array([np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, -3e38], dtype=source)
    return np.concatenate([floats, *near, random, small, special])


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    functions: dict[str, Any] = {}
    for t in [*NARROW, TFloat32, BFloat16, Float16]:
        for wide in (Float32, Float64, Float16, BFloat16):
            functions[f"{t}_to_{wide}"] = (lambda x, wide=wide: x.to(wide), (t,))
            functions[f"{wide}_to_{t}"] = (lambda x, t=t: x.to(t), (wide,))
    return Compiled(functions)


@pytest.mark.parametrize("t", NARROW, ids=str)
@pytest.mark.parametrize("wide", [Float32, Float64, BFloat16], ids=str)
def test_every_pattern_widens_exactly(compiled: Compiled, t: Any, wide: Any) -> None:
    for code, expected in enumerate(VALUES[t]):
        assert same(float(host.from_bits(t, code)), expected)
        got = host.from_bits(wide, compiled.bits(f"{t}_to_{wide}", code))
        assert same(float(got), expected), (code, got, expected)


@pytest.mark.quick(4)
@pytest.mark.parametrize("t", NARROW, ids=str)
@pytest.mark.parametrize(("wide", "dtype"), [(Float32, "float32"), (Float64, "float64")], ids=str)
def test_rounding(compiled: Compiled, t: Any, wide: Any, dtype: str) -> None:
    for value in interesting_values(t, dtype):
        expected = reference(t, float(value), dtype)
        outside = float(t(float(value)).value)
        assert same(outside, expected), (value, outside, expected)
        got = float(compiled.call(f"{wide}_to_{t}", float(value)))
        assert same(got, expected), (value, got, expected)


@pytest.mark.quick(8)
@pytest.mark.parametrize("t", NARROW, ids=str)
@pytest.mark.parametrize("wide", [Float16, BFloat16], ids=str)
def test_from_sixteen_bits(compiled: Compiled, t: Any, wide: Any) -> None:
    for code in range(0, 1 << 16, 7):
        value = float(host.from_bits(wide, code))
        got = float(host.from_bits(t, compiled.bits(f"{wide}_to_{t}", code)))
        assert same(got, float(t(value).value)), (value, got)


def test_tf32_keeps_ten_bits_of_mantissa(compiled: Compiled) -> None:
    words = np.random.default_rng(3).integers(0, 1 << 32, 4000, dtype=np.uint64)
    for word in [*words.tolist(), 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x3F801000, 0x3F803000, 1, 0x80001000]:
        value = struct.unpack("<f", struct.pack("<I", word))[0]
        got = compiled.call("Float32_to_TFloat32", value)
        expected = TFloat32(value).value
        assert same(got, expected), (value, got, expected)
        if not math.isnan(expected):
            bits = np.uint32(word)  # rounding by hand: half up on the bits, then to even
            rounded = (int(bits) + 0xFFF + (int(bits) >> 13 & 1)) & ~0x1FFF & 0xFFFFFFFF
            assert struct.pack("<f", expected) == struct.pack("<I", rounded)


def test_tf32_from_double_rounds_once(compiled: Compiled) -> None:
    value = 1 + 2.0**-11 + 2.0**-40  # through f32 this would be a tie
    assert compiled.call("Float64_to_TFloat32", value) == 1 + 2.0**-10 == TFloat32(value).value


@pytest.mark.parametrize("t", [Float16, BFloat16], ids=str)
def test_sixteen_bit_formats(compiled: Compiled, t: Any) -> None:
    for wide, dtype in ((Float32, "float32"), (Float64, "float64")):
        for value in interesting_values(Float8E5M2, dtype):
            with np.errstate(all="ignore"):
                expected = float(np.asarray(value, dtype=dtype).astype(t.numpy_dtype).astype(np.float64))
            assert same(float(t(float(value)).value), expected)
            assert same(float(compiled.call(f"{wide}_to_{t}", float(value))), expected), value


@pytest.mark.parametrize("t", [*NARROW, TFloat32], ids=str)
def test_arithmetic_is_float32_rounded_back(t: Any) -> None:
    rng = np.random.default_rng(1)
    operations = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "sub": lambda a, b: a - b,
        "div": lambda a, b: a / b,
        "lt": lambda a, b: a < b,
        "neg": lambda a, b: -a,
        "const": lambda a, b: a * 1.5 + t(0.5),
    }
    compiled = Compiled({name: (f, (t, t)) for name, f in operations.items()})
    for _ in range(200):
        codes = [int(rng.integers(0, 1 << t.width)) & -(1 << t._format.unused_low_bits) for _ in range(2)]
        a, b = (host.from_bits(t, code) for code in codes)
        for name, f in operations.items():
            expected = f(t._make(a), t._make(b))
            assert type(expected) is compiled.result_type(name)
            got = host.from_bits(type(expected), compiled.bits(name, *codes))
            assert same(float(got), float(expected.value)), (name, a, b)


def test_bitcast_of_narrow_floats() -> None:
    from kiln.base_dsl.typing import Int4, Int8

    compiled = Compiled(
        {
            "f8": (lambda x: x.bitcast(Float8E5M2).to(Float32), (Int8,)),
            "f4": (lambda x: x.bitcast(Float4E2M1FN).to(Float32), (Int4,)),
            "tf32": (lambda x: x.bitcast(Uint32), (TFloat32,)),
        }
    )
    assert compiled.call("f8", 0x3C) == 1.0 == Int8(0x3C).bitcast(Float8E5M2).to(Float32).value
    assert compiled.call("f4", 7) == 6.0
    assert compiled.call("tf32", 1.0) == 0x3F800000 == TFloat32(1.0).bitcast(Uint32).value


def test_vectors_convert_like_scalars() -> None:
    from kiln.base_dsl import trace
    from kiln.base_dsl.numeric.emit import convert

    def round_trip(t: Any, n: int) -> Any:
        def function(*elements: Any) -> Any:
            vector = trace.emit_value("vector.from_elements", Float32.vector_type(n), [e.ir_value() for e in elements])
            narrow = convert(vector, Float32, t, n)
            back = convert(narrow, t, Float32, n)
            from kiln.mlir import ir

            total = Float32(0.0)
            for i in range(n):
                position = {"static_position": ir.DenseI64ArrayAttr.get([i])}
                total = total + Float32(trace.emit_value("vector.extract", Float32.mlir_type, (back,), position)) * (
                    i + 1
                )
            return total

        return function

    values = [0.3, -1.7, 300.0, 5.1]
    compiled = Compiled({str(t): (round_trip(t, 4), (Float32,) * 4) for t in [*NARROW, TFloat32] if t.signed})
    for t in [*NARROW, TFloat32]:
        if t.signed:
            expected = Float32(0.0)
            for i, value in enumerate(values):
                expected = expected + Float32(t(Float32(value))) * (i + 1)
            assert compiled.call(str(t), *values) == expected.value


def test_numpy_types_exist() -> None:
    assert FloatNV8E5M3FNU.numpy_dtype is None
    for t in set(NARROW) - {FloatNV8E5M3FNU}:
        assert np.dtype(t.numpy_dtype) == np.dtype(getattr(ml_dtypes, t._numpy_name))
