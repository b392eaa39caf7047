"""`for`, `while`, `break`, `continue`, `else` and early `return`: the same results as Python."""

from __future__ import annotations

import pytest
from differential import Programs

import kiln
from kiln import Float32, Int32, Int64, Uint32, range_constexpr

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


# -- for over ranges -------------------------------------------------------------------------------------------------


@case(0, 1, 7)
def sum_of_a_range(n):
    s = 0
    for i in range(n):
        s += i
    return s


@case((0, 5), (2, 9), (5, 2), (-3, 3))
def start_and_stop(a, b):
    s = 0
    for i in range(a, b):
        s = s * 3 + i
    return s


@case((0, 17), (3, 3), (1, 20))
def constant_step(a, b):
    s = 0
    for i in range(a, b, 5):
        s = s * 2 + i
    return s


@case((9, 0), (0, 9), (5, -6))
def constant_negative_step(a, b):
    s = 1
    for i in range(a, b, -2):
        s = s * 2 + i
    return s


@case((0, 10, 3), (10, 0, -3), (0, 10, -1), (5, 5, 2), (10, 0, 4), (-1, -9, -4))
def dynamic_step(a, b, step):
    s = 1
    for i in range(a, b, step):
        s = (s * 3 + i) % 1000
    return s


@case(3, 0)
def static_bounds(a):
    s = a
    for i in range(2, 10, 3):
        s += i * a
    return s


@case(3)
def empty_static_range(a):
    for i in range(5, 5):
        a += 1000
    return a


@case(0, 6)
def cutlass_range_with_hints(n):
    s = 0
    for i in kiln.range(n, unroll=2, vectorize=False):
        s += i * i
    for i in kiln.range(0, 8, 2, unroll_full=True, prefetch_stages=2):
        s += i
    return s


@case(0, 6)
def constexpr_range_unrolls(n):
    names = ["a", "bb", "ccc"]
    s = 0
    for i in range_constexpr(3):
        s += len(names[i]) * n
    for i in range_constexpr(6, 0, -2):
        s += i
    return s


@case(2, 5)
def loop_variable_after_a_static_loop(n):
    for i in range(4):
        n += i
    return n * 10 + i


@case(0, 5)
def loop_variable_after_a_dynamic_loop(n):
    i = -1
    for i in range(n):
        pass
    return i


@case(4)
def loop_variable_is_rebound_in_the_body(n):
    s = 0
    for i in range(n):
        i = i * 10
        s += i
    return s


@case((3, 4), (0, 4), (4, 0))
def nested_ranges(a, b):
    s = 0
    for i in range(a):
        for j in range(b):
            s = s * 2 + (i ^ j)
            s %= 1000
    return s


@case(4, 0)
def triangular(n):
    s = 0
    for i in range(n):
        for j in range(i, n):
            s += i * j
    return s


@case(5)
def bounds_are_evaluated_once(n):
    s = 0
    for i in range(n):
        n = n - 1
        s += i
    return s * 100 + n


@case(5, 0)
def wide_bounds(n):
    s = Int64(0)
    for i in range(Int64(1 << 33), Int64(1 << 33) + n):
        s += i - (1 << 33)
    return s


@case(5, 0)
def unsigned_bounds(n):
    s = 0
    stop = Uint32(n)
    for i in range(stop):
        s += 1
    for i in range(Uint32(3), stop, -1):
        s += 10
    for i in range(-2, stop):
        s += 100
    return s


@case(3, 0)
def two_names_alternate(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@case(4)
def float_accumulator(n):
    s = Float32(0.0)
    for i in range(n):
        s = s + 0.5 * i
    return s


# -- for over Python containers --------------------------------------------------------------------------------------


@case(1, 2)
def over_a_tuple_with_dynamic_items(a):
    s = 0
    for x in (a, 2 * a, 5):
        s = s * 10 + x
    return s


@case(1, 2)
def over_zip_and_enumerate(a):
    s = 0
    for i, (x, y) in enumerate(zip([a, a + 1], (3, 4))):
        s += i * x + y
    return s


@case(1, 2)
def over_a_dict_and_reversed_and_a_generator(a):
    d = {"x": a, "y": 3}
    s = 0
    for k in d:
        s = s * 2 + d[k]
    for k, v in d.items():
        s = s * 2 + v + len(k)
    for v in reversed([1, a]):
        s = s * 2 + v
    for v in (e * a for e in range(3)):
        s = s * 2 + v
    return s


@case(0, 2, 3, 9)
def dynamic_break_while_unrolling(a):
    s = 0
    for x in (1, 2, 3):
        if x == a:
            break
        s += x
    else:
        s += 100
    return s


@case(0, 2, 3)
def dynamic_continue_while_unrolling(a):
    s = 0
    for x in (1, 2, 3):
        if x == a:
            continue
        s += x * 10
    return s


@case(0, 2, 3)
def dynamic_return_while_unrolling(a):
    for x in (1, 2, 3):
        if x == a:
            return x * 100
        a += 10
    return a


@case((0, 0), (1, 20), (2, 10))
def nested_unrolled_loops_with_breaks(a, b):
    s = 0
    for x in (1, 2):
        for y in (10, 20):
            if x == a and y == b:
                break
            s += x + y
        else:
            s += 1000
            continue
        break
    return s


# -- break, continue, else, return -----------------------------------------------------------------------------------


@case((9, 3), (9, 20), (0, 0))
def break_in_for(n, k):
    s = 0
    for i in range(n):
        if i == k:
            break
        s += i
    return s


@case((9, 3), (9, 20), (0, 0))
def break_sets_what_is_read_later(n, k):
    found = -1
    for i in range(n):
        if i * i > k:
            found = i
            break
    return found


@case((9, 3), (9, 2), (0, 1))
def continue_in_for(n, k):
    s = 0
    for i in range(n):
        if i % k == 1:
            continue
        s += i
    return s


@case((9, 3), (3, 9), (0, 1))
def for_else(n, k):
    s = 0
    for i in range(n):
        if i == k:
            break
    else:
        s = 50
    return s


@case((9, 3), (3, 9), (0, 1))
def return_from_for(n, k):
    for i in range(n):
        if i == k:
            return i * 10
    return -1


@case((9, 3), (3, 9), (0, 1))
def return_from_for_else(n, k):
    for i in range(n):
        if i == k:
            n = 99
            break
    else:
        return -7
    return n


@case((5, 5, 7), (5, 5, 100), (2, 0, 0))
def return_from_nested_loops(n, m, k):
    for i in range(n):
        for j in range(m):
            if i * m + j == k:
                return i, j
    return -1, -1


@case((5, 3), (5, 9), (1, 0))
def break_the_outer_loop_through_else(n, k):
    s = i = 0
    for i in range(n):
        for j in range(4):
            if i + j == k:
                break
            s += 1
        else:
            continue
        break
    return s * 10 + i


@case((8, 2, 5), (8, 9, 3), (3, 0, 9))
def break_and_continue_together(n, a, b):
    s = 0
    for i in range(n):
        if i == a:
            continue
        s += 1
        if i == b:
            break
        s += 10
    return s


@case((6, 2), (6, 0), (0, 0))
def statements_after_a_conditional_jump_in_both_arms(n, k):
    s = 0
    for i in range(n):
        if i < k:
            s += 1
            continue
        else:
            s += 100
            if s > 250:
                break
        s += 1000
    return s


@case(4)
def unconditional_break(n):
    s = 0
    for i in range(n):
        s += 5
        break
    return s


@case(4)
def unconditional_continue(n):
    s = 0
    for i in range(n):
        s += 5
        continue
    return s


@case(3, 0)
def static_break_inside_a_dynamic_loop(n):
    s = 0
    debug = False
    for i in range(n):
        for j in range_constexpr(4):
            if j == 2:
                break
            s += j + i
        if debug:
            break
    return s


@case((10, 4), (3, 9))
def step_and_break(n, k):
    s = 0
    for i in range(n, 0, -2):
        if i < k:
            break
        s += i
    return s


# -- while -----------------------------------------------------------------------------------------------------------


@case((27, 3), (0, 1), (1, 5))
def while_loop(a, b):
    n = 0
    while a > b:
        a = a // 2
        n += 1
    return n * 100 + a


@case(6, 0)
def while_counts_a_python_number(n):
    i = 0
    s = 0
    while i < n:
        s += i
        i += 1
    return s


@case(12, 1, 27)
def while_true_with_break(n):
    steps = 0
    while True:
        if n == 1:
            break
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@case(12, 1)
def while_true_with_return(n):
    steps = 0
    while True:
        if n <= 1:
            return steps
        n //= 2
        steps += 1


@case((12, 5), (1, 5), (30, 1))
def while_true_with_two_exits(n, k):
    while True:
        n -= 3
        if n < 0:
            return -1
        if n % 7 == k:
            break
    return n


@case(5)
def while_true_left_at_once(n):
    while True:
        n += 1
        break
    return n


@case((9, 3), (9, 20))
def while_with_continue(n, k):
    s = 0
    while n > 0:
        n -= 1
        if n == k:
            continue
        s += n
    return s


@case((9, 3), (9, 20), (0, 0))
def while_else(n, k):
    s = 0
    while n > 0:
        if n == k:
            break
        n -= 1
    else:
        s = 77
    return s + n


@case((9, 3), (3, 9))
def return_from_while(n, k):
    while n > 0:
        n -= 1
        if n == k:
            return n * 1000
    return n


@case((10, 3), (0, 3))
def condition_is_not_evaluated_after_a_break(n, k):
    # with n == 0 the test would divide by zero
    d = n
    while 100 // d > 1 if n > 0 else n > 0:
        d -= 1
        if d == 0:
            break
        if d == k:
            break
    return d


@case((20, 2), (0, 5))
def while_with_and(a, b):
    s = 0
    while a > 0 and b < 10:
        a -= 3
        b += 1
        s += a
    return s * 100 + b


@case(5)
def static_while_runs_in_python(a):
    names = ["x", "yy", "zzz"]
    i = 0
    while i < 3:
        a += len(names[i])
        i += 1
    return a


@case((3, 1), (3, 5))
def static_while_left_by_a_dynamic_break(a, b):
    i = 0
    while i < 4:
        if a + i == b + 2:
            break
        i += 1
    return i


@case((4, 3), (0, 1))
def nested_whiles(a, b):
    s = 0
    while a > 0:
        c = b
        while c > 0:
            s += a * c
            c -= 1
        a -= 1
    return s


@case((4, 7), (1, 0))
def while_inside_for_inside_while(a, b):
    s = 0
    while a > 0:
        for i in range(a):
            k = i
            while k > 0:
                k -= 2
                if s > b * 5:
                    break
                s += 1
            s += i
        a -= 1
    return s


@case((8, 3), (2, 3))
def walrus_in_the_test(n, k):
    s = 0
    while (m := n - k) > 0:
        s += m
        n -= 1
    return s * 10 + m


@case((8, 3, 6), (2, 3, 0), (9, 1, 3))
def walrus_in_the_test_and_break(n, k, b):
    s = 0
    while (m := n - k) > 0:
        if m == b:
            m = 1000
            break
        s += m
        n -= 1
    return s * 10 + m


@case(0, 1, 9)
def pass_in_a_while_that_a_call_changes(n):
    state = [n]

    def shrink():
        state[0] = state[0] - 2
        return state[0]

    while shrink() > 0:
        pass
    return state[0]


@case(3, 11)
def type_stays_typed(n):
    x = Int32(1)
    while x < n:
        x = x * 2
    return x


@case((48, 36), (17, 5), (7, 0))
def greatest_common_divisor(a, b):
    while b:
        a, b = b, a % b
    return a


@case(1, 2, 25, 97, 100)
def is_prime(n):
    if n < 2:
        return False
    d = 2
    while d * d <= n:
        if n % d == 0:
            return False
        d += 1
    return True


@case(0, 5, 12)
def variables_of_an_iteration_are_fresh(n):
    s = 0
    for i in range(n):
        if i % 2:
            t = i
        else:
            t = -i
        s += t
    return s


@case((7, 3), (0, 0), (3, 2), (9, 1))
def walrus_in_a_part_of_a_test_that_may_not_be_evaluated(n, m):
    seen, last = 0, 0
    while n > 0 and m > 1 and (seen := n) > 0:
        n -= 1
    while m > 0 and (n > 0 or (last := m) > 2):
        m -= 1
    return seen, last, m


@case((7, 3), (0, 0), (1, 2))
def walrus_in_a_part_of_a_condition_that_may_not_be_evaluated(n, m):
    seen = 5
    for i in range(n):
        if i > m and (seen := i) > 4:
            m += 1
        seen = seen + 1 if i % 2 else seen
        x = (seen := 9) if i > 5 else 0
        m += x
    return seen, m
