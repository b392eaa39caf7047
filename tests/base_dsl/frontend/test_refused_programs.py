# pyright: reportOptionalMemberAccess=false, reportUnusedExpression=false, reportArgumentType=false
"""Refused programs: the class of the error, the line and the expression under the caret, the rule and what to write.

The line is the one with the comment `# here`. Columns are known from Python 3.11 on.
"""

from __future__ import annotations

import enum
import inspect
import linecache
import sys
import types

import pytest

from kiln import (
    Constexpr,
    DSLBaseError,
    DSLRuntimeError,
    DSLSyntaxError,
    DSLUserCodeError,
    DSLUserCodeTypeError,
    Float32,
    Int32,
    const_expr,
    cute,
    range_constexpr,
)

CASES: list = []


def refused(kind: type, caret: str, *words: str, args: tuple = (1,), hint: str = ""):
    """Decorator: the function is refused with `kind`, the caret under `caret`, and these words in the message."""

    def add(function):
        CASES.append(pytest.param(function, kind, caret, words, args, hint, id=function.__name__))
        return function

    return add


def marked_line(function) -> int:
    lines, first = inspect.getsourcelines(function)
    return next(first + i for i, line in enumerate(lines) if "# here" in line)


def caret_text(failure: DSLBaseError) -> str:
    span = failure.span
    assert span is not None
    return linecache.getline(span.filename, span.line)[span.column : span.end_column]


def check(failure: DSLBaseError, function, caret: str, words: tuple[str, ...], hint: str) -> None:
    assert failure.span is not None, failure
    assert failure.span.filename == __file__
    assert failure.span.line == marked_line(function), str(failure)
    if sys.version_info >= (3, 11):
        assert caret_text(failure) == caret, str(failure)
    for word in words:
        assert word in failure.message + "".join(text for _, text in failure.notes), str(failure)
    assert failure.hint, "an error says what to write instead"
    assert hint in failure.hint, failure.hint
    assert "__kiln" not in str(failure)


@pytest.mark.parametrize(("function", "kind", "caret", "words", "args", "hint"), CASES)
def test_refused(function, kind, caret, words, args, hint):
    with pytest.raises(kind) as caught:
        cute.jit(function)(*args)
    assert type(caught.value) is kind
    check(caught.value, function, caret, words, hint)


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


# -- a value on some paths only --------------------------------------------------------------------------------------


@refused(DSLUserCodeError, "x", "'x'", "only one branch", hint="before the `if`, or in both branches")
def variable_of_one_branch(a):
    if a > 0:
        x = 1
    return x  # here


@refused(DSLUserCodeError, "y", "'y'", "only one branch")
def variable_of_some_elif_branches(a):
    if a > 0:
        y = 1
    elif a > -5:
        y = 2
    return a + y  # here


@refused(DSLUserCodeError, "x", "'x' first gets its value inside the loop", "may not run", hint="before the loop")
def variable_of_a_for_loop(a):
    for i in range(a):
        x = i
    return x  # here


@refused(DSLUserCodeError, "i", "'i' first gets its value inside the loop")
def counter_of_a_loop_that_may_not_run(a):
    for i in range(a):
        pass
    return i  # here


@refused(DSLUserCodeError, "x", "`while` loop", "may not run", hint="before the loop")
def variable_of_a_while_loop(a):
    while a > 0:
        x = a
        a -= 1
    return x  # here


@refused(DSLUserCodeError, "previous", "'previous' has no value when the loop", "before it is assigned")
def variable_read_before_the_iteration_that_assigns_it(a):
    s = 0
    for i in range(a):
        if i > 0:
            s += previous  # noqa: F821  # here
        previous = i
    return s


@refused(DSLUserCodeError, "x", "'x'", "only one branch")
def variable_deleted_in_a_branch(a):
    x = 1
    if a > 1:
        del x
    return x  # here


@refused(DSLUserCodeError, "y", "`:=`", "may not be evaluated")
def walrus_in_a_part_that_may_not_be_evaluated(a):
    a > 1 and (y := a) > 2
    return y  # here


@refused(DSLUserCodeTypeError, "return a", "returns Int32 on some paths and nothing on others", hint="on every path")
def return_on_some_paths(a):
    if a > 1:
        return a  # here


@refused(DSLUserCodeTypeError, "return a", "Int32", "None", "returned here")
def none_or_a_number_returned(a):
    for i in range(a):
        if i > 1:
            return None
    return a  # here


@refused(DSLUserCodeTypeError, "a > 1", "returns Int32 on one path and (Int32, int (1)) on another", "returned here")
def number_or_tuple_returned(a):
    if a > 1:  # here
        return a
    return (a, 1)


# -- types that differ -----------------------------------------------------------------------------------------------


@refused(DSLUserCodeTypeError, "a > 0", "'x'", "Float32", "Int32", "earlier value", hint="convert one of them")
def types_of_two_branches(a):
    x = Int32(1)
    if a > 0:  # here
        x = Float32(1.0)
    return x


@refused(DSLUserCodeTypeError, "a > 0", "'x'", "Float32", "(int (1), int (2))", "is assigned here")
def number_or_tuple(a):
    if a > 0:  # here
        x = Float32(1.0)
    else:
        x = (1, 2)
    return x


@refused(DSLUserCodeTypeError, "range(a)", "x is Int32", "Float32 after an iteration", hint="x = Float32(...)")
def type_changes_across_iterations_of_for(a):
    x = 0
    for i in range(a):  # here
        x = x + 0.5
    return x


@refused(DSLUserCodeTypeError, "a > 0", "x is Int32", "Float32 after an iteration")
def type_changes_across_iterations_of_while(a):
    x = 0
    while a > 0:  # here
        x = x / 2
        a -= 1
    return x


@refused(DSLUserCodeTypeError, "range(a)", "t[1] is Int32", "Float32")
def type_of_a_tuple_element_changes(a):
    t = (0, 1)
    for i in range(a):  # here
        t = (t[0], t[1] * 0.5)
    return t


@refused(DSLUserCodeTypeError, "range(a)", "s.x is Int32", "Float32")
def type_of_an_attribute_changes(a):
    s = types.SimpleNamespace(x=1)
    for i in range(a):  # here
        s.x = s.x + 0.5
    return s.x


@refused(DSLUserCodeTypeError, "a > 1", "s.x", "str ('text')", "Int32")
def type_of_an_attribute_differs_between_branches(a):
    s = types.SimpleNamespace(x=Int32(1))
    if a > 1:  # here
        s.x = "text"
    return 1


@refused(DSLUserCodeTypeError, "a > 0", "None", "Int32")
def none_or_a_number(a):
    x = None
    if a > 0:  # here
        x = a
    return x


@refused(DSLUserCodeTypeError, "range(a)", "None before the loop", "Int32 inside")
def none_before_a_loop(a):
    x = None
    for i in range(a):  # here
        x = i
    return 1 if x is None else 2


@refused(DSLUserCodeTypeError, "a > 0", "Mode.EXACT", "Mode.FAST", hint="use a number instead")
def enum_changes_in_a_branch(a):
    mode = Mode.FAST
    if a > 0:  # here
        mode = Mode.EXACT
    return 1 if mode is Mode.FAST else 2


@refused(DSLUserCodeTypeError, "range(a)", "str ('x')", "str ('y')", hint="range_constexpr")
def string_changes_in_a_loop(a):
    name = "x"
    for i in range(a):  # here
        name = "y"
    return len(name)


@refused(DSLUserCodeTypeError, "a > 1", "their lengths differ (3 and 2)")
def tuples_of_different_length(a):
    t = (1, 2)
    if a > 1:  # here
        t = (1, 2, 3)
    return t


@refused(DSLUserCodeTypeError, "a > 1", "their keys differ")
def dicts_of_different_keys(a):
    if a > 1:  # here
        d = {"a": 1}
    else:
        d = {"b": 1}
    return d


@refused(DSLUserCodeTypeError, "a > 1", "SimpleNamespace object", "Mode.FAST")
def objects_of_different_classes(a):
    if a > 1:  # here
        d = types.SimpleNamespace(x=1)
    else:
        d = Mode.FAST
    return d


@refused(DSLUserCodeTypeError, 'a if a > 1 else "x"', "Int32", "str ('x')", hint="convert one of them")
def conditional_expression_of_different_types(a):
    return a if a > 1 else "x"  # here


@refused(DSLUserCodeTypeError, "range(a)", "'w' is int (1)", "int (2)", hint="drop the annotation")
def constexpr_variable_changes(a):
    w: Constexpr = 1
    for i in range(a):  # here
        w = w + 1
    return w


# -- containers ------------------------------------------------------------------------------------------------------


@refused(DSLRuntimeError, "a > 0", "the list 'out' changes its length", hint="final size before")
def list_grows_in_a_branch(a):
    out = []
    if a > 0:  # here
        out.append(a)
    return len(out)


class Fixed:
    __kiln_fixed__ = True

    def __init__(self, x):
        self.x = x


@refused(DSLRuntimeError, "range(a)", "f.x is assigned inside the loop", hint="assign it before")
def attribute_that_stays_is_assigned(a):
    f = Fixed(a)
    for i in range(a):  # here
        f.x = f.x + i
    return f.x


@refused(DSLRuntimeError, "range(a)", "the list 'out' changes its length inside the loop")
def list_grows_in_a_loop(a):
    out = []
    for i in range(a):  # here
        out.append(i)
    return len(out)


@refused(DSLRuntimeError, "a > 0", "the dict 'table' changes its keys")
def dict_gains_a_key(a):
    table = {}
    if a > 0:  # here
        table["k"] = a
    return len(table)


@refused(DSLRuntimeError, "a > 0", "the list 'items' changes its length", hint="final size before")
def list_shrinks_in_a_branch(a):
    items = [1, 2]
    if a > 0:  # here
        items.pop()
    return items[0]


@refused(DSLRuntimeError, "a > 0", "the dict 'table' changes its keys")
def dict_loses_a_key(a):
    table = {"k": 1}
    while a > 0:  # here
        del table["k"]
        a -= 1
    return a


@refused(DSLRuntimeError, "a > 0", "the set 'seen' changes")
def set_grows(a):
    seen = set()
    while a > 0:  # here
        seen.add(1)
        a -= 1
    return len(seen)


@refused(DSLRuntimeError, "a > 0 and items.pop() > 1", "the list 'items' changes its length")
def list_shrinks_in_a_lazy_part(a):
    items = [1, 2]
    return a > 0 and items.pop() > 1  # here


def grow(items):
    items.append(1)


@refused(DSLRuntimeError, "a > 2", "the list 'items' changes its length")
def list_grows_in_a_helper(a):
    items = [1, 2]
    if a > 2:  # here
        grow(items)
    return items[0]


# -- statements that need Python -------------------------------------------------------------------------------------


@refused(DSLSyntaxError, 'raise ValueError("no")', "`raise`", hint="assert condition, message")
def raise_in_a_branch(a):
    if a > 0:
        raise ValueError("no")  # here
    return a


@refused(DSLSyntaxError, "raise ValueError", "`raise`")
def raise_in_a_loop(a):
    for i in range(a):
        raise ValueError  # here
    return a


@refused(DSLSyntaxError, "global counter", "`global` inside a branch or loop")
def global_in_a_branch(a):
    if a > 0:
        global counter  # here
        counter = 1
    return a


@refused(DSLSyntaxError, "a > 0", "the global 'counter' is assigned inside the `if`", hint="local variable")
def global_assigned_in_a_branch(a):
    global counter
    if a > 0:  # here
        counter = a
    return a


@refused(DSLSyntaxError, "yield a", "`yield`", "cannot be traced", hint="return the values")
def generator(a):
    yield a  # here


@refused(DSLSyntaxError, "break", "a jump out of `finally`")
def jump_out_of_finally(a):
    for i in range(a):
        try:
            a += 1
        finally:
            break  # here
    return a


@refused(DSLRuntimeError, "i < 1", "ran 10000 times while tracing", hint="Int32(0)")
def endless_static_while(a):
    i = 0
    while i < 1:  # here
        a = i
    return a


# -- values that Python must know ------------------------------------------------------------------------------------


@refused(DSLRuntimeError, "range_constexpr(a)", "Int32", hint="Constexpr")
def dynamic_range_constexpr(a):
    s = 0
    for i in range_constexpr(a):  # here
        s += i
    return s


@refused(DSLRuntimeError, "[1, 2, 3][a]", "a concrete int", hint="a list index")
def dynamic_list_index(a):
    return [1, 2, 3][a]  # here


@refused(DSLRuntimeError, "table[a]", "a hashable value", hint="dict key")
def dynamic_dict_key(a):
    table = {1: 2}
    return table[a]  # here


@refused(DSLRuntimeError, "const_expr(a > 1)", "const_expr() got a value of type Boolean", hint="drop const_expr()")
def const_expr_of_a_dynamic_value(a):
    if const_expr(a > 1):  # here
        return 1
    return 2


@refused(DSLRuntimeError, "sorted([a, 1])", "a concrete bool", hint="element by element")
def sorting(a):
    return sorted([a, 1])[0]  # here


@refused(DSLRuntimeError, "pair == other", "a concrete bool", hint="element by element")
def comparing_tuples(a):
    pair, other = (a, 1), (2, 1)
    return 1 if pair == other else 0  # here


@refused(DSLRuntimeError, "i > a", "the `if` of a comprehension", hint="a if c else b")
def filter_of_a_comprehension(a):
    return [i for i in (1, 2) if i > a]  # here


@refused(DSLRuntimeError, "a", "`match` looks at the class", hint="`case 1 | 2:`")
def class_pattern_on_a_dynamic_value(a):
    match a:  # here
        case int():
            return 1
    return 2


@refused(DSLRuntimeError, "a", "cannot run over Int32", hint="range(n)")
def loop_over_a_number(a):
    for i in a:  # here
        pass
    return a


@refused(DSLRuntimeError, "range(1.5)", "takes integers", "float (1.5)", hint="Int32(...)")
def range_of_a_float(a):
    for i in range(1.5):  # here
        pass
    return a


@refused(DSLRuntimeError, "range(0, a, 0)", "must not be zero")
def range_with_step_zero(a):
    for i in range(0, a, 0):  # here
        pass
    return a


@refused(DSLRuntimeError, "math.sqrt(a)", "a concrete float", hint="Float32")
def python_function_of_a_number(a):
    import math

    return math.sqrt(a)  # here


def undecorated(x):
    if x > 1:  # here
        return 1
    return 2


def undecorated_while(x):
    while x > 1:  # here
        x -= 1
    return x


@pytest.mark.parametrize("helper", [undecorated, undecorated_while])
def test_undecorated_helper(helper):
    @cute.jit
    def main(a):
        return helper(a)

    with pytest.raises(DSLRuntimeError) as caught:
        main(3)
    check(caught.value, helper, "x > 1", ("a concrete bool",), "decorate the enclosing function")
    assert [call.function for call in caught.value.calls][0] == "main"


# -- kernels and calls -----------------------------------------------------------------------------------------------


@cute.kernel
def empty():
    pass


@cute.kernel
def takes_one(n):
    cute.printf("{}", n)


def failure_of(kind, call, *words: str, hint: str = "") -> DSLBaseError:
    with pytest.raises(kind) as caught:
        call()
    failure = caught.value
    for word in words:
        assert word in failure.message, str(failure)
    assert hint in failure.hint, failure.hint
    assert failure.span is not None
    assert failure.span.filename == __file__
    return failure


def test_kernel_called_from_python():
    failure = failure_of(DSLRuntimeError, lambda: empty(), "'empty' was called from Python", hint=".launch(")
    assert "empty()" in linecache.getline(__file__, failure.span.line)


def test_kernel_called_from_a_kernel():
    @cute.kernel
    def outer():
        empty()  # here

    @cute.jit
    def main():
        outer().launch(grid=1, block=1)

    failure = failure_of(DSLRuntimeError, main, "'empty' was called from a kernel", hint="@jit")
    assert failure.span.line == marked_line(outer.function)


def test_launch_from_a_kernel():
    launches = []

    @cute.kernel
    def outer():
        launches[0].launch(grid=1, block=1)  # here

    @cute.jit
    def main():
        launches.append(empty())
        outer().launch(grid=1, block=1)

    failure = failure_of(DSLRuntimeError, main, "a kernel cannot launch a kernel")
    assert failure.span.line == marked_line(outer.function)


def test_compile_of_a_kernel():
    failure_of(
        DSLUserCodeTypeError,
        lambda: cute.compile(empty),
        "compile() got the kernel 'empty'",
        hint="@jit function that launches",
    )


def test_compile_of_something_else():
    failure_of(DSLUserCodeTypeError, lambda: cute.compile(5), "compile() takes a function", "int", hint="@jit")


def test_kernel_that_returns_a_value():
    @cute.kernel
    def returns():
        return 5

    @cute.jit
    def main():
        returns().launch(grid=1, block=1)

    failure_of(DSLUserCodeTypeError, main, "'returns' returns a value", hint="tensor")


def test_decorator_above_staticmethod():
    def build():
        class Wrong:
            @cute.jit
            @staticmethod
            def f(a):
                return a

    failure_of(DSLUserCodeTypeError, build, "@jit stands above @staticmethod", hint="@staticmethod above @jit")


def test_decorator_on_a_class():
    failure_of(DSLUserCodeTypeError, lambda: cute.jit(Mode), "@jit takes a function")


def test_recursion_with_a_dynamic_depth():
    @cute.jit
    def down(n):
        if n > 0:
            return down(n - 1)
        return n

    failure_of(
        DSLRuntimeError,
        lambda: down(3),
        "down is called",
        "deep",
        hint="must end by a condition that is a Python value",
    )


def test_bad_launch_sizes():
    @cute.jit
    def main(n):
        empty().launch(grid=(1, 2, 3, 4), block=1)

    failure_of(DSLUserCodeTypeError, lambda: main(1), "grid has 4 extents", hint="(x, y, z)")

    @cute.jit
    def fraction(n):
        empty().launch(grid=1.5, block=1)

    failure_of(DSLUserCodeTypeError, lambda: fraction(1), "grid.x is 1.5", hint="integers")


def test_unknown_launch_option():
    @cute.jit
    def main():
        empty().launch(grid=1, block=1, colour="red")

    failure_of(DSLUserCodeTypeError, main, "unknown option 'colour'")


def test_thread_index_outside_a_kernel():
    @cute.jit
    def main():
        return cute.arch.thread_idx()[0]

    failure_of(DSLRuntimeError, main, "thread_idx", "outside a kernel", hint="@kernel")


def test_printf_outside_a_trace():
    failure_of(DSLRuntimeError, lambda: cute.printf("x"), "printf is only possible inside", hint="@jit")


# -- arguments -------------------------------------------------------------------------------------------------------


@cute.jit
def takes_two(a, b: Int32, *, c=1):
    return a + b + c


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1,), {}, ("missing", "'b'")),
        ((1, 2, 3), {}, ("too many positional arguments",)),
        ((1, 2), {"d": 3}, ("unexpected keyword argument 'd'",)),
        ((1, 2), {"a": 3}, ("multiple values for argument 'a'",)),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, words):
    failure = failure_of(DSLUserCodeTypeError, lambda: takes_two(*args, **kwargs), "takes_two(a, b, *, c=1)", *words)
    assert f"got {len(args)} positional" in failure.hint


def test_argument_of_the_wrong_type():
    failure_of(DSLUserCodeTypeError, lambda: takes_two(1, 2.5), "'b'", "Int32", "2.5", hint="integer")


def test_argument_that_cannot_be_passed():
    failure_of(DSLUserCodeTypeError, lambda: takes_two(object(), 1), "'a'", "object", hint="Constexpr")


def test_kernel_arguments_that_do_not_fit():
    @cute.jit
    def main():
        takes_one(1, 2).launch(grid=1, block=1)  # here

    failure = failure_of(DSLUserCodeTypeError, main, "takes_one(n)", "too many positional arguments")
    assert failure.span.line == marked_line(main.function)


def test_compiled_function_called_with_the_wrong_arguments():
    compiled = cute.compile(takes_two, 1, 2)
    failure_of(DSLUserCodeTypeError, lambda: compiled(1), "takes_two needs b")
    failure_of(DSLUserCodeTypeError, lambda: compiled(1.5, 2), "'a'", "Float32", "Int32", hint="compile again")
    failure_of(DSLUserCodeTypeError, lambda: compiled(1, 2, colour=3), "'colour'")
