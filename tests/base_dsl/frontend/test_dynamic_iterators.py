"""A `for` over a `DynamicIterator` is a loop of the program, with the meaning of the `while` that its docstring shows."""

from __future__ import annotations

from typing import Any

import pytest

import kiln
from kiln import DynamicIterator, Int32, cute
from kiln.base_dsl.frontend import for_


class Every(DynamicIterator[Int32]):
    """The numbers from `first` to before `end`, `step` apart; `advanced` counts the steps."""

    def __init__(self, first: Any, end: Any, step: Any = 1) -> None:
        self.number = first
        self.end = end
        self.step = step
        self.advanced: Any = 0

    def has_item(self) -> Any:
        return self.number < self.end

    def item(self) -> Any:
        return self.number

    def advance(self) -> None:
        self.number = self.number + self.step
        self.advanced += 1


class Halves(DynamicIterator[Int32]):
    """A number, and its halves down to 1; `item` begins what `advance` ends."""

    def __init__(self, number: Int32) -> None:
        self.number = number
        self.following = Int32(0)

    def has_item(self) -> Any:
        return self.number > 0

    def item(self) -> Int32:
        self.following = self.number // 2
        return self.number

    @cute.jit
    def advance(self):
        if self.following > 100:
            self.following = self.following - 100
        self.number = self.following


@cute.jit
def total(n: Int32):
    s = Int32(0)
    for i in Every(Int32(0), n, 3):
        s = s * 5 + i
    return s


@cute.jit
def both_ends(n: Int32):
    numbers = Every(Int32(0), n)
    s = Int32(0)
    for i in numbers:
        if i == 2:
            continue
        if i == 6:
            break
        s = s * 5 + i
    return s, numbers.number, numbers.advanced


@cute.jit
def nested(n: Int32):
    s = Int32(0)
    for i in Halves(n):
        for j in Every(Int32(0), i, 2):
            s = s + j
        s = s * 3
    return s


@cute.jit
def found(n: Int32, least: Int32):
    for i in Every(Int32(0), n, 4):
        if i >= least:
            return i
    else:
        least = Int32(-1)
    return least


@cute.jit
def of_known_length(n: Int32):
    s = Int32(0)
    for i in Every(0, 4):
        assert type(i) is int
        if n == i:
            break
        s = s * 5 + i + 1
    return s


@pytest.mark.parametrize("n", [0, 1, 3, 4, 20])
def test_items_are_those_of_the_while_loop(n: int) -> None:
    s = 0
    for i in range(0, n, 3):
        s = s * 5 + i
    assert total(n) == s


@pytest.mark.parametrize("n", [0, 2, 3, 6, 7, 9])
def test_break_leaves_advance_out_and_continue_does_not(n: int) -> None:
    s = 0
    for i in range(min(n, 6)):
        s = s if i == 2 else s * 5 + i
    assert both_ends(n) == (s, min(n, 6), min(n, 6))


@pytest.mark.parametrize("n", [0, 1, 9, 400])
def test_what_item_begins_advance_ends(n: int) -> None:
    s, i = 0, n
    while i > 0:
        s = (s + sum(range(0, i, 2))) * 3
        i //= 2
        i = i - 100 if i > 100 else i
    assert nested(n) == s


@pytest.mark.parametrize(("n", "least", "result"), [(20, 5, 8), (20, 17, -1), (0, 0, -1), (4, 0, 0)])
def test_return_and_else(n: int, least: int, result: int) -> None:
    assert found(n, least) == result


@pytest.mark.parametrize("n", range(6))
def test_a_loop_whose_length_python_knows_is_unrolled(n: int) -> None:
    s = 0
    for i in range(4):
        if i == n:
            break
        s = s * 5 + i + 1
    assert of_known_length(n) == s


def test_an_endless_loop_of_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Every):
        def has_item(self) -> bool:
            return True

    @cute.jit
    def count():
        for _ in Endless(0, 0):
            pass

    monkeypatch.setattr(for_, "UNROLL_LIMIT", 30)
    with pytest.raises(kiln.DSLRuntimeError, match="ran 30 times while tracing"):
        count()


def test_state_keeps_its_type() -> None:
    class Widening(Every):
        def advance(self) -> None:
            self.number = self.number.to(kiln.Int64) + 1

    @cute.jit
    def widened(n: Int32):
        for _ in Widening(Int32(0), n):
            pass

    with pytest.raises(TypeError, match=r"Widening\(\.\.\.\)\.number is Int32 .* and Int64 after"):
        widened(3)


def test_only_a_statement_iterates() -> None:
    @cute.jit
    def listed(n: Int32):
        return sum([i for i in Every(Int32(0), n)], Int32(0))

    with pytest.raises(kiln.DSLRuntimeError, match="write `for item in ...:` as a statement"):
        listed(3)
