"""Agreement with other implementations of the algebra, by facts computed when these tests were written.

`pycute_facts.json` holds calls and results of the public pycute package, one per line. The other facts are the outputs
saved in NVIDIA's public notebooks, and layouts printed by CuTe in public dumps of compiled programs.
"""

import json
from pathlib import Path

import pytest
from layout_testing import SymInt, concrete

from kiln.cute import layout as cute
from kiln.cute.layout import Layout, make_layout

FACTS = json.loads((Path(__file__).parent / "pycute_facts.json").read_text())


def tree(x):
    return tuple(tree(v) for v in x) if isinstance(x, list) else x


def without_unit_strides(layout):
    """The stride of a mode of extent 1 means nothing; pycute and CuTe choose different ones."""

    def clean(s, d):
        if isinstance(s, tuple):
            return tuple(clean(x, y) for x, y in zip(s, d))
        return 0 if s == 1 else d

    return Layout(layout.shape, clean(layout.shape, layout.stride))


def L(pair):
    return Layout(*tree(pair))


def coalesce_by(a):
    return cute.coalesce(a, target_profile=(1,) * len(a))


CALLS = {
    "flatten": lambda s: cute.flatten_to_tuple(tree(s)),
    "product": lambda s: cute.product(tree(s)),
    "shape_div": lambda s, n: cute.shape_div(tree(s), n),
    "idx2crd": lambda i, s: cute.idx2crd(i, tree(s)),
    "crd2idx": lambda c, a: cute.crd2idx(tree(c), L(a)),
    "slice": lambda c, a: cute.slice_(L(a), tree(c)),
    "size": lambda a: cute.size(L(a)),
    "cosize": lambda a: cute.cosize(L(a)),
    "coalesce": lambda a: cute.coalesce(L(a)),
    "coalesce_by": lambda a: coalesce_by(L(a)),
    "filter": lambda a: cute.filter(L(a)),
    "composition": lambda a, b: cute.composition(L(a), L(b)),
    "complement": lambda a, n: cute.complement(L(a), n),
    "right_inverse": lambda a: cute.right_inverse(L(a)),
    "left_inverse": lambda a: cute.left_inverse(L(a)),
    "swizzle": lambda b, m, s, x: cute.make_swizzle(b, m, s)(x),
}
for name in ("divide", "product"):
    for kind in ("logical", "zipped", "tiled"):
        f = getattr(cute, f"{kind}_{name}")
        # A tiler is a layout [shape, stride] or, marked as such, a list of extents and Nones.
        CALLS[f"{kind}_{name}"] = lambda a, b, f=f: f(L(a), tree(b["tiler"]) if isinstance(b, dict) else L(b))


@pytest.mark.parametrize("function", sorted({f[0] for f in FACTS}))
def test_agreement_with_pycute(function):
    checked = 0
    for name, args, expected in FACTS:
        if name != function:
            continue
        checked += 1
        result = CALLS[name](*args)
        if isinstance(result, Layout):
            want = L(expected)
            assert without_unit_strides(result) == without_unit_strides(want), f"{name}{args}: {result}, pycute {want}"
        else:
            assert result == tree(expected), f"{name}{args}"
    assert checked >= 10


# NVIDIA's notebooks -----------------------------------------------------------------------------


def test_notebook_on_coalesce():
    layout = make_layout((2, (1, 6)), stride=(1, (SymInt(6), 2)))
    assert str(layout) == "(2,(1,6)):(1,(?,2))" and str(cute.coalesce(layout)) == "12:1"
    layout = make_layout(((2, (3, 4)), (3, 2), 1), stride=((4, (8, 24)), (2, 6), 12))
    assert str(cute.coalesce(layout)) == "(24,6):(4,2)"
    by_mode = cute.coalesce(make_layout((2, (1, 6)), stride=(1, (6, 2))), target_profile=(1, 1))
    assert str(by_mode) == "(2,6):(1,2)"


def test_notebook_on_composition():
    a = make_layout((6, 2), stride=(SymInt(8), 2))
    r = cute.composition(a, make_layout((4, 3), stride=(3, 1)))
    assert str(a) == "(6,2):(?,2)"
    assert str(r) == "((2,2),3):((?{div=3},2),?)" and str(concrete(r)) == "((2,2),3):((24,2),8)"
    a, b = make_layout((10, 2), stride=(16, 4)), make_layout((5, 4), stride=(1, 5))
    assert str(cute.composition(a, b)) == "(5,(2,2)):(16,(80,4))"
    a = make_layout((SymInt(10), SymInt(2)), stride=(SymInt(16), SymInt(4)))
    b = make_layout((SymInt(5), SymInt(4)), stride=(SymInt(1), SymInt(5)))
    assert str(concrete(cute.composition(a, b))) == "((5,1),(2,2)):((16,4),(80,4))"
    a = make_layout((SymInt(12), (SymInt(4), SymInt(8))), stride=(SymInt(59), (SymInt(13), SymInt(1))))
    r = cute.composition(a, (3, 8))
    assert str(r) == "(3,(?,?)):(?,(?,?))" and str(concrete(r)) == "(3,(4,2)):(59,(13,1))"


def test_notebook_on_division():
    layout = make_layout((4, 2, 3), stride=(2, 1, 8))
    assert str(cute.logical_divide(layout, tiler=make_layout(4, stride=2))) == "((2,2),(2,3)):((4,1),(2,8))"
    layout = make_layout((9, (4, 8)), stride=(59, (13, 1)))
    tiler = (make_layout(3, stride=3), make_layout((2, 4), stride=(1, 8)))
    assert str(cute.logical_divide(layout, tiler=tiler)) == "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"
    assert str(cute.zipped_divide(layout, tiler=tiler)) == "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))"
    assert str(cute.tiled_divide(layout, tiler=tiler)) == "((3,(2,4)),3,(2,2)):((177,(13,2)),59,(26,1))"
    assert str(cute.flat_divide(layout, tiler=tiler)) == "(3,(2,4),3,(2,2)):(177,(13,2),59,(26,1))"
    rows = make_layout((2048, 2048), stride=(2048, 1))
    assert str(cute.zipped_divide(rows, tiler=(1, 8))) == "((1,8),(2048,256)):((0,1),(2048,8))"


def test_notebook_on_products():
    layout = make_layout((2, 2), stride=(4, 1))
    assert str(cute.logical_product(layout, tiler=make_layout(6, stride=1))) == "((2,2),(2,3)):((4,1),(2,8))"
    layout, tiler = make_layout((2, 5), stride=(5, 1)), make_layout((3, 4), stride=(1, 3))
    assert str(cute.blocked_product(layout, tiler=tiler)) == "((2,3),(5,4)):((5,10),(1,30))"
    assert str(cute.raked_product(layout, tiler=tiler)) == "((3,2),(4,5)):((10,5),(30,1))"
    assert str(cute.zipped_product(layout, tiler=tiler)) == "((2,5),(3,4)):((5,1),(10,30))"
    assert str(cute.tiled_product(layout, tiler=tiler)) == "((2,5),3,4):((5,1),10,30)"
    assert str(cute.flat_product(layout, tiler=tiler)) == "(2,5,3,4):(5,1,10,30)"


def test_notebook_on_threads_and_values():
    thr, val = cute.make_ordered_layout((4, 32), order=(1, 0)), cute.make_ordered_layout((4, 8), order=(1, 0))
    tiler, tv = cute.make_layout_tv(thr, val)
    assert tiler == (16, 256) and str(tv) == "((32,4),(8,4)):((128,4),(16,1))"


# Layouts in public dumps ------------------------------------------------------------------------


def test_tiled_swizzle_atoms():
    atom = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, make_layout((8, 64), stride=(64, 1)))
    assert str(cute.tile_to_shape(atom, (64, 128), (0, 1))) == "S<3,4,3> o 0 o ((8,8),(64,2)):((64,512),(1,4096))"
    assert str(cute.tile_to_shape(atom, (64, 64), (0, 1))) == "S<3,4,3> o 0 o ((8,8),(64,1)):((64,512),(1,0))"
    atom = cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, make_layout((64, 8), stride=(1, 64)))
    staged = cute.tile_to_shape(atom, (128, 32, 3), (0, 1, 2))
    assert str(staged) == "S<3,3,3> o 0 o ((64,2),(8,4),(1,3)):((1,512),(64,1024),(0,4096))"


def test_dynamic_tensors_in_dumps():
    stride = lambda value=1, div=1: SymInt(value, div, width=64)
    rows = make_layout((SymInt(3), SymInt(5)), stride=(stride(), 1))
    tiled = cute.zipped_divide(rows, (16, 128))
    assert str(tiled.shape) and str(rows) == "(?,?):(?{i64},1)"
    assert [cute.get_divisibility(x) for x in cute.flatten_to_tuple(tiled.stride)] == [1, 1, 16, 128]
    assert str(cute.make_layout(tiled.shape, stride=concrete(tiled.stride))) == "((16,128),(?,?)):((1,1),(16,128))"
    identity = cute.make_identity_layout((SymInt(3), SymInt(5)))
    assert str(cute.zipped_divide(identity, (16, 128))) == "((16,128),(?,?)):((1@0,1@1),(16@0,128@1))"
