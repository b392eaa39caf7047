"""Two objects under one name, chosen when the program runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Boolean, Int32, cute


class Box:
    """A number that can be changed."""

    def __init__(self, v: Any) -> None:
        self.v = v

    def bump(self) -> None:
        self.v = self.v + 1


class Fixed(Box):
    """One that says that its attributes stay inside branches and loops; here they change outside."""

    __kiln_fixed__ = True


def run(function: Any) -> list[list[int]]:
    """What a program writes, for both values of its condition."""
    found: list[list[int]] = []
    for c in (True, False):
        out = np.zeros(3, np.int32)
        cute.jit(function)(c, out)
        found.append(out.tolist())
    return found


def by_statement(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a
    if c:
        s = b
    s.v = Int32(10)
    out[0], out[1] = a.v, b.v


def by_expression(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    s.bump()
    out[0] = a.v


def by_list(c: Boolean, out: cute.Tensor):
    a, b = [Int32(1)], [Int32(2)]
    s = a if c else b
    s[0] = Int32(5)
    out[0] = b[0]


def in_a_branch(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    if out[0] == 0:
        s.v = Int32(3)
    out[0] = b.v


def in_a_loop(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a
    if c:
        s = b
    for _ in range(out[0] + 3):
        s.v += 1
    out[0] = a.v


@cute.jit
def change(a: Any, b: Any, c: Boolean):
    s = a if c else b
    s.v = Int32(7)


def by_a_caller(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    change(a, b, c)
    out[0] = a.v


def inside_another(c: Boolean, out: cute.Tensor):
    outer = Box(Box(Int32(1)))
    other = Box(Int32(2))
    s = outer.v if c else other
    s.v = Int32(9)
    out[0] = outer.v.v


def fixed_by_statement(c: Boolean, out: cute.Tensor):
    a, b = Fixed(Int32(1)), Fixed(Int32(2))
    if c:
        s = a
    else:
        s = b
    s.v = s.v + 1
    out[0], out[1] = a.v, b.v


def fixed_by_expression(c: Boolean, out: cute.Tensor):
    a, b = Fixed(Int32(1)), Fixed(Int32(2))
    s = a if c else b
    s.bump()
    out[0] = a.v


def fixed_inside_another(c: Boolean, out: cute.Tensor):
    a, b = Box(Fixed(Int32(1))), Box(Fixed(Int32(2)))
    s = a
    if c:
        s = b
    s.v.bump()
    out[0] = a.v.v


def fixed_in_a_list(c: Boolean, out: cute.Tensor):
    items = [Fixed(Int32(1)), Fixed(Int32(2))]
    if c:
        s = items[0]
    else:
        s = items[1]
    s.bump()
    out[0] = items[0].v


def new_attribute(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    s.w = 7
    out[0] = getattr(a, "w", 0)


def longer_list(c: Boolean, out: cute.Tensor):
    a, b = Box([Int32(1)]), Box([Int32(2)])
    s = a if c else b
    s.v.append(Int32(3))
    out[0] = len(b.v)


def shorter_list(c: Boolean, out: cute.Tensor):
    a, b = [Int32(1), Int32(2)], [Int32(3), Int32(4)]
    s = a if c else b
    s.pop()
    out[0] = a[-1]


REFUSED = [new_attribute, longer_list, shorter_list]
REFUSED += [by_statement, by_expression, by_list, in_a_branch, in_a_loop, by_a_caller, inside_another]
REFUSED += [fixed_by_statement, fixed_by_expression, fixed_inside_another, fixed_in_a_list]


@pytest.mark.parametrize("program", REFUSED, ids=lambda f: f.__name__)
def test_a_change_that_the_chosen_object_would_not_see(program: Any):
    with pytest.raises(kiln.DSLUserCodeError, match="one of two objects here.*changed afterwards"):
        run(program)


def reading(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    total = Int32(0)
    for i in range(out[0] + 2):
        total += s.v + i
    out[0], out[1], out[2] = a.v, b.v, total


def nobody_else(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    s.bump()
    if out[0] == 0:
        s.bump()
    out[0] = s.v


def new_objects(c: Boolean, out: cute.Tensor):
    other = Box(Int32(5))
    if c:
        s = Box(other.v)
    else:
        s = Box(Int32(2))
    s.v += 1
    out[0], out[1] = s.v, other.v


def the_same_object(c: Boolean, out: cute.Tensor):
    a = Box(Int32(1))
    s = a
    if c:
        s = a
        a.v = Int32(4)
    s.v += 1
    out[0], out[1] = a.v, s.v


def fixed_assigned_what_it_holds(c: Boolean, out: cute.Tensor):
    a, b = Fixed((1, Int32(1))), Fixed((1, Int32(2)))
    s = a if c else b
    s.v = (1, s.v[1])
    out[0], out[1], out[2] = a.v[1], b.v[1], s.v[1]


def fixed_nobody_else(c: Boolean, out: cute.Tensor):
    a, b = Fixed(Int32(1)), Fixed(Int32(2))
    s = a if c else b
    s.bump()
    out[0] = s.v


def rebound(c: Boolean, out: cute.Tensor):
    a, b = Box(Int32(1)), Box(Int32(2))
    s = a if c else b
    s = Box(s.v)
    s.v = Int32(8)
    out[0], out[1], out[2] = a.v, b.v, s.v


ALLOWED = {
    reading: [[1, 2, 3], [1, 2, 5]],
    nobody_else: [[3, 0, 0], [4, 0, 0]],
    new_objects: [[6, 5, 0], [3, 5, 0]],
    the_same_object: [[5, 5, 0], [2, 2, 0]],
    fixed_assigned_what_it_holds: [[1, 2, 1], [1, 2, 2]],
    fixed_nobody_else: [[2, 0, 0], [3, 0, 0]],
    rebound: [[1, 2, 8], [1, 2, 8]],
}


@pytest.mark.parametrize("program", ALLOWED, ids=lambda f: f.__name__)
def test_what_is_right_stays(program: Any):
    assert run(program) == ALLOWED[program]


def test_a_loop_that_passes_a_tuple_on_keeps_its_objects():
    """A function takes a tuple of objects, changes them, and returns a new tuple of the same: around a loop, they are one object each."""

    @cute.jit
    def step(boxes: tuple, out: cute.Tensor):
        first, second = boxes
        first.bump()
        out[first.v] = 1
        return first, second

    @cute.jit
    def pair(boxes: tuple, out: cute.Tensor):
        for _ in range(Int32(2)):
            boxes = step(boxes, out)
        return boxes

    @cute.jit
    def passed_on(n: Int32, out: cute.Tensor):
        a, b = Box(Int32(0)), Box(Int32(10))
        for _ in range(n):
            a, b = pair((a, b), out)
        a.bump()
        out[0], out[1] = a.v, b.v

    out = np.zeros(16, np.int32)
    passed_on(3, out)
    assert out.tolist() == [7, 10, 1, 1, 1, 1, 1, *[0] * 9]
