"""Keys of values known while tracing: different values have different keys, and equal ones that are made anew share one."""

from __future__ import annotations

import array
import collections
import ctypes
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import itertools
import operator
import random
import types
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiln import Constexpr, Int32, cute
from kiln.base_dsl.static_key import Met, static_key


class Kept:
    """What weak proxies stand for."""

    def __init__(self, x):
        self.x = x


KEPT = Kept(1), Kept(2)


def scaled(by, x):
    return x * by


class MyInt(int): ...


class MyStr(str): ...


class MyFloat(float): ...


class MyDeque(collections.deque): ...


class MyArray(np.ndarray): ...


class MyTuple(tuple): ...


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_double))


class Flags(enum.IntFlag):
    A = 1


class Private:
    __slots__ = ("__x",)

    def __init__(self, x):
        self.__x = x


class Slotted:
    """A descriptor that keeps what is assigned."""

    def __init__(self):
        self.values = weakref.WeakKeyDictionary()

    def __get__(self, owner, kind):
        return self.values[owner]

    def __set__(self, owner, value):
        self.values[owner] = value


class KeptElsewhere:
    x = Slotted()

    def __init__(self, x):
        self.x = x


class HasEqual:
    """Compares itself by less than its state."""

    def __init__(self, name, x):
        self.name, self.x = name, x

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)


@dataclasses.dataclass(frozen=True)
class Config:
    width: int


def function_in(globals_):
    return types.FunctionType(scaled.__code__, globals_)


ONE, OTHER = {"K": 1}, {"K": 2}

DIFFERENT = {
    "partial": (functools.partial(scaled, 1), functools.partial(scaled, 2)),
    "keywords of a partial": (functools.partial(scaled, by=1), functools.partial(scaled, by=2)),
    "int": (MyInt(1), MyInt(2)),
    "a subclass and its base": (MyInt(1), 1),
    "str": (MyStr("a"), MyStr("b")),
    "float": (MyFloat(1.0), MyFloat(2.0)),
    "the sign of zero": (MyFloat(0.0), MyFloat(-0.0)),
    "the sign of a complex zero": (complex(0.0, 0.0), complex(0.0, -0.0)),
    "the sign of NaN": (float("nan"), -float("nan")),
    "tuple": (MyTuple((1,)), MyTuple((2,))),
    "deque": (MyDeque([1]), MyDeque([2])),
    "the most of a deque": (collections.deque([1], 3), collections.deque([1], 4)),
    "ndarray": (np.arange(3).view(MyArray), np.arange(1, 4).view(MyArray)),
    "large arrays": (np.zeros(5000), np.eye(1, 5000)[0]),
    "ctypes": (Point(1, 2.0), Point(1, 3.0)),
    "exceptions": (ValueError(1), ValueError(2)),
    "random": (random.Random(1), random.Random(2)),
    "globals of a function": (function_in(ONE), function_in(OTHER)),
    "defaults of a function": (lambda x, k=1: x, lambda x, k=2: x),
    "flags without names": (Flags(8), Flags(16)),
    "private slots": (Private(1), Private(2)),
    "what a descriptor keeps": (KeptElsewhere(1), KeptElsewhere(2)),
    "the order of a set": ({0, 8}, {8, 0}),
    "steps of a view of memory": (memoryview(b"abab")[::2], memoryview(b"aa")),
    "getters": (operator.itemgetter(0), operator.itemgetter(1)),
    "views of dictionaries": ({1: 2}.values(), {1: 3}.values()),
    "less than equal": (HasEqual("a", 1), HasEqual("a", 2)),
    "trailing zeros": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "ordered dictionaries": (collections.OrderedDict(a=1, b=2), collections.OrderedDict(b=2, a=1)),
    "factories": (collections.defaultdict(int), collections.defaultdict(list)),
    "type codes": (array.array("i", [1]), array.array("l", [1])),
    "bound methods of builtins": ([1].append, [2].append),
    "unions": (int | str, str | int),
    "unions in aliases": (list[int | str], list[str | int]),
    "texts in memory": (io.StringIO("a"), io.StringIO("b")),
    "places in texts in memory": ((x := io.StringIO("ab"), x.read(1))[0], io.StringIO("ab")),
    "bytes in memory": (io.BytesIO(b"a"), io.BytesIO(b"b")),
    "proxies": (weakref.proxy(KEPT[0]), weakref.proxy(KEPT[1])),
    "sentinels": (object(), object()),
    "widths of numpy's numbers": (np.int32(1), np.int64(1)),
    "a number of numpy's and one of Python's": (np.float64(1), 1.0),
    "layouts": (cute.make_layout((2, 3)), cute.make_layout((3, 2))),
    "one list twice, and two": ((lambda a: [a, a])([1]), [[1], [1]]),
    "which element of a set comes again": (
        (lambda a, b: (frozenset({a, b}), a))(Config(1), Config(2)), (lambda a, b: (frozenset({a, b}), b))(Config(1), Config(2)),
    ),
    "time zones": (
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(2020, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_values_have_different_keys(what):
    a, b = DIFFERENT[what]
    assert static_key(a) != static_key(b)
    assert static_key(a) == static_key(a) and hash(static_key(a)) == hash(static_key(a))


EQUAL = {
    "numbers of numpy's": lambda: np.prod((3, 4)),
    "truth of numpy's": lambda: np.bool_(True),
    "numbers of ml_dtypes": lambda: __import__("ml_dtypes").bfloat16(1.5),
    "arrays": lambda: np.arange(5),
    "partials": lambda: functools.partial(scaled, 2),
    "functions made anew": lambda: lambda x: x + 1,
    "closures": lambda: (lambda k: lambda x: x + k)(3),
    "subclasses": lambda: MyInt(3),
    "data classes": lambda: Config(4),
    "structures": lambda: Point(1, 2.0),
    "enumerations": lambda: Flags(8),
    "layouts": lambda: cute.make_layout((2, 3)),
    "layouts that were hashed": lambda: (x := cute.make_layout((2, 3)), hash(x))[0],
    "containers": lambda: {"a": [1, {2}, collections.deque([3])]},
    "views of dictionaries": lambda: {1: 2}.items(),
    "getters": lambda: operator.attrgetter("x.y"),
    "callers": lambda: operator.methodcaller("x", 1, k=2),
    "dates": lambda: datetime.datetime(2020, 1, 1),
    "unions": lambda: list[int | str],
    "texts in memory": lambda: io.StringIO("a"),
    "proxies": lambda: weakref.proxy(KEPT[0]),
    "bound methods": lambda: [1].append,
    "jit functions": lambda: JIT,
}


@cute.jit
def JIT(a):
    return a


@pytest.mark.parametrize("what", EQUAL)
def test_equal_values_made_anew_share_a_key(what):
    assert static_key(EQUAL[what]()) == static_key(EQUAL[what]())


def test_a_jit_function_keeps_its_key_when_it_is_called():
    before = static_key(JIT)
    JIT(1)
    assert static_key(JIT) == before


def test_objects_in_keys_live_as_long_as_the_key():
    value = type("Opaque", (Exception,), {})()
    alive = weakref.ref(value) if hasattr(type(value), "__weakref__") else None
    key = static_key(value)
    del value
    assert alive is None or alive() is not None
    assert key != static_key(ValueError())


def test_a_class_may_change_its_mind_about_what_equality_is():
    class Meta(type):
        def __eq__(cls, other):
            return True

        def __hash__(cls):
            return 1

    first, second = (Meta(name, (), {"__init__": lambda self: setattr(self, "x", 1)}) for name in "ab")
    assert static_key(first()) != static_key(second())
    assert static_key(first) != static_key(second)


def test_cycles():
    def ring():
        x = [1]
        x.append(x)
        return x

    assert static_key(ring()) == static_key(ring())


def test_what_can_change_in_place_is_noted():
    for value, changeable in (
        ((1, "a"), False),
        (([],), True),
        (Config(1), True),
        (np.int64(1), False),
        (Flags.A, False),
    ):
        met = Met()
        static_key(value, met)
        assert met.changeable is changeable


# --- specializations -------------------------------------------------------------------------------------------------


def test_subclasses_of_int_as_arguments():
    @cute.jit
    def add(a, b):
        return a + b

    assert [add(MyInt(1), 1), add(MyInt(2), 1), add(MyInt(1), 1)] == [2, 3, 2]


def test_numbers_of_numpy_do_not_compile_anew():
    traces = itertools.count()

    @cute.jit
    def f(a: Int32, n: Constexpr):
        next(traces)
        return a * int(n)

    assert [f(1, np.prod((2, k))) for k in (3, 3, 4, 3, 4)] == [6, 6, 8, 6, 8]
    assert next(traces) == 2 and len(f._specializations.codes()) == 2


def test_specializations_do_not_grow_without_end(monkeypatch):
    monkeypatch.setattr("kiln.base_dsl.specializations._MOST_SPECIALIZATIONS", 3)

    @cute.jit
    def f(a: Int32, n: Constexpr):
        return a * n

    assert [f(1, n) for n in range(6)] == list(range(6))
    assert len(f._specializations.codes()) == 3
    assert f(1, 0) == 0


def test_objects_that_say_how_they_are_passed_are_known_by_their_static_state():
    class Scaled:
        def __init__(self, mode, x):
            self.mode, self.x = mode, Int32(x)

        def __get_mlir_types__(self):
            return [Int32.mlir_type]

        def __c_pointers__(self):
            self.memory = ctypes.c_int32(self.x.value)
            return [ctypes.addressof(self.memory)]

        def __new_from_mlir_values__(self, values):
            return Scaled(self.mode, values[0])

    @cute.jit
    def f(s):
        return s.x * 2 if s.mode == "twice" else s.x * 3

    assert [f(Scaled("twice", 1)), f(Scaled("thrice", 1)), f(Scaled("twice", 5))] == [2, 3, 10]
    assert len(f._specializations.codes()) == 2


# --- random values of random classes ---------------------------------------------------------------------------------

BASES = {
    object: st.just(()),
    int: st.tuples(st.integers(-2, 2)),
    float: st.tuples(st.sampled_from([0.0, -0.0, 1.0, 2.0])),
    str: st.tuples(st.sampled_from(["", "a", "b"])),
    bytes: st.tuples(st.sampled_from([b"", b"a"])),
    complex: st.tuples(st.sampled_from([0j, complex(0, -0.0), 1j])),
    tuple: st.tuples(st.lists(st.integers(0, 1), max_size=2)),
    list: st.tuples(st.lists(st.integers(0, 1), max_size=2)),
    set: st.tuples(st.sets(st.integers(0, 2), max_size=2)),
    dict: st.tuples(st.dictionaries(st.sampled_from("ab"), st.integers(0, 1))),
    bytearray: st.tuples(st.sampled_from([b"", b"a"])),
    collections.deque: st.tuples(st.lists(st.integers(0, 1), max_size=2), st.sampled_from([None, 2, 3])),
    collections.OrderedDict: st.tuples(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=2)),
    collections.Counter: st.tuples(st.sampled_from(["", "a", "aab"])),
    decimal.Decimal: st.tuples(st.sampled_from(["1.0", "1.00", "2"])),
    ValueError: st.tuples(st.integers(0, 1)),
    random.Random: st.tuples(st.integers(0, 1)),
    functools.partial: st.tuples(st.just(scaled), st.integers(0, 1)),
    types.SimpleNamespace: st.just(()),
}
CLASSES = {
    (base, slots): type(f"Of_{base.__name__}", (base,), {"__slots__": ("extra",)} if slots else {"method": lambda self: 1})
    for base in BASES
    for slots in (False, True)
    if not (slots and (base in (int, tuple, bytes) or base is types.SimpleNamespace))
}  # fmt: skip


@st.composite
def values(draw):
    """(class, what it was made of, attributes)"""
    base = draw(st.sampled_from(list(BASES)))
    exact = draw(st.booleans()) and base is not object
    kind = base if exact else draw(st.sampled_from([c for (b, _), c in CLASSES.items() if b is base]))
    given_ = draw(BASES[base])
    attributes = {} if exact else draw(st.dictionaries(st.just("extra"), st.sampled_from([0, 1, "a", 1.0, True, (1,)])))
    return kind, given_, attributes


def made(kind, given_, attributes):
    value = kind(*given_)
    for name, x in attributes.items():
        setattr(value, name, x)
    return value


def observed(x):
    """What a program can see of a value: its type, attributes, elements, and how it prints."""
    kind: Any = type(x)
    seen = [kind]
    if isinstance(x, (int, float, str, bytes, complex, decimal.Decimal, bytearray)):
        seen.append(next(b.__repr__(x) for b in kind.__mro__ if b in BASES))
    if isinstance(x, (tuple, list, collections.deque)):
        seen.append([observed(e) for e in x])
    if isinstance(x, set):
        seen.append(sorted(x))
    if isinstance(x, dict):
        seen.append(list(x.items()))
    if isinstance(x, random.Random):
        seen.append(x.getstate())
    if isinstance(x, functools.partial):
        seen.append((x.func, x.args, x.keywords))
    for name in ("args", "maxlen", "extra"):
        if hasattr(x, name):
            seen.append((name, repr(getattr(x, name)), type(getattr(x, name))))
    return seen


@settings(max_examples=200, deadline=None)
@given(values(), values())
def test_equal_keys_only_for_values_that_cannot_be_told_apart(first, second):
    a, b = made(*first), made(*second)
    if static_key(a) == static_key(b):
        assert observed(a) == observed(b)
    again = made(*first)
    if not isinstance(a, ValueError) and (first[2] or first[0] is not CLASSES[object, True]):
        assert static_key(a) == static_key(again)  # but for objects that are nothing but themselves
    if a is not again and type(a) not in (int, str, float, bytes):
        assert static_key([a, {"k": a}]) != static_key([a, {"k": again}])


def test_values_that_share_nothing_are_kept_apart_in_calls():
    @cute.jit
    def f(a: Int32, by: Constexpr):
        return by(a)

    assert [f(3, functools.partial(scaled, k)) for k in (1, 2, 3)] == [3, 6, 9]


class Link:
    def __init__(self, then, k=3):
        self.then, self.k = then, k


def chain(length, last=3, closed=False):
    first = end = Link(None, last)
    for _ in range(length):
        first = Link(first)
    if closed:
        end.then = first
    return first


@pytest.mark.quick(2)
@pytest.mark.parametrize("length", [31, 32, 33, 20_000])
def test_objects_deep_inside_others(length):
    """Keys go on where recursion would end, and a change at the end changes them."""
    assert static_key(chain(length)) == static_key(chain(length)) != static_key(chain(length + 1))
    assert static_key(chain(length)) != static_key(chain(length, last=4))
    assert hash(static_key(chain(length, closed=True))) == hash(static_key(chain(length, closed=True)))
    assert static_key(chain(length, closed=True)) != static_key(chain(length))
    both = [chain(length), chain(length)]
    assert static_key(both) != static_key([both[0], both[0]])


def test_a_change_deep_inside_an_object_is_seen_by_calls():
    @cute.jit
    def f(a: Int32, by: Constexpr):
        end = by
        while end.then is not None:
            end = end.then
        return a * end.k

    links = chain(300)
    assert f(2, links) == 6
    end = links
    while end.then is not None:
        end = end.then
    end.k = 5
    assert f(2, links) == 10
