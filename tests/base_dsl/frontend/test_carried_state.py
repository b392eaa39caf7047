"""What regions change is carried out of them: variables, structures and objects, changed at any call depth."""

from __future__ import annotations

import dataclasses
import functools
import types
from typing import Any, NamedTuple

import pytest
from differential import Programs, check_text

from kiln import Float32, Int32, range_constexpr
from kiln.base_dsl.frontend.carry import Snapshot
from kiln.base_dsl.frontend.rewriter import rewrite

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class State:
    index: Any
    phase: Any = 0

    def advance(self, count=4):
        self.index += 1
        if dynamic_equal(self.index, count):
            self.index = 0
            self.phase ^= 1

    def step(self):
        self._go(2)

    def _go(self, by):
        self.index = self.index + by


def dynamic_equal(a, b):
    return bool(a == b) if isinstance(a, int) else False


class Private:
    __slots__ = ("__count",)

    def __init__(self):
        self.__count = 0

    def add(self, by):
        self.__count += by

    def count(self):
        return self.__count


@dataclasses.dataclass(frozen=True)
class Frozen:
    lo: Any
    hi: Any

    def grown(self, by):
        return dataclasses.replace(self, hi=self.hi + by)

    @functools.cached_property
    def sum(self):
        return self.lo + self.hi


class Fixed(Frozen):
    __kiln_fixed__ = True


class Counter:
    kind = "counter"

    def __init__(self, n):
        self.n = n
        self.parts = [n, 0]
        self.inner = types.SimpleNamespace(depth=0)

    def hit(self):
        self.n = self.n + 1
        self.inner.depth += self.n
        return self

    def deep(self, levels):
        if levels == 0:
            return self.hit()
        return self.deep(levels - 1)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        self.a = a
        self.b = b


class Operators:
    def __init__(self, v):
        self.v = v

    def __iadd__(self, other):
        self.v = self.v + other
        return self

    def __add__(self, other):
        return Operators(self.v + other)


@case(0, 1, 3)
def private_slots(n):
    held = Private()
    for i in range(n):
        held.add(i + 1)
    return held.count()


@case(0, 1, 3)
def functions_with_some_arguments(n):
    state, other = State(0), Private()
    step, add = functools.partial(State._go, state, by=2), functools.partial(functools.partial(other.add), 3)
    for _ in range(n):
        step()
        add()
    if n > 2:
        step()
    return state.index, other.count()


@case((1, 5), (4, 5))
def tuple_in_a_branch(a, b):
    t = (a, b, 7)
    if a > 2:
        t = (b, t[0], t[2] + 1)
    return t


@case(0, 4)
def tuple_in_a_loop(n):
    t = (0, (1, 2))
    for i in range(n):
        t = (t[1][0] + i, (t[1][1], t[0]))
    return t


@case((1, 5), (4, 5))
def named_tuple(a, b):
    p = Point(a, b)
    if a > 2:
        p = Point(p.y, p.x)
    for i in range(b):
        p = p._replace(x=p.x + i)
    return p.x, p.y


@case(0, 3, 9)
def dataclass_changed_by_a_method(n):
    s = State(0)
    for _ in range(n):
        s.step()
    return s.index, s.phase


@case(0, 3, 9)
def dataclass_field_assigned(n):
    s = State(n, 5)
    if n > 2:
        s.index = 1
        s.phase += n
    return s


@case((0, 0), (3, 1), (5, 9))
def what_an_object_whose_attributes_stay_holds(n, k):
    lists, numbers = Fixed([n, k], 0), Fixed(n, k)
    if n > 2:
        lists.lo[0] = lists.lo[0] + numbers.sum
    for i in range(n):
        lists.lo[1] = lists.lo[1] + numbers.sum + i
    return lists.lo[0], lists.lo[1], numbers.sum


@case(0, 3)
def frozen_dataclass_rebound(n):
    f = Frozen(0, 1)
    for i in range(n):
        f = f.grown(i)
    return f.lo, f.hi


@case(0, 3)
def simple_namespace(n):
    s = types.SimpleNamespace(a=1, b=n)
    for i in range(n):
        s.a = s.a + s.b
        if i == 1:
            s.b = 100
    return s.a, s.b


@case(0, 3)
def plain_instance_changed_deep_in_calls(n):
    c = Counter(n)
    for _ in range(n):
        c.deep(3)
    if n > 1:
        c.deep(1)
    return c.n, c.inner.depth


@case(0, 3)
def attribute_of_an_attribute(n):
    c = Counter(0)
    while n > 0:
        n -= 1
        c.inner.depth += n
    return c.inner.depth


@case(0, 3)
def object_with_slots(n):
    s = Slotted(n, 2)
    for i in range(n):
        s.a, s.b = s.b, s.a + i
    return s.a, s.b


@case(0, 3)
def list_elements(n):
    row = [n, 0, 0]
    for i in range(n):
        row[1] += i
        row[2] = row[1] * 2
    if n > 1:
        row[0] = -1
    return row


@case(0, 3)
def list_elements_by_a_static_index(n):
    acc = [0] * 4
    for i in range(n):
        for j in range_constexpr(4):
            acc[j] += i * j
    return acc


@case(0, 3)
def nested_lists(n):
    m = [[0, 1], [2, 3]]
    for i in range(n):
        m[1][0] += i
        m[0][1] = m[1][0]
    return m


@case(0, 3)
def dict_entries(n):
    d = {"a": 0, "b": (1, 2)}
    for i in range(n):
        d["a"] += i
    if n > 1:
        d["b"] = (d["a"], 5)
    return d["a"], d["b"][0], d["b"][1]


@case(0, 3)
def list_attribute(n):
    c = Counter(n)
    for i in range(n):
        c.parts[1] = c.parts[1] + i
    return c.parts


@case(0, 3)
def objects_created_inside_are_free(n):
    s = 0
    for i in range(n):
        c = Counter(i)
        c.hit()
        extra = [i, i]
        extra.append(c.n)
        s += sum(extra)
    return s


@case(0, 3)
def containers_created_inside_a_branch(n):
    total = 0
    if n > 1:
        items = []
        for i in range_constexpr(3):
            items.append(n * i)
        lookup = {"k": items[1]}
        lookup["more"] = items[2]
        total = lookup["k"] + lookup["more"]
    return total


@case((0, 1), (3, 1))
def object_rebound_in_one_arm_and_changed_in_the_other(a, b):
    c = State(a, b)
    if a > 2:
        c = State(b, a)
    else:
        c.index += 10
    return c.index, c.phase


@case((0, 1), (3, 1))
def two_names_for_one_object(a, b):
    c = State(a, b)
    alias = c
    if a > 2:
        c.index += 5
    for _ in range(a):
        alias.phase += 1
    return c.index, c.phase, alias.index, alias.phase


@case(0, 3)
def in_place_operator_keeps_identity(n):
    o = Operators(1)
    alias = o
    for i in range(n):
        o += i
    return o.v, alias.v


@case(0, 3)
def operator_makes_a_new_object(n):
    o = Operators(n)
    alias = o
    for i in range(n):
        o = o + i
    return o.v, alias.v


@case(0, 4)
def attribute_added_in_both_arms(n):
    s = types.SimpleNamespace(a=1)
    if n > 2:
        s.extra = n
    else:
        s.extra = 7
    return s.extra + s.a


@case(0, 4)
def objects_in_a_tuple(n):
    a, b = State(0), State(1)
    both = (a, b)
    for i in range(n):
        both[0].index += i
        both[1].phase += 2
    return a.index, b.phase


@case(0, 4)
def object_returned_from_a_branch(n):
    if n > 2:
        return State(n, 1)
    return State(0, n)


@case(0, 4)
def lambda_over_an_object(n):
    s = State(0)
    bump = lambda by: setattr(s, "index", s.index + by)
    s.index = Int32(0)
    for i in range(n):
        bump(i)
    return s.index


@case((0, 0), (3, 4), (5, 0))
def state_across_break_and_continue(n, k):
    s = State(0, 0)
    for i in range(n):
        s.index += 1
        if i == k:
            continue
        s.phase += 10
        if s.phase > 25:
            s.index = 100
            break
    return s.index, s.phase


@case((0, 0), (3, 4), (5, 2))
def state_across_an_early_return(n, k):
    s = State(n, 0)
    for i in range(n):
        s.index += i
        if i == k:
            s.phase = 9
            return s.index, s.phase
    return s.index, s.phase


@case(0, 4)
def float_state(n):
    s = State(Float32(0.0), Float32(1.0))
    for _ in range(n):
        s.index = s.index + s.phase
        s.phase = s.phase * 0.5
    return s.index, s.phase


def test_self_in_a_method():
    check_text(
        """
        class Machine:
            scale = 3

            def __init__(self, n):
                self.n = n
                self.log = 0

            @jit
            def run(self, k):
                while self.n < k:
                    self.tick()
                    if self.n % 5 == 0:
                        self.log += 1
                return self.n * 100 + self.log

            @jit
            def tick(self):
                if self.n > 3:
                    self.n += self.scale
                else:
                    self.n += 1

        @jit
        def f(a, b):
            m = Machine(a)
            return m.run(b)
        """,
        (0, 0), (0, 20), (4, 9),
    )  # fmt: skip


def test_object_changed_by_an_inlined_jit_function():
    check_text(
        """
        class Acc:
            def __init__(self):
                self.total = 0
                self.count = 0

        @jit
        def add(acc, v):
            if v < 0:
                return
            acc.total += v
            acc.count += 1

        @jit
        def f(a, b):
            acc = Acc()
            for i in range(a, b):
                add(acc, i)
            return acc.total, acc.count
        """,
        (-3, 4), (0, 0), (2, 5),
    )  # fmt: skip


def test_object_of_a_module():
    check_text(
        """
        class Box:
            pass

        @jit
        def f(a):
            shared = Box()
            shared.v = a
            def bump():
                shared.v += 1
            for _ in range(a):
                bump()
            return shared.v
        """,
        (0,), (4,),
    )  # fmt: skip


def test_records_of_the_front_end_are_not_looked_at():
    """Functions that a rewritten function defines lead to them: 2,400 places for each loop of attention."""

    def outer(n):
        def inner(x):
            return x + n if x > n else x

        return inner

    def found(function):
        return {slot.path for slot in Snapshot([("f", function)]).slots}

    made = rewrite(outer)([1])
    assert "__kiln__" in made.__code__.co_freevars
    assert found(made) == {"n[0]"}


def test_object_with_the_value_protocols():
    check_text(
        """
        class Pair:
            def __init__(self, a, b):
                self.a, self.b = a, b
            def __extract_mlir_values__(self):
                return [kiln.Int32(self.a).ir_value(), kiln.Int32(self.b).ir_value()]
            def __new_from_mlir_values__(self, values):
                return Pair(kiln.Int32._make(values[0]), kiln.Int32._make(values[1]))
            def turn(self):
                self.a, self.b = self.b, self.a + 1

        @jit
        def f(n, k):
            p = Pair(kiln.Int32(1), kiln.Int32(n))
            for i in range(n):
                p.turn()
                if i == k:
                    p = Pair(p.a + 100, p.b)
            if n > 2:
                p.turn()
            return p.a + 0, p.b + 0
        """,
        (0, 0), (3, 1), (5, 9),
    )  # fmt: skip
