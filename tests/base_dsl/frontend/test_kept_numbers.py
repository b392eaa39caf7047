"""Where a program chooses between numbers: each one that is known is kept as it is, or the program is refused."""

from __future__ import annotations

import pytest

import kiln.cute as cute
from kiln import BFloat16, Boolean, Float16, Float32, Float64, Int8, Int32, Int64
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.base_dsl.numeric import host
from kiln.base_dsl.typing import join


def expression(a: Int32):
    return 16777217 if a > 0 else 2.5


def branches(a: Int32):
    if a > 0:
        x = 16777217
    else:
        x = 2.5
    return x


def returns(a: Int32):
    if a > 0:
        return 16777217
    return 2.5


def in_a_list(a: Int32):
    numbers: list[float] = [16777217, 3]
    if a > 0:
        numbers[0] = 2.5
    return numbers[0]


def before_a_loop(a: Int32):
    x = 16777217
    for _ in range(a):
        x = 2.5
    return x


def inside_a_loop(a: Int32):
    x = 2.5
    for _ in range(a):
        x = x * 2.0
        if x > 10.0:
            x = 16777217
    return x


def cases(a: Int32):
    match a:
        case 1:
            x = 16777217
        case _:
            x = 2.5
    return x


def or_(a: Float32):
    return a or 16777217


def maximum(a: Float32):
    return max(a, 16777217)


def maximum_of_three(a: Int32):
    return max(2.5, a, 16777217)


def narrow(a: Float16):
    return 2049 if a > 0 else a


def narrow_minimum(a: BFloat16):
    return min(257, a)


def too_wide(a: Int8):
    return 300 if a > 0 else a


def too_large(a: Int32):
    return 1e300 if a > 0 else 2.5


def grows_from_too_large(a: Int32):
    x = 1e300
    for _ in range(a):
        x = x * 0.5
    return x


def beyond_all_types(a: Int32):
    return 2**200 if a > 0 else 1


REFUSED = [
    expression, branches, returns, in_a_list, before_a_loop, inside_a_loop, cases, or_, maximum, maximum_of_three, narrow,
    narrow_minimum, too_wide, too_large, grows_from_too_large, beyond_all_types,
]  # fmt: skip


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_a_number_that_would_be_another_is_refused(function):
    with pytest.raises(DSLUserCodeTypeError, match="is no value of .*, the type it would have") as refused:
        cute.compile(cute.jit(function), 1)
    assert refused.value.hint
    assert refused.value.span is not None
    assert refused.value.span.filename == __file__


def test_the_type_is_named_and_what_to_write():
    with pytest.raises(DSLUserCodeTypeError, match=r"int 16777217 is no value of Float32") as refused:
        cute.compile(cute.jit(expression), 1)
    assert "Float32(16777217)" in refused.value.hint


def test_numbers_that_are_kept():
    @cute.jit
    def choose(c: Boolean, h: Float16, d: Float64, n: Int64):
        big = 16777216 if c else 2.5
        third = 1 / 3 if c else 2
        endless = float("inf") if c else h
        return big, third, endless, 2048 if c else h, 2**53 if c else d, 2**40 if c else n, max(h, 2048)

    third = host.cast(Float32, 1 / 3)
    assert choose(True, 1.0, 1.0, 1) == (16777216, third, float("inf"), 2048, 2**53, 2**40, 2048)
    assert choose(False, 1.0, 1.5, 1) == (2.5, 2, 1, 1, 1.5, 1, 2048)


@pytest.mark.parametrize("t", [Float16, BFloat16, Float32, Float64])
def test_a_join_keeps_every_int(t):
    edge = 1 << {Float16: 11, BFloat16: 8, Float32: 24, Float64: 53}[t]
    value = t._make(1.0)
    for n in (0, 1, -1, edge - 1, edge, -edge, edge + 2, 4 * edge):
        assert join(value, n) is join(n, value) is t
    for n in (edge + 1, -edge - 1, 4 * edge + 2, 10**400):
        assert join(value, n) is None


# --- the values of `and` and `or` ------------------------------------------------------------------------------------


def mixed(a, x):
    return (
        (a > 0 and 16777217),
        (a > 0 and 5) + 1,
        a and 2.5,
        (a > 0) or 7,
        a or (x > 0),
        x or 5,
        a and x,
        (a > 1) or 2.5,
        a and (x > 1),
        a and (x > 1) and 3,
    )


def truths(a, x):
    return (
        1 if a and x else 0,
        1 if a or 2.5 else 0,
        not (a or x),
        bool(x and a),
        (1 if (a or x) and x else 0) if (a and x) or x else 3,
    )


@pytest.mark.parametrize("function", [mixed, truths], ids=lambda f: f.__name__)
def test_and_and_or_give_what_python_gives(function):
    compiled = cute.compile(cute.jit(function), Int32(1), Float32(1))
    for a in (-1, 0, 1, 2):
        for x in (0.0, 0.5, 2.0):
            assert compiled(a, x) == function(a, x)


def test_operands_without_a_common_type_are_refused_but_for_their_truth():
    @cute.jit
    def value(a: Int32):
        return a or 2.5

    with pytest.raises(DSLUserCodeTypeError, match="the two values of `or` differ in type: Int32 and float") as refused:
        value(1)
    assert "bool(x)" in refused.value.hint
