"""Functions on integer trees."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_testing import SymBool, SymInt, cases, concrete, dynamic, shapes

from kiln.cute.layout import (
    LayoutError,
    ScaledBasis,
    ceil_div,
    coshape,
    cosize,
    elem_less,
    elem_scale,
    find,
    find_if,
    flatten_to_tuple,
    front,
    get_leaves,
    has_underscore,
    idx2crd,
    inner_product,
    is_congruent,
    is_int_tuple,
    is_integer,
    is_weakly_congruent,
    make_layout,
    product,
    product_each,
    product_like,
    repeat,
    repeat_as_tuple,
    repeat_like,
    round_up,
    shape_div,
    signum,
    size,
    transform_apply,
    transform_leaf,
    tuple_cat,
    unwrap,
    wrap,
)


@cases(100)
@given(shapes(max_leaves=5, max_size=500), st.data())
def test_products(shape, data):
    dyn = data.draw(dynamic(shape))
    assert concrete(product(dyn)) == prod(flatten_to_tuple(shape))
    assert prod(concrete(product_each(dyn))) == prod(flatten_to_tuple(shape))
    profile = (0,) * len(shape) if isinstance(shape, tuple) else 0
    assert concrete(product_like(dyn, profile)) == (product_each(shape) if isinstance(shape, tuple) else shape)


@cases(150)
@given(st.integers(1, 200), st.integers(1, 40), st.data())
def test_integer_division(a, b, data):
    da, db = data.draw(dynamic(a)), data.draw(dynamic(b))
    assert concrete(ceil_div(da, db)) == -(-a // b)
    assert concrete(round_up(da, db)) == -(-a // b) * b
    if a % b == 0 or b % a == 0:
        assert concrete(shape_div(da, db)) == max(a // b, 1)


@cases(80)
@given(shapes(max_leaves=4), st.integers(1, 64), st.data())
def test_a_divisor_folds_through_the_modes_of_a_shape_but_counts_tiles_of_the_whole(shape, n, data):
    dyn = data.draw(dynamic(shape))
    assert concrete(ceil_div(dyn, n)) == concrete(ceil_div(dyn, make_layout(n))) == -(-size(shape) // n)
    assert concrete(ceil_div((dyn, 3), (n,))) == (-(-size(shape) // n), 3)
    try:
        exact = shape_div(shape, n)
    except LayoutError:
        return
    assert is_congruent(exact, shape) and concrete(shape_div(dyn, n)) == exact
    assert size(exact) == max(size(shape) // n, 1) or size(shape) % n


@cases(80)
@given(shapes(), st.data())
def test_elem_less_is_the_bounds_check(shape, data):
    i = data.draw(st.integers(0, size(shape) - 1))
    coord = idx2crd(i, shape)
    assert elem_less(coord, shape) is True
    verdict = elem_less(data.draw(dynamic(coord)), data.draw(dynamic(shape)))
    assert concrete(verdict) is True
    outside = transform_leaf(lambda c, s: c + s, coord, shape)
    assert concrete(elem_less(data.draw(dynamic(outside)), data.draw(dynamic(shape)))) is False


def test_static_answers_need_no_dynamic_comparison():
    x = SymInt(5)
    assert elem_less((x, 9), (x, 4)) is False
    assert elem_less((9, x), (4, x)) is False
    assert isinstance(elem_less((x, 3), (7, 4)), SymBool)


def test_division_examples():
    assert shape_div((4, 5, 6), 40) == (1, 1, 3)
    assert shape_div(12, (2, 3)) == 2 and shape_div((8, 6), (2, 3)) == (4, 2)
    assert shape_div(-8, 2) == -4 and shape_div(2, -8) == -1
    assert ceil_div((10, 7), (4, 7)) == (3, 1) and ceil_div((10, 7, 3), (4,)) == (3, 7, 3)
    assert ceil_div(10, (2, 3)) == 2
    assert ceil_div((16, 8), (None, 3)) == (16, 3)
    assert ceil_div(24, make_layout(4, stride=2)) == (2, 3)
    assert round_up((5, 8, 3), (4, 4)) == (8, 8, 3)
    assert str(make_layout(shape_div(SymInt(16, 8), 4)).shape.divisibility) == "2"


def test_structure():
    assert is_congruent((1, (2, 3)), (4, (5, 6))) and not is_congruent((1, 2), (1, (2, 3)))
    assert is_congruent(make_layout((2, 3)), (0, 0))
    assert is_weakly_congruent((1, 2), (1, (2, 3))) and not is_weakly_congruent((1, (2, 3)), (1, 2))
    assert is_weakly_congruent(1, (2, 3)) and not is_weakly_congruent((1, 2), (1, 2, 3))
    assert repeat(1, 3) == (1, 1, 1) and repeat(1, 1) == 1 and repeat_as_tuple(1, 1) == (1,)
    assert repeat_like(None, (2, (3, 4))) == (None, (None, None))
    assert wrap(3) == (3,) and wrap((3,)) == (3,) and unwrap(((3,),)) == 3
    assert tuple_cat((1, 2), 3, ((4,),)) == (1, 2, 3, (4,))
    assert front(((7, 1), 2)) == 7 and get_leaves((1, (2, 3))) == (1, 2, 3)
    assert find((1, (2, 3)), 3) == (1, 1) and find((1, 2), 2) == 1 and find((1, 2), 5) is None
    assert find_if((1, (4, 3)), lambda x: x > 3) == (1, 0)
    assert find((1, 2), 2, hierarchical=False) == 1 and find_if((1, (4, 3)), lambda x: x > 3, hierarchical=True) == (
        1,
        0,
    )
    with pytest.raises(LayoutError, match="hierarchical=False of the nested tuple"):
        find((1, (2, 3)), 3, hierarchical=False)
    assert has_underscore((1, (None, 2))) and not has_underscore((1, 2))
    assert inner_product((1, (2, 3)), (4, (5, 6))) == 32
    assert elem_scale((2, 3), (4, (5, 6))) == (8, 90)
    assert (signum(-3), signum(0), signum(4)) == (-1, 0, 1)
    assert transform_leaf(max, (1, (5, 2)), (3, (4, 9))) == (3, (5, 9))
    assert transform_apply((1, 2), (3, 4), f=lambda a, b: a * b, g=lambda *x: sum(x)) == 11


@pytest.mark.parametrize(
    "call",
    [
        lambda: shape_div(6, 4),
        lambda: round_up((1,), (1, 2)),
        lambda: round_up(3, 0),
        lambda: ceil_div((1,), (1, 2)),
        lambda: elem_less((1, 2), 3),
        lambda: inner_product((1, 2), (1, 2, 3)),
        lambda: transform_leaf(max, (1, 2), (1, (2, 3))),
        lambda: product_like((1, 2), (0, 0, 0)),
        lambda: repeat(1, 0),
    ],
)
def test_bad_operands_are_refused(call):
    with pytest.raises(LayoutError):
        call()


def test_what_is_an_integer_and_a_tree_of_them():
    assert is_integer(3) and is_integer(SymInt(3)) and not is_integer(2.0) and not is_integer((1,))
    assert (
        is_int_tuple((1, (SymInt(2), 3))) and is_int_tuple(4) and not is_int_tuple((1, None)) and not is_int_tuple("a")
    )


def test_the_box_around_the_values_of_a_layout():
    assert coshape(make_layout((4, 8), stride=(1, 10))) == 74 == cosize(make_layout((4, 8), stride=(1, 10)))
    tiled = make_layout(((2, 3), 4), stride=((ScaledBasis(1, 0), ScaledBasis(4, 0)), ScaledBasis(2, 1)))
    values = [tiled(i) for i in range(24)]
    assert coshape(tiled) == tuple(max(v[m] for v in values) + 1 for m in range(2)) == (10, 7)
