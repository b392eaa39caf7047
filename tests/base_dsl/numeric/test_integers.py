"""Integer operators against Python's own ints, wrapped to the type: on the host, and compiled."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numeric_testing import Compiled, argument, operations, tried

from kiln import cute
from kiln.base_dsl.typing import (
    Boolean,
    Float64,
    Int4,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    Uint4,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Uint128,
    common_type,
    maximum,
    minimum,
    select,
)

SIGNED = [Int4, Int8, Int16, Int32, Int64, Int128]
UNSIGNED = [Uint4, Uint8, Uint16, Uint32, Uint64, Uint128]
INTEGERS = SIGNED + UNSIGNED


def wrapped(t: Any, value: int) -> int:
    """`value` modulo 2**width in the range of `t`, written differently from the implementation."""
    span = 2**t.width
    value = value % span
    return value - span if value >= span // 2 and t.signed else value


BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "and_": operator.and_,
    "or_": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
}
COMPARE = {n: getattr(operator, n) for n in ("lt", "le", "gt", "ge", "eq", "ne")}
DIVISORS = (1, 2, 3, 7, -1, -2, -3, -7)


def divisors(t: Any) -> tuple[int, ...]:
    """Nothing holds both all of Uint128 and a negative number."""
    return tuple(d for d in DIVISORS if d > 0 or t is not Uint128)


def traced_version(name: str) -> Any:
    return {"min": minimum, "max": maximum}.get(name) or {**BINARY, **COMPARE}[name]


@functools.cache
def compiled(t: Any) -> Compiled:
    functions: dict[str, Any] = {name: (traced_version(name), (t, t)) for name in (*BINARY, *COMPARE)}
    functions |= {
        "lshift": (operator.lshift, (t, t)),
        "rshift": (operator.rshift, (t, t)),
        "neg": (operator.neg, (t,)),
        "invert": (operator.invert, (t,)),
        "abs": (abs, (t,)),
        "rsub": (lambda x: 5 - x, (t,)),
        "rfloordiv": (lambda x: 7 // x, (t,)),
        "rmod": (lambda x: 7 % x, (t,)),
        "cube": (lambda x: x**3, (t,)),
        "nonneg_floordiv": (lambda x, y: x._assume(nonneg=True) // y._assume(nonneg=True), (t, t)),
        "nonneg_mod": (lambda x, y: x._assume(nonneg=True) % y._assume(nonneg=True), (t, t)),
        "nonneg_mod5": (lambda x: x._assume(nonneg=True) % 5, (t,)),
        "select": (lambda x, y: select(x > y, x, y), (t, t)),
    }
    for divisor in divisors(t):
        functions[f"floordiv_{divisor}".replace("-", "m")] = (lambda x, d=divisor: x // d, (t,))
        functions[f"mod_{divisor}".replace("-", "m")] = (lambda x, d=divisor: x % d, (t,))
    for count in (0, 1, 3, 7, 31, 64, 200):
        functions[f"lshift_{count}"] = (lambda x, c=count: x << c, (t,))
        functions[f"rshift_{count}"] = (lambda x, c=count: x >> c, (t,))
    return Compiled(functions)


def value_of(t: Any) -> Any:
    edges = [t.min, t.min + 1, t.max, t.max - 1, 0, 1, 2, 3]
    return st.sampled_from(edges) | st.integers(t.min, t.max)


def pairs() -> Any:
    return st.sampled_from(INTEGERS).flatmap(lambda t: st.tuples(st.just(t), value_of(t), value_of(t)))


@given(pairs(), st.sampled_from(sorted(BINARY)))
@tried(2000)
@example((Int32, -(2**31), 3), "mod")
@example((Int32, 2**31 - 1, 2**31 - 1), "mul")
def test_arithmetic(operands: Any, name: str) -> None:
    t, a, b = operands
    if name in ("floordiv", "mod"):
        assume(b != 0)
    expected = wrapped(t, BINARY[name](a, b))
    outside = traced_version(name)(t(a), t(b))
    assert type(outside) is t
    assert outside.value == expected
    if name in ("floordiv", "mod") and a == t.min and b == -1:
        return  # undefined in LLVM: a target guards it
    assert compiled(t).call(name, a, b) == expected


@given(pairs(), st.sampled_from(sorted(COMPARE)))
@tried(600)
def test_comparisons(operands: Any, name: str) -> None:
    t, a, b = operands
    expected = COMPARE[name](a, b)
    outside = COMPARE[name](t(a), t(b))
    assert type(outside) is Boolean
    assert bool(outside) is expected
    assert compiled(t).call(name, a, b) is expected


@given(pairs(), st.integers(0, 140))
@tried(600)
@example((Int128, -1, 1), 127)
def test_shifts(operands: Any, count: int) -> None:
    t, a, _ = operands
    assume(count <= t.max)
    assert (t(a) << t(count)).value == compiled(t).call("lshift", a, count) == wrapped(t, a << count)
    assert (t(a) >> t(count)).value == compiled(t).call("rshift", a, count) == wrapped(t, a >> count)


@given(pairs())
@tried(400)
def test_unary_and_known_operands(operands: Any) -> None:
    t, a, _ = operands
    c = compiled(t)
    x = t(a)
    assert (-x).value == c.call("neg", a) == wrapped(t, -a)
    assert (~x).value == c.call("invert", a) == wrapped(t, ~a)
    assert abs(x).value == c.call("abs", a) == wrapped(t, abs(a))
    beside = common_type(t, Int32)  # what a Python int counts as
    assert (5 - x).value == c.call("rsub", a) == wrapped(beside, 5 - a)
    assert (x**3).value == c.call("cube", a) == wrapped(beside, a**3)
    for count in (0, 1, 3, 7, 31, 64, 200):
        assert (x << count).value == c.call(f"lshift_{count}", a) == wrapped(beside, a << count)
        assert (x >> count).value == c.call(f"rshift_{count}", a) == wrapped(beside, a >> count)
    if a not in (0, -1):
        assert (7 // x).value == c.call("rfloordiv", a) == wrapped(beside, 7 // a)
        assert (7 % x).value == c.call("rmod", a) == wrapped(beside, 7 % a)


@given(pairs(), st.sampled_from(DIVISORS))
@tried(1000)
def test_known_divisors(operands: Any, divisor: int) -> None:
    t, a, _ = operands
    assume(divisor in divisors(t))
    name = str(divisor).replace("-", "m")
    result = t(a) // divisor
    # a divisor out of range of an unsigned type widens it, so that the quotient is Python's
    assert type(result) is compiled(t).result_type(f"floordiv_{name}")
    assert result.value == compiled(t).call(f"floordiv_{name}", a) == wrapped(type(result), a // divisor)
    assert (t(a) % divisor).value == compiled(t).call(f"mod_{name}", a) == a % divisor


@given(pairs())
@tried(400)
def test_known_not_negative(operands: Any) -> None:
    t, a, b = operands
    assume(a >= 0 and b > 0)
    assert compiled(t).call("nonneg_floordiv", a, b) == a // b
    assert compiled(t).call("nonneg_mod", a, b) == a % b
    assert compiled(t).call("nonneg_mod5", a) == a % 5


@pytest.mark.parametrize("s", INTEGERS, ids=str)
def test_conversions_wrap(s: Any) -> None:
    c = Compiled({f"to_{t}": (lambda x, t=t: x.to(t), (s,)) for t in [*INTEGERS, Boolean]})
    values = {s.min, s.max, 0, 1, 5, s.max // 2 + 1, s.min // 2, s.max - 3}
    for t in INTEGERS:
        for value in values:
            assert c.call(f"to_{t}", value) == s(value).to(t).value == t(value).value == wrapped(t, value)
    for value in values:
        assert c.call("to_Boolean", value) is bool(value) is s(value).to(Boolean).value


def test_explicit_construction_wraps() -> None:
    assert Int32(0xFFFFFFFF).value == -1
    assert Uint8(-1).value == 255
    assert Int8(Int32(300)).value == 44
    assert Int32(3.99).value == 3
    assert Int32(-3.99).value == -3


MIXED = [
    (Int8, Uint8),
    (Uint32, Int32),
    (Int32, Uint64),
    (Int64, Uint64),
    (Int16, Uint4),
    (Boolean, Int8),
    (Int64, Int8),
]


@pytest.mark.parametrize(("s", "t"), MIXED, ids=str)
def test_comparisons_of_mixed_signs_are_exact(s: Any, t: Any) -> None:
    functions = {name: (f, (s, t)) for name, f in COMPARE.items()}
    functions["min"], functions["max"] = (minimum, (s, t)), (maximum, (s, t))
    c = Compiled(functions)
    for a in (s.min, s.max, 0, 1):
        for b in (t.min, t.max, 0, 1):
            for name, f in COMPARE.items():
                assert c.call(name, a, b) is f(a, b) is bool(f(s(a), t(b))), (name, a, b)
            common = c.result_type("min")
            if common.min <= min(a, b):
                assert c.call("min", a, b) == minimum(s(a), t(b)).value == min(a, b)
            if common.max >= max(a, b):
                assert c.call("max", a, b) == maximum(s(a), t(b)).value == max(a, b)


@pytest.mark.parametrize("t", [Int8, Int32, Uint32, Int64, Uint64, Int128], ids=str)
def test_dynamic_unsigned_exponent(t: Any) -> None:
    c = Compiled({"pow": (lambda x, n: x**n, (t, Uint8))}) if t.width >= 32 else None
    for base in (0, 1, 2, 3, 7, t.max):
        for n in (0, 1, 2, 5, 31):
            expected = wrapped(common_type(t, Uint8), base**n)
            assert (t(base) ** Uint8(n)).value == expected
            if c is not None:
                assert c.call("pow", base, n) == expected


def test_bits_shifted_to_the_top_become_the_sign() -> None:
    c = Compiled({"four_bits": (lambda x: (x.to(Int32) << 28) >> 28, (Uint8,))})
    assert [c.call("four_bits", x) for x in (7, 8, 15, 0xF0)] == [7, -8, -1, 0]


def test_boolean_arithmetic_follows_ints() -> None:
    c = Compiled(
        {
            "add": (lambda a, b: a + b, (Boolean, Boolean)),
            "neg": (lambda a: -a, (Boolean,)),
            "mul": (lambda a, x: a * x, (Boolean, Int32)),
            "shift": (lambda a: a << 3, (Boolean,)),
            "not": (lambda a: ~a, (Boolean,)),
            "and": (lambda a, b: a & b, (Boolean, Boolean)),
            "or_python": (lambda a: a | True, (Boolean,)),
            "plus_one": (lambda a: 1 + a, (Boolean,)),
            "div": (lambda a: a / 2, (Boolean,)),
        }
    )
    assert c.call("add", True, True) == 2 == (Boolean(True) + Boolean(True)).value
    assert c.result_type("add") is Int32 is type(Boolean(True) + True)
    assert c.call("neg", True) == -1 == (-Boolean(True)).value
    assert c.call("mul", True, 7) == 7
    assert c.call("shift", True) == 8
    assert c.call("not", True) is False is (~Boolean(True)).value
    assert c.result_type("and") is Boolean is type(Boolean(True) & Boolean(False))
    assert c.call("and", True, False) is False
    assert c.call("or_python", False) is True
    assert c.call("plus_one", True) == 2
    assert c.call("div", True) == 0.5


# -- what is emitted -----------------------------------------------------------------------------------------------


def test_division_of_indices_costs_what_c_costs(tracing: Any) -> None:
    i, n = argument(Int32, nonneg=True), argument(Int32, nonneg=True)
    _ = i // n, i % n, i // 12
    assert operations(tracing) == ["arith.divui", "arith.remui", "arith.divui"]


def test_power_of_two_divisors_are_shifts_and_masks(tracing: Any) -> None:
    x = argument(Int32)
    _ = x // 16, x % 16, x._assume(nonneg=True) // 16
    assert operations(tracing) == ["arith.shrsi", "arith.andi", "arith.shrui"]


def test_division_of_unknown_sign(tracing: Any) -> None:
    _ = argument(Int32) // argument(Int32)
    assert operations(tracing) == ["arith.floordivsi"]


def test_known_facts_emit_nothing(tracing: Any) -> None:
    x = argument(Int32, divisibility=8)
    assert x + 0 is x
    assert 0 + x is x
    assert x * 1 is x
    assert x // 1 is x
    assert x << 0 is x
    assert Int32(x) is x
    _ = x * 0, x % 4, x % 8, x - 0
    assert operations(tracing) == []


def test_facts_are_propagated(tracing: Any) -> None:
    i, n, x = argument(Int32, nonneg=True), argument(Int32, nonneg=True, divisibility=8), argument(Int32)
    for result in (i + n, i * 3, i // n, i % n, i >> 2, i & x, x % n, x & 7, minimum(i, 4), maximum(i, x), i.to(Int64)):
        assert result.nonneg, result
    for result in (i - n, i * -1, x + 1, i.to(Uint32).to(Int32), -i, minimum(i, x), i << 2, i << n):
        assert not result.nonneg
    assert [(n * 4).divisibility, (n + 4).divisibility, (n - 16).divisibility, (n // 4).divisibility] == [32, 4, 8, 2]
    assert [(n << 2).divisibility, (n >> 1).divisibility, (x & 24).divisibility, (n % 12).divisibility] == [32, 4, 8, 4]
    assert [(n | 12).divisibility, (n ^ n).divisibility, (n ^ 16).divisibility, (n | x).divisibility] == [4, 8, 8, 1]
    assert argument(Uint32).nonneg
    assert Int32(8).divisibility == 1  # an object-stage value like any other


def test_constants_are_shared(tracing: Any) -> None:
    x = argument(Int32)
    _ = x + 3, x * 3, Int32(3)
    text = str(tracing.module)
    assert text.count("value = 3 : i32") == 1


def test_beyond_128_bits_is_refused() -> None:
    with pytest.raises(OverflowError, match="-1 does not fit beside Uint128"):
        Uint128(1) + -1


def test_division_by_a_known_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        Int32(1) // 0
    with pytest.raises(ZeroDivisionError):
        Int32(1) % Int32(0)


@pytest.mark.parametrize("t", [Int8, Int16, Int32])
def test_the_smallest_integer_has_no_positive_twin(t: Any) -> None:
    """Its absolute value wraps, and stays what it is in a wider type, in a half and in a comparison."""

    def uses(x: Any) -> Any:
        y = abs(x)
        return y.to(Int64), (y // 2).to(Int64), y.to(Float64), y < 0

    function = lambda x: uses(x)  # noqa: E731
    function.__annotations__["x"] = t
    for value in (t.min, t.min + 1, -5, 0, 7):
        expected = [x.value for x in uses(t(value))]
        assert list(cute.jit(function)(value)) == expected
    assert [x.value for x in uses(t(t.min))] == [t.min, t.min // 2, float(t.min), True]


@pytest.mark.parametrize("t", [Int8, Int32, Uint32, Int64])
@pytest.mark.parametrize("name", ["lshift", "rshift"])
def test_a_shift_by_a_negative_number(t: Any, name: str) -> None:
    """Python raises, and so does a function that runs on the host."""
    function = lambda x, n: getattr(operator, name)(x, n)  # noqa: E731
    function.__annotations__.update(x=t, n=Int32)
    compiled = cute.jit(function)
    for n in (0, 1, 7, 100):
        assert compiled(9, n) == getattr(operator, name)(t(9), Int32(n)).value
    with pytest.raises(ValueError, match="an integer is shifted by a negative number"):
        compiled(9, -1)
    with pytest.raises(ValueError, match="negative shift count"):
        getattr(operator, name)(t(9), -1)


def test_a_shift_of_vectors_by_negative_numbers() -> None:
    @cute.jit
    def shifted(x: cute.Tensor, n: cute.Tensor):
        a, b = (cute.local_tile(v, (4,), (0,)) for v in (x, n))
        a.store(a.load() << b.load())

    x = np.arange(4, dtype=np.int32)
    shifted(x, np.array([0, 1, 2, 3], np.int32))
    assert x.tolist() == [0, 2, 8, 24]
    with pytest.raises(ValueError, match="an integer is shifted by a negative number"):
        shifted(x, np.array([0, 1, -2, 3], np.int32))
