# pyright: reportReturnType=false, reportCallIssue=false
"""A body is traced once; which loops stay loops; what the IR of a construct looks like."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import kiln
from kiln import Float32, Int32, cute, range_constexpr


def ir_of(function, *args) -> str:
    return cute.compile(function, *args).__mlir__


def test_bodies_are_traced_once(capsys):
    @cute.jit
    def f(a, b):
        s = 0
        for i in range(a):
            print("for")
            if i > b:
                print("then")
                s += 1
            else:
                print("else")
                s += 2
        while s > b:
            print("while")
            s -= 3
        while True:
            print("true")
            s += 1
            if s > 5:
                break
        return s if (print("test") or s > 2) else 0

    assert f(3, 1) == 6
    assert capsys.readouterr().out.split() == ["for", "then", "else", "while", "true", "test"]
    f(4, 1)
    assert capsys.readouterr().out == ""  # the second call does not trace


def test_python_print_shows_a_question_mark(capsys):
    @cute.jit
    def f(a):
        b = 2
        for i in range(a):
            print("i", i, "b", b, "sum", a + b)
        return a

    f(3)
    assert capsys.readouterr().out == "i ? b 2 sum ?\n"


def test_a_body_that_changes_a_kept_number_is_traced_once_more(capsys):
    """That the number changes is seen at the end of the first trace; it is carried in the second."""

    class Calls:
        count = 0

    calls = Calls()

    @cute.jit
    def f(n):
        calls.count = 0
        for _ in range(n):
            take()
        return calls.count

    def take():
        print("traced")
        vars(calls)["count"] += 1

    assert f(5) == 5
    assert capsys.readouterr().out == "traced\ntraced\n"


def builtin_range(a):
    s = 0
    for i in range(a):
        s += i * a
    return s


def own_range(a):
    s = 0
    for i in kiln.range(a):
        s += i * a
    return s


def static_range(a):
    s = 0
    for i in range(4):
        s += i * a
    return s


@pytest.mark.parametrize("function", [builtin_range, own_range, static_range])
def test_range_stays_a_loop(function):
    assert ir_of(cute.jit(function), 3).count("scf.for") == 1
    assert cute.jit(function)(4) == function(4)


def test_range_constexpr_disappears():
    @cute.jit
    def f(a):
        s = a
        for i in range_constexpr(3):
            s = s * a
        return s

    text = ir_of(f, 3)
    assert "scf" not in text
    assert text.count("arith.muli") == 3


def test_while_true_is_a_loop():
    @cute.jit
    def f(a):
        while True:
            a -= 3
            if a < 0:
                return a

    text = ir_of(f, 3)
    assert text.count("scf.while") == 1
    assert f(7) == -2


def test_while_true_with_a_python_counter_is_a_loop():
    @cute.jit
    def f(a):
        n = 0
        while True:
            n += 1
            if n * n > a:
                break
        return n

    assert ir_of(f, 3).count("scf.while") == 1
    assert f(17) == 5


def test_only_live_variables_are_carried():
    @cute.jit
    def f(n):
        live, dead, unchanged = 0, 1, n
        for i in range(n):
            dead = i * 2
            live += dead + unchanged
            scratch = live
        return live

    header = next(line for line in ir_of(f, 3).split("\n") if "scf.for" in line)
    assert header.split("iter_args(")[1].split(")")[0].count("=") == 1
    assert "-> (i32)" in header


def test_tensors_that_no_iteration_changes_are_not_carried():
    @cute.jit
    def f(n: Int32):
        kept = SimpleNamespace(values=cute.make_rmem_tensor(4, Float32), count=n)
        for i in range(n):
            kept.values[0] = kept.values[1] + 1.0
            kept.count += i

    header = next(line for line in ir_of(f, 3).split("\n") if "scf.for" in line)
    assert "-> (i32)" in header


def test_a_branch_without_an_effect_leaves_nothing():
    @cute.jit
    def f(a):
        x = 1
        if a > 2:
            x = 1
        return x + a

    assert "scf.if" not in ir_of(f, 3)


def test_cheap_arms_become_a_select_and_others_do_not():
    @cute.jit
    def cheap(a, b):
        return a + 1 if a > b else b

    @cute.jit
    def division(a, b):
        return a // b if b != 0 else b

    assert "arith.select" in ir_of(cheap, 1, 2)
    assert "scf.if" not in ir_of(cheap, 1, 2)
    assert "scf.if" in ir_of(division, 1, 2)


def test_hints_of_a_range_are_kept():
    @cute.jit
    def f(n):
        s = 0
        for i in kiln.range(n, unroll=4):
            s += i
        for i in range(n, prefetch_stages=2):
            s += i
        return s

    text = ir_of(f, 3)
    assert "unroll = 4" in text
    assert "prefetch_stages = 2" in text
    assert f(4) == 12


def test_peeled_while_still_gives_the_right_answer():
    @cute.jit
    def f(a):
        i = 0
        while i < 10:
            if a > 5:
                i += 4
            else:
                i += 3
        return i

    assert [f(1), f(9)] == [12, 12]


def test_int32_condition_makes_a_loop_of_a_static_count():
    @cute.jit
    def f(a):
        i = Int32(0)
        while i < 100:
            i += a
        return i

    assert ir_of(f, 3).count("scf.while") == 1
    assert f(7) == 105
