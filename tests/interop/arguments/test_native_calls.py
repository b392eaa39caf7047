# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Calls that native code takes: the same results and the same errors as when Python takes them, nothing leaked."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import struct
import sys
import threading
import tracemalloc
import typing
import weakref

import numpy as np
import pytest
from native_calls_testing import WARM_UP, CUstream, back, look, python_calls, strays, strays_of

import kiln
import kiln.cute as cute
from kiln import Boolean, Constexpr, Float32, Float64, Int8, Int32, Int64, Uint8, Uint32, Uint64
from kiln.base_dsl import target
from kiln.base_dsl.diagnostics import DSLBaseError, DSLUserCodeRuntimeError, DSLUserCodeTypeError
from kiln.cute.runtime import from_dlpack
from kiln.interop.arguments import loading

pytestmark = pytest.mark.usefixtures("taker")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(target, "_process_choice", "cpu")


def test_it_works_on_this_python(taker):
    assert (loading.engine() is not None) == (taker == "native")


# --- numbers ---------------------------------------------------------------------------------------------------------


def annotated(kind):
    def give_back(x):
        return x

    give_back.__annotations__["x"] = kind
    return cute.jit(give_back)


INTEGERS = [Int8, Uint8, Int32, Uint32, Int64, Uint64]


@pytest.mark.parametrize("kind", [*INTEGERS, Boolean])
def test_integers_at_the_ends_of_their_ranges(kind):
    function = annotated(kind)
    compiled = cute.compile(function, 1)
    assert strays(compiled, 1) == 0
    for value in (kind.min, kind.max, 0, 1, True, False):
        assert compiled(value) == value
        assert function(value) == value
    for value in (kind.min - 1, kind.max + 1, 1 << 70, -(1 << 70)):
        with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
            compiled(value)
        with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
            function(value)
    with pytest.raises(DSLUserCodeTypeError, match="got the float"):
        compiled(1.5)


@pytest.mark.parametrize("kind", [Float32, Float64])
def test_floats(kind):
    function = annotated(kind)
    compiled = cute.compile(function, 1.0)
    assert strays(compiled, 1.5) == 0
    assert strays(compiled, 3) == 0
    letter = "f" if kind is Float32 else "d"
    largest = float.fromhex("0x1.fffffeffffffp127") if kind is Float32 else sys.float_info.max
    for value in (0.1, -0.0, 1e-45, 1e30, largest, -largest, float("inf"), float("-inf"), 7, True, -(1 << 40)):
        expected = struct.unpack(letter, struct.pack(letter, value))[0]
        assert struct.pack("d", compiled(value)) == struct.pack("d", expected)
    assert np.isnan(compiled(float("nan")))
    for value in (1 << 2000, *([1e39, -1e39] if kind is Float32 else [])):
        for called in (compiled, function):
            with pytest.raises(DSLUserCodeTypeError, match="outside its range"):
                called(value)


def test_without_an_annotation_the_value_chooses_the_type():
    for value, wrong in ((3, 1 << 40), (1 << 40, 3), (True, 3), (1.5, 3), (3, True), (3, 1.5)):
        compiled = cute.compile(back, value)
        assert strays(compiled, value) == 0
        assert compiled(value) == value
        assert type(compiled(value)) is type(value)
        with pytest.raises(DSLUserCodeTypeError, match="compiled for"):
            compiled(wrong)
    for value in (3, 1 << 40, True, 1.5):  # each a specialization of its own
        assert strays(back, value) == 0
        assert back(value) == value
        assert type(back(value)) is type(value)


def test_python_annotations():
    whole, real = annotated(int), annotated(float)
    for function, values in ((whole, (3, True, 1 << 40)), (real, (1.5, 3, True))):
        for value in values:
            assert strays(function, value) == 0
            assert function(value) == value
    assert whole(1.5) == 1.5


def test_typed_numbers():
    compiled = cute.compile(annotated(Float32), 1.0)
    assert strays(compiled, Float32(1.5)) == 0
    assert compiled(Float32(2.5)) == 2.5
    compiled = cute.compile(back, Int8(3))
    assert strays(compiled, Int8(3)) == 0
    assert compiled(Int8(-128)) == -128
    with pytest.raises(DSLUserCodeTypeError):
        compiled(3)
    with pytest.raises(DSLUserCodeTypeError):
        compiled(Int32(3))
    compiled = cute.compile(annotated(Int64), 1)
    assert compiled(Int32(-5)) == -5


# --- arguments by name, groups, values known while tracing ------------------------------------------------------------


@cute.jit
def weigh(a: Int32, b: Int32, c: Int32 = 3):
    return a * 100 + b * 10 + c


def test_arguments_by_name():
    compiled = cute.compile(weigh, 1, 2, 3)
    for function in (compiled, weigh):
        assert strays(function, 1, 2, 3) == 0
        assert strays(function, 1, c=3, b=2) == 0
        assert function(c=1, a=2, b=3) == 231
        assert function(1, b=2, c=4) == 124
        assert function(1, 2) == 123  # by Python: a default
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, 3, d=4)
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, b=3)
        with pytest.raises(DSLUserCodeTypeError):
            function(1, 2, 3, 4)
        with pytest.raises(DSLUserCodeTypeError):
            function()
        name = "".join(["", "b"])  # equal to a parameter's name, perhaps not the same object
        assert function(1, **{name: 2, "c": 5}) == 125


class Pair(typing.NamedTuple):
    x: typing.Any
    y: typing.Any


@cute.jit
def add_all(parts):
    total = Int32(0)
    for part in parts:
        total = total + (add_all(part) if isinstance(part, (tuple, list)) else part)
    return total


@pytest.mark.parametrize(
    ("value", "others"),
    [((1, 2, (3, 4)), [[1, 2, (3, 4)], (1, 2, [3, 4]), (1, 2), (1, 2, (3, 4, 5)), (1, 2.0, (3, 4))]),
     ([1, 2], [(1, 2), [1], [1, 2, 3]]),
     (Pair(1, (2, 3)), [(1, (2, 3))])],
)  # fmt: skip
def test_groups(value, others):
    compiled = cute.compile(add_all, value)

    def total(x):
        return sum(total(e) if isinstance(e, (tuple, list)) else e for e in x)

    for function in (compiled, add_all):
        assert strays(function, value) == 0
        assert function(value) == total(value)
    for other in others:
        with pytest.raises(DSLUserCodeTypeError):
            compiled(other)
        if 2.0 not in other:
            assert add_all(other) == total(other)


@cute.jit
def scaled(x: Int32, factor: Constexpr, name: Constexpr = "plus"):
    if name == "minus":
        return -x * factor
    return x * factor


def test_values_known_while_tracing():
    compiled = cute.compile(scaled, 1, 5)
    assert strays(compiled, 7) == 0
    assert compiled(7) == 35
    for factor in (5, 1000, 1001):
        for name in ("plus", "minus"):
            assert strays(scaled, 7, factor, name) == 0
            assert scaled(7, int(str(factor)), name) == (7 if name == "plus" else -7) * factor
    for factor in (np.int64(7), np.float32(2.0)):  # the very object; another one is looked at by Python
        assert strays(scaled, 7, factor, "plus") == 0
        assert scaled(7, factor, "plus") == scaled(7, type(factor)(factor), "plus") == 7 * factor
    changing = [1, 2]

    @cute.jit
    def lengths(x: Int32, parts: Constexpr):
        return x + len(parts)

    for _ in range(WARM_UP):
        assert lengths(1, changing) == 1 + len(changing)
        changing.append(0)


class Method:
    def __init__(self, factor):
        self.factor = factor

    @cute.jit
    def __call__(self, x: Int32):
        return x * self.factor


def test_methods():
    compiled = cute.compile(Method(3), 1)
    assert strays(compiled, 2) == 0
    assert compiled(2) == 6
    method = Method(3)
    for factor in (3, 4, 5, 3):
        method.factor = factor
        for _ in range(WARM_UP):
            assert method(2) == 2 * factor


def test_leaves():
    """What programs that know the leaves of arguments use."""

    @cute.jit
    def count(a: Int32, b: Float32, c: Uint64, d: Boolean):
        return Int64(a) + Int64(b) + Int64(c) + Int64(d)

    compiled = cute.compile(count, 1, 2.0, 3, True)
    assert compiled.leaves_of([1, 2.0, 3, True]) == [[1], [2.0], [3], [True]]
    assert compiled.run_leaves([-5, 2.5, 1 << 40, False]) == (1 << 40) - 3
    slots, places = compiled.packed([-5, 2.5, 1 << 40, False])
    assert [struct.unpack_from(f"<{kind}", slots, offset)[0] for offset, kind in places] == [-5, 2.5, 1 << 40, False]
    for wrong in ([1, 2.0, 3], [1, 2.0, 3, True, 4], ["1", 2.0, 3, True], [1 << 40, 2.0, 3, True]):
        with pytest.raises(struct.error):
            compiled.run_leaves(wrong)


# --- failures, output, threads ----------------------------------------------------------------------------------------


@cute.jit
def divide(a: Int32, b: Int32):
    return a // b


@cute.kernel
def check(x: Int32):
    cute.printf("x={}", x)
    assert x != 3, "three"


@cute.jit
def launch_check(x: Int32):
    check(x).launch(grid=1, block=1)


def test_failures_and_output(capfd):
    compiled = cute.compile(divide, 1, 1)
    for function in (compiled, divide):
        assert strays(function, 7, 2) == 0
        with pytest.raises(ZeroDivisionError) as raised:
            function(1, 0)
        assert isinstance(raised.value, DSLUserCodeRuntimeError)
        assert raised.value.span.filename == __file__
    compiled = cute.compile(launch_check, 1)
    strays(compiled, 1)
    capfd.readouterr()

    def run():
        compiled(7)
        with pytest.raises(AssertionError, match="three"):
            compiled(3)
        compiled(8)

    assert strays_of(run, 3) == 0
    assert capfd.readouterr().out.split() == ["x=7", "x=3", "x=8"]


def test_only_launches_depend_on_settings_of_launches():
    assert not cute.compile(divide, 1, 1).executable.guards
    assert cute.compile(launch_check, 1).executable.guards


def test_python_can_look_at_them():
    compiled = cute.compile(weigh, 1, 2, 3)
    strays(compiled, 1, 2, 3)
    assert list(inspect.signature(compiled).parameters) == ["args", "kwargs"]
    assert list(inspect.signature(weigh).parameters) == ["a", "b", "c"]
    assert functools.partial(compiled, 1, 2)(3) == 123
    assert list(map(compiled, [1, 2], [3, 4], [5, 6])) == [135, 246]


def test_threads_run_during_a_call(taker):
    """The GIL is released, and calls from several threads do not disturb each other."""
    compiled = cute.compile(weigh, 1, 2, 3)
    strays(compiled, 1, 2, 3)
    wrong = []

    def work(number):
        for i in range(2000 if taker == "native" else 200):
            got = compiled(number, i % 10, c=1)
            if got != number * 100 + i % 10 * 10 + 1:
                wrong.append((number, i, got))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_calls_inside_a_trace_are_inlined():
    @cute.jit
    def seven():
        return 7

    @cute.jit
    def outer(x: Int32):
        return weigh(x, x, x) + seven()

    strays(weigh, 1, 2, 3)
    strays(seven)
    assert outer(2) == 229
    assert "call" not in cute.compile(outer, 1).__mlir__


# --- what a specialization depends on ---------------------------------------------------------------------------------

FACTOR = 3


@cute.jit
def times_global(x: Int32):
    return x * FACTOR


def test_a_changed_global_is_seen():
    global FACTOR
    for value in (3, 4, 3, 5):
        FACTOR = value
        assert strays(times_global, 2) == 0
        assert times_global(2) == 2 * value
    FACTOR = 3


class Config:
    size = 4


@cute.jit
def times_attribute(x: Int32):
    return x * Config.size


def test_a_changed_class_attribute_is_seen():
    for value in (4, 5, 4):
        Config.size = value
        for _ in range(WARM_UP):
            assert times_attribute(2) == 2 * value


class Held:
    def __init__(self):
        self.size = 2


HELD = Held()


@cute.jit
def times_held(x: Int32):
    return x * HELD.size


def test_a_changed_object_is_seen():
    for value in (2, 3, 2):
        HELD.size = value
        for _ in range(WARM_UP):
            assert times_held(2) == 2 * value


def test_a_changed_cell_is_seen():
    factor = 2

    @cute.jit
    def times(x: Int32):
        return x * factor

    for value in (2, 3, 2):
        factor = value
        assert strays(times, 5) == 0
        assert times(5) == 5 * value


def test_the_target_in_force_is_seen(monkeypatch):
    @cute.jit
    def one(x: Int32):
        return x + 1

    assert strays(one, 1) == 0
    with kiln.target("cpu"):  # on this thread only: Python looks
        assert python_calls(lambda: one(1)) == 1
    assert strays_of(lambda: one(1), 1) == 0
    with kiln.sanitize():
        assert one(1) == 2
        assert python_calls(lambda: one(1)) == 1
    monkeypatch.setenv("KILN_TARGET", "cpu")
    assert python_calls(lambda: one(1)) == 1


# --- lifetime --------------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
def test_nothing_is_kept():
    @cute.jit
    def use(x: cute.Tensor, n: Int32):
        return n

    class Array(np.ndarray):
        pass

    compiled = cute.compile(use, np.zeros((3, 4), np.float32), 1)
    x = np.zeros((3, 4), np.float32)
    tensor = from_dlpack(x)
    strays(compiled, x, 1)
    strays(use, tensor, 1)
    alive = [weakref.ref(tensor), weakref.ref(x)]
    del x, tensor
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    code = weakref.ref(compiled)
    del compiled
    gc.collect()
    assert code() is None
    function = weakref.ref(use)
    del use
    gc.collect()
    assert function() is None


@pytest.mark.quick(1)
def test_memory_is_flat(taker):
    x = np.zeros((3, 4), np.float32)
    prepared = from_dlpack(x)
    compiled = cute.compile(look, x)
    stream = cute.compile(back, CUstream(1))

    def run():
        for _ in range(2500 if taker == "native" else 200):
            compiled(x)
            look(prepared)
            weigh(1, c=2, b=3)
            stream(CUstream(1 << 40))
        for _ in range(50):
            with contextlib.suppress(DSLBaseError, OverflowError):
                divide(1, 0)

    for function, arguments in ((compiled, (x,)), (look, (prepared,)), (weigh, (1, 2, 3)), (divide, (1, 1))):
        strays(function, *arguments)
    objects = [x, prepared, None, compiled, look]
    run()
    gc.collect()
    counts = [sys.getrefcount(o) for o in objects]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
    assert [abs(sys.getrefcount(o) - n) < 50 for o, n in zip(objects, counts)] == [True] * len(objects)
