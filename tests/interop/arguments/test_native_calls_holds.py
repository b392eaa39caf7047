# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false
"""What a call uses it holds: a list, or another object that was passed, may let go of it while compiled code runs."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import gc
import subprocess
import sys
import sysconfig
import weakref

import numpy as np
import pytest
from native_calls_testing import CUstream, python_calls

import kiln.cute as cute
from kiln import Int32, Int64, kernels
from kiln.base_dsl import target
from kiln.cute.runtime import from_dlpack

needs_native = pytest.mark.skipif(
    sys.implementation.name != "cpython" or bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="calls are made by Python here",
)


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(target, "_process_choice", "cpu")


class Losing:
    """Standard output that makes the arguments of a call let go of an array, and looks whether it is still there."""

    def __init__(self, array, lose):
        self.alive = weakref.ref(array)
        self.lose = lose
        self.seen = []

    def write(self, text):
        self.lose()
        gc.collect(1)  # of the young: all objects of a long test run take a second
        self.seen.append(self.alive() is not None)
        return len(text)

    def flush(self):
        pass


@dataclasses.dataclass
class Pair:
    x: cute.Tensor
    n: Int32


Named = collections.namedtuple("Named", "x n")


def of_list(x):
    made = [x, 1]
    return made, made.clear


def of_list_in_tuple(x):
    made = ([x, 1],)
    return made, made[0].clear


def of_tuple_in_list(x):
    made = [(x, 1)]
    return made, made.clear


def of_named_tuple_in_list(x):
    made = [Named(x, 1)]
    return made, made.clear


def of_prepared(x):
    made = [from_dlpack(x), 1]
    return made, made.clear


def of_pointer(x):
    made = [from_dlpack(x).iterator, 1]
    return made, made.clear


def of_dict(x):
    made = {"x": x, "n": 1}
    return made, made.clear


def of_dataclass(x):
    made = Pair(x, 1)

    def lose():
        made.x = None

    return made, lose


class Exported:
    """An array whose memory belongs to what `__dlpack__` gives."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **_):
        made, self.array = self.array, None
        return made.__dlpack__()

    def __dlpack_device__(self):
        return 1, 0


def of_exporter(x):
    made = [Exported(x), 1]
    return made, made.clear


@cute.jit
def say(x):
    cute.printf("called\n")


@pytest.mark.parametrize(
    "make",
    [
        of_list, of_list_in_tuple, of_tuple_in_list, of_named_tuple_in_list, of_prepared, of_pointer, of_dict, of_dataclass,
        of_exporter,
    ],
    ids=lambda make: make.__name__,
)  # fmt: skip
@pytest.mark.parametrize("how", ["compiled", "implicit"])
def test_arrays_live_until_the_call_is_over(make, how, taker, monkeypatch):
    called = cute.compile(say, make(np.zeros(4, np.float32))[0]) if how == "compiled" else cute.jit(say.function)
    for number in range(3):
        x = np.zeros(4, np.float32)
        passed, lose = make(x)
        out = Losing(x, lose)
        del x
        with monkeypatch.context() as patch:
            if how == "compiled" or number:
                patch.setattr(sys, "stdout", out)
            called(passed)
        assert all(out.seen)
        assert out.seen or (how == "implicit" and not number)
        del passed, lose, out.lose
        if out.alive() is not None:  # in a circle; else a search among all objects of a long run is time for nothing
            gc.collect()
        assert number == 0 or out.alive() is None  # and no longer


@needs_native
@pytest.mark.parametrize("how", ["compiled", "implicit"])
def test_a_list_that_changes_while_its_elements_are_read(how):
    class Changing(CUstream):
        def __int__(self):
            changed.clear()
            alive.append(array() is not None)
            return 7

    Changing.__name__ = "CUstream"

    @cute.jit
    def function(parts):
        x, stream, n = parts
        return Int64(stream) + n

    changed, alive, array = [], [], lambda: None
    called = cute.compile(function, [np.zeros(2, np.float32), CUstream(7), 1]) if how == "compiled" else function
    called([np.zeros(2, np.float32), CUstream(7), 1])
    for _ in range(4):
        changed[:] = [np.zeros(2, np.float32), Changing(7), 1]
        array = weakref.ref(changed[0])
        assert called(changed) == 8
        assert not changed
        assert array() is None
    assert all(alive)


@needs_native
def test_nothing_is_kept_of_lists():
    x, y = np.zeros(4, np.float32), np.zeros((4, 4), np.float32)
    compiled = cute.compile(say, [[x], [x, x]])
    passed, unfit = [[x], [x, x]], [[x], [x, y]]
    compiled(passed)
    gc.collect()
    before = [sys.getrefcount(value) for value in (x, y, passed, passed[0], passed[1])]
    assert python_calls(lambda: [compiled(passed) for _ in range(10)]) == 0
    for _ in range(3):
        with pytest.raises(Exception, match="compiled for"):
            compiled(unfit)
    gc.collect()  # errors and their frames
    assert [sys.getrefcount(value) for value in (x, y, passed, passed[0], passed[1])] == before


@needs_native
def test_arrays_in_lists_of_library_calls():
    a, b, extra = (np.ones((32, 32), np.float16) for _ in range(3))
    extras = [extra]

    def run():
        return kernels.gemm(a, b, extras=extras, epilogue=lambda x, e: x + e)

    wanted = run()
    for _ in range(3):
        run()
    before = [sys.getrefcount(value) for value in (a, extra, extras)]
    for _ in range(5):
        assert np.array_equal(run(), wanted)
    assert [sys.getrefcount(value) for value in (a, extra, extras)] == before


def test_what_c_pointers_gives_lives_until_the_call_is_over(monkeypatch):
    """The bytes that are passed may refer to it."""

    class Address:
        def __get_mlir_types__(self):
            return [Int64.mlir_type]

        def __new_from_mlir_values__(self, values):
            return Int64(values[0])

        def __c_pointers__(self):
            word = ctypes.c_int64(5)
            gone.append(weakref.ref(word))
            return [ctypes.pointer(word)]

    gone = []

    @cute.jit
    def function(x):
        cute.printf("called\n")
        return x

    class Looking:
        def write(self, text):
            alive.append(gone[-1]() is not None)

        def flush(self):
            pass

    alive = []
    compiled = cute.compile(function, Address())
    monkeypatch.setattr(sys, "stdout", Looking())
    assert compiled(Address()) == 5
    assert alive
    assert all(alive)


_ANOTHER_THREAD = """
import threading

import numpy as np

import kiln
import kiln.cute as cute
from kiln import Int32

kiln.target("cpu")


@cute.jit
def add(both, n: Int32):
    a, b = both
    for i in range(n):
        a[i] = a[i] + b[i]


@cute.jit
def touch(x):
    pass


def arrays():
    return [np.zeros(1 << 24, np.float32) for _ in range(2)]  # so large that freed memory is no longer there


passed = arrays()
touch(passed[0])
for _ in range(2):
    add(passed, 1 << 16)
rounds = 40
begin = threading.Barrier(2)


def lose():
    for _ in range(rounds):
        begin.wait()
        passed.clear()


thread = threading.Thread(target=lose)
thread.start()
for _ in range(rounds):
    passed[:] = arrays()
    begin.wait()
    try:
        add(passed, 1 << 16)
    except (ValueError, TypeError):  # it was empty already
        pass
    while passed:
        pass
thread.join()
print("alive")
"""


def test_another_thread_clears_a_list(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_ANOTHER_THREAD)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
