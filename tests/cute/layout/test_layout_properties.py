"""Layouts as functions: coordinates, offsets, slices, modes, queries."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_testing import SymInt, cases, compact_layouts, concrete, dynamic, dynamic_layouts, layouts, offsets, shapes

from kiln.cute.layout import (
    Layout,
    LayoutError,
    append,
    append_ones,
    cosize,
    crd2idx,
    depth,
    dice,
    flatten,
    flatten_to_tuple,
    get,
    group_modes,
    idx2crd,
    increment_coord,
    is_congruent,
    is_major,
    is_static,
    leading_dim,
    make_identity_layout,
    make_layout,
    make_layout_like,
    make_ordered_layout,
    prepend,
    prepend_ones,
    rank,
    select,
    shape,
    size,
    size_in_bytes,
    slice_,
    slice_and_offset,
    stride,
    unflatten,
)


def reference(coord, layout):
    """The offset by the definition: digits of an index, first mode fastest, times strides."""
    shape, stride = layout.shape, layout.stride
    if isinstance(coord, tuple):
        return sum(reference(c, layout[i]) for i, c in enumerate(coord))
    total = 0
    flat = list(zip(flatten_to_tuple(shape), flatten_to_tuple(stride)))
    for i, (s, d) in enumerate(flat):
        total += (coord if i == len(flat) - 1 else coord % s) * d
        coord //= s
    return total


# Coordinates ------------------------------------------------------------------------------------


@cases(150)
@given(layouts(), st.data())
def test_every_kind_of_coordinate_gives_the_same_offset(layout, data):
    dyn = data.draw(dynamic(layout))
    i = data.draw(st.integers(0, size(layout) - 1))
    hier = idx2crd(i, layout.shape)
    flat = tuple(crd2idx(c, s) for c, s in zip(hier, layout.shape)) if isinstance(layout.shape, tuple) else hier
    want = reference(i, layout)
    for coord in (i, hier, flat):
        assert layout(coord) == want
        assert concrete(crd2idx(data.draw(dynamic(coord)), dyn)) == want


@cases(60)
@given(layouts(), st.integers(0, 500), st.data())
def test_an_index_past_the_end_runs_on_in_the_last_mode(layout, i, data):
    assert layout(i) == reference(i, layout)
    assert concrete(crd2idx(SymInt(i), data.draw(dynamic(layout)))) == reference(i, layout)


@cases(100)
@given(shapes(), st.data())
def test_index_and_coordinate_are_inverse(shape, data):
    i = data.draw(st.integers(0, prod(flatten_to_tuple(shape)) - 1))
    crd = idx2crd(data.draw(dynamic(i)), data.draw(dynamic(shape)))
    assert is_congruent(crd, shape)
    assert crd2idx(concrete(crd), shape) == i
    assert all(c < s for c, s in zip(flatten_to_tuple(concrete(crd)), flatten_to_tuple(shape)))


@cases(80)
@given(compact_layouts(), st.data())
def test_coordinates_of_an_offset(layout, data):
    dyn = data.draw(dynamic(layout))
    i = data.draw(st.integers(0, size(layout) - 1))
    coord = concrete(dyn.get_hier_coord(data.draw(dynamic(i))))
    assert is_congruent(coord, layout.shape) and layout(coord) == i
    flat = concrete(dyn.get_flat_coord(i))
    assert layout(flat) == i and depth(flat) <= 1
    assert layout(concrete(dyn.get_1d_coord(i))) == i


@cases(60)
@given(shapes(max_size=40), st.data())
def test_increment_coord_counts_through_the_shape(shape, data):
    n = prod(flatten_to_tuple(shape))
    i = data.draw(st.integers(0, n - 1))
    coord = data.draw(dynamic(idx2crd(i, shape)))
    after = increment_coord(coord, data.draw(dynamic(shape)))
    assert concrete(after) == idx2crd((i + 1) % n, shape)


@cases(60)
@given(shapes())
def test_identity_layout(shape):
    identity = make_identity_layout(shape)
    for i in range(size(shape)):
        assert identity(i) == idx2crd(i, shape)


# Making layouts ---------------------------------------------------------------------------------


@cases(80)
@given(shapes(), st.data())
def test_make_layout_is_compact(shape, data):
    layout = make_layout(data.draw(dynamic(shape)))
    assert offsets(layout) == list(range(size(shape)))


@cases(80)
@given(shapes(), st.data())
def test_make_ordered_layout(shape, data):
    modes = rank(shape)
    order = tuple(data.draw(st.permutations(range(modes))))
    layout = make_ordered_layout(data.draw(dynamic(shape)), order if isinstance(shape, tuple) else 0)
    assert sorted(offsets(layout)) == list(range(size(shape)))
    if isinstance(shape, tuple):
        # Gathering the modes by their order gives the compact layout.
        sorted_modes = sorted(range(modes), key=lambda i: order[i])
        assert offsets(select(layout, mode=sorted_modes)) == list(range(size(shape)))


@cases(60)
@given(layouts())
def test_make_layout_like_keeps_order_and_zeros(layout):
    like = make_layout_like(layout)
    assert like.shape == layout.shape
    old, new = flatten_to_tuple(layout.stride), flatten_to_tuple(like.stride)
    extents = flatten_to_tuple(layout.shape)
    assert all(n == 0 for o, n, s in zip(old, new, extents) if o == 0 or s == 1)
    pairs = [(o, n) for o, n, s in zip(old, new, extents) if o and s > 1]
    assert all((o1 < o2) <= (n1 < n2) for o1, n1 in pairs for o2, n2 in pairs)
    distinct = prod(s for o, s in zip(old, extents) if o)
    assert len(set(offsets(like))) == cosize(like) == distinct


def test_documented_orders():
    assert str(make_ordered_layout((2, 2, 2, 2), (0, 2, 3, 1))) == "(2,2,2,2):(1,4,8,2)"
    assert str(make_ordered_layout((2, 3, 4, 5), (2, SymInt(67), SymInt(42), 50))) == "(2,3,4,5):(1,10,30,2)"
    assert str(make_ordered_layout((4, (2, 3)), (1, 0))) == "(4,(2,3)):(6,(1,2))"
    assert str(make_ordered_layout((4, 8), order=(0, 0))) == "(4,8):(1,4)"
    layout = make_layout((2, 3, 4, 5), stride=(0, SymInt(42), 1, 0))
    assert str(make_layout_like(layout)) == "(2,3,4,5):(0,4,1,0)"


def test_concatenation():
    a, b = make_layout(4), make_layout((2, 3), stride=(3, 1))
    assert str(make_layout((a, b))) == str(make_layout([a, b])) == "(4,(2,3)):(1,(3,1))"
    assert str(make_layout(x for x in (a, b))) == "(4,(2,3)):(1,(3,1))"
    with pytest.raises(TypeError, match="sequence of layouts"):
        make_layout((a, 3))


# Slices and modes -------------------------------------------------------------------------------


@st.composite
def slicing_coords(draw, shape):
    """A coordinate for the shape with None in some places."""
    if draw(st.integers(0, 2)) == 0:
        return None
    if isinstance(shape, tuple) and draw(st.booleans()):
        return tuple(draw(slicing_coords(s)) for s in shape)
    return draw(st.integers(0, size(shape) - 1))


def keep(coord, t):
    if isinstance(coord, tuple):
        return [x for c, v in zip(coord, t) for x in keep(c, v)]
    return [t] if coord is None else []


@cases(120)
@given(layouts(), st.data())
def test_slice_and_offset(layout, data):
    coord = data.draw(slicing_coords(layout.shape))
    dyn = data.draw(dynamic(layout))
    part, offset = slice_and_offset(coord, dyn)
    part, offset = concrete(part), concrete(offset)
    if not isinstance(coord, tuple):
        expected = layout.shape if coord is None else ()
    else:
        expected = tuple(keep(coord, layout.shape))
    assert part.shape == expected
    assert str(concrete(slice_(dyn, coord))) == str(part)
    # Filling the holes with coordinates of the slice gives the same offsets.
    for i in range(size(part)):
        inner = iter(idx2crd(i, expected)) if isinstance(coord, tuple) else None
        filled = _fill(coord, inner) if isinstance(coord, tuple) else (i if coord is None else coord)
        assert layout(filled) == offset + part(i)


def _fill(coord, items):
    if isinstance(coord, tuple):
        return tuple(_fill(c, items) for c in coord)
    return next(items) if coord is None else coord


@cases(60)
@given(shapes(max_leaves=5), st.data())
def test_dice_is_the_other_half_of_a_slice(shape, data):
    coord = data.draw(slicing_coords(shape))
    if isinstance(coord, tuple):
        kept, rest = slice_(shape, coord), dice(shape, coord)
        assert size(kept) * size(rest) == size(shape)
        assert [str(make_layout(s)) for s in rest] == [
            str(make_layout(s)) for s in dice(make_layout(shape), coord).shape
        ]


@cases(60)
@given(dynamic_layouts(layouts(max_leaves=5)), st.data())
def test_modes_come_apart_and_together(layout, data):
    n = len(layout)
    begin = data.draw(st.integers(0, n - 1))
    end = data.draw(st.integers(begin + 1, n))
    grouped = group_modes(layout, begin, end)
    assert len(grouped) == n - (end - begin) + 1
    assert offsets(grouped) == offsets(layout) == offsets(flatten(layout))
    assert depth(flatten(layout)) <= 1
    assert [str(m) for m in layout] == [str(get(layout, mode=[i])) for i in range(n)]
    assert str(make_layout(list(layout))) == str(layout if isinstance(layout.shape, tuple) else make_layout(layout))
    longer = append(layout, make_layout(3), up_to_rank=n + 2)
    assert len(longer) == n + 2 and str(longer[n + 1]) == "3:1"
    assert offsets(append_ones(layout, up_to_rank=n + 1)) == offsets(layout) == offsets(prepend_ones(layout))
    assert str(prepend(layout, make_layout(3))[0]) == "3:1"


def test_modes_of_tuples():
    assert select((2, 3, 4), mode=[2, 0]) == (4, 2)
    assert get(((1, 2), 3), mode=[0, 1]) == 2
    assert group_modes((2, 3, 4), 0, 2) == ((2, 3), 4)
    assert group_modes((2, 3, 4), 1) == (2, (3, 4))
    assert append((2, 3), 4) == (2, 3, 4) and append(2, 3, up_to_rank=3) == (2, 3, 3)
    assert prepend((2, 3), 4) == (4, 2, 3)
    assert flatten(((1, 2), 3)) == (1, 2, 3) and flatten(5) == 5
    assert unflatten((1, 2, 3), (0, (0, 0))) == (1, (2, 3))
    assert slice_((4, (2, 3)), (0, None)) == ((2, 3),)
    assert slice_(((2, 3), 4), ((None, 0), None)) == (2, 4)
    assert dice((128, 64, 32), (1, None, 1)) == (128, 32)
    with pytest.raises(LayoutError, match="begin"):
        group_modes((2, 3), 1, 1)


# Queries ----------------------------------------------------------------------------------------


@cases(100)
@given(dynamic_layouts(layouts(strides=st.integers(-8, 40))))
def test_sizes(layout):
    a = concrete(layout)
    assert concrete(size(layout)) == size(a) == prod(flatten_to_tuple(a.shape))
    positive = Layout(a.shape, unflatten([abs(d) for d in flatten_to_tuple(a.stride)], a.shape))
    if all(not isinstance(d, SymInt) or d.value >= 0 for d in flatten_to_tuple(layout.stride)):
        assert concrete(cosize(layout)) == max(offsets(positive)) + 1
    for i in range(len(layout)):
        assert concrete(size(layout, mode=[i])) == size(a[i])


def test_queries():
    layout = make_layout(((2, 4), 8), stride=((1, 16), 2))
    assert (size(layout), cosize(layout), rank(layout), depth(layout)) == (64, 64, 2, 2)
    assert (size(layout, mode=[0]), size(layout, [0, 1]), rank(layout, mode=[0])) == (8, 4, 2)
    assert (shape(layout, mode=0), shape(layout, mode=[0, 1]), stride(layout, mode=[0, 1])) == ((2, 4), 4, 16)
    assert shape((make_layout(4), None, 3)) == (4, None, 3)
    assert size((2, (3, 4))) == 24 and rank(5) == 1 and depth(5) == 0
    assert cosize(make_layout((0, 4))) == 0
    assert cosize(make_identity_layout((4, 8))) == 32
    assert is_static(layout) and not is_static(make_layout(SymInt(4))) and is_static((1, (2, 3)))
    assert is_major(1, (8, 1)) and not is_major(0, (8, 1))
    assert leading_dim((4, 8), (8, 1)) == 1
    assert leading_dim((4, (2, 8)), (16, (8, 1))) == (1, 1)
    assert leading_dim((1, 5, 1), (1, 1, 1)) == 1
    assert leading_dim((2, 2), (8, 2)) is None


def test_size_in_bytes():
    class Half:
        width = 16

    class Nibble:
        width = 4

    assert size_in_bytes(Half, make_layout((8, 64))) == 1024
    assert size_in_bytes(Nibble, make_layout(5)) == 3
    assert size_in_bytes(Half, None) == 0


def test_alignment():
    assert make_layout((8, 64), stride=(64, 1)).max_alignment == 512  # compact: one run
    assert make_layout((8, 64), stride=(72, 1)).max_alignment == 8
    assert make_layout(SymInt(128, 16)).max_alignment == 16
    assert make_layout((128, SymInt(4)), stride=(1, SymInt(256, 4))).max_alignment == 4
    assert make_layout((8, 8), stride=(3, 24)).max_alignment == 1


def test_layouts_past_32_bits():
    n = 1 << 20
    layout = make_layout((n, n, 8), stride=(n * 8, 8, 1))
    assert size(layout) == cosize(layout) == n * n * 8
    assert layout((n - 1, n - 1, 7)) == n * n * 8 - 1
    assert layout.get_hier_coord(n * n * 8 - 1) == (n - 1, n - 1, 7)
