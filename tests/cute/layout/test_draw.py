"""Pictures and the text form of layouts."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from layout_testing import SymInt, cases, layouts

from kiln.cute.draw import layout_latex, layout_svg, print_latex, print_latex_tv, tv_latex, tv_svg
from kiln.cute.layout_algebra import (
    E,
    LayoutError,
    ScaledBasis,
    make_composed_layout,
    make_identity_layout,
    make_layout,
    make_layout_tv,
    make_ordered_layout,
    make_swizzle,
)
from kiln.cute.layout_text import parse_layout, parse_tuple
from kiln.workbench.main import main as kiln

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(SVG + "text")]


def test_every_offset_is_in_the_picture():
    layout = make_layout(((2, 4), 8), stride=((1, 16), 2))
    shown = texts(layout_svg(layout))
    assert shown[0] == "((2,4),8):((1,16),2)"
    assert shown[1:9] == [str(j) for j in range(8)]
    # Row by row: the row number, then the offsets.
    rows = [shown[9 + 9 * i : 18 + 9 * i] for i in range(8)]
    assert rows == [[str(i), *(str(layout((i, j))) for j in range(8))] for i in range(8)]


def test_pictures_of_other_layouts():
    swizzled = make_composed_layout(make_swizzle(3, 0, 3), 0, make_layout((8, 8), stride=(8, 1)))
    assert str(swizzled((1, 0))) in texts(swizzled._repr_svg_())
    assert "(1,2)" in texts(layout_svg(make_identity_layout((2, 3))))
    assert texts(layout_svg(make_layout(4)))[-4:] == ["0", "1", "2", "3"]
    assert len(texts(layout_svg(make_layout((2, 3, 4))))) == 1 + 12 + 2 + 24
    assert str(make_layout((2, 2))._repr_svg_()).startswith("<svg")
    assert make_layout((SymInt(4), 2))._repr_svg_() is None
    assert make_layout((2, 2, 2))._repr_svg_() is None


def test_thread_value_picture():
    tiler, tv = make_layout_tv(make_ordered_layout((2, 4), (1, 0)), make_ordered_layout((2, 2), (1, 0)))
    assert tiler == (4, 8)
    cells = [t for t in texts(tv_svg(tv, tiler))[9:] if t[:1] in ("T", "V")]
    assert len(cells) == 2 * 32
    assert cells[:4] == ["T0", "V0", "T0", "V1"]
    assert cells.count("T5") == 4


def test_threads_that_share_a_cell_and_cells_without_owner():
    shared = texts(tv_svg(make_layout((2, 2), stride=(0, 1)), (2, 2)))
    assert "V0+" in shared and len([t for t in shared if t.startswith("T")]) == 2


def test_latex(capsys):
    document = layout_latex(make_layout((2, 3)))
    assert document.startswith(r"\documentclass") and document.count(r"\cell{") == 6
    assert r"\cell{1}{2}{blue!25}{5}" in document
    tv = make_layout((2, 2))
    assert r"\cell{1}{0}{green!20}{T1\\V0}" in tv_latex(tv, (2, 2))
    print_latex(make_layout((2, 3)))
    assert capsys.readouterr().out.strip() == document.strip()
    seen = []
    print_latex_tv(tv, (2, 2), palette="teal", title="a_b", axis_labels=True, render_func=seen.append)
    assert "teal!18" in seen[0] and r"a\_b" in seen[0]
    print_latex_tv(tv, make_layout((2, 2)), palette=lambda t, v: f"gray!{10 * v}", render_func=seen.append)
    assert "gray!10" in seen[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: layout_svg(make_layout((SymInt(4), 4))),
        lambda: layout_svg(make_layout((1 << 10, 1 << 10))),
        lambda: tv_svg(make_layout((2, 2, 2)), (4, 2)),
    ],
)
def test_what_cannot_be_drawn_is_refused(call):
    with pytest.raises(LayoutError):
        call()


# Text -------------------------------------------------------------------------------------------


@cases(60)
@given(layouts())
def test_text_is_read_back(layout):
    assert parse_layout(str(layout)) == layout
    assert parse_tuple(str(make_layout(layout.shape)).split(":")[0]) == layout.shape


def test_text_of_other_layouts():
    for text in ("S<3,4,3> o 0 o (8,64):(64,1)", "(4,(2,3)):(1@0,(1@0@1,2@1@1))", "():()", "(3):(1)", "4:-1"):
        assert str(parse_layout(text)) == text
    assert str(parse_layout("(4, 8)")) == "(4,8):(1,4)"
    assert parse_layout("4:2@1@0").stride == ScaledBasis(2, [0, 1]) and E([0, 1]) == ScaledBasis(1, [0, 1])


@pytest.mark.parametrize(
    "text", ["", "(4,8", "4,8", "(4,8):(1)", "4:1)", "(?,2):(1,?)", "4:", "T<1,2,3> o 0 o 8:1", "8:1@"]
)
def test_bad_text_is_refused(text):
    with pytest.raises(LayoutError):
        parse_layout(text)


# The command ------------------------------------------------------------------------------------


def test_draw_command(tmp_path, capsys):
    svg, tex = tmp_path / "x.svg", tmp_path / "x.tex"
    assert kiln(["draw", "((2,4),8):((1,16),2)", "-o", str(svg)]) == 0
    assert texts(svg.read_text())[0] == "((2,4),8):((1,16),2)"
    assert kiln(["draw", "((4,8),2):((16,1),8)", "--tv", "(8,8)", "--title", "mma", "-o", str(tex)]) == 0
    assert "T31" in tex.read_text() and "mma" in tex.read_text()
    capsys.readouterr()
    assert kiln(["draw", "4:1"]) == 0
    assert capsys.readouterr().out.startswith("<svg")
    assert kiln(["draw", "4:1)"]) == 1
    assert "^" in capsys.readouterr().err
