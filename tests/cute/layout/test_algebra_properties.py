"""Every function of the algebra by its post-condition, on static, dynamic and mixed leaves."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_testing import (
    SymInt,
    cases,
    compact_layouts,
    composable,
    concrete,
    dynamic,
    dynamic_layouts,
    injective_layouts,
    layouts,
    offsets,
    shapes,
)

from kiln.cute.layout import (
    Layout,
    LayoutError,
    coalesce,
    complement,
    composition,
    cosize,
    depth,
    filter,
    filter_zeros,
    flatten_to_tuple,
    get,
    is_congruent,
    is_static,
    is_weakly_congruent,
    left_inverse,
    make_identity_layout,
    make_layout,
    max_common_layout,
    max_common_vector,
    nullspace,
    recast_layout,
    repeat_like,
    right_inverse,
    size,
    stride,
)
from kiln.cute.layout.basis import add_coords

POWERS = st.sampled_from([1, 2, 4, 8, 16])


# Coalesce and filter ----------------------------------------------------------------------------


@cases(150)
@given(dynamic_layouts(layouts()))
def test_coalesce_keeps_the_function(layout):
    result = coalesce(layout)
    assert depth(result) <= 1
    assert offsets(result) == offsets(layout)


@cases(80)
@given(layouts())
def test_coalesce_of_a_static_layout_is_minimal(layout):
    result = coalesce(layout)
    s, d = flatten_to_tuple(result.shape), flatten_to_tuple(result.stride)
    assert result == Layout(1, 0) or 1 not in s
    assert all(s[i] * d[i] != d[i + 1] for i in range(len(s) - 1))
    assert coalesce(result) == result


@cases(80)
@given(dynamic_layouts(layouts(max_leaves=5)), st.data())
def test_coalesce_by_profile_keeps_every_mode(layout, data):
    modes = data.draw(st.integers(1, len(layout)))
    result = coalesce(layout, target_profile=(1,) * modes)
    assert len(result) == len(layout)
    for i in range(len(layout)):
        assert offsets(result[i]) == offsets(layout[i])
        assert i >= modes or depth(result[i]) <= 1


@cases(80)
@given(dynamic_layouts(layouts(strides=st.sampled_from([0, 0, 1, 2, 6]))))
def test_filter_reaches_the_same_offsets_once_per_repetition(layout):
    kept = filter_zeros(layout)
    assert is_congruent(kept, layout)
    assert set(offsets(kept)) == set(offsets(layout))
    result = filter(layout)
    assert offsets(result) == offsets(coalesce(kept))
    repeats = [
        s
        for s, d in zip(flatten_to_tuple(concrete(layout.shape)), flatten_to_tuple(layout.stride))
        if isinstance(d, int) and d == 0
    ]
    assert size(concrete(result)) * prod(repeats) == size(concrete(layout))


def test_filter_zeros_by_profile():
    layout = make_layout((4, (2, 8)), stride=(1, (4, 8)))
    assert str(filter_zeros(layout, target_profile=(0, (1, 0)))) == "(1,(2,1)):(1,(4,8))"
    assert str(filter_zeros(layout, target_profile=(1, 0))) == "(4,(1,1)):(1,(4,8))"


# Composition ------------------------------------------------------------------------------------


def check_composition(a, b, result):
    a, b, r = concrete(a), concrete(b), concrete(result)
    assert is_weakly_congruent(b.shape, r.shape)
    assert size(r) == size(b)
    runs_on = flatten_to_tuple(a.shape)[-1] != 1
    for i in range(size(b)):
        assert r(i) == a(b(i)) or (b(i) >= size(a) and not runs_on), f"{a} o {b} = {r} differs at {i}"


@cases(250)
@given(layouts(), layouts(max_leaves=2, max_size=32, strides=st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24])))
def test_composition_is_right_or_refused(a, b):
    try:
        result = composition(a, b)
    except LayoutError:
        assume(False)
    check_composition(a, b, result)


@cases(150)
@given(
    compact_layouts(extents=POWERS, max_size=256),
    shapes(max_leaves=3, max_size=64, extents=POWERS),
    st.lists(st.sampled_from([0, 1, 2, 4, 8, 16]), min_size=3, max_size=3),
)
def test_powers_of_two_always_compose(a, shape, strides):
    count = len(flatten_to_tuple(shape))
    it = iter(strides[:count])
    b = Layout(shape, _arrange(shape, it))
    assume(flatten_to_tuple(a.shape)[-1] != 1)  # past its end such a layout runs on in the stride of that mode
    extents = flatten_to_tuple(coalesce(a).shape)
    assume(composable(extents, list(zip(flatten_to_tuple(b.shape), strides))))
    check_composition(a, b, composition(a, b))


def _arrange(profile, items):
    return tuple(_arrange(p, items) for p in profile) if isinstance(profile, tuple) else next(items)


@cases(200)
@given(
    layouts(max_leaves=3),
    layouts(max_leaves=2, max_size=24, strides=st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12])),
    st.data(),
)
def test_composition_of_dynamic_layouts(a, b, data):
    extents = flatten_to_tuple(a.shape)
    assume(composable(extents, list(zip(flatten_to_tuple(b.shape), flatten_to_tuple(b.stride)))))
    da, db = data.draw(dynamic(a)), data.draw(dynamic(b))
    check_composition(a, b, composition(da, db))


@cases(60)
@given(dynamic_layouts(layouts(max_leaves=3)), st.data())
def test_composition_by_mode(a, data):
    modes = data.draw(st.integers(1, len(a)))
    tiler = tuple(data.draw(st.sampled_from([None, 1, 2])) for _ in range(modes))
    extents = [flatten_to_tuple(concrete(m.shape)) for m in a]
    assume(all(t != 2 or (e[0] % 2 == 0 and e[-1] != 1) for e, t in zip(extents, tiler)))
    result = composition(a, tiler)
    assert len(result) == modes  # modes that are not reached are dropped
    for i, tile in enumerate(tiler):
        assert offsets(result[i]) == offsets(a[i])[: size(concrete(a[i].shape)) if tile is None else tile]


def test_composition_by_a_tile_takes_of_each_mode_what_the_tile_says():
    a = make_layout((4, 6, 8))
    assert str(composition(a, (2, 3))) == "(2,3):(1,4)"
    assert str(composition(a, (2, None))) == "(2,6):(1,4)"
    assert str(composition(a, (1, 3))) == "(1,3):(0,4)"  # an int is the layout of that shape
    assert str(composition(make_layout((4, 2)), (8,))) == "(8):(1)"  # past the end of the mode, not into the next
    assert str(composition(make_identity_layout((4, 6, 8)), (2, 3))) == "(2,3):(1@0,1@1)"
    with pytest.raises(LayoutError, match="has 2 modes, more than the 1 of the layout"):
        composition(make_layout(8), (2, 2))


@cases(60)
@given(dynamic_layouts(layouts()))
def test_composition_with_the_identity_picks_modes(a):
    identity = make_identity_layout(a.shape)
    assert offsets(composition(a, identity)) == offsets(a)
    r = composition(identity, make_layout(size(concrete(a.shape))))
    # A mode of extent 1 has stride 0, a plain integer: only added to an origin is the result a coordinate.
    origin = repeat_like(0, a.shape)
    assert [add_coords(origin, x) for x in offsets(r)] == [add_coords(origin, x) for x in offsets(identity)]


def test_composition_reaches_past_the_end_in_the_last_mode():
    assert str(composition(make_layout((4, 1), stride=(1, 100)), make_layout(8))) == "(4,2):(1,100)"


# Complement -------------------------------------------------------------------------------------


def check_complement(layout, result, cotarget):
    layout, result, cotarget = concrete(layout), concrete(result), concrete(cotarget)
    base, rest = set(offsets(layout)), offsets(result)
    assert all(x < y for x, y in zip(rest, rest[1:]))
    assert not base & set(rest[1:])
    sums = [x + y for x in base for y in rest]
    assert len(set(sums)) == len(sums)
    bound = size(cotarget)
    assert size(result) * len(base) >= bound or set(range(bound)) - set(sums)
    return sums, bound


@cases(150)
@given(injective_layouts(), st.integers(1, 200), st.data())
def test_complement_fills_the_gaps(layout, cotarget, data):
    # A dynamic extent that happens to be 1 counts like any other, so two modes could overlap.
    shape = layout.shape if 1 in flatten_to_tuple(layout.shape) else data.draw(dynamic(layout.shape))
    target = data.draw(dynamic(cotarget))
    result = complement(Layout(shape, layout.stride), target)
    sums, bound = check_complement(layout, result, target)
    assert set(range(bound)) <= set(sums)  # strides of these layouts divide each other


@cases(60)
@given(injective_layouts(max_leaves=1), st.integers(1, 200), st.data())
def test_complement_of_one_dynamic_mode(layout, cotarget, data):
    result = complement(data.draw(dynamic(layout)), data.draw(dynamic(cotarget)))
    check_complement(layout, result, cotarget)


@cases(40)
@given(injective_layouts(), shapes(max_leaves=3))
def test_complement_by_shape_is_as_large_as_by_size(layout, target):
    by_shape, by_size = complement(layout, target), complement(layout, size(target))
    assert offsets(by_shape)[: size(by_size)] == offsets(by_size)[: size(by_shape)]


@cases(40)
@given(injective_layouts())
def test_complement_defaults_to_the_cosize(layout):
    assert complement(layout) == complement(layout, cosize(layout))


# Inverses ---------------------------------------------------------------------------------------


@cases(120)
@given(dynamic_layouts(layouts()))
def test_right_inverse(layout):
    result = concrete(right_inverse(layout))
    a = concrete(layout)
    assert all(a(result(i)) == i for i in range(size(result)))


@cases(60)
@given(compact_layouts())
def test_right_inverse_of_a_compact_layout_is_whole(layout):
    assert size(right_inverse(layout)) == size(layout)


@cases(120)
@given(injective_layouts(), st.data())
def test_left_inverse(layout, data):
    # A dynamic extent that happens to be 1 counts like any other, so two modes could overlap.
    shape = layout.shape if 1 in flatten_to_tuple(layout.shape) else data.draw(dynamic(layout.shape))
    result = concrete(left_inverse(Layout(shape, layout.stride)))
    assert all(result(layout(i)) == i for i in range(size(layout)))


def test_left_inverse_with_dynamic_strides():
    one = make_layout((SymInt(4), 1), stride=(SymInt(6), 0))
    assert str(concrete(left_inverse(one))) == "(6,4):(0,1)"
    for strides in ((SymInt(1), SymInt(4)), (-1, 4), make_identity_layout((4, 4)).stride):
        with pytest.raises(LayoutError, match=r"left inverse of .* is not known: the strides .* cannot be sorted"):
            left_inverse(make_layout((4, 4), stride=strides))


@cases(250)
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32])), min_size=1, max_size=4
    )
)
def test_left_inverse_of_any_layout(modes):
    """It is right or refused, also where runs do not fill the strides around them, and where a stride is 0."""
    layout = make_layout(tuple(s for s, _ in modes), stride=tuple(d for _, d in modes))
    try:
        result = left_inverse(layout)
    except LayoutError:
        nonzero = sorted((d, s) for s, d in modes if s > 1 and d)
        # refused are modes that overlap or interleave
        assert any(e % d or e < d * s for (d, s), (e, _) in pairwise(nonzero))
        return
    first = {}
    for i in range(size(layout)):
        first.setdefault(layout(i), i)
    assert all(result(x) == i for x, i in first.items())


def test_left_inverse_with_gaps():
    assert str(left_inverse(make_layout((5, 4), stride=(1, 16)))) == "(16,4):(1,5)"
    assert str(left_inverse(make_layout(4, stride=2))) == "(2,4):(0,1)"
    for modes, strides, rule in (
        ((3, 2), (6, 32), "32 is not a multiple of the stride 6"),
        ((4, 4), (1, 2), "not injective"),
    ):
        with pytest.raises(LayoutError, match=rule):
            left_inverse(make_layout(modes, stride=strides))


def test_inverse_of_a_negative_stride():
    # The chain of strides is followed by magnitude and the sign is kept.
    assert str(right_inverse(make_layout(8, stride=-1))) == "8:-1"


def test_inverses_of_none_and_int():
    assert right_inverse(None) is None and left_inverse(None) is None
    assert str(right_inverse(8)) == str(left_inverse(8)) == "8:1"


# Common vectors and nullspace -------------------------------------------------------------------


@cases(120)
@given(dynamic_layouts(compact_layouts(max_leaves=3)), dynamic_layouts(compact_layouts(max_leaves=3)))
def test_max_common_vector(a, b):
    length = max_common_vector(a, b)
    common = concrete(max_common_layout(a, b))
    assert isinstance(length, int) and length >= 1
    assert size(common) == length
    inverse, fa, fb = concrete(right_inverse(b)), concrete(a), concrete(b)
    assert all(fa(inverse(i)) == i for i in range(length))
    assert all(fa(common(i)) == i and fb(common(i)) == i for i in range(length))


@cases(40)
@given(compact_layouts(extents=POWERS, max_size=128), st.data())
def test_max_common_vector_is_maximal(a, data):
    b = a if data.draw(st.booleans()) else data.draw(compact_layouts(extents=POWERS, max_size=128))
    length = max_common_vector(a, b)
    inverse = right_inverse(b)
    if length < size(inverse):
        assert any(a(inverse(i)) != i for i in range(2 * length))


@cases(80)
@given(dynamic_layouts(layouts(strides=st.sampled_from([0, 0, 1, 3]))))
def test_nullspace(layout):
    result, a = concrete(nullspace(layout)), concrete(layout)
    assert all(a(result(i)) == 0 for i in range(size(result)))
    assert len(set(offsets(result))) == size(result)
    zero = [
        s for s, d in zip(flatten_to_tuple(a.shape), flatten_to_tuple(layout.stride)) if isinstance(d, int) and d == 0
    ]
    assert size(result) == prod(zero)


# Recast -----------------------------------------------------------------------------------------


@cases(100)
@given(compact_layouts(extents=POWERS, max_size=256), st.sampled_from([2, 4, 8]), st.data())
def test_recast_to_wider_elements(layout, factor, data):
    shape, flat = layout.shape, list(zip(flatten_to_tuple(layout.shape), flatten_to_tuple(layout.stride)))
    assume(all(s == 1 or d % factor == 0 or factor % d == 0 and s % (factor // d) == 0 for s, d in flat))
    result = recast_layout(8 * factor, 8, layout)
    assert is_congruent(result, layout)
    assert set(offsets(result)) == {x // factor for x in offsets(layout)}
    if any(s > 1 and d % factor == 0 for s, d in flat) and all(
        d % factor == 0 or d == 1 and s == factor for s, d in flat
    ):
        assert size(result) * factor == size(layout)
    # Extents may be dynamic if they are a known multiple; strides other than 1 too.
    wide = Layout(
        _arrange(shape, iter([SymInt(s, s) if data.draw(st.booleans()) else s for s, _ in flat])),
        _arrange(shape, iter([SymInt(d, d) if d % factor == 0 and data.draw(st.booleans()) else d for _, d in flat])),
    )
    assert concrete(recast_layout(8 * factor, 8, wide)) == result


@cases(100)
@given(dynamic_layouts(compact_layouts(max_leaves=3), share="some"), st.sampled_from([2, 3, 4]))
def test_recast_to_narrower_elements_and_back(layout, factor):
    assume(1 in [d for d in flatten_to_tuple(layout.stride) if isinstance(d, int)])
    # Modes of extent 1 may carry any stride; they keep their extent, so they stay out of this.
    assume(1 not in flatten_to_tuple(concrete(layout.shape)))
    narrow = recast_layout(8, 8 * factor, layout)
    assert sorted(offsets(narrow)) == sorted(factor * x + k for x in offsets(layout) for k in range(factor))
    assert offsets(recast_layout(8 * factor, 8, narrow)) == offsets(layout)


def test_recast_by_a_ratio():
    layout = make_layout((8, 6), stride=(6, 1))
    assert str(recast_layout(24, 16, layout)) == "(8,4):(4,1)"
    assert recast_layout(16, 16, layout) is layout


# Staying static ---------------------------------------------------------------------------------


@cases(80)
@given(layouts(), st.data())
def test_static_operands_give_static_results(a, data):
    results = [coalesce(a), filter(a), right_inverse(a), nullspace(a), max_common_layout(a, a)]
    assert all(is_static(r) for r in results)
    assert all(isinstance(x, int) for r in results for x in (size(r), cosize(r)))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # ?{div=8} is at least 8, so eight steps stay inside it.
        (((SymInt(16, 8), 4), (1, SymInt(16, 16))), (8, 1), "8:1"),
        # One step of 4 through ?{div=8} leaves ?{div=2} of them.
        (((SymInt(16, 8), 4), (1, 100)), (SymInt(4), 4), "(?,?):(4,100)"),
        (((6, 2), (SymInt(8), 2)), ((4, 3), (3, 1)), "((2,2),3):((?{div=3},2),?)"),
        (((SymInt(12), (SymInt(4), SymInt(8))), (SymInt(59), (SymInt(13), SymInt(1)))), (3, 8), None),
    ],
)
def test_precision(a, b, expected):
    if expected is None:
        assert str(composition(make_layout(a[0], stride=a[1]), b)) == "(3,(?,?)):(?,(?,?))"
    else:
        assert str(composition(make_layout(a[0], stride=a[1]), make_layout(b[0], stride=b[1]))) == expected


def test_get_of_a_result_mode():
    r = composition(make_layout((6, 2), stride=(8, 2)), make_layout((4, 3), stride=(3, 1)))
    assert str(get(r, mode=[0, 1])) == "2:2"
    assert stride(r, mode=[0]) == (24, 2)
