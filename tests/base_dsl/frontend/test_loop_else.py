"""Variables that get their value right before `break`, or in the loop's `else`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, cute

DATA = np.array([4, 8, 15, 16, 23, 42], np.int32)


def first(x, key, out):
    for i in range(cute.size(x)):
        if x[i] == key:
            found = i
            break
    else:
        found = -1
    out[0] = found


def two_values(x, key, out):
    for i in range(cute.size(x)):
        if x[i] == key:
            found, what = i, 1
            break
        elif x[i] > key:
            what = 2
            found = i
            break
    else:
        found = -1
        what = 0
    out[0] = found * 10 + what


def in_a_while(x, key, out):
    i = Int32(0)
    while i < cute.size(x):
        if x[i] == key:
            found = i * 2
            break
        i += 1
    else:
        found = -7
    out[0] = found


def nested(x, key, out):
    total = Int32(0)
    for j in range(3):
        for i in range(cute.size(x)):
            if i > j:
                if x[i] == key:
                    found = i + j
                    total += found
                    break
        else:
            found = 100
        total += found
    out[0] = total


def unrolled(x, key, out):
    for i in kiln.range_constexpr(6):
        if x[i] == key:
            found = i
            break
    else:
        found = -1
    out[0] = found


def numbers_that_stay(x, key, out):
    for i in range(cute.size(x)):
        if x[i] == key:
            found = 5
            break
    else:
        found = 6
    out[0] = found


def in_python(program: Any, key: int) -> int:
    """What Python makes of it."""
    out = [0]
    names = {
        "cute": type("cute", (), {"size": staticmethod(len)}),
        "kiln": type("kiln", (), {"range_constexpr": range}),
    }
    plain = type(program)(program.__code__, {**names, "Int32": int, "range": range}, program.__name__)
    plain([int(v) for v in DATA], key, out)
    return out[0]


PROGRAMS = [first, two_values, in_a_while, nested, unrolled, numbers_that_stay]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_python(program: Any):
    def run(x: cute.Tensor, key: Int32, out: cute.Tensor):
        inner(x, key, out)

    inner = cute.jit(program)
    compiled = cute.jit(run)
    for key in (4, 16, 42, 17, 0, 99):
        out = np.zeros(1, np.int32)
        compiled(DATA, key, out)
        assert out[0] == in_python(program, key), key


def without_else(x, key, out):
    for i in range(cute.size(x)):
        if x[i] == key:
            found = i
            break
    out[0] = found


def not_before_a_break(x, key, out):
    for i in range(cute.size(x)):
        found = i
        if x[i] == key:
            break
    else:
        out[1] = 1
    out[0] = found


def only_sometimes(x, key, out):
    for i in range(cute.size(x)):
        if x[i] == key:
            found = i
            break
    else:
        if key > 3:
            found = -1
    out[0] = found


def elsewhere_too(x, key, out):
    if key > 5:
        found = Int32(3)
    out[0] = found
    for i in range(cute.size(x)):
        if x[i] == key:
            found = i
            break
    else:
        found = -1
    out[0] = found


def read_too_early(x, key, out):
    for i in range(cute.size(x)):
        if i > 3:
            out[1] = found  # noqa: F821  # pyright: ignore[reportUnboundVariable]
        if x[i] == key:
            found = i
            break
    else:
        found = -1
    out[0] = found


@pytest.mark.parametrize(
    "program",
    [without_else, not_before_a_break, only_sometimes, elsewhere_too, read_too_early],
    ids=lambda f: f.__name__,
)
def test_what_may_have_no_value_is_refused(program: Any):
    def run(x: cute.Tensor, key: Int32, out: cute.Tensor):
        inner(x, key, out)

    inner = cute.jit(program)
    with pytest.raises(kiln.DSLBaseError, match="found"):
        cute.jit(run)(DATA, 3, np.zeros(2, np.int32))
