"""Divisions, products and what is built on them, by post-condition."""

from itertools import product as cartesian
from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from layout_testing import (
    SymInt,
    cases,
    compact_layouts,
    concrete,
    dynamic,
    injective_layouts,
    layouts,
    offsets,
    shapes,
)

from kiln.cute.layout import (
    Layout,
    LayoutError,
    blocked_product,
    ceil_div,
    complement,
    composition,
    cosize,
    flat_divide,
    flat_product,
    flatten_to_tuple,
    is_static,
    local_partition,
    local_tile,
    logical_divide,
    logical_product,
    make_fragment_layout,
    make_identity_layout,
    make_layout,
    make_layout_image_mask,
    make_layout_tv,
    make_ordered_layout,
    product_each,
    raked_product,
    rank,
    size,
    tile_to_shape,
    tiled_divide,
    tiled_product,
    zipped_divide,
    zipped_product,
)
from kiln.cute.layout.basis import add_coords

POWERS = st.sampled_from([1, 2, 4, 8])
DIVISORS = st.sampled_from([1, 2, 3, 4, 6])


def grid(shape):
    """All coordinates of a top-level shape, one index per mode."""
    return cartesian(*(range(n) for n in product_each(concrete(shape))))


# Divisions --------------------------------------------------------------------------------------


@cases(120)
@given(layouts(max_leaves=3), injective_layouts(max_leaves=2, max_size=16), st.data())
def test_logical_divide_by_a_layout(a, tiler, data):
    assume(cosize(tiler) <= size(a))
    try:
        r = logical_divide(a, tiler)
    except LayoutError:
        assume(False)
    rest = complement(tiler, size(a))
    assert rank(r) == 2
    assert size(r[0]) == size(tiler)
    assert all(r[0](i) == a(tiler(i)) for i in range(size(tiler)))
    for i, j in cartesian(range(size(tiler)), range(min(size(rest), size(r[1])))):
        if tiler(i) + rest(j) < size(a):
            assert r((i, j)) == a(tiler(i) + rest(j))
    if size(tiler) * size(rest) == size(a):
        assert sorted(offsets(r)) == sorted(offsets(a))


@cases(120)
@given(compact_layouts(max_leaves=1, max_size=60), DIVISORS, st.data())
def test_divide_of_one_mode_covers_it(a, tile, data):
    n = size(a)
    da = data.draw(dynamic(a))
    r = logical_divide(da, tile)
    whole = offsets(r)
    assert size(concrete(r)[0]) == tile
    assert size(concrete(r)) == -(-n // tile) * tile
    assert whole[:n] == offsets(a)


@cases(60)
@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 12), st.data())
def test_the_short_cut_for_one_mode_is_the_division(extent, stride, tile, data):
    a = data.draw(dynamic(Layout(extent, stride)))
    by_layout, by_int = logical_divide(a, make_layout(tile)), logical_divide(a, tile)
    assert str(by_int) == str(by_layout) and offsets(by_int) == offsets(by_layout)


@st.composite
def tilings(draw):
    """A layout and a by-mode tiler, some modes with extents that the tile does not divide."""
    modes = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(modes))
    a = Layout(shape, make_ordered_layout(shape, tuple(draw(st.permutations(range(modes))))).stride)
    tiler = tuple(
        draw(st.sampled_from([None, 1, 2, 3, 4]) if draw(st.booleans()) else st.integers(1, 4))
        for _ in range(draw(st.integers(1, modes)))
    )
    return a, tiler


@cases(150)
@given(tilings(), st.data())
def test_divisions_by_mode_agree(case, data):
    a, tiler = case
    a = data.draw(dynamic(a))
    logical, zipped, tiled, flat = (f(a, tiler) for f in (logical_divide, zipped_divide, tiled_divide, flat_divide))
    tiles = len(tiler)
    assert rank(logical) == rank(a) and rank(zipped) == 2
    assert rank(tiled) == 1 + rank(a) and rank(flat) == tiles + rank(a)
    parts = [[Layout(1, 0), logical[i]] if t is None else list(logical[i]) for i, t in enumerate(tiler)]
    inside = [p[0] for p in parts]
    outside = [p[1] for p in parts] + [logical[i] for i in range(tiles, rank(a))]
    for i in range(tiles):
        assert offsets(zipped[0][i]) == offsets(flat[i]) == offsets(tiled[0][i]) == offsets(inside[i])
    for i, rest in enumerate(outside):
        assert offsets(zipped[1][i]) == offsets(tiled[1 + i]) == offsets(flat[tiles + i]) == offsets(rest)
    assert set(offsets(a)) <= set(offsets(zipped))


@cases(60)
@given(tilings(), st.data())
def test_ceil_div_is_the_shape_of_the_rest(case, data):
    a, tiler = case
    counts = ceil_div(data.draw(dynamic(a.shape)), tiler)
    assert concrete(counts) == concrete(zipped_divide(a, tiler)[1].shape)


@cases(60)
@given(tilings(), st.data())
def test_local_tile_slices_the_zipped_divide(case, data):
    a, tiler = case
    zipped = zipped_divide(a, tiler)
    coord = tuple(data.draw(st.sampled_from([None, 0])) for _ in tiler)
    r = local_tile(a, tiler, coord)
    kept = [zipped[0][i] for i in range(len(tiler))]
    kept += [zipped[1][i] for i in range(rank(a)) if i >= len(tiler) or coord[i] is None]
    assert [str(m) for m in r] == [str(m) for m in kept]


@cases(60)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_local_partition_deals_out_every_element_once(m, n, bm, bn, data):
    a = make_identity_layout((m * bm, n * bn))
    workers = make_ordered_layout((m, n), data.draw(st.sampled_from([(0, 1), (1, 0)])))
    seen = []
    for w in range(m * n):
        part = local_partition(a, workers, w)
        wm, wn = workers.get_flat_coord(w)
        assert product_each(part.shape) == (bm, bn)
        seen += [(wm + m * i, wn + n * j) for i in range(bm) for j in range(bn)]
        assert [add_coords((0, 0), x) for x in offsets(part)] == [(m * i, n * j) for j in range(bn) for i in range(bm)]
    assert sorted(seen) == sorted((i, j) for i in range(m * bm) for j in range(n * bn))


def test_projections_pick_modes():
    mk = make_layout((128, 64), stride=(64, 1))
    tiler, coord = (32, 16, 8), (1, 2, None)
    assert str(local_tile(mk, tiler, coord, proj=(1, None, 1))) == "(32,8,8):(64,1,8)"
    batched = make_layout((128, 64, 3), stride=(64, 1, 1 << 20))
    assert str(local_tile(batched, tiler, (*coord, 2), proj=(1, None, 1))) == "(32,8,8):(64,1,8)"
    workers = make_layout((4, 2, 8))
    assert str(local_partition(mk, workers, 3, proj=(1, None, 1))) == "(32,8):(256,8)"


# Products ---------------------------------------------------------------------------------------


@cases(120)
@given(injective_layouts(max_leaves=2, max_size=12), compact_layouts(max_leaves=2, max_size=12), st.data())
def test_logical_product(block, tiler, data):
    unit = 1 in flatten_to_tuple(block.shape)
    dblock = block if unit else Layout(data.draw(dynamic(block.shape)), block.stride)
    try:
        static = logical_product(block, tiler)
    except LayoutError:
        assume(False)
    r = concrete(logical_product(block if data.draw(st.booleans()) else dblock, tiler))
    assert rank(r) == 2
    rest = complement(block, size(block) * cosize(tiler))
    for i, j in cartesian(range(size(block)), range(size(tiler))):
        assert static((i, j)) == block(i) + rest(tiler(j))
    assert len(set(offsets(static))) == size(block) * size(tiler)
    assert offsets(r[0]) == offsets(block)


@cases(80)
@given(
    compact_layouts(max_leaves=2, max_size=16, extents=POWERS),
    compact_layouts(max_leaves=2, max_size=16, extents=POWERS),
)
def test_products_agree(block, tiler):
    logical = logical_product(block, tiler)
    zipped, tiled, flat = (f(block, tiler) for f in (zipped_product, tiled_product, flat_product))
    assert offsets(zipped) == offsets(logical) == offsets(tiled) == offsets(flat)
    assert rank(tiled) == 1 + rank(tiler.shape if isinstance(tiler.shape, tuple) else logical[1])


@cases(120)
@given(
    compact_layouts(max_leaves=3, max_size=16, extents=POWERS),
    compact_layouts(max_leaves=3, max_size=16, extents=POWERS),
)
def test_blocked_and_raked_product(block, tiler):
    modes = max(rank(block), rank(tiler))
    pad = lambda x: tuple(product_each(x.shape)) + (1,) * (modes - rank(x))
    bs, ts = pad(block), pad(tiler)
    blocked, raked = blocked_product(block, tiler), raked_product(block, tiler)
    assert product_each(blocked.shape) == product_each(raked.shape) == tuple(b * t for b, t in zip(bs, ts))
    # Where an element lies does not depend on how the modes are interleaved.
    logical = logical_product(block, tiler)
    for bc, tc in cartesian(grid(bs), grid(ts)):
        bi = sum(c * prod(bs[:i]) for i, c in enumerate(bc))
        ti = sum(c * prod(ts[:i]) for i, c in enumerate(tc))
        want = logical((bi, ti))
        assert blocked(tuple(b + n * t for b, t, n in zip(bc, tc, bs))) == want
        assert raked(tuple(t + n * b for b, t, n in zip(bc, tc, ts))) == want


@cases(80)
@given(compact_layouts(max_leaves=3, max_size=32), st.data())
def test_tile_to_shape(atom, data):
    modes = rank(atom) + data.draw(st.integers(0, 1))
    counts = tuple(data.draw(st.integers(1, 3)) for _ in range(modes))
    block = tuple(product_each(atom.shape)) + (1,) * (modes - rank(atom))
    target = tuple(b * c for b, c in zip(block, counts))
    order = data.draw(st.sampled_from([None, tuple(range(modes)), tuple(reversed(range(modes)))]))
    r = tile_to_shape(atom, target, order)
    assert product_each(r.shape) == target
    assert sorted(offsets(r)) == list(range(prod(target)))
    for c in grid(block):
        assert r(c) == atom(c[: rank(atom)] if rank(atom) > 1 else c[0])
    # The mode with the smallest order repeats the atom first.
    fastest = (order or tuple(range(modes))).index(0)
    if counts[fastest] > 1:
        assert r(tuple(b if i == fastest else 0 for i, b in enumerate(block))) == size(atom)
    # A dynamic target that is a known multiple gives the same layout.
    known = tuple(SymInt(t, b) if data.draw(st.booleans()) else t for t, b in zip(target, block))
    assert offsets(tile_to_shape(atom, known, order)) == offsets(r)


# Threads and values -----------------------------------------------------------------------------


@cases(60)
@given(
    compact_layouts(max_leaves=2, max_size=16, extents=POWERS),
    compact_layouts(max_leaves=2, max_size=16, extents=POWERS),
)
def test_make_layout_tv_covers_the_tile_once(thr, val):
    tiler, tv = make_layout_tv(thr, val)
    assert rank(tv) == 2 and size(tv[0]) == size(thr) and size(tv[1]) == size(val)
    assert sorted(offsets(tv)) == list(range(prod(tiler)))
    assert tiler == product_each(raked_product(thr, val).shape)


def test_image_mask():
    cluster = make_layout((2, 4, 1))
    assert make_layout_image_mask(cluster, (1, 2, 0), 0) == 0b110000
    assert make_layout_image_mask(cluster, (1, 2, 0), 1) == 0b10101010
    mask = make_layout_image_mask(cluster, (SymInt(1), SymInt(2), 0), mode=1)
    assert mask.value == 0b10101010


@cases(60)
@given(layouts(max_leaves=4, strides=st.sampled_from([0, 1, 2, 4, 8, 16])))
def test_fragment_layout_is_compact(layout):
    r = make_fragment_layout(layout)
    assert r.shape == layout.shape and is_static(r)
    if rank(layout) > 1:
        repeated = [i for i, d in enumerate(flatten_to_tuple(layout.stride)) if d == 0]
        assert all(flatten_to_tuple(r.stride)[i] == 0 for i in repeated)
        distinct = prod(s for i, s in enumerate(flatten_to_tuple(layout.shape)) if i not in repeated)
        assert len(set(offsets(r))) == distinct == cosize(r)


@cases(40)
@given(shapes(max_leaves=3, max_size=64), st.integers(1, 8))
def test_dividing_and_composing_with_the_tile_is_the_same(shape, tile):
    a = make_layout(shape)
    try:
        inside = composition(a, tile)
    except LayoutError:
        with pytest.raises(LayoutError, match="cannot be divided"):
            logical_divide(a, tile)
        return
    assert logical_divide(a, tile)[0] == inside


def test_a_last_tile_runs_past_the_end_in_the_last_mode_that_counts():
    assert str(logical_divide(make_layout((3, 1)), 2)) == "(2,2):(1,2)"
    assert str(logical_divide(make_layout((6, 6, 1), stride=(1, 6, 6)), 16)) == "(16,3):(1,16)"


def test_a_tile_larger_than_a_mode_keeps_its_stride():
    for shape, stride, tile, expected in (
        ((1,), (1,), (8,), "((8),(1)):((1),(0))"),
        ((6, 1, 4), (1, 1, 6), (4, 8, 8), "((4,8,8),(2,1,1)):((1,1,6),(4,0,0))"),
        ((1, (16, 6)), (6, (6, 1)), (4,), "((4),(1,(16,6))):((6),(0,(6,1)))"),
        ((1, SymInt(4)), (SymInt(7), 1), (4, 8), "((4,8),(1,?)):((?,1),(0,8))"),
        ((1,), (1,), (1,), "((1),(1)):((0),(0))"),
    ):
        assert str(zipped_divide(make_layout(shape, stride=stride), tile)) == expected


def test_a_product_of_one_leaf_keeps_the_nesting_of_its_tiler():
    leaf, nested = make_layout(2), make_layout((3,))
    assert str(blocked_product(leaf, nested)) == "((2,(3))):((1,(2)))"
    assert str(blocked_product(nested, nested)) == "((3,3)):((1,3))"
    assert str(blocked_product(leaf, make_layout(3))) == "((2,3)):((1,2))"
    assert str(tile_to_shape(leaf, (8,), (0,))) == "((2,(4))):((1,(2)))"
    assert str(tile_to_shape(leaf, (SymInt(8, 2),), (0,))) == "((2,(?))):((1,(2)))"


def test_the_modes_of_a_raked_product_are_coalesced():
    assert str(raked_product(make_layout(8), make_layout((4, 2)))) == "((4,8),2):((8,1),32)"
    by_rows = make_layout((2, (8, 4)), stride=(8, (1, 16)))
    assert str(raked_product(make_layout(4), by_rows)) == "((2,4),(8,4)):((32,1),(4,64))"
    assert str(raked_product(make_layout((1, 1)), make_layout((1, 1)))) == "(1,1):(0,0)"
    dynamic_rows = make_layout((2, (SymInt(8), 1)), stride=(8, (1, 16)))
    assert str(raked_product(make_layout(4), dynamic_rows)) == "((2,4),?):((32,1),4)"


def test_the_rows_of_a_tile_of_one_row_have_coordinates_of_their_own() -> None:
    tiles = zipped_divide(make_identity_layout((1, 124)), (4, 64))
    assert str(tiles) == "((4,64),(1,2)):((1@0,1@1),(0,64@1))"
    assert tiles(((3, 5), (0, 1))) == (3, 69)


def test_a_mode_that_is_divided_already_gives_its_parts_to_tiles_and_rests() -> None:
    """As CuTe's `thrfrg_A` does: (thread, value) by modes of threads gives ((thread, ...), (value, ...))."""
    operand = make_layout(((8, 4), (2, 6)), stride=((1, 100), (10, 20)))
    assert str(zipped_divide(operand, (None, 2))) == "((8,2),(4,6)):((1,10),(100,20))"
    threads = (None, (make_layout(2), make_layout(3)))
    assert str(zipped_divide(operand, threads)) == "((8,(2,3)),(4,(1,2))):((1,(10,20)),(100,(0,60)))"
    assert str(zipped_divide(make_layout((8, 6)), (None, 2))) == "((1,2),(8,3)):((0,8),(1,16))"
