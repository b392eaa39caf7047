"""How layouts print, compare and hash; what bad input says; and that what is known emits nothing."""

import pytest
from layout_testing import SymBool, SymInt

from kiln.cute.layout import (
    E,
    Layout,
    LayoutError,
    append,
    ceil_div,
    coalesce,
    complement,
    composition,
    cosize,
    crd2idx,
    idx2crd,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    make_layout_image_mask,
    make_ordered_layout,
    product,
    recast_layout,
    size,
    tile_to_shape,
    zipped_divide,
)

# Printing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (make_layout(((2, 4), 8), stride=((1, 16), 2)), "((2,4),8):((1,16),2)"),
        (make_layout((3,)), "(3):(1)"),
        (make_layout(7), "7:1"),
        (make_layout((1, 8)), "(1,8):(0,1)"),
        (make_layout(()), "():()"),
        (make_layout((SymInt(8), 2)), "(?,2):(1,?)"),
        (make_layout((SymInt(8, 8), 2)), "(?{div=8},2):(1,?{div=8})"),
        (make_layout((4, 2), stride=(SymInt(8, 8, width=64), SymInt(3, width=64))), "(4,2):(?{i64 div=8},?{i64})"),
        (make_layout((4, (2, 3)), stride=(E(0), (E([1, 0]), E([1, 1])))), "(4,(2,3)):(1@0,(1@0@1,1@1@1))"),
    ],
)
def test_printing(layout, text):
    assert str(layout) == repr(layout) == text
    assert layout.type == f'!cute.layout<"{text}">'


def test_equality_and_hash():
    a = make_layout((4, 8), stride=(8, 1))
    assert a == make_ordered_layout((4, 8), (1, 0)) and hash(a) == hash(make_ordered_layout((4, 8), (1, 0)))
    assert a != make_layout((4, 8)) and (a == make_layout((4, 8))) is False
    assert a != 3 and {a: 1}[make_layout((4, 8), stride=(8, 1))] == 1
    n = SymInt(8)
    assert (make_layout((4, n)) == make_layout((4, n))) is True  # the very same dynamic value
    assert (make_layout((4, n)) == make_layout((5, n))) is False
    assert (make_layout((4, n)) == make_layout((4, 8, 1))) is False
    undecided = make_layout((4, n)) == make_layout((4, SymInt(8)))
    assert isinstance(undecided, SymBool) and undecided.value
    assert isinstance(make_layout((4, n)) != make_layout((4, SymInt(8))), SymBool)
    assert hash(make_layout(n)) == hash(make_layout(n))


def test_layouts_cannot_be_changed():
    layout = make_layout((4, 8))
    for name in ("shape", "stride", "anything"):
        with pytest.raises(AttributeError):
            setattr(layout, name, 1)


def test_integers_of_other_libraries_are_converted():
    numpy = pytest.importorskip("numpy")
    layout = make_layout((numpy.int64(4), [8, True]))
    assert str(layout) == "(4,(8,1)):(1,(4,0))" and type(layout.shape[0]) is int
    assert layout(numpy.int32(5)) == 5


# Errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: make_layout((4, 8), stride=(1,)), ["congruent", "(4,8)", "(1)"]),
        (lambda: make_layout((4, 8), stride=(1, (2, 3))), ["congruent", "(1,(2,3))"]),
        (lambda: make_layout((4, -8)), ["negative", "(4,-8)"]),
        (lambda: make_ordered_layout((4, 8), (0, 1, 2)), ["order", "(0,1,2)", "(4,8)"]),
        (lambda: composition(make_layout((4, 6), stride=(6, 1)), make_layout(6)), ["(4,6):(6,1)", "6:1", "extent 4"]),
        (lambda: composition(make_layout((6, 2), stride=(1, 10)), make_layout(4, stride=4)), ["stride 4", "extent 6"]),
        (lambda: composition(make_layout((4, 2), stride=(2, 1)), make_layout((3, 2))), ["not a layout", "(3,2):(1,3)"]),
        (lambda: composition(make_layout((2, 2), stride=(9, 1)), make_layout((2, 2), stride=(1, 1))), ["together"]),
        (lambda: composition(make_layout((4, 8)), (2, 2, 2)), ["<2, 2, 2>", "3 modes", "(4,8):(1,4)"]),
        (lambda: logical_divide(make_layout((4, 6), stride=(6, 1)), 6), ["cannot be divided", "(4,6):(6,1)", "6:1"]),
        (lambda: zipped_divide(make_layout(8), (2, 2)), ["<2, 2>", "8:1"]),
        (lambda: complement(make_layout((4, 4), stride=(1, 2)), 32), ["injective", "(4,4):(1,2)", "4:2"]),
        (lambda: complement(make_layout((4, 4), stride=(SymInt(1), SymInt(8))), 32), ["sorted", "(4,4):(?,?)"]),
        (lambda: complement(make_layout(4, stride=-1), 8), ["negative"]),
        (lambda: left_inverse(make_layout((2, 2), stride=(1, 1))), ["injective"]),
        (lambda: logical_product(make_layout((4, 4), stride=(1, 2)), make_layout(2)), ["block", "injective"]),
        (lambda: tile_to_shape(make_layout((8, 8)), (16, 12), (0, 1)), ["8 does not divide 12", "(16,12)"]),
        (lambda: tile_to_shape(make_layout((8, 8)), 64, 0), ["more modes"]),
        (lambda: recast_layout(32, 8, make_layout((6, 4))), ["4 times as wide", "6:1"]),
        (lambda: recast_layout(8, 16, make_layout(4, stride=2)), ["no mode has stride 1"]),
        (lambda: crd2idx((1, 2, 3), make_layout((4, 8))), ["(1,2,3)", "(4,8)"]),
        (lambda: idx2crd((1, 2), 8), ["(1,2)", "8"]),
        (lambda: append((1, 2, 3), 1, up_to_rank=2), ["rank 2", "3 modes"]),
        (lambda: coalesce(make_layout(8), target_profile=(1, 1)), ["profile", "8:1"]),
        (lambda: make_layout_image_mask(make_layout((2, 2)), (0, 0, 0), 1), ["(0,0,0)", "(2,2):(1,2)"]),
    ],
)
def test_an_error_states_the_rule_and_the_layouts(call, parts):
    with pytest.raises(LayoutError) as e:
        call()
    assert isinstance(e.value, ValueError)
    for part in parts:
        assert part in str(e.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: make_layout("8"),
        lambda: make_layout((4, 2.0)),
        lambda: make_layout((4, 8), stride=(1, None)),
        lambda: composition(make_layout(8), "2"),
        lambda: composition((8, 8), 4),
        lambda: coalesce((8, 8)),
        lambda: crd2idx("1", make_layout(8)),
        lambda: crd2idx(1, object()),
        lambda: size(object()),
        lambda: make_layout((4, 8))["0"],  # type: ignore[index]
        lambda: append(make_layout(4), 3),
    ],
)
def test_things_of_the_wrong_type_are_refused(call):
    with pytest.raises(TypeError):
        call()


def test_modes_out_of_range():
    with pytest.raises(IndexError, match="mode 2"):
        make_layout((4, 8))[2]
    with pytest.raises(IndexError, match="mode 5"):
        size((4, 8), mode=[5])


# Folding ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        (lambda m, n: make_layout((4, m)), 0),
        (lambda m, n: make_layout((m, 1, 4), stride=(1, 0, n)), 0),
        (lambda m, n: product((m, 1)), 0),
        (lambda m, n: size(make_layout((m, 4))), 1),
        (lambda m, n: cosize(make_layout(m)), 0),
        (lambda m, n: coalesce(make_layout((2, (1, 6)), stride=(1, (m, 2)))), 0),
        (lambda m, n: crd2idx((0, 5), make_layout((4, 8), stride=(m, 1))), 0),
        (lambda m, n: crd2idx((m, 0), make_layout((64, 8), stride=(1, n))), 0),
        (lambda m, n: crd2idx(m, make_layout((4, 8))), 0),  # one run: no division
        (lambda m, n: idx2crd(0, (m, n)), 0),
        (lambda m, n: idx2crd(m, (8, 4)), 1),  # 64 divides m, so m % 8 is known
        (lambda m, n: composition(make_layout(m, stride=n), make_layout(8)), 0),
        (lambda m, n: composition(make_layout((m, n)), make_layout(16)), 0),  # 16 stay inside m
        (lambda m, n: ceil_div(m, 64), 1),  # exact: one division, no rounding up
        (lambda m, n: ceil_div((m, n), (1, None)), 0),
        (lambda m, n: zipped_divide(make_layout((m, n), stride=(n, 1)), (64, 32)), 3),
    ],
)
def test_what_is_known_emits_nothing(call, operations):
    m, n = SymInt(256, 64), SymInt(64, 32)
    before = SymInt.emitted
    call(m, n)
    assert SymInt.emitted - before == operations


def test_divisibility_reaches_results():
    m, n = SymInt(256, 64), SymInt(64, 32)
    divided = zipped_divide(make_layout((m, n), stride=(n, 1)), (64, 32))
    assert str(divided) == "((64,32),(?,?)):((?{div=32},1),(?{div=2048},32))"
    assert str(zipped_divide(make_layout((m, n), stride=(n, 1)), (16, 8)).shape[1][0].divisibility) == "4"
    assert str(composition(make_layout((m, n)), make_layout(16))) == "16:1"
    assert str(Layout((m, 8), (1, m))) == "(?{div=64},8):(1,?{div=64})"
