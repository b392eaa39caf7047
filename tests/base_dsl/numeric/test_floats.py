"""Float operators against numpy and ml_dtypes: on the host, and compiled."""

from __future__ import annotations

import functools
import math
import operator
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numeric_testing import Compiled, tried

from kiln.base_dsl.numeric import host
from kiln.base_dsl.typing import (
    BFloat16,
    Boolean,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Uint128,
    maximum,
    minimum,
    select,
)

pytestmark = pytest.mark.isa

FLOATS = [Float16, BFloat16, Float32, Float64]
NUMPY = {Float16: np.float16, BFloat16: ml_dtypes.bfloat16, Float32: np.float32, Float64: np.float64}
ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv}
ROUNDING = {"floordiv": operator.floordiv, "mod": operator.mod}
COMPARE = {n: getattr(operator, n) for n in ("lt", "le", "gt", "ge", "eq", "ne")}


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@functools.cache
def compiled(t: Any) -> Compiled:
    functions: dict[str, Any] = {n: (f, (t, t)) for n, f in {**ARITHMETIC, **ROUNDING, **COMPARE}.items()}
    functions |= {
        "neg": (operator.neg, (t,)),
        "abs": (abs, (t,)),
        "round": (round, (t,)),
        "floor": (math.floor, (t,)),
        "ceil": (math.ceil, (t,)),
        "trunc": (math.trunc, (t,)),
        "round0": (lambda x: round(x, 0), (t,)),
        "square": (lambda x: x**2, (t,)),
        "inverse": (lambda x: x**-1, (t,)),
        "root": (lambda x: x**0.5, (t,)),
        "power": (lambda x, y: x**y, (t, t)),
        "rpower": (lambda x: 2.0**x, (t,)),
        "tenth": (lambda x: x * 0.1, (t,)),
        "min": (minimum, (t, t)),
        "max": (maximum, (t, t)),
        "bool": (lambda x: Boolean(x), (t,)),
        "select": (lambda x, y: select(x < y, x, 1), (t, t)),
    }
    return Compiled(functions)


def values() -> Any:
    special = [0.0, -0.0, 1.0, -1.0, 0.1, 7.5, -2.5, math.inf, -math.inf, math.nan, 6e-8, 65504.0, 1e30]
    return st.sampled_from(special) | st.floats(-1e4, 1e4) | st.floats()


def operands() -> Any:
    return st.tuples(st.sampled_from(FLOATS), values(), values())


@given(operands(), st.sampled_from(sorted(ARITHMETIC)))
@tried(1500)
def test_arithmetic_rounds_once(case: Any, name: str) -> None:
    t, a, b = case
    a, b = t(a).value, t(b).value
    with np.errstate(all="ignore"):
        expected = float(ARITHMETIC[name](NUMPY[t](a), NUMPY[t](b)))
    outside = ARITHMETIC[name](t(a), t(b))
    assert type(outside) is t
    assert same(outside.value, expected)
    assert same(compiled(t).call(name, a, b), expected)


@given(operands(), st.sampled_from(sorted(ROUNDING)))
@tried(1500)
@example((Float32, 1.0, 0.1), "floordiv")
@example((Float64, 1.0, 0.1), "floordiv")
@example((Float32, -7.5, 2.0), "mod")
@example((Float32, 7.5, -2.0), "floordiv")
@example((Float64, -0.0, 3.0), "mod")
@example((Float64, 5.0, -math.inf), "mod")
def test_floor_division_and_modulo_round_down(case: Any, name: str) -> None:
    t, a, b = case
    a, b = t(a).value, t(b).value
    got = compiled(t).call(name, a, b)
    if t is Float64 and b != 0 and math.isfinite(a):
        assert same(got, ROUNDING[name](a, b))
    if abs(a) < 1e6 * abs(b):  # beyond, the quotient has no exact integer in the narrower types
        assert same(got, ROUNDING[name](t(a), t(b)).value), (got, ROUNDING[name](t(a), t(b)))


@given(operands(), st.sampled_from(sorted(COMPARE)))
@tried(600)
def test_comparisons_with_nan_as_in_python(case: Any, name: str) -> None:
    t, a, b = case
    a, b = t(a).value, t(b).value
    assert compiled(t).call(name, a, b) is COMPARE[name](a, b) is bool(COMPARE[name](t(a), t(b)))


@given(operands())
@tried(500)
@example((Float32, 2.5, 0.0))
@example((Float32, -3.5, 0.0))
@example((Float64, 3896.9024011174715, 0.0))
def test_unary(case: Any) -> None:
    t, a, b = case
    a, b = t(a).value, t(b).value
    c = compiled(t)
    assert same(c.call("neg", a), -a)
    assert same(c.call("abs", a), abs(a))
    assert same(c.call("square", a), (t(a) ** 2).value)
    assert same(c.call("inverse", a), (1.0 / t(a)).value)
    assert c.call("bool", a) is bool(a) is Boolean(t(a)).value
    low, high = minimum(t(a), t(b)).value, maximum(t(a), t(b)).value
    assert c.call("min", a, b) == low or math.isnan(low)
    assert c.call("max", a, b) == high or math.isnan(high)
    for name, python in (("round", round), ("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc)):
        integer = Int64 if t is Float64 else Int32
        assert c.result_type(name) is integer
        if math.isfinite(a):
            expected = min(max(python(a), integer.min), integer.max)
            assert c.call(name, a) == expected == python(t(a)).value
    if math.isfinite(a):
        assert same(c.call("round0", a), float(round(a)) if round(a) else math.copysign(0.0, a))


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_powers(t: Any) -> None:
    tolerance = {Float16: 2e-3, BFloat16: 2e-2, Float32: 1e-6, Float64: 1e-14}[t]
    c = compiled(t)
    for a in (0.5, 1.0, 2.0, 3.5):
        assert c.call("root", a) == pytest.approx(math.sqrt(a), rel=tolerance)
        assert c.call("rpower", a) == pytest.approx(2.0**a, rel=tolerance)
        for b in (-1.5, 0.0, 2.0, 3.25):
            assert c.call("power", a, b) == pytest.approx(a**b, rel=tolerance)
            assert (t(a) ** t(b)).value == pytest.approx(a**b, rel=tolerance)


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_to_integers_saturates(t: Any) -> None:
    integers = [Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64]
    if t.width >= 32:
        integers += [Int128, Uint128]
    c = Compiled({f"to_{i}": (lambda x, i=i: x.to(i), (t,)) for i in integers})
    numbers = [
        0.0,
        -0.5,
        0.99,
        -1.0,
        2.7,
        -2.7,
        127.5,
        128.0,
        255.9,
        256.0,
        -129.0,
        65504.0,
        2.0**31,
        -(2.0**31),
        2.0**63,
    ]
    numbers += [-(2.0**63), 2.0**64, 3e38, -3e38, math.inf, -math.inf, math.nan]
    for i in integers:
        for number in numbers:
            value = t(number).value
            if math.isnan(value):
                expected = 0
            elif math.isinf(value):
                expected = i.max if value > 0 else i.min
            else:
                expected = min(max(math.trunc(value), i.min), i.max)
            assert t(value).to(i).value == expected
            assert c.call(f"to_{i}", value) == expected, (i, value)


@pytest.mark.parametrize("i", [Int32, Uint64, Int128], ids=str)
def test_integers_become_bf16_through_float32_everywhere(i: Any) -> None:
    """One beside the middle of two neighbours is in the middle for Float32."""
    c = Compiled({"to": (lambda x: x.to(BFloat16), (i,))})
    for value in [(257 << shift) + d for shift in (0, 8, 16, 22) for d in (-1, 0, 1)]:
        expected = i(value).to(Float32).to(BFloat16).value
        assert c.call("to", value) == expected == i(value).to(BFloat16).value, value


@pytest.mark.parametrize("i", [Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Boolean], ids=str)
def test_from_integers(i: Any) -> None:
    c = Compiled({f"to_{t}": (lambda x, t=t: x.to(t), (i,)) for t in FLOATS})
    rng = np.random.default_rng(5)
    samples = [i.min, i.max, 0, 1, i.max // 3, i.max - 1] + [
        int(v) for v in rng.integers(i.min, i.max, 50, endpoint=True, dtype=np.int64 if i.signed else np.uint64)
    ]
    for value in samples:
        for t in FLOATS:
            expected = i(value).to(t).value
            assert same(c.call(f"to_{t}", value), expected), (t, value)
            if t is Float32:
                assert expected == float(np.float32(int(value)))
            if t is Float64:
                assert expected == float(int(value))


def test_bits() -> None:
    c = Compiled(
        {
            "f32": (lambda x: x.bitcast(Int32), (Float32,)),
            "f16": (lambda x: x.bitcast(Uint16), (Float16,)),
            "bf16": (lambda x: x.bitcast(BFloat16), (Uint16,)),
            "f64": (lambda x: x.bitcast(Float64), (Int64,)),
        }
    )
    assert c.call("f32", 1.0) == 0x3F800000 == Float32(1.0).bitcast(Int32).value
    assert c.call("f16", -2.0) == 0xC000 == Float16(-2.0).bitcast(Uint16).value
    assert c.call("bf16", 0x3F80) == 1.0 == Uint16(0x3F80).bitcast(BFloat16).value
    assert c.call("f64", 0x3FF0000000000000) == 1.0


@given(st.integers(0, 2**32 - 1))
@tried(300)
def test_host_rounding_is_the_hardware_s(bits: int) -> None:
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    if not math.isnan(value):
        assert same(host.cast(Float32, value), value)
        with np.errstate(all="ignore"):
            assert same(Float16(value).value, float(np.float32(value).astype(np.float16)))
            assert same(BFloat16(value).value, float(np.float32(value).astype(ml_dtypes.bfloat16)))


def test_printing_is_the_shortest_of_the_type() -> None:
    assert str(Float32(0.1)) == "0.1"
    assert str(Float16(3.14)) == "3.14"
    assert str(Float32(7)) == "7.0"
    assert str(Float32(16777216)) == "16777216.0"
    assert str(Float64(0.1)) == "0.1"
    assert f"{Float32(3.14159):.2f}" == "3.14"


def test_no_flags_unless_the_language_asks(tracing: Any) -> None:
    from numeric_testing import argument

    x = argument(Float32)
    _ = x * x
    assert "contract" not in str(tracing.module)
    tracing.dsl.fastmath = "contract"
    _ = x * x + x
    assert str(tracing.module).count("#arith.fastmath<contract>") == 2
