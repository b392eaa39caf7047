"""Loops and branches built by hand give what the same Python gives."""

from __future__ import annotations

import pytest

import kiln
import kiln.cute as cute
from kiln import Boolean, Int32


@cute.jit(preprocess=False)
def count(n: Int32):
    total = Int32(0)
    out = total
    for i, (acc,), results in kiln.for_generate(0, n, 2, [total]):
        kiln.yield_out([acc + i])
        out = Int32(results[0])
    return out


@cute.jit(preprocess=False)
def halve(n: Int32):
    loop = kiln.while_generate([n, Int32(0)], lambda x, steps: x > 1)
    with loop as (x, steps):
        kiln.yield_out([x // 2, steps + 1])
    return loop.results[1]


@cute.jit(preprocess=False)
def clamp(n: Int32):
    return kiln.if_generate(n < 0, lambda x: Int32(0), lambda x: x, [n], [Int32])


@cute.jit(preprocess=False)
def negated(flag: Boolean):
    return kiln.cutlass_dsl.not_(flag)


@pytest.mark.parametrize("n", [0, 1, 7, 10])
def test_for(n: int) -> None:
    assert count(n) == sum(range(0, n, 2))


@pytest.mark.parametrize(("n", "steps"), [(1, 0), (2, 1), (100, 6)])
def test_while(n: int, steps: int) -> None:
    assert halve(n) == steps


@pytest.mark.parametrize("n", [-3, 0, 5])
def test_if(n: int) -> None:
    assert clamp(n) == max(n, 0)


def test_not() -> None:
    assert negated(False) is True
