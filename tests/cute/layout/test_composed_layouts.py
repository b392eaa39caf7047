"""Basis elements, swizzles and composed layouts."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_testing import SymInt, cases, concrete, dynamic, offsets, value_of

from kiln.cute.layout import (
    ComposedLayout,
    E,
    Layout,
    LayoutError,
    Ratio,
    ScaledBasis,
    Swizzle,
    basis_get,
    basis_value,
    coalesce,
    composition,
    cosize,
    domain_offset,
    filter,
    flat_divide,
    get,
    get_nonswizzle_portion,
    get_swizzle_portion,
    group_modes,
    left_inverse,
    logical_divide,
    make_composed_layout,
    make_identity_layout,
    make_layout,
    make_ordered_layout,
    make_swizzle,
    max_common_vector,
    rank,
    recast_layout,
    right_inverse,
    size,
    slice_,
    tile_to_shape,
    tiled_divide,
    zipped_divide,
)
from kiln.cute.layout.basis import add_coords

SWIZZLES = st.builds(
    lambda b, m, s, sign: Swizzle(b, m, sign * (b + s)),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([1, -1]),
)


# Basis elements ---------------------------------------------------------------------------------


def test_basis_elements_print_innermost_first():
    assert [str(E(m)) for m in (0, 1, [0, 0], [0, 1], [1, 0])] == ["1@0", "1@1", "1@0@0", "1@1@0", "1@0@1"]
    assert E([]) == 1 and str(ScaledBasis(4, [0, 1])) == "4@1@0" and str(3 * ScaledBasis(2, 0)) == "6@0"
    assert str(ScaledBasis(SymInt(8, 4), 1)) == "?{div=4}@1"


def test_basis_strides_give_coordinates():
    layout = make_layout((4, 8), stride=(ScaledBasis(2, 0), ScaledBasis(1, 1)))
    assert str(layout) == "(4,8):(2@0,1@1)"
    assert layout((2, 3)) == (4, 3) and layout(0) == (0, 0)
    assert make_layout((2, 3), stride=(E(1), E(0)))((1, 2)) == (2, 1)
    assert make_layout(4, stride=E([1, 0]))(3) == (0, (3,))
    assert concrete(layout((SymInt(2), 3))) == (4, 3)


def test_basis_functions():
    e = ScaledBasis(3, [1, 0])
    assert (e.value, e.mode, e.is_static()) == (3, [1, 0], True)
    assert basis_value(e) == 3 and basis_get(e, (5, (6, 7))) == 6 and basis_value(9) == 9
    assert E(0) * 2 + E(1) * 3 == (2, 3)
    assert e == ScaledBasis(3, [1, 0]) and e != ScaledBasis(3, [0, 1]) and hash(e) == hash(ScaledBasis(3, (1, 0)))
    assert add_coords((1, 2), (3,)) == (4, 2) and add_coords(0, (1, (2,))) == (1, (2,))


def test_basis_strides_compose():
    identity = make_identity_layout((128, 64))
    assert str(zipped_divide(identity, (16, 8))) == "((16,8),(8,8)):((1@0,1@1),(16@0,8@1))"
    row = make_layout((128, 64), stride=(64, 1))
    assert str(composition(row, make_layout((8, 4), stride=(E(1), 2 * E(0))))) == "(8,4):(1,128)"


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_layout((2, 3), stride=(E(0), 1))((1, 1)),
        lambda: make_layout((2, 3), stride=(E(0), E([0, 1])))((1, 1)),
        lambda: add_coords((1, 2), 3),
        lambda: composition(make_layout(8), make_layout((2, 2), stride=(E(0), E(1)))),
    ],
)
def test_coordinates_that_do_not_fit_are_refused(call):
    with pytest.raises(LayoutError):
        call()


def test_ratio():
    assert Ratio(1, 2) * Ratio(3, 4) == Ratio(3, 8) and 5 * Ratio(2, 3) == Ratio(10, 3)
    assert Ratio(3, 2).to(float) == 1.5 and Ratio(3, 2).to(int) == 1 and Ratio(4, 2).is_integral()
    assert Ratio(4, 6).reduced() == Ratio(2, 3) and Ratio(4, 2) == 2 and hash(Ratio(4, 2)) == hash(2)
    assert str(ScaledBasis(Ratio(1, 2), 1)) == "1/2@1"


# Swizzles ---------------------------------------------------------------------------------------


@cases(80)
@given(SWIZZLES, st.integers(0, 4095))
def test_swizzle_is_an_involution_that_keeps_the_low_bits(swizzle, x):
    y = swizzle(x)
    assert swizzle(y) == x
    assert (x ^ y) & ~swizzle.target_mask == 0
    bits, base, shift = swizzle.num_bits, swizzle.num_base, swizzle.num_shift
    low = base + max(0, -shift)
    source = (x >> (base + max(0, shift))) & ((1 << bits) - 1)
    assert y == x ^ (source << low)
    assert swizzle(SymInt(x)).value == y


def test_swizzle_prints_and_checks():
    swizzle = make_swizzle(3, 4, 3)
    assert str(swizzle) == "S<3,4,3>" and (swizzle.num_bits, swizzle.num_base, swizzle.num_shift) == (3, 4, 3)
    assert swizzle == Swizzle(3, 4, 3) and hash(swizzle) == hash(Swizzle(3, 4, 3))
    for bad in ((3, 4, 2), (-1, 0, 1), (1, -1, 1)):
        with pytest.raises(LayoutError):
            make_swizzle(*bad)


def test_swizzle_of_a_known_multiple_emits_nothing():
    aligned = SymInt(2048, 1024)
    before = SymInt.emitted
    assert make_swizzle(3, 4, 3)(aligned) is aligned
    assert SymInt.emitted == before


# Composed layouts -------------------------------------------------------------------------------


def swizzled(shape=(8, 64), stride=(64, 1), offset=0):
    return make_composed_layout(make_swizzle(3, 4, 3), offset, make_layout(shape, stride=stride))


def test_composed_layout():
    layout = swizzled()
    assert str(layout) == "S<3,4,3> o 0 o (8,64):(64,1)"
    assert (layout.shape, rank(layout), size(layout), cosize(layout), layout.is_normal) == ((8, 64), 2, 512, 512, True)
    assert layout((2, 3)) == make_swizzle(3, 4, 3)(131)
    assert layout == swizzled() and hash(layout) == hash(swizzled()) and layout != swizzled(offset=1)
    assert str(composition(make_swizzle(3, 4, 3), make_layout(8))) == "S<3,4,3> o 0 o 8:1"
    assert get_swizzle_portion(layout) == make_swizzle(3, 4, 3)
    assert str(get_nonswizzle_portion(layout)) == "(8,64):(64,1)"
    assert layout.max_alignment == 16
    with pytest.raises(AttributeError, match="outer"):
        layout.stride  # noqa: B018


@cases(40)
@given(SWIZZLES, st.integers(0, 64), st.data())
def test_what_is_done_to_a_composed_layout_is_done_to_its_outer_layout(swizzle, offset, data):
    outer = make_ordered_layout((8, 16), data.draw(st.sampled_from([(0, 1), (1, 0)])))
    layout = make_composed_layout(swizzle, offset, Layout(data.draw(dynamic(outer.shape)), outer.stride))
    for f in (
        coalesce,
        filter,
        lambda x: logical_divide(x, (4, 2)),
        lambda x: tiled_divide(x, (4, 2)),
        lambda x: flat_divide(x, (4, 2)),
        lambda x: composition(x, (None, 8)),
        lambda x: tile_to_shape(x, (16, 32), (1, 0)),
        lambda x: get(x, mode=[1]),
        lambda x: group_modes(x, 0, 2),
        lambda x: slice_(x, (3, None)),
        lambda x: slice_(x, (None, 5)),
    ):
        result, plain = f(layout), f(make_composed_layout(lambda v: v, 0, outer))
        assert isinstance(result, ComposedLayout)
        assert offsets(result) == [swizzle(offset + x) for x in offsets(plain)]
    moved = domain_offset((1, 2), layout)
    assert concrete(moved)((0, 0)) == concrete(layout)((1, 2)) and moved.shape == layout.shape


def test_composed_with_a_function():
    layout = make_composed_layout(lambda c: (c[0], c[1] + 1), (1, 0), make_identity_layout(shape=(8, 4)))
    assert layout(0) == (1, 1) and layout((2, 3)) == (3, 4) and not layout.is_normal
    assert str(layout) == "<lambda> o (1,0) o (8,4):(1@0,1@1)"
    table = [3, 1, 4, 1, 5]
    assert [make_composed_layout(table.__getitem__, 0, make_layout(5))(i) for i in range(5)] == table


def test_recast_of_a_swizzled_layout():
    byte = swizzled()
    half = recast_layout(16, 8, byte)
    assert str(half) == "S<3,3,3> o 0 o (8,32):(32,1)"
    assert [byte((i, 2 * j)) for j in range(32) for i in range(8)] == [
        2 * half((i, j)) for j in range(32) for i in range(8)
    ]
    assert recast_layout(8, 16, half) == byte
    with pytest.raises(LayoutError, match="powers of two"):
        recast_layout(24, 8, swizzled((8, 48), (48, 1)))


def test_inverses_of_a_swizzled_layout():
    layout = make_composed_layout(make_swizzle(3, 3, 3), 0, make_layout((8, 64), stride=(64, 1)))
    for invert in (right_inverse, left_inverse):
        inverse = invert(layout)
        values = [inverse(layout(i)) for i in range(512)]
        assert values == list(range(512))
    with pytest.raises(LayoutError, match="equally far apart"):
        right_inverse(swizzled((16, 64), (64, 1)))  # the inverse tears the swizzled bits apart
    with pytest.raises(LayoutError, match="moves some of them past the others"):
        right_inverse(make_composed_layout(make_swizzle(2, 1, -3), 0, make_layout((4, 2), stride=(1, 8))))


@cases(60)
@given(SWIZZLES, st.lists(st.sampled_from([1, 2, 4, 8]), min_size=4, max_size=4), st.booleans())
def test_inverses_of_a_swizzled_layout_with_gaps(swizzle, sizes, swapped):
    """They are right or refused, also where the swizzle leads past the end of the layout."""
    first_gap, first, second_gap, second = sizes
    outer = Layout((first, second), (first_gap, first_gap * first * second_gap))
    outer = Layout(outer.shape[::-1], outer.stride[::-1]) if swapped else outer
    layout, indices = make_composed_layout(swizzle, 0, outer), range(size(outer))
    with suppress(LayoutError):
        inverse = left_inverse(layout)
        assert [inverse(layout(i)) for i in indices] == list(indices)
    with suppress(LayoutError):
        inverse = right_inverse(layout)
        assert [layout(inverse(i)) for i in range(size(inverse))] == list(range(size(inverse)))
    with suppress(LayoutError):
        swizzled_first = composition(outer, swizzle)
        assert [swizzled_first(i) for i in indices] == [outer(swizzle(i)) for i in indices]


def test_a_swizzle_of_bits_in_a_gap_needs_no_swizzle_in_the_inverse():
    layout = make_composed_layout(make_swizzle(1, 0, 3), 0, make_layout(16, stride=2))
    assert str(left_inverse(layout)) == "(2,16):(0,1)"


def test_composition_of_a_swizzled_layout_by_a_tile():
    assert str(composition(swizzled(), (2, 16))) == "S<3,4,3> o 0 o (2,16):(64,1)"
    assert str(composition(swizzled(), (2,))) == "S<3,4,3> o 0 o (2):(64)"
    assert str(zipped_divide(swizzled((1, 64), (64, 1)), (4, 32))) == "S<3,4,3> o 0 o ((4,32),(1,2)):((64,1),(0,32))"


def test_common_vector_stops_at_the_swizzle():
    assert max_common_vector(swizzled(), make_layout((8, 64), stride=(64, 1))) == 16
    assert max_common_vector(make_layout((8, 64), stride=(64, 1)), make_layout((8, 64), stride=(64, 1))) == 512


def test_layout_after_swizzle():
    a = make_layout((16, 32), stride=(32, 1))  # moves bits, keeps runs of bits together
    swizzle = make_swizzle(2, 0, 2)
    r = composition(a, swizzle)
    assert all(r(i) == a(swizzle(i)) for i in range(512))
    with pytest.raises(LayoutError, match="powers of two"):
        composition(make_layout((3, 5), stride=(5, 1)), swizzle)


def test_bad_composed_layouts_are_refused():
    with pytest.raises(TypeError, match="outer part"):
        make_composed_layout(make_swizzle(1, 0, 1), 0, (8, 8))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inner part"):
        make_composed_layout(3, 0, make_layout(8))
    with pytest.raises(TypeError, match="domain_offset"):
        domain_offset((0, 0), make_layout((4, 4)))


# Leaves -----------------------------------------------------------------------------------------


def test_dynamic_leaves_are_listed_and_replaced_in_order():
    m, n, d, o = SymInt(1), SymInt(2), SymInt(3), SymInt(4)
    layout = Layout((m, (4, n)), (d, (1, 8)))
    assert [x.value for x in layout._leaves()] == [1, 2, 3]
    assert str(layout._with_leaves([10, 20, 30])) == "(10,(4,20)):(30,(1,8))"
    composed = make_composed_layout(make_layout(n), o, layout)
    assert [value_of(x) for x in composed._leaves()] == [2, 4, 1, 2, 3]
    assert str(composed._with_leaves([5, 6, 7, 8, 9])) == "5:1 o 6 o (7,(4,8)):(9,(1,8))"
    coordinates = Layout((m, n), (ScaledBasis(d, 0), E(1)))
    assert len(coordinates._leaves()) == 3
    assert str(coordinates._with_leaves(iter([4, 5, 6]))) == "(4,5):(6@0,1@1)"


@pytest.mark.parametrize("factor", [2, 4])
def test_recast_through_coordinates(factor):
    """Coordinates between two layouts: those in the mode of stride 1 count wider elements."""
    memory = make_layout((16, 16), stride=(16, 1))
    tile = make_layout(((2, 3), (8, 2)), stride=((ScaledBasis(1, 0), ScaledBasis(4, 0)), (E(1), ScaledBasis(8, 1))))
    narrow = make_composed_layout(memory, (3, 0), tile)
    wide = recast_layout(8 * factor, 8, narrow)
    assert str(wide.outer) == f"((2,3),({8 // factor},2)):((1@0,4@0),(1@1,{8 // factor}@1))"
    for i in range(6):
        for j in range(16 // factor):
            assert [wide((i, j)) * factor + k for k in range(factor)] == [
                narrow((i, j * factor + k)) for k in range(factor)
            ]
    assert recast_layout(8, 8 * factor, wide) == narrow
    # the other way round: mode 0 has stride 1, and the offset is moved along it
    columns = make_composed_layout(make_layout((16, 16)), (4, 5), make_identity_layout((8, 2)))
    assert str(recast_layout(16, 8, columns)) == "(8,16):(1,8) o (2,5) o (4,2):(1@0,1@1)"
    for bad, rule in (
        (make_composed_layout(memory, (0, 1), tile), "whole number of new elements"),
        (make_composed_layout(make_layout((4, 4), stride=(8, 2)), (0, 0), tile), "stride 1"),
        (make_composed_layout(memory, (0, 0), make_layout(3, stride=E(1))), "whole new elements"),
        (make_identity_layout((4, 8)), "by itself"),
    ):
        with pytest.raises(LayoutError, match=rule):
            recast_layout(16, 8, bad)
