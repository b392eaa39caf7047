# pyright: reportInvalidTypeForm=false
"""Functions: arguments, closures, methods, decorators, recursion; jit to jit, jit to Python; the same as Python."""

from __future__ import annotations

import pytest
from differential import Programs, check_text

import kiln
from kiln import Constexpr, cute

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


def helper(x, y=10, *more, scale=1, **named):
    return (x + y + sum(more)) * scale + sum(named.values())


def keyword_only(*, left, right=2):
    return left * 10 + right


@case(1, 5)
def default_and_keyword_arguments(a):
    return helper(a), helper(a, 1), helper(a, y=2, scale=3), helper(a, 1, 2, 3, k=a, m=1), keyword_only(left=a)


@case(1, 5)
def unpacked_calls(a):
    args, kwargs = (a, 2), {"scale": 4}
    return helper(*args, **kwargs)


@case(1, 5)
def inner_function(a):
    def inner(x):
        if x > 2:
            return x * 10
        return x

    return inner(a) + inner(1)


@case(1, 5)
def inner_function_with_nonlocal(a):
    count = 0

    def bump(by):
        nonlocal count
        if by > 1:
            count += by

    bump(a)
    for i in range(a):
        bump(i)
    return count


@case(1, 5)
def closures_in_a_list(a):
    fs = [lambda x, k=k: x + k * a for k in range(3)]
    return [f(1) for f in fs]


@case(1, 5)
def closure_over_a_variable_changed_later(a):
    get = lambda: b
    b = a
    if a > 2:
        b = 100
    return get()


@case(1, 5)
def inner_function_called_in_regions(a):
    total = 0

    def add(v):
        nonlocal total
        total = total + v
        return total

    if a > 2:
        add(a)
    while total < 20:
        add(7)
    return total


@case(1, 5)
def function_passed_as_a_value(a):
    def apply(f, x):
        return f(f(x))

    return apply(lambda v: v * 2 if v > 1 else v + 5, a)


@case(1, 5)
def generator_run_while_tracing(a):
    def items(n):
        for i in range(n):
            yield i * 2

    return sum(items(3)) + a


@case(1, 5)
def early_return_without_a_value_in_an_inner_function(a):
    log = [0]

    def note(v):
        if v > 2:
            return
        log[0] = v + 1

    note(a)
    return log[0]


@case(1, 5)
def early_return_without_a_value_in_a_loop(a):
    log = [0]

    def note(n):
        for i in range(n):
            if i > 2:
                return
            log[0] = log[0] + i

    note(a)
    return log[0]


@case(1, 5)
def static_recursion_in_a_python_helper(a):
    def power(x, n):
        return 1 if n == 0 else x * power(x, n - 1)

    return power(a, 4)


class Base:
    def __init__(self, k):
        self.k = k

    def shift(self, x):
        return x + self.k


def test_methods_static_class_and_super():
    check_text(
        """
        class Base:
            factor = 2

            def __init__(self, k):
                self.k = k

            @jit
            def shift(self, x):
                if x > self.k:
                    return x - self.k
                return x * self.factor

            @staticmethod
            @jit
            def clamp(x, hi):
                return hi if x > hi else x

            @classmethod
            def make(cls, k):
                return cls(k)

        class Derived(Base):
            factor = 5

            @jit
            def shift(self, x):
                r = 0
                if x > 1:
                    r = super().shift(x) + 1000
                for i in range(x):
                    r += super().shift(i)
                return r

        @jit
        def f(a):
            d = Derived.make(2)
            return d.shift(a), Base(1).shift(a), Base.clamp(a, 3), d.clamp(a, 2)
        """,
        (0,), (1,), (2,), (7,),
    )  # fmt: skip


def test_private_names():
    check_text(
        """
        class Vault:
            __shared = 4

            def __init__(self, v):
                self.__v = v

            @jit
            def open(self, __k):
                if __k > 2:
                    self.__v += self.__bonus()
                return self.__v + __k + self.__shared

            def __bonus(self):
                return 50

        @jit
        def f(a):
            return Vault(a).open(a)
        """,
        (0,), (5,),
    )  # fmt: skip


def test_private_names_of_a_class_inside_a_function():
    check_text(
        """
        def build():
            class Inner:
                def __init__(self, v):
                    self.__v = v

                @jit
                def get(self, n):
                    for i in range(n):
                        self.__v += i
                    return self.__v
            return Inner

        Inner = build()

        @jit
        def f(a):
            return Inner(a).get(a)
        """,
        (0,), (5,),
    )  # fmt: skip


def test_call_operator_of_an_instance():
    check_text(
        """
        class Scale:
            def __init__(self, by):
                self.by = by

            @jit
            def __call__(self, x):
                if x > 10:
                    return 10
                return x * self.by

        scale = Scale(3)

        @jit
        def f(a):
            return scale(a) + Scale(2)(a)
        """,
        (1,), (11,),
    )  # fmt: skip


def test_jit_to_jit_with_returns():
    check_text(
        """
        @jit
        def sign(x):
            if x > 0:
                return 1
            elif x < 0:
                return -1
            return 0

        @jit
        def pair(x, *, by=2):
            return x * by, sign(x - by)

        @jit
        def f(a):
            p, s = pair(a)
            q, t = pair(a, by=s + 3)
            return p, q, s + t, [sign(v) for v in (a, -a, 0)]
        """,
        (0,), (2,), (5,), (-4,),
    )  # fmt: skip


def test_recursion_with_a_static_depth():
    check_text(
        """
        @jit
        def power(x, n):
            if n == 0:
                return 1
            half = power(x, n // 2)
            if n % 2:
                return half * half * x
            return half * half

        @jit
        def f(a):
            return power(a, 5), power(a, 1), power(a, 0)
        """,
        (2,), (-3,),
    )  # fmt: skip


def test_mutual_recursion_with_a_static_depth():
    check_text(
        """
        @jit
        def even(x, n):
            return x if n == 0 else odd(x + 1, n - 1)

        @jit
        def odd(x, n):
            return -x if n == 0 else even(x * 2, n - 1)

        @jit
        def f(a):
            return even(a, 4), even(a, 5)
        """,
        (2,), (-3,),
    )  # fmt: skip


def test_decorated_inner_functions_and_aliases():
    check_text(
        """
        def twice(g):
            return lambda x: g(g(x))

        @jit
        def f(a):
            @twice
            def inc(x):
                if x > 3:
                    return x + 10
                return x + 1

            @jit
            def dec(x):
                return x - 1 if x > 0 else 0
            return inc(a), dec(a)
        """,
        (0,), (3,), (9,),
    )  # fmt: skip


def test_future_annotations():
    check_text(
        """
        from __future__ import annotations

        @jit
        def g(x: kiln.Int32, unknown: NotDefinedAnywhere) -> AlsoNotDefined:
            y: StillNotDefined = x
            if y > 1:
                y: int = 2
            return y + unknown

        @jit
        def f(a: kiln.Int32):
            return g(a, 1)
        """,
        (0,), (3,),
    )  # fmt: skip


def test_lambdas_as_jit_functions():
    f = cute.jit(lambda x, y: x if x > y else y * 2)
    assert [f(1, 2), f(3, 2)] == [4, 3]


def test_several_lambdas_on_one_line():
    f, g = cute.jit(lambda x: x + 1 if x > 0 else 0), cute.jit(lambda x: x * 2 if x > 0 else 1)
    assert [f(1), g(4), f(-1), g(-1)] == [2, 8, 0, 1]


def test_lambda_passed_as_constexpr():
    @cute.jit
    def apply(op: Constexpr, x, y):
        s = 0
        for i in range(x):
            s += op(i, y)
        return s

    assert apply(lambda a, b: a + b if a > 1 else 0, 4, 10) == 12 + 13
    assert apply(lambda a, b: a and b, 4, 10) == 30


def test_decorators_defaults_and_annotations_run_once():
    runs = []

    def mark(name, value=None):
        runs.append(name)
        return value

    def outer(function):
        runs.append("outer")
        return function

    @outer
    @cute.jit
    def f(a, b: mark("annotation") = mark("default", 3)):  # noqa: F821
        return a + b

    before = list(runs)
    assert f(1) == 4
    assert f(1, 1) == 2
    assert runs == before
    assert before.count("default") == 1
    assert before.count("outer") == 1


def test_wrapped_functions_keep_their_names():
    @cute.jit
    def documented(a):
        """Adds one."""
        return a + 1

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Adds one."


def test_jit_with_parentheses_and_without_rewriting():
    @cute.jit()
    def f(a):
        return 1 if a > 1 else 2

    @cute.jit(preprocess=False)
    def g(a):
        return a + 1

    assert [f(1), f(2), g(1)] == [2, 1, 2]


def test_compile_an_instance_and_a_method():
    class Scale:
        def __init__(self, by):
            self.by = by

        @cute.jit
        def __call__(self, x):
            return x * self.by

        @cute.jit
        def shifted(self, x, y):
            return x * self.by + y

    scale = Scale(3)
    assert cute.compile(scale, 1)(5) == 15
    assert cute.compile(scale.shifted, 1, 1)(5, 1) == 16
    assert scale(4) == 12


@kiln.cute.jit
def returns_everything(n):
    return 5, n + 1, {"k": n, "s": "text"}, [None, (n > 2, 0.5)]


def test_returned_values_static_dynamic_and_nested():
    assert returns_everything(4) == (5, 5, {"k": 4, "s": "text"}, [None, (True, 0.5)])


def test_returning_nothing():
    @cute.jit
    def f(a):
        if a > 1:
            return
        a = a + 1

    assert f(1) is None
    assert f(5) is None
