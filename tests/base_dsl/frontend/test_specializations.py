"""When a function is traced again: Constexpr values, types, and what else the trace read; calls from threads."""

from __future__ import annotations

import dataclasses
import threading
import types

import pytest

from kiln import Constexpr, Float32, Int64, cute


def traces(capsys) -> list[str]:
    """What functions printed while they were traced, since the last time this was asked."""
    return capsys.readouterr().out.split("\n")[:-1]


@cute.jit
def scale(a, n: Constexpr = 2):
    print(n)
    return a * n


def test_a_new_constexpr_value_is_a_new_specialization(capsys):
    assert [scale(3, 12), scale(3, 15), scale(4, 12), scale(4, 15)] == [36, 45, 48, 60]
    assert traces(capsys) == ["12", "15"]


def test_the_second_call_does_not_trace(capsys):
    for i in range(5):
        assert scale(i, 22) == 22 * i
    assert traces(capsys) == ["22"]


def test_argument_types_are_part_of_the_signature(capsys):
    @cute.jit
    def f(a):
        print(type(a).__name__)
        return a + a

    assert [f(1), f(1.5), f(True), f(1 << 40), f(Int64(3)), f(Float32(2.0))] == [2, 3.0, 2, 1 << 41, 6, 4.0]
    f(7)
    assert traces(capsys) == ["Int32", "Float32", "Boolean", "Int64"]


@pytest.mark.parametrize(
    "values",
    [
        (1, 2),
        ("a", "b"),
        (None, 1),
        ((1, 2), (1, 3)),
        (1, True),
        (0.0, -0.0),
        (int, float),
        ([1], [1, 2]),
        ({"a": 1}, {"a": 2}),
    ],
    ids=repr,
)
def test_constexpr_by_value(values, capsys):
    @cute.jit
    def f(a, x: Constexpr):
        print("traced")
        return a + 1

    for value in (*values, *values):
        f(1, value)
    assert traces(capsys) == ["traced", "traced"]


def test_constexpr_object_by_its_state(capsys):
    @dataclasses.dataclass
    class Config:
        width: int

    @cute.jit
    def f(a, config: Constexpr):
        print(config.width)
        return a * config.width

    config = Config(2)
    assert f(3, config) == 6
    assert f(3, Config(2)) == 6
    config.width = 5
    assert f(3, config) == 15
    assert traces(capsys) == ["2", "5"]


SCALE = 2
NESTED = types.SimpleNamespace(value=[1, 2])


@cute.jit
def reads_a_global(a):
    return a * SCALE


@cute.jit
def reads_an_object(a):
    return a * NESTED.value[0]


def scaled(x):
    return x * SCALE


@cute.jit
def reads_through_a_helper(a):
    return scaled(a) + 1


def test_a_changed_global_is_noticed(monkeypatch):
    assert [reads_a_global(3), reads_through_a_helper(3)] == [6, 7]
    monkeypatch.setitem(globals(), "SCALE", 10)
    assert [reads_a_global(3), reads_through_a_helper(3)] == [30, 31]
    monkeypatch.setitem(globals(), "SCALE", 2)
    assert [reads_a_global(3), reads_through_a_helper(3)] == [6, 7]


def test_a_changed_helper_is_noticed(monkeypatch):
    assert reads_through_a_helper(3) == 3 * SCALE + 1
    monkeypatch.setitem(globals(), "scaled", lambda x: x - 1)
    assert reads_through_a_helper(3) == 3


def test_a_changed_object_of_the_module_is_noticed():
    NESTED.value[0] = 1
    assert reads_an_object(3) == 3
    NESTED.value[0] = 7
    assert reads_an_object(3) == 21


def test_a_changed_closure_cell_is_noticed():
    k = 2

    @cute.jit
    def f(a):
        return a + k

    assert f(1) == 3
    k = 10
    assert f(1) == 11


def test_changed_state_of_self_is_noticed():
    class Program:
        def __init__(self):
            self.k = 1

        @cute.jit
        def __call__(self, a):
            return a * self.k

    p = Program()
    assert p(3) == 3
    p.k = 4
    assert p(3) == 12
    assert Program()(3) == 3


def test_two_closures_of_one_function_are_two_programs():
    def build(k):
        @cute.jit
        def f(a):
            return a + k

        return f

    f, g = build(1), build(100)
    assert [f(1), g(1), f(2), g(2)] == [2, 101, 3, 102]


def test_self_that_the_trace_changes():
    class Program:
        def __init__(self):
            self.ready = False

        @cute.jit
        def __call__(self, a):
            self.ready = True
            self.width = 4
            return a * self.width

    p = Program()
    assert [p(1), p(2), p(3)] == [4, 8, 12]
    assert p.ready


def test_compile_always_traces(capsys):
    cute.compile(scale, 1)
    cute.compile(scale, 1)
    assert traces(capsys) == ["2", "2"]


def test_a_compiled_function_takes_only_what_is_not_constexpr():
    compiled = cute.compile(scale, 1, 7)
    assert compiled(3) == 21


def test_calls_from_threads(capsys):
    @cute.jit
    def f(a, n: Constexpr):
        print("traced")
        s = 0
        for i in range(a):
            if i == n:
                break
            s += i
        return s

    failures = []

    def work(number):
        try:
            for n in range(4):
                for a in range(6):
                    want = sum(range(min(a, n)))
                    if f(a, n) != want:
                        failures.append((number, a, n))
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(traces(capsys)) >= 4
