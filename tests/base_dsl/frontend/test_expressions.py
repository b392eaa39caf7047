"""Expressions: lazy operators, comparisons, builtins, `:=`, comprehensions, f-strings; the same results as Python."""

from __future__ import annotations

import enum

import pytest
from differential import Programs

from kiln import Boolean, DSLWarning, Float32, Int32, cute

case = Programs()


@pytest.mark.parametrize(("function", "inputs", "tolerance"), case.cases)
def test_same_as_python(function, inputs, tolerance):
    case.check(function, inputs, tolerance)


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Tally:
    def __init__(self):
        self.n = 0

    def up(self, value):
        self.n = self.n + 1
        return value


PAIRS = [(0, 0), (1, 0), (0, 3), (4, 2), (-7, 2), (7, -2)]


@case(*PAIRS)
def and_gives_the_deciding_operand(a, b):
    return a and b


@case(*PAIRS)
def or_gives_the_deciding_operand(a, b):
    return a or b


@case(*PAIRS)
def not_negates(a, b):
    return (not a), (not (a > b))


@case(*PAIRS)
def and_does_not_divide_by_zero(a, b):
    return 1 if b != 0 and a // b > 1 else 0


@case(*PAIRS)
def or_does_not_divide_by_zero(a, b):
    return 1 if b == 0 or a % b == 1 else 0


@case(*PAIRS)
def conditional_expression_does_not_divide_by_zero(a, b):
    return a // b if b != 0 else -1


@case(*PAIRS)
def three_operands(a, b):
    return (a and b and 5) or (a or b or 9)


@case(*PAIRS)
def mixed_static_and_dynamic_operands(a, b):
    flag = True
    return (flag and a), (a and flag), (False or b), (a or False or b)


@case(*PAIRS)
def logic_of_comparisons(a, b):
    return (a > 0 and b > 0) or not (a < b or a == b)


@case(*PAIRS)
def nested_conditional_expressions(a, b):
    return (1 if a > b else 2) if a > 0 else (3 if b > 0 else 4)


@case(*PAIRS)
def one_of_two_names(a, b):
    more, pair, turned = a > b, (a, b), (b, a)
    most, either = a if more else b, pair if more else turned
    half, quarter = 0.5, Float32(0.25)
    for missing in ():
        pass
    return most, either, half if more else quarter, 1 if more else 2, b if pair else missing  # pyright: ignore[reportUnboundVariable]


@case(*PAIRS)
def conditional_expression_of_tuples(a, b):
    x, y = (a, b) if a > b else (b, a)
    return x * 10 + y


@case(*PAIRS)
def conditional_expression_with_python_numbers(a, b):
    return (1 if a > b else 0) + (0.5 if b > 1 else Float32(2.0))


@case(*PAIRS)
def chained_comparison(a, b):
    return 0 < a <= 4 < b + 9, a < b < 3, a == b == 0


@case(*PAIRS)
def chained_comparison_evaluates_each_operand_once(a, b):
    t = Tally()
    t.n = Int32(0)
    r = t.up(a) < t.up(b) < t.up(5)
    return r, t.n


@case(*PAIRS)
def chained_comparison_stops_early(a, b):
    return a < b < 100 // (b if b != 0 else 1), b != 0 != a


@case(*PAIRS)
def calls_in_lazy_parts_change_objects_only_if_evaluated(a, b):
    t = Tally()
    t.n = Int32(0)
    first = a > 0 and t.up(b) > 0
    second = a > 0 or t.up(b) > 0
    third = t.up(1) if b > 0 else 0
    return first, second, third, t.n


@case(*PAIRS)
def membership_in_a_tuple(a, b):
    return a in (0, b, 4), a not in [1, b], b in range(4)


@case(*PAIRS)
def membership_in_a_set_and_a_dict(a, b):
    return a in {0, 4}, a in {1: "x", 4: "y"}, a not in frozenset({7})


@case(*PAIRS)
def membership_of_static_values(a, b):
    return "x" in "xyz", 3 in (1, 2), Mode.FAST in (Mode.FAST, Mode.EXACT), a + b


@case(*PAIRS)
def identity_with_none(a, b):
    c = None
    return a is None, a is not None, c is None, b if c is None else c


@case(*PAIRS)
def enum_comparisons_are_static(a, b):
    mode = Mode.EXACT
    if mode is Mode.FAST:
        a = a.nothing
    return a if mode == Mode.EXACT else b


@case(*PAIRS)
def min_and_max(a, b):
    return min(a, b), max(a, b, 3), min([a, b, 2]), max((a, b)), min(1, 2), max(a, b, key=lambda v: 0)


@case(*PAIRS)
def min_and_max_with_default(a, b):
    return min([], default=5), max((), default=a)


@case(*PAIRS)
def abs_and_divmod_and_pow(a, b):
    return abs(a), abs(a - b), divmod(a, 3), pow(a, 2), a**2


@case(*PAIRS)
def any_and_all(a, b):
    return any([a, b]), all([a, b]), any(x > 3 for x in (a, b)), all(x >= 0 for x in (a, b)), any([]), all([])


@case(*PAIRS)
def sum_of_a_list(a, b):
    return sum([a, b, 3]), sum((a, b), 10), sum(x * x for x in (a, b))


@case(*PAIRS)
def bool_and_int_of_values(a, b):
    return bool(a), int(a > b), int(b), bool(a > b) + 1


@case((1.5, 2.25), (-1.5, 0.0), (2.75, -3.5))
def float_and_int_conversions(a, b):
    return int(a), float(a), bool(b), int(a) + float(b)


@case(*PAIRS)
def len_and_isinstance(a, b):
    return len((a, b, 1)), isinstance(a, str), isinstance((a,), tuple), isinstance("x", str)


@case((1.5, 2.25), (-1.5, 0.5), (2.5, -3.5), tolerance=1e-6)
def rounding(a, b):
    return round(2.5), round(3.7), a + round(1.25, 1)


@case(*PAIRS)
def floor_division_and_modulo(a, b):
    return a // 3, a % 3, a // -2, a % -2, -a // 4


@case(*PAIRS)
def bit_operations(a, b):
    return a & b, a | b, a ^ b, ~a, a << 2, a >> 1


@case(*PAIRS)
def augmented_assignments(a, b):
    a += b
    a -= 2
    a *= 3
    a //= 2
    a %= 11
    a |= 4
    a ^= 1
    a &= 13
    a <<= 2
    a >>= 1
    return a


@case((1.0, 2.0), (3.0, 0.5))
def augmented_true_division(a, b):
    a /= b
    a **= 2
    return a


@case(*PAIRS)
def walrus(a, b):
    if (c := a + b) > 2:
        c += 1
    return c, (d := a), d + 1


@case(*PAIRS)
def walrus_in_lazy_parts(a, b):
    x = y = 0
    r = 1 if a > 0 and (x := a * 2) > 2 else 0
    s = (y := b + 1) if b > 0 else 7
    return r, s, x, y


@case(*PAIRS)
def walrus_in_a_comprehension(a, b):
    last = 0
    squares = [(last := v * v) for v in (a, b)]
    return last, squares[0] + squares[1]


@case(*PAIRS)
def comprehensions(a, b):
    rows = [[i * j + a for j in range(3)] for i in range(2)]
    flat = [x for row in rows for x in row if True]
    table = {k: v + b for k, v in zip("xy", (a, b))}
    odd = [i for i in range(5) if i % 2]
    return sum(flat), table["x"] * table["y"], odd, len({1, 2, 2})


@case(*PAIRS)
def comprehension_with_conditional_elements(a, b):
    return [v if v > 1 else -v for v in (a, b, 3)], [v > 0 and v < 4 for v in (a, b)]


@case(*PAIRS)
def comprehension_that_reads_a_variable_changed_before(a, b):
    if a > 0:
        b = 10
    return [b + i for i in range(2)]


@case(*PAIRS)
def generator_expressions(a, b):
    return sum(x for x in (a, b) if True), max(v * 2 for v in (a, b)), tuple(i + a for i in range(2))


@case(*PAIRS)
def slices_and_unpacking(a, b):
    first, *rest = [a, b, 3, 4]
    x, (y, z) = a, (b, 5)
    t = (a, b, 7)[1:]
    return first + sum(rest) + x + y + z + t[0] + t[-1]


@case(*PAIRS)
def star_expressions(a, b):
    t = (a, b)
    u = [*t, 1, *t]
    d = {**{"p": a}, "q": b}
    return sum(u) + d["p"] + d["q"]


@case(*PAIRS)
def f_strings_of_static_values(a, b):
    name = f"{3:02d}-{'x'!r}-{Mode.FAST.name}"
    return len(name) + a


@case(*PAIRS)
def string_building_does_not_need_the_value(a, b):
    label = f"a is {a}"
    return b + (1 if label else 0)


@case(*PAIRS)
def comparison_in_arithmetic(a, b):
    return (a > b) + (a == b) * 10 + (b >= 0) * 100


@case(*PAIRS)
def boolean_operators_on_booleans(a, b):
    p, q = a > 0, b > 0
    return (p & q) | (p ^ q), p and q, p or q, not p


@case(*PAIRS)
def typed_booleans(a, b):
    p = Boolean(a > 0)
    return 1 if p and not Boolean(False) else 2


@case(*PAIRS)
def subscript_with_a_conditional_static_index(a, b):
    table = [10, 20, 30]
    wide = True
    return table[2 if wide else 0] + a


@case(*PAIRS)
def lambda_with_lazy_parts(a, b):
    safe = lambda x, y: x // y if y != 0 else 0
    both = lambda x, y: x > 0 and y > 0
    return safe(a, b), both(a, b)


@case(*PAIRS)
def multiple_targets(a, b):
    x = y = a
    x += 1
    return x, y


@case((3, 4), (0, 0))
def conditional_callee(a, b):
    add = lambda x: x + 1
    double = lambda x: x * 2
    use = add if True else double
    return use(a) + (double if False else add)(b)


@case((0, 0), (1, 0), (1, 1), (0, 1))
def sequences_are_compared_element_by_element(a, b):
    pos = [a, b, 1]
    found = 0
    if pos == [0, 0, 1]:
        found = 1
    elif pos == [1, 0, 1] and (a, (b,)) != (1, (1,)):
        found = 2
    elif (a, (b, 5)) == (1, (1, 5)):
        found = 3
    if pos == [0, 0] or (a, b) == [0, 0] or (a, 3) != (a, 3):
        found = 100
    return found


def test_an_inverted_boolean_as_a_test_is_its_negation():
    """As in CuTe DSL; Python's `~True` would hold, of which the user is warned."""

    @cute.jit
    def inverted(n: Int32) -> Int32:
        large = n > 2
        result = Int32(1)
        if ~large:
            result = Int32(2)
        while ~large:
            result += 10
            large = result > 20
        return result

    with pytest.warns(DSLWarning, match="`~` of a Boolean is its negation"):
        assert (inverted(3), inverted(2)) == (1, 22)
