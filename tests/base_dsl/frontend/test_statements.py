"""`match`, `with`, `try`, `assert`, `del`, `import` and other statements: the same results as Python."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from differential import Programs

from kiln import Constexpr, cute, range_constexpr

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


@dataclasses.dataclass
class Shape:
    kind: str
    size: Any


@contextlib.contextmanager
def noted(log):
    log[0] = log[0] + 1
    try:
        yield 5
    finally:
        log[0] = log[0] + 10


# -- match -----------------------------------------------------------------------------------------------------------


@case(0, 1, 2, 3, -1)
def match_values(a):
    match a:
        case 0:
            r = 10
        case 1 | 2:
            r = 20
        case -1:
            r = 30
        case _:
            r = 40
    return r


@case(0, 1, 5)
def match_without_default(a):
    r = 7
    match a:
        case 1:
            r = 8
    return r


@case((0, 0), (1, 9), (5, 2), (5, 0))
def match_capture_and_guard(a, b):
    match a:
        case 0:
            r = 1
        case x if x > b:
            r = x * 10
        case y:
            r = y + 100
    return r


@case(1, 2, 3)
def match_returns(a):
    match a:
        case 1:
            return 100
        case 2:
            return 200
    return 300


@case((4, 2), (4, 9))
def match_in_a_loop_with_jumps(n, k):
    s = 0
    for i in range(n):
        match i:
            case 0:
                continue
            case 3 if k > 5:
                break
            case _:
                s += i
        s += 100
    return s


@case(3, 4)
def match_static_sequence(a):
    match ("pair", a, 2):
        case ("single", x):
            r = x
        case ("pair", x, y):
            r = x * y
        case _:
            r = 0
    return r


@case(3, 4)
def match_static_class(a):
    match Shape("square", a):
        case Shape(kind="circle", size=s):
            r = s
        case Shape(kind="square", size=s):
            r = s * s
    return r


@case(3, 4)
def match_static_mapping_and_star(a):
    match {"op": "add", "args": [a, 1, 2]}:
        case {"op": "mul"}:
            r = 0
        case {"op": "add", "args": [first, *rest]}:
            r = first + sum(rest)
    return r


@case(3, 4)
def match_strings(a):
    mode = "fast"
    match mode:
        case "slow":
            a = a.nothing
        case "fast" | "quick":
            a += 1
    return a


@case(3, 4)
def match_none_and_true(a):
    r = 0
    for v in (None, True, 5):
        match v:
            case None:
                r += 1
            case True:
                r += 10
            case _:
                r += 100 * a
    return r


@case((1, 1), (2, 1), (2, 5))
def match_nested(a, b):
    match a:
        case 1:
            match b:
                case 1:
                    r = 11
                case _:
                    r = 12
        case _:
            r = 20 + b
    return r


# -- with and try ----------------------------------------------------------------------------------------------------


@case(0, 3)
def with_statement(a):
    log = [0]
    with noted(log) as five:
        a += five
    return a, log[0]


@case(0, 3)
def with_and_dynamic_control_flow(a):
    log = [0]
    with noted(log), contextlib.nullcontext(2) as two:
        if a > 1:
            a = a * two
        for i in range(a):
            a += i
    return a, log[0]


@case(0, 3)
def return_inside_with(a):
    log = [0]
    with noted(log):
        if a > 1:
            return a * 100
        a += 1
    return a + log[0]


@case((0, 5), (3, 5), (9, 2))
def break_inside_with_inside_a_loop(a, n):
    s = 0
    for i in range(n):
        with contextlib.nullcontext():
            if i == a:
                break
            s += i
        s += 10
    return s


@case((3, 1), (1, 3), (3, 0))
def read_by_finally_after_return(a, b):
    w = 3
    try:
        if a > b:
            w = 4
        return a
    finally:
        if b == 0:
            a = w


@case((3, 1), (1, 3))
def read_behind_a_caught_raise(a, b):
    w = 3
    try:
        if a > b:
            w = 4
        raise KeyError
    except KeyError:
        pass
    return a + w


@case(0, 3)
def try_finally(a):
    r = 0
    try:
        if a > 1:
            r = 5
    finally:
        r += 1
    return r


@case(0, 3)
def return_inside_try(a):
    log = [0]
    try:
        if a > 1:
            return a + 50
        a += 1
    finally:
        log[0] = 1
    return a + log[0]


@case(0, 3)
def exceptions_of_python_itself(a):
    d = {"x": a}
    try:
        r = d["y"]
    except KeyError:
        r = d["x"] + 1
    else:
        r = -1
    try:
        raise ValueError("static")
    except ValueError as e:
        r += len(str(e))
    return r


@case((0, 4), (2, 4))
def try_else_is_skipped_by_a_jump(a, n):
    s = 0
    for i in range(n):
        try:
            if i == a:
                continue
        except KeyError:
            pass
        else:
            s += 100
        s += 1
    return s


# -- others ----------------------------------------------------------------------------------------------------------


@case(1, 5)
def assert_that_holds(a):
    assert a > 0, f"a is {a}"
    assert len("x") == 1
    return a


@case(1, 5)
def delete_names_and_entries(a):
    b = a + 1
    c = b
    del b
    d = {"x": c, "y": 1}
    del d["y"]
    return sum(d.values())


@case(1, 5)
def imports_inside(a):
    import math
    from operator import add as plus

    return plus(a, math.floor(2.5))


@case(1, 5)
def classes_inside(a):
    class Local:
        factor = 3

        def __init__(self, v):
            self.v = v

        def get(self):
            return self.v * self.factor

    r = 0
    if a > 2:
        r = Local(a).get()
    return r


@case(1, 5)
def docstring_and_pass(a):
    """A docstring stays one."""
    pass
    return a


@case((1, 5), (5, 1))
def chained_assignment_through_attributes(a, b):
    s = Shape("s", a)
    s.size, b = b, s.size
    if a > b:
        s.size += 1
    return s.size * 10 + b


@case(2)
def global_name_is_read(a):
    return a + len(PROGRAM_NAME)


PROGRAM_NAME = "statements"


@case(3, 6)
def ellipsis_and_constants(a):
    x = ...
    return a if x is ... else 0


def test_constexpr_annotation_on_a_variable():
    @cute.jit
    def f(n):
        width: Constexpr = 4
        s = 0
        for i in range(n):
            for j in range_constexpr(width):
                s += i * j
        return s

    assert f(3) == sum(i * j for i in range(3) for j in range(4))


def test_a_failing_assert_raises_when_the_program_runs():
    @cute.jit
    def f(a):
        assert a > 0, "a must be positive"
        return a

    assert f(3) == 3
    with pytest.raises(Exception, match="a must be positive"):
        f(-1)


def test_a_failing_static_assert_raises_while_tracing():
    @cute.jit
    def f(a):
        width = 3
        assert width % 2 == 0, f"width {width} is odd"
        return a

    with pytest.raises(AssertionError, match="width 3 is odd"):
        f(1)
