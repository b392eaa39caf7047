"""`range` of integers of all types counts as Python's does, and its items are Python's."""

from __future__ import annotations

import builtins
import itertools
import linecache
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int8, Int32, Int64, Int128, Uint8, Uint16, Uint32, Uint64, Uint128, cute
from kiln.base_dsl.frontend.for_ import item_type

TYPES: Any = (Int8, Uint8, Uint16, Int32, Uint32, Int64, Uint64)
NUMBERS = {t.__name__: t for t in TYPES}
STEPS: Any = (1, -1, 3, -2, Int8, Uint8, Int32, Uint32, Int64, Uint64, 2**33, -(2**33))
MOST = 40
"""Items after which the programs stop."""


def loop(start: Any, stop: Any, step: Any, test: str = "if k > MOST: break") -> Any:
    """A jit function that folds the items of a range; a bound is a type or a number, which the program then knows."""
    bounds = dict(zip("abc", (start, stop, step), strict=True))
    parameters = ", ".join(f"{n}: {t.__name__}" for n, t in bounds.items() if not isinstance(t, int))
    shown = ", ".join(str(t) if isinstance(t, int) else n for n, t in bounds.items())
    text = f"""
def items({parameters}):
    k, s = Int64(0), Int64(0)
    for i in range({shown}):
        k += 1
        s = s * 3 + i.to(Int64)
        {test}
    return k, s
"""
    name = f"<range({shown}) of {parameters} {test}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {**NUMBERS, "MOST": MOST}
    exec(compile(text, name, "exec"), space)
    return cute.jit(space["items"])


def folded(r: builtins.range) -> tuple[int, int]:
    """What the programs give for a range."""
    items = list(r[: MOST + 1])
    s = 0
    for i in items:
        s = s * 3 + i
    return len(items), Int64(s).value


def examples(bound: Any) -> list[int]:
    if isinstance(bound, int):
        return [bound]
    near = (bound.max, bound.max - 2, bound.min, bound.min + 1, bound.max // 2, -7, -2, 0, 1, 5, 100)
    return [v for v in near if bound.min <= v <= bound.max]


def check(start: Any, stop: Any, step: Any) -> None:
    short, whole = loop(start, stop, step), loop(start, stop, step, "")
    known = [isinstance(b, int) for b in (start, stop, step)]
    choices = list(itertools.product(*map(examples, (start, stop, step))))
    for values in choices[:: max(1, len(choices) // 40)]:
        if values[2] == 0:
            continue
        r = range(*values)
        given = [v for v, k in zip(values, known, strict=True) if not k]
        expected = folded(r)
        assert tuple(int(x) for x in short(*given)) == expected, r
        if expected[0] > MOST:
            continue
        try:
            found = whole(*given)
        except OverflowError:  # a signed counter with a known step
            assert known[2] and values[2] > 1 and r[-1] + values[2] > Int32.max
        else:
            assert tuple(int(x) for x in found) == expected, r


@pytest.mark.quick(4)
@pytest.mark.parametrize("start", TYPES, ids=lambda t: t.__name__)
def test_mixed_types(start):
    for number, stop in enumerate(TYPES):
        check(start, stop, STEPS[(number + TYPES.index(start)) % len(STEPS)])


@pytest.mark.parametrize("step", STEPS, ids=lambda t: str(getattr(t, "__name__", t)))
def test_steps(step):
    number = STEPS.index(step)
    check(TYPES[number % len(TYPES)], TYPES[number % len(TYPES)], step)
    check((0, -3, 7, 2**32)[number % 4], TYPES[(number + 1) % len(TYPES)], step)
    check(TYPES[(number + 4) % len(TYPES)], (0, -1, 2**31, 10)[number % 4], step)


def test_known_bounds_next_to_the_end_of_a_type():
    @cute.jit
    def count():
        k = Int32(0)
        for _ in range(2**31 - 250, 2**31 - 1, 100):
            k += 1
        for _ in range(-(2**31) + 250, -(2**31), -100):
            k += 10
        return k

    assert count() == 33


@cute.jit
def strides(a: Int32, b: Int32):
    k = Int32(0)
    for _ in range(a, b, 100):
        k += 1
    return k


@cute.kernel
def strides_in_a_kernel(a: Int32, b: Int32, out: cute.Tensor):
    for _ in range(a, b, 100):
        out[0] += 1


@cute.jit
def launch(a: Int32, b: Int32, out: cute.Tensor):
    strides_in_a_kernel(a, b, out).launch(grid=1, block=1)


def test_a_known_step_that_passes_the_end_of_the_type():
    """Plain loops add the step after the last item, too: that it overflows is told before the first one."""
    last = 2**31 - 1
    for a, b in ((last - 250, last), (last - 1, last), (last - 50, last - 40), (-last, last)):
        r = range(a, b, 100)
        out = np.zeros(1, np.int32)
        for call in (lambda: strides(a, b), lambda: launch(a, b, out)):
            if r[-1] + 100 > last:
                with pytest.raises(
                    OverflowError, match="a range with the step 100 passes the largest integer of 32 bits"
                ) as caught:
                    call()
                assert "range(a, b, 100)" in str(caught.value)
            elif len(r) < 1000:
                assert call() in (len(r), None)
    for a, b in ((last - 300, last - 100), (last, last), (last, 0), (last - 100, last - 99), (0, 250)):
        out = np.zeros(1, np.int32)
        launch(a, b, out)
        assert strides(a, b) == out[0] == len(range(a, b, 100))


def test_item_types():
    """Items have the common type of bounds and step where that has them all, as two numbers do; else the smallest that does."""
    found = []

    @cute.jit
    def program(i8: Int8, i32: Int32, i64: Int64, u8: Uint8, u32: Uint32, u64: Uint64, t: cute.Tensor):
        for bounds in (
            (0, i8, 1), (0, u8, 1), (i32, i32, 1), (0, u32, 1), (i32, i64, 1), (u32, i64, 1), (0, u32, 2), (0, u64, 1),
            (i32, u32, 1), (i64, u64, 1), (i32, i32, u32), (u32, u32, i32), (-1, u32, 1), (0, u32, -1), (t.shape[0], u32, 1),
        ):  # fmt: skip
            found.append(item_type(*bounds))

    program(1, 1, 1, 1, 1, 1, np.zeros(3, np.float32))
    assert found == [
        Int32, Int32, Int32, Uint32, Int64, Int64, Uint32, Uint64,
        Int64, Int128, Int32, Uint32, Int64, Int64, Uint32,
    ]  # fmt: skip


def test_no_type_for_both_bounds():
    @cute.jit
    def program(a: Int128, b: Uint128):
        k = Int32(0)
        for _ in range(a, b):
            k += 1
        return k

    with pytest.raises(kiln.DSLBaseError, match="no integer type has all values of both"):
        program(-1, 3)


def test_an_item_is_a_multiple_of_what_start_and_step_are() -> None:
    @cute.jit
    def items(n: Int32):
        for i in range(0, n, 64):
            assert (i.divisibility, i.nonneg) == (64, True)
        for i in range(16 * n, 512, 64):
            assert (i.divisibility, i.nonneg) == (16, False)
        for i in range(8, n, 12):
            assert (i.divisibility, i.nonneg) == (4, True)
        for i in range(n, 0, -32):
            assert i.divisibility == 1
        for i in range(n):
            assert (i.divisibility, i.nonneg) == (1, True)

    with kiln.target("cpu"):
        items(3)
