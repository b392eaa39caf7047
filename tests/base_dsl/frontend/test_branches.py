# pyright: reportUndefinedVariable=false
"""`if`, `elif`, `else`: the same results as Python, with static and dynamic conditions."""

from __future__ import annotations

import pytest
from differential import Programs

from kiln import Boolean, Float32, Int32, Int64, const_expr, dynamic_expr

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


@case(0, 5, -5)
def if_without_else(a):
    x = 1
    if a > 0:
        x = 2
    return x


@case(0, 5, -5)
def if_else(a):
    if a > 0:
        x = a * 2
    else:
        x = a - 1
    return x


@case(-3, 0, 1, 2, 3, 9)
def elif_chain(a):
    if a < 0:
        x = 10
    elif a == 0:
        x = 20
    elif a == 1:
        x = 30
    elif a < 3:
        x = 40
    else:
        x = 50
    return x


@case((0, 0), (1, 0), (0, 1), (1, 1))
def nested_both_ways(a, b):
    if a:
        if b:
            x = 1
        else:
            x = 2
    else:
        if b:
            x = 3
        else:
            x = 4
    return x


@case((3, 4), (4, 3), (4, 4))
def two_variables_and_a_swap(a, b):
    if a > b:
        a, b = b, a
    return a, b


@case(7, 8)
def condition_is_a_number(a):
    if a % 2:
        return 1
    return 0


@case(0.0, 2.5, -1.0)
def condition_is_a_float(a):
    x = 0
    if a:
        x = 1
    return x


@case(5, 15)
def static_condition_runs_in_python(a):
    limit = 10
    if limit > 5:
        name = "large"
    else:
        name = undefined_name  # noqa: F821
    if name == "large":
        a += 1
    return a


@case(1, 2)
def const_expr_chooses_code(a):
    flag = True
    if const_expr(flag and not False):
        a = a + 1
    else:
        a = a.no_such_attribute
    return a


@case(1, 2)
def const_expr_nested_in_a_dynamic_branch(a):
    wide = False
    if a > 1:
        if const_expr(wide):
            a = a.nothing
        else:
            a += 5
    return a


@case(1, 9)
def dynamic_expr_is_accepted(a):
    x = 0
    if dynamic_expr(a > 3):
        x = 1
    return x


@case(1, 9)
def branch_only_calls(a):
    seen = [0]

    def note(v):
        seen[0] = v

    if a > 3:
        note(a)
    return seen[0]


@case((2, 3), (9, 3))
def same_static_value_in_both_arms_stays_static(a, b):
    if a > b:
        n = 4
        b += 1
    else:
        n = 4
    out = 0
    for i in [10, 20, 30, 40][:n]:
        out += i * a
    return out + b


@case((2, 3), (9, 3))
def python_numbers_merge_to_a_value(a, b):
    if a > b:
        n = 4
    else:
        n = 7
    return n * b


@case(0, 1, 2)
def python_scalar_takes_the_type_of_the_other_arm(a):
    x = Float32(0.5)
    if a > 0:
        x = 2
    return float(x) * 2


@case(0, 4)
def python_int_beside_an_int64(a):
    x = Int64(1 << 40)
    if a > 2:
        x = 3
    return x + 1


@case(0, 4)
def merges_a_bool(a):
    hit = False
    if a > 2:
        hit = True
    if hit:
        a += 100
    return a


@case(0, 4)
def typed_boolean(a):
    hit = Boolean(False)
    if a > 2:
        hit = Boolean(True)
    return a if hit else -a


@case(0, 4)
def names_rewritten_before_they_are_read_may_differ(a):
    x = 1
    if a > 2:
        x = (1, 2, 3)
        y = "text"
    else:
        x = 0.5
        y = None
    x = a
    y = 2
    return x + y


@case(0, 4)
def underscore_is_never_carried(a):
    if a > 2:
        _ = "text"
    else:
        _ = (1, 2)
    for _ in range(a):
        a += 1
    _, b = a, a + 1
    return b


@case(0, 4)
def dead_names_are_never_carried(a):
    if a > 2:
        temporary = [1, 2, 3]
        a += temporary[0]
    else:
        temporary = {"k": 5}
        a += temporary["k"]
    return a


@case((0, 1), (4, 1), (4, 9))
def name_defined_in_both_arms_of_nested_branches(a, b):
    if a > 2:
        if b > 3:
            r = 1
        else:
            r = 2
    else:
        r = 3
    return r


@case(0, 3, 8)
def early_return_without_else(a):
    if a > 5:
        return 100
    if a > 2:
        return 200
    return a


@case(0, 3, 8)
def early_return_in_both_arms(a):
    if a > 5:
        return a * 2
    else:
        return a * 3


@case((0, 0), (3, 0), (8, 1), (8, 0))
def early_return_nested(a, b):
    r = 0
    if a > 2:
        r += 1
        if b:
            return r * 1000
        r += 10
    r += 100
    return r


@case(0, 3, 8)
def early_return_of_a_tuple(a):
    if a > 5:
        return a, 1
    b = a * a
    if a > 2:
        return b, 2
    return 0, b


@case(0, 3)
def statements_after_static_return_are_not_run(a):
    if True:
        return a + 1
    return a.nothing


@case(1, 2)
def pass_in_an_arm(a):
    if a > 1:
        pass
    else:
        a = 7
    return a


@case((1, 5), (2, 5), (3, 5))
def condition_with_a_side_effect_runs_once(a, b):
    calls = [0]

    def test(v):
        calls[0] += 1
        return v > 1

    if test(a):
        b += 1
    return b * 10 + calls[0]


@case(2, 3)
def annotated_variables(a):
    x: Int32 = a
    y: int
    if a > 2:
        y = 1
    else:
        y = 2
    return x + y


@case(5, 6)
def deeply_nested(a):
    r = 0
    if a > 0:
        if a > 1:
            if a > 2:
                if a > 3:
                    if a > 4:
                        r = 5
                        if a > 5:
                            r = 6
    return r


@case((0, 0), (1, 2), (5, 1))
def branch_on_a_variable_that_another_branch_changed(a, b):
    if a > b:
        a = b
        b = 7
    if b > a:
        a = a + b
    elif a == b:
        a = -1
    return a * 100 + b


@case(0, 1, 2, 3, 4, 5)
def many_jumps_in_one_function(a):
    r = 0
    if a == 0:
        return r
    r += 1
    if a == 1:
        return r
    r += 2
    if a == 2:
        return r
    r += 4
    if a == 3:
        return r
    r += 8
    if a == 4:
        return r
    return r + 16
