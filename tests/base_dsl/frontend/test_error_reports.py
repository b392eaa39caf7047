# pyright: reportUndefinedVariable=false
"""How errors are reported: the chain of inlined calls, the user's line for failures of the compiler, tracebacks."""

from __future__ import annotations

import gc
import inspect
import sys
import traceback

import numpy as np
import pytest

from kiln import CompilerDiagnosticError, DSLBaseError, DSLRuntimeError, DSLUserCodeTypeError, Int32, cute
from kiln.base_dsl import trace
from kiln.base_dsl.diagnostics import DSLOperationBuildError, Span


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if text in line)


@cute.jit
def leaf(x):
    y = 1
    if x > 1:
        y = "text"  # differs
    return y


@cute.jit
def middle(x):
    r = 0
    for i in range(x):
        r += leaf(i) if i > 2 else 0  # calls leaf
    return r


@cute.jit
def top(a):
    return [middle(v) for v in (a, 1)]  # calls middle


def test_the_chain_of_inlined_calls():
    with pytest.raises(DSLUserCodeTypeError) as caught:
        top(3)
    failure = caught.value
    assert failure.span is not None
    assert failure.span.function == "leaf"
    assert [(c.function, c.line) for c in failure.calls[:2]] == [
        ("middle", line_of(middle.function, "# calls leaf")),
        ("top", line_of(top.function, "# calls middle")),
    ]
    assert failure.calls[-1].function == "test_the_chain_of_inlined_calls"
    text = str(failure)
    assert "in leaf, called from" in text
    assert "in middle, called from" in text
    assert "__kiln" not in text
    assert "<lambda>" not in text


def test_the_chain_through_a_kernel_and_a_method():
    class Helper:
        def index(self, x):
            return [1, 2, 3][x]  # bad index

    helper = Helper()

    @cute.kernel
    def kernel():
        tid, _, _ = cute.arch.thread_idx()
        if tid == 0:
            cute.printf("{}", helper.index(tid))

    @cute.jit
    def main():
        kernel().launch(grid=1, block=1)

    with pytest.raises(DSLRuntimeError) as caught:
        main()
    failure = caught.value
    assert failure.span is not None
    assert failure.span.line == line_of(Helper.index, "# bad index")
    assert [c.function for c in failure.calls[:2]] == ["kernel", "main"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 a re-raised exception keeps its traceback")
def test_the_traceback_shows_the_user_only():
    with pytest.raises(DSLUserCodeTypeError) as caught:
        top(3)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert set(files) == {__file__}


def test_an_exception_of_the_users_own_passes_through():
    @cute.jit
    def f(a):
        for i in range(a):
            check(i)  # calls check
        return a

    def check(i):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        f(3)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].name == "check"
    assert line_of(f.function, "# calls check") in [frame.lineno for frame in frames]


def test_a_name_error_stays_python_s():
    @cute.jit
    def f(a):
        if a > 1:
            a = no_such_name  # noqa: F821
        return a

    with pytest.raises(NameError, match="no_such_name"):
        f(3)


def test_a_failure_of_the_verifier_names_the_line():
    def wrong_operation(x):
        from kiln.mlir import ir

        # An addition of different types: built unchecked, found by the verifier.
        wide = ir.IntegerType.get_signless(64)
        made = trace.emit("arith.addi", [wide], [x.ir_value(), x.ir_value()])
        return Int32._make(made.results[0])

    @cute.jit
    def f(a):
        b = a + 1
        c = wrong_operation(b)
        return b

    with pytest.raises(DSLBaseError) as caught:
        f(1)
    failure = caught.value
    assert isinstance(failure, (CompilerDiagnosticError, DSLOperationBuildError))
    assert failure.span is not None
    assert failure.span.filename == __file__
    assert failure.span.line == line_of(wrong_operation, "trace.emit(")
    assert "addi" in str(failure)


def test_a_failed_trace_leaves_nothing_behind():
    @cute.jit
    def f(a, b):
        s = 0
        for i in range(a):
            if i > b:
                s += i
                for j in range(i):
                    s += [1, 2][j]
        return s

    for _ in range(20):
        with pytest.raises(DSLRuntimeError):
            f(3, 4)
    gc.collect()
    assert trace.current() is None

    @cute.jit
    def g(a):
        return a + 1 if a > 0 else 0

    assert g(1) == 2


def test_an_error_that_leaves_a_region_is_not_caught_by_the_program():
    """The handler would stand for one path only."""

    @cute.jit
    def f(a):
        r = 0
        try:
            if a > 1:
                r = [5, 6][a]
        except DSLRuntimeError:
            r = 7
        return a + r

    for _ in range(2):
        with pytest.raises(DSLRuntimeError, match="where Python needs a concrete int"):
            f(3)
        gc.collect()


def test_objects_are_as_before_after_a_failed_trace():
    class State:
        def __init__(self):
            self.n = 1

    state = State()

    @cute.jit
    def f(a):
        for i in range(a):
            state.n = state.n + i
            raise_now()
        return state.n

    def raise_now():
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        f(2)
    assert state.n == 1


class Fixed:
    __kiln_fixed__ = True

    def __init__(self):
        self.n = 7
        self.m = 8

    def set(self, n):
        self.n = self.m = n
        return n


CONFIG = Fixed()


def assigned_in_a_branch(a):
    if a > 1:
        CONFIG.set(a)
    return a


def assigned_in_a_loop(a):
    for i in range(a):
        CONFIG.set(i)
    return a


def assigned_in_the_test_of_a_loop(a):
    while CONFIG.set(a) > 1:
        a -= 1
    return a


def assigned_in_an_expression(a):
    return CONFIG.set(a) if a > 1 else a


def assigned_before_a_failure(a):
    if a > 1:
        CONFIG.set(a)
        _ = [][0]
    return a


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        (assigned_in_a_branch, DSLRuntimeError),
        (assigned_in_a_loop, DSLRuntimeError),
        (assigned_in_the_test_of_a_loop, DSLRuntimeError),
        (assigned_in_an_expression, DSLRuntimeError),
        (assigned_before_a_failure, IndexError),
    ],
)
def test_attributes_that_stay_are_as_before_after_a_failed_trace(monkeypatch, function, failure):
    monkeypatch.setitem(globals(), "CONFIG", Fixed())
    with pytest.raises(failure):
        cute.jit(function)(3)
    assert (CONFIG.n, CONFIG.m) == (7, 8)


ITEMS, TABLE, SEEN = [1, 2], {"a": 1, "b": 2}, {1, 2}


def grown(a):
    if a > 1:
        ITEMS.append(a)
        TABLE["c"] = a
        SEEN.add(3)
    return a


def shrunk(a):
    if a > 1:
        del ITEMS[0], TABLE["a"]
        SEEN.remove(1)
    return a


@pytest.mark.parametrize("function", [grown, shrunk])
def test_containers_are_as_before_after_a_failed_trace(function):
    with pytest.raises(DSLRuntimeError, match="the list 'ITEMS' changes its length inside a branch"):
        cute.jit(function)(3)
    assert (ITEMS, list(TABLE.items()), SEEN) == ([1, 2], [("a", 1), ("b", 2)], {1, 2})


def test_equal_functions_of_two_files_have_their_own_places(tmp_path):
    for name in ("first.py", "second.py"):
        file = tmp_path / name
        file.write_text("def f(a):\n    if a > 1:\n        a = 'text'\n    return a\n")
        made: dict = {}
        exec(compile(file.read_text(), file, "exec"), made)
        with pytest.raises(DSLBaseError, match=rf"{name}:"):
            cute.jit(made["f"])(3)


def test_a_place_in_an_unnamed_function():
    error = DSLBaseError("wrong", span=Span("f.py", 2), calls=(Span("f.py", 5, function="main"), Span("f.py", 9)))
    assert str(error).splitlines()[1:] == ["called from f.py:5 in main", "in main, called from f.py:9"]


@pytest.mark.parametrize("what", ["a value", "an argument", "an object's"])
def test_a_kernel_uses_a_value_of_the_function_that_launches_it(what):
    class Shared:
        number = None

    @cute.kernel
    def uses(out: cute.Tensor):
        out[0] = Shared.number  # used

    @cute.jit
    def launches(out: cute.Tensor, n: Int32):
        m = n * 2  # computed

        @cute.kernel
        def kernel(out: cute.Tensor):
            out[0] = m if what == "a value" else n  # captured

        if what == "an object's":
            Shared.number = m
            uses(out).launch(grid=1, block=1)
        else:
            kernel(out).launch(grid=1, block=1)

    with pytest.raises(
        DSLBaseError, match="(kernel|uses)' uses (a value that is computed in|an argument of) 'launches'"
    ) as caught:
        launches(np.zeros(1, np.int32), 3)
    failure = caught.value
    assert failure.hint.endswith("pass it the value as an argument")
    used = ("# used", uses.function) if what == "an object's" else ("# captured", launches.function)
    assert failure.span.line == line_of(used[1], used[0])
    if what != "an argument":
        assert failure.notes[0][0].line == line_of(launches.function, "# computed")
    assert "region" not in str(failure) and "%" not in str(failure)


def test_an_exception_of_a_kernel_that_the_launching_function_catches():
    @cute.kernel
    def kernel(out: cute.Tensor):
        out[0] = 1
        raise NotImplementedError("no way")

    @cute.jit
    def launches(out: cute.Tensor):
        try:
            kernel(out).launch(grid=1, block=1)
        except NotImplementedError:
            out[0] = 2

    with pytest.raises(
        DSLRuntimeError, match="NotImplementedError is raised while the kernel 'kernel' is traced"
    ) as caught:
        launches(np.zeros(1, np.int32))
    assert "inside the kernel" in caught.value.hint
    assert "contextlib" not in str(caught.value)


def test_a_power_with_a_modulus():
    @cute.jit
    def f(n: Int32):
        return pow(n, 3, 7)

    with pytest.raises(DSLUserCodeTypeError, match=r"pow\(\) with a modulus takes numbers that are known") as caught:
        f(2)
    assert caught.value.span.line == line_of(f.function, "pow(")
    assert pow(Int32(2), 3, 7) == 1
    assert pow(Int32(10), Int32(9), 10**6 + 3) == pow(10, 9, 10**6 + 3)


@cute.jit
def columns(x: cute.Tensor):
    rows = x.shape[0]
    return rows * x.shape[1]  # a second mode


def test_a_mode_that_a_tensor_has_not_is_named() -> None:
    with pytest.raises(DSLUserCodeTypeError) as caught:
        columns(np.zeros(4, np.float32))
    assert caught.value.message == "x.shape[1] asks for mode 1, and x has 1 mode, counted from 0"
    assert caught.value.span is not None and caught.value.span.line == line_of(columns, "# a second mode")
