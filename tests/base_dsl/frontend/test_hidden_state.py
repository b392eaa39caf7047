# pyright: reportArgumentType=false, reportFunctionMemberAccess=false, reportPrivateUsage=false, reportOptionalSubscript=false
"""What Python code reads and changes inside dynamic control flow is carried, the same on every path, or refused with its name."""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import functools
import io
import itertools
import logging
import os
import queue
import random
import sys
import tempfile
import types
import weakref

import numpy as np
import pytest
from differential import Programs

from kiln import DSLBaseError, Float32, Int32, cute

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


REFUSED: list = []


def refused(*words: str):
    """Decorator: a function of one Int32 is refused inside its own source, and the error has these words."""

    def add(function):
        REFUSED.append(pytest.param(function, words, id=function.__name__))
        return function

    return add


@pytest.mark.parametrize(("function", "words"), REFUSED)
def test_refused_with_line_and_name(function, words):
    with pytest.raises(DSLBaseError) as caught:
        cute.jit(function)(Int32(3))
    failure = caught.value
    for word in words:
        assert word in str(failure), failure
    assert failure.hint
    assert failure.span is not None
    assert failure.span.filename == __file__
    code = globals().get(failure.span.function, function)
    code = getattr(code, "function", code).__code__
    assert code.co_firstlineno <= failure.span.line <= max(line for *_, line in code.co_lines() if line)


# -- state of modules, classes and functions -------------------------------------------------------------------------

TOTALS = [0, 0]
LIMIT = 0
LINE = queue.Queue()
NAMES = collections.UserList([0])
CHOSEN = contextvars.ContextVar("CHOSEN", default=0)
MODULE = types.ModuleType("settings_of_a_test")
MODULE.depth = 0


def note(by):
    TOTALS[0] = TOTALS[0] + by
    return TOTALS[0]


def raise_limit():
    global LIMIT
    LIMIT = LIMIT + 1
    return LIMIT


def count_calls():
    count_calls.calls = count_calls.calls + 1


count_calls.calls = 0


def collect(by, store=[0]):  # noqa: B006
    store[0] = store[0] + by
    return store[0]


def counter():
    count = 0

    def add(by):
        nonlocal count
        count = count + by
        return count

    return add


class Shared:
    made = 0

    @classmethod
    def make(cls):
        cls.made += 1


@case(0, 1, 4)
def list_of_a_module_through_a_helper(n):
    TOTALS[0] = 0
    for i in range(n):
        note(i + 1)
    return TOTALS[0]


@case(0, 3)
def list_of_a_module_in_a_branch(n):
    TOTALS[0] = 0
    if n > 1:
        note(7)
    return TOTALS[0]


@case(0, 3)
def mutable_default(n):
    collect.__defaults__[0][0] = 0
    if n > 1:
        collect(5)
    return collect(0)


@case(0, 3)
def closure_of_a_factory(n):
    add = counter()
    for i in range(n):
        add(i)
    return add(0)


@case(0, 3)
def nonlocal_in_parts_of_expressions(n):
    count = 0

    def step(x):
        nonlocal count
        count = count + x
        return x > 0

    r = step(2) if n > 1 else step(30)
    s = n > 2 and step(400)
    t = 0 < n < (step(5000) + 2)
    return count, r, s, t


@case(0, 3)
def helper_in_a_chain_in_a_part_of_an_expression(n):
    TOTALS[0] = 0
    return n > 2 or 1 < 2 <= note(5), TOTALS[0]


@refused("LIMIT", "changes inside")
def global_of_a_helper(n):
    if n > 1:
        raise_limit()
    return LIMIT


@refused("calls", "changes inside")
def attribute_of_a_function(n):
    for _ in range(n):
        count_calls()
    return count_calls.calls


@refused("made", "changes inside")
def attribute_of_a_class(n):
    for _ in range(n):
        Shared.make()
    return Shared.made


@refused("depth", "changes inside")
def attribute_of_a_module(n):
    if n > 1:
        MODULE.depth = 5
    return MODULE.depth


@refused("new_name", "changes inside")
def globals_as_a_dict(n):
    if n > 1:
        globals()["new_name"] = 5
    return globals().get("new_name", 0)


@refused("CHOSEN", "changes inside")
def context_variable(n):
    if n > 1:
        CHOSEN.set(4)
    return CHOSEN.get()


@refused("os.environ", "changes inside")
def environment(n):
    if n > 1:
        os.environ["KILN_TEST_OF_REGIONS"] = "1"
    return 1


@refused("random", "changes inside")
def hidden_generator_of_random_numbers(n):
    s = 0
    for _ in range(n):
        s += random.randrange(4)
    return s


# -- containers and iterators that only Python knows -----------------------------------------------------------------


@refused("row changes inside", "deque")
def rotated_deque(n):
    row = collections.deque([1, 2, 3])
    for _ in range(n):
        row.rotate(1)
    return row[0]


@refused("row changes inside", "bytearray")
def changed_bytearray(n):
    row = bytearray(2)
    if n > 1:
        row[0] = 7
    return row[0]


@refused("row changes inside", "array")
def changed_array(n):
    row = array.array("i", [0])
    for _ in range(n):
        row[0] += 1
    return row[0]


@refused("row changes inside", "ndarray")
def changed_numpy_array(n):
    row = np.zeros(2, np.int64)
    if n > 1:
        row[0] = 7
    return int(row[0])


@refused("row changes inside")
def changed_ctypes_array(n):
    row = (ctypes.c_int * 2)()
    for _ in range(n):
        row[1] += 1
    return row[1]


@refused("items changes inside")
def next_of_an_iterator(n):
    items, s = iter([1, 2, 3, 4]), 0
    for _ in range(n):
        s += next(items)
    return s


@refused("items may change inside", "generator")
def next_of_a_generator(n):
    items, s = (x * 10 for x in (1, 2, 3)), 0
    if n > 1:
        s = next(items)
    return s + next(items)


def handed_on():
    yield from (1, 2, 3, 4, 5)


@refused("items may change inside", "generator")
def next_of_a_generator_whose_frame_stays_the_same(n):
    items, s = handed_on(), 0
    s += next(items)
    for _ in range(n):
        s += next(items)
    return s


@refused("pairs may change inside", "combinations")
def next_of_combinations(n):
    pairs, s = itertools.combinations((1, 2, 3, 4), 2), 0
    for _ in range(n):
        s += next(pairs)[1]
    return s


@refused("ids changes inside", "count")
def next_of_a_count_of_dynamic_numbers(n):
    ids, s = itertools.count(n, n), 0
    for _ in range(n):
        s += next(ids)
    return s


@refused("ids changes inside", "count")
def next_of_a_count(n):
    ids, s = itertools.count(5), 0
    for _ in range(n):
        s += next(ids)
    return s


@refused("text changes inside", "StringIO")
def written_text(n):
    text = io.StringIO()
    if n > 1:
        text.write("x")
    return len(text.getvalue())


@refused("log changes inside", "TextIOWrapper")
def written_file(n):
    with tempfile.TemporaryFile("w+") as log:
        for _ in range(n):
            log.write("x")
        return n


@refused("dice changes inside", "Random")
def drawn_number(n):
    dice, s = random.Random(1), 0
    for _ in range(n):
        s += dice.randrange(6)
    return s


@refused("line may change inside", "SimpleQueue")
def filled_simple_queue(n):
    line = queue.SimpleQueue()
    for _ in range(n):
        line.put(1)
    return line.qsize()


@refused("LINE", "changes")
def filled_queue_of_a_module(n):
    for _ in range(n):
        LINE.put(1)
    return LINE.qsize()


@refused("NAMES", "changes")
def grown_list_of_a_library_class(n):
    if n > 1:
        NAMES.append(1)
    return len(NAMES)


@refused("'seen' changes its keys")
def grown_set(n):
    seen = {1}
    for _ in range(n):
        seen.add(len(seen) + 1)
    return len(seen)


@case(3)
def iterators_and_arrays_that_a_region_makes_for_itself(n):
    s = 0
    for i in range(n):
        row = collections.deque([i, 2])
        row.rotate(1)
        items = iter([1, 2, 3])
        s += row[0] + next(items)
    return s


@case(0, 3)
def iterators_and_arrays_that_are_only_read(n):
    row, table, ids, items = collections.deque([1, 2]), np.arange(4), itertools.count(), iter((4, 5))
    out = sys.stdout
    s = next(ids) + next(items)
    for i in range(n):
        print("", end="", file=out)
        s += row[1] + int(table[2]) + i
        s += (ids is None) + (items is None)
    return s + next(ids) + next(items)


# -- objects -----------------------------------------------------------------------------------------------------


class Counter:
    count = 0
    step = 1

    def add(self, by=1):
        self.count += by * self.step
        return self

    def __iadd__(self, by):
        self.count += by
        return self


class Holder:
    def __init__(self, inner):
        self.inner = inner


class Side:
    def __init__(self, count):
        self.count = count

    def add(self, by):
        self.count += by


class Meter:
    def __init__(self):
        self.reads = 0

    @property
    def counted(self):
        self.reads = self.reads + 1
        return self.reads

    def __gt__(self, other):
        self.reads = self.reads + 10
        return other > 0


@case(0, 1, 5)
def default_of_the_class_body(n):
    a, b = Counter(), Counter()
    for i in range(n):
        a.add(i)
    if n > 3:
        b.step = 4
    b.add()
    return a.count, b.count, a.step


@case(0, 1, 5)
def counter_two_references_away(n):
    h = Holder(Holder(Counter()))
    for i in range(n):
        if i > 1:
            h.inner.inner.add(i)
    return h.inner.inner.count


@case(0, 1, 5)
def counter_thirty_references_away(n):
    last = top = Holder(None)
    for _ in (1,) * 80:
        last.inner = Holder(None)
        last = last.inner
    last.inner = Counter()
    for i in range(n):
        last.inner.add(i)
    at = top
    while isinstance(at, Holder):
        at = at.inner
    return at.count


@case(0, 1, 5)
def one_object_under_two_names_of_which_one_is_bound_again(n):
    a = b = Counter()
    for i in range(n):
        a = a.add(i)
    while b.count > 4:
        b += -3
    return a.count, b.count


@case(0, 1, 5)
def object_and_list_of_a_loop_that_hold_each_other(n):
    a = Counter()
    row = [a, 5]
    for i in range(n):
        row[0].add(i)
        row[1] = a.count + 1
    return a.count, row[1]


@case(0, 1, 5)
def common_part_of_objects_that_a_loop_makes(n):
    parts = [0, 0]
    state = (0, parts)
    for i in range(n):
        state = (state[0] + 1, parts)
        parts[0] += i
    parts[1] = 9
    return state[0], state[1][0], state[1][1]


@case(0, 3)
def two_objects_of_one_class_are_merged_by_value(n):
    if n > 1:
        c = Counter().add(3)
    else:
        c = Counter().add(20)
    c.add(n)
    return c.count


@case(0, 3)
def two_objects_of_which_one_has_the_default_of_its_class(n):
    if n > 1:
        c = Counter()
    else:
        c = Counter().add(20)
    return c.count


@case(0, 3)
def property_in_a_part_of_an_expression(n):
    m = Meter()
    s = n or m.counted
    t = m.counted if n > 1 else 5
    u = 0 < n < m.counted
    return s, t, u, m.reads


@case(0, 3)
def comparison_that_is_a_method_in_a_chain(n):
    m = Meter()
    return 1 < n < m, m.reads


@refused("'other' is Counter object", "another Counter after an iteration")
def objects_that_a_loop_swaps_and_changes(n):
    swapped, other = Counter(), Counter()
    kept = swapped
    for i in range(n):
        swapped, other = other, swapped
        swapped.add(i)
    return kept.count, other.count


@case((0, 0), (2, 3), (1, 5))
def objects_that_two_loops_swap(n, m):
    a, b = Side(1), Side(4)
    for _ in range(n):
        a, b = b, a
    for i in range(m):
        a, b = b, a
        a.add(i)
    b.add(1)
    return a.count, b.count


@refused("one of two objects", ".count is changed")
def objects_that_two_loops_swap_and_one_has_a_second_name(n):
    a, b = Side(1), Side(1)
    kept = a
    for _ in range(n):
        a, b = b, a
    for _ in range(n):
        a, b = b, a
    a.add(7)
    return a.count, b.count, kept.count


@refused("one of two objects", ".count is changed")
def objects_swapped_and_changed_in_a_later_loop(n):
    a, b = Side(1), Side(1)
    kept = a
    for _ in range(n):
        a, b = b, a
    for i in range(3):
        for _ in range(2):
            a, b = b, a
        a.add(i)
    return a.count, b.count, kept.count


@refused("'b' is Counter object", "another Counter after an iteration")
def object_that_is_changed_before_its_name_goes_to_another(n):
    a, b = Counter(), Counter()
    for _ in range(n):
        b.add(10)
        b = a
        a.add(3)
    return a.count, b.count


@refused("kept.count is changed", "second name")
def object_changed_under_the_name_that_a_loop_does_not_swap(n):
    a, b = Side(1), Side(2)
    kept = a
    for _ in range(n):
        kept.count = 3
        a, b = b, a
    return a.count, b.count


class Faster(Side):
    pass


@refused("a.__class__ changes inside")
def class_of_an_object(n):
    a = Side(1)
    if n > 1:
        a.__class__ = Faster
    return 1 if isinstance(a, Faster) else 2


@refused("row[0] is Counter object", "another Counter after an iteration")
def element_that_stands_for_a_new_object_with_a_second_name(n):
    row = [Counter(), 2]
    kept = row[0]
    for _ in range(n):
        row[0] = Counter().add(row[0].count)
        row[0].add(10)
    return kept.count, row[0].count


@refused("a.last", "may not run at all")
def attribute_gained_in_a_loop(n):
    a = Holder(1)
    for i in range(n):
        a.last = i
    return getattr(a, "last", -1)


@refused("a.last", "one path only")
def attribute_gained_in_a_branch(n):
    a = Holder(1)
    if n > 1:
        a.last = 1
    return 1 if hasattr(a, "last") else 2


class Lazy:
    def __init__(self, n):
        self.n = n
        self.made = 0

    @functools.cached_property
    def doubled(self):
        self.made += 1
        return self.n * 2


@case(0, 3)
def cached_property_filled_before_a_region(n):
    a = Lazy(n)
    s = a.doubled
    if n > 1:
        s += a.doubled
    return s, a.made


@case(0, 3)
def weak_reference_to_a_changed_object(n):
    a = Counter()
    r = weakref.ref(a)
    for i in range(n):
        r().add(i)
    return a.count


class Node:
    def __init__(self, n, link=None):
        self.n = n
        self.link = link


@case(0, 3)
def objects_that_hold_each_other(n):
    head = Node(n)
    head.link = Node(2, head)
    for i in range(n):
        head.link.link.n += i
        head.link.n += 1
    return head.n, head.link.n


@refused("tail.link", "contains itself")
def link_that_a_loop_points_to_its_own_object(n):
    head = Node(n)
    head.link = head
    tail = Node(1, head)
    for _ in range(n):
        tail.link = tail
    return head.n + tail.n


@refused("contains itself")
def chosen_object_that_contains_itself(n):
    x = Node(n)
    x.link = x
    if n > 1:
        x = Node(2)
        x.link = x
    return x.n


CALLS = [0]


@functools.lru_cache(maxsize=None)
def costly(n):
    CALLS[0] += 1
    return n


@functools.lru_cache(maxsize=None)
def doubled(n):
    return n * 2


LOGGER = logging.getLogger("kiln.tests.hidden_state")


@case(0, 3)
def logger_that_caches_its_level(n):
    LOGGER.manager._clear_cache()
    s = 0
    if n > 1:
        LOGGER.debug("a message while tracing")
        s = n * 2
    return s


@refused("the cache of costly", "changes inside")
def cached_function_that_changes_something(n):
    costly.cache_clear()
    CALLS[0] = 0
    if n > 1:
        costly(3)
    return costly(3) + CALLS[0]


@case(0, 3)
def cached_function_that_changes_nothing(n):
    doubled.cache_clear()
    s = 0
    if n > 1:
        s = doubled(3)
    return s + doubled(3)


@refused("the dict 'within' changes its keys")
def key_that_a_loop_removes(n):
    within = {"q": n, "r": 1}
    for _ in range(n):
        within.pop("q", 0)
    return within["r"]


@refused("tail.link is one of two objects", "tail.link.n is changed")
def chosen_link_to_an_object_that_leads_to_both(n):
    head = Node(n)
    tail = Node(1, head)
    head.link = tail
    if n > 1:
        tail.link = tail
    tail.link.n = 5
    return head.n + tail.n


@refused("is changed", "second name")
def objects_that_a_branch_in_a_loop_swaps(n):
    left, right = Side(n), Side(2)
    kept = right
    for i in range(n):
        left.count = 3
        if i > 1:
            left, right = right, left
    return kept.count


METERS = {"m": [1, Side(0).add]}


@case(0, 3)
def condition_that_turns_out_dynamic_late(n):
    METERS["m"][1].__self__.count = n
    found = 0
    while (found := found + 1) < METERS["m"][1].__self__.count % 6:
        pass
    METERS["m"][1].__self__.count = 0
    return found


# -- texts, identity, any and all ------------------------------------------------------------------------------------


@refused("compared")
def text_of_a_number_compared(n):
    return 1 if f"{n}" == "3" else 2


@refused("text")
def text_of_a_number_as_a_key(n):
    return {"3": 1}.get(str(n), 2)


@refused("text")
def length_of_a_text(n):
    return len(str(n))


@refused("`is`")
def identity_of_numbers(n):
    m = n + 1
    return 1 if n is m else 2


@refused("`is`")
def truth_by_identity(n):
    return 1 if (n > 2) is True else 2


@case(0, 3)
def inverted_number_as_a_test(n):
    return 1 if ~n else 2


@case(0, 3)
def any_and_all_stop_at_the_first_that_decides(n):
    a, b = Counter(), Counter()
    found = any(a.add().count > n for _ in (1, 2, 3, 4))
    every = all(b.add().count < n for _ in (1, 2, 3, 4))
    return found, every, a.count, b.count


@case(1, 3)
def message_of_an_assert_is_not_evaluated(n):
    a = Counter()
    assert n > 0, a.add().count
    return a.count


@cute.jit
def chosen_of(a, b, first):
    if first:
        return a
    return b


@refused("the returned value is one of two objects", ".count of one of the two is changed")
def object_that_a_function_chose(n):
    a, b = Counter(), Counter()
    c = chosen_of(a, b, n > 1)
    a.add(5)
    return c.count, b.count


# -- exceptions that leave a region --------------------------------------------------------------------------------

TABLE = {"a": 1}


@refused("KeyError", "raised inside")
def exception_caught_outside_of_a_branch(n):
    r = 1
    try:
        if n > 1:
            r = TABLE["b"]
    except KeyError:
        r = 5
    return r


@refused("KeyError", "raised inside a conditional expression")
def exception_caught_outside_of_an_expression(n):
    r = 1
    try:
        r = TABLE["b"] if n > 1 else 2
    except KeyError:
        r = 5
    return r


@refused("ValueError", "raised inside")
def exception_suppressed_outside_of_a_loop(n):
    r = 1
    with contextlib.suppress(ValueError):
        for i in range(n):
            r += i
            int("x")
    return r


@refused("KeyError", "raised inside")
def handler_that_reads_what_the_region_made(n):
    r = x = 1
    try:
        for i in range(n):
            x = i * 3
            r = TABLE["b"]
    except KeyError:
        r = x + 1
    return r


@case(0, 3)
def exception_caught_inside(n):
    r = 1
    if n > 1:
        try:
            r = TABLE["b"]
        except KeyError:
            r = 5
    return r


def test_a_failed_trace_leaves_state_as_it_was():
    @cute.jit
    def f(n: Int32):
        TOTALS[1] = 0
        if n > 1:
            TOTALS[1] = 5
            raise_limit()
        return TOTALS[1]

    LIMIT_BEFORE = LIMIT
    with pytest.raises(DSLBaseError):
        f(1)
    assert TOTALS[1] in (0, 5)
    assert isinstance(LIMIT, int)
    globals()["LIMIT"] = LIMIT_BEFORE

    @cute.jit
    def g(n: Int32):
        s = 0
        for i in range(n):
            s += i
        return s

    assert g(4) == 6


# -- the same in loops that are traced twice -------------------------------------------------------------------------


@case(0, 2)
def numbers_and_objects_promoted_in_a_second_trace(n):
    a, x = Counter(), 1
    for i in range(n):
        if i > 0:
            x = x * 2
        a.add(x)
    return a.count, x


def test_effects_of_a_loop_traced_twice_happen_once():
    seen = []

    @cute.jit
    def f(n: Int32):
        x, a = 0, Counter()
        for i in range(n):
            seen.append  # noqa: B018
            a.count += x
            x = x + i
        return a.count

    assert f(4) == 4
    assert seen == []


def test_typed_numbers_are_carried_by_identity():
    @cute.jit
    def f(n: Int32):
        a = b = Holder(Float32(1.0))
        for _ in range(n):
            a.inner = a.inner * 2.0
            b = b  # noqa: PLW0127
        return a.inner, b.inner

    assert f(3) == (8.0, 8.0)


def test_line_of_a_refused_change():
    @cute.jit
    def f(n: Int32):
        row = collections.deque([1, 2, 3])
        if n > 1:  # here
            row.rotate(1)
        return row[0]

    with pytest.raises(DSLBaseError) as caught:
        f(1)
    assert caught.value.span is not None
    line = sys._getframe().f_code.co_firstlineno
    assert line < caught.value.span.line < line + 10
