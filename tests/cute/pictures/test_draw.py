"""Pictures and the text form of layouts."""

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from layout_testing import SymInt, cases, layouts

import kiln as kiln_package
from kiln import cute
from kiln.cute.layout import (
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
from kiln.cute.layout.layout_text import parse_layout, parse_tuple
from kiln.cute.pictures.draw import layout_latex, layout_svg, print_latex, print_latex_tv, tv_latex, tv_svg
from kiln.workbench.main import main as kiln

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg) -> list[str]:
    return [t.text or "" for t in ElementTree.fromstring(svg).iter(SVG + "text")]


def test_a_wide_picture_shrinks_to_the_cell_of_a_notebook():
    root = ElementTree.fromstring(layout_svg(make_layout((2, 64))))
    assert root.attrib["style"] == "max-width:100%;height:auto"
    assert root.attrib["viewBox"] == f"0 0 {root.attrib['width']} {root.attrib['height']}"


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
    assert kiln(["draw", "4:1)"]) == 2
    assert "^" in capsys.readouterr().err


def tiles_of(picture: str) -> list[dict[tuple[int, int], tuple[int, int]]]:
    """The tables of a picture of threads and values: (row, column) -> (thread, value), the first owner of each."""
    root = ElementTree.fromstring(picture)
    cells = [(float(t.get("x", 0)), float(t.get("y", 0)), t.text or "") for t in root.iter(SVG + "text")]
    boxes = [tuple(float(r.get(k, 0)) for k in ("x", "y", "width", "height")) for r in root.iter(SVG + "rect")][1:]
    # a new table starts where a heading stands: 30 above its first cell
    headings = [
        (x, y + 30)
        for t in root.iter(SVG + "text")
        if t.get("font-weight")
        for x, y in [(float(t.get("x", 0)), float(t.get("y", 0)))]
    ][1:]
    found = []
    for left, top in headings:
        first = next(b for b in boxes if b[:2] == (left, top))
        mine: dict[tuple[int, int], tuple[int, int]] = {}
        frontier = [(0, 0)]
        known = {b[:2] for b in boxes}
        while frontier:
            i, j = frontier.pop()
            x, y = left + j * first[2], top + i * first[3]
            if (i, j) in mine or (x, y) not in known:
                continue
            inside = [t for cx, cy, t in cells if x < cx < x + first[2] and y < cy < y + first[3]]
            mine[i, j] = (int(inside[0][1:]), int(inside[1][1:].rstrip("+")))
            frontier += [(i + 1, j), (i, j + 1)]
        found.append(mine)
    return found


def test_a_tiled_mma():
    tiled = cute.make_tiled_mma(
        cute.nvgpu.warp.MmaF16BF16Op(kiln_package.Float16, kiln_package.Float32, (16, 8, 16)), (1, 2, 1)
    )
    a, b, c = tiles_of(tiled._repr_svg_())
    assert (len(a), len(b), len(c)) == (16 * 16, 16 * 16, 16 * 16)
    for operand, table, layout in (
        ("A", a, tiled.tv_layout_A_tiled),
        ("B", b, tiled.tv_layout_B_tiled),
        ("C", c, tiled.tv_layout_C_tiled),
    ):
        for (row, column), owner in table.items():
            place = (column, row) if operand == "B" else (row, column)  # B is drawn with K down
            assert layout(owner) == place[0] + 16 * place[1], operand
    # PTX: the accumulators of thread 5 are in row 1, columns 2 and 3, and in row 9
    assert [c[1, 2], c[1, 3], c[9, 2]] == [(5, 0), (5, 1), (5, 2)]


def test_a_tiled_copy():
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), kiln_package.Float16, num_bits_per_copy=64)
    tiled = cute.make_tiled_copy_tv(atom, make_ordered_layout((4, 8), (1, 0)), make_layout((1, 4)))
    (table,) = tiles_of(tiled._repr_svg_())
    assert table == {(i, j): (8 * i + j // 4, j % 4) for i in range(4) for j in range(32)}
    matrices = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(False, 4), kiln_package.Float16)
    mma = cute.make_tiled_mma(cute.nvgpu.warp.MmaF16BF16Op(kiln_package.Float16, kiln_package.Float32, (16, 8, 16)))
    rows, fragments = tiles_of(cute.make_tiled_copy_A(matrices, mma)._repr_svg_())
    # each thread gives the address of a row of 8; the fragments are those of the MMA
    assert rows == {(i, j): (i + 16 * (j // 8), j % 8) for i in range(16) for j in range(16)}
    assert fragments == tiles_of(mma._repr_svg_())[0]
    document: list[str] = []
    print_latex(tiled, render_func=document.append)
    assert document[0].count(r"\cell{") == 4 * 32 and r"{T9\\V2}" in document[0]


def test_atoms_on_the_command_line(tmp_path, capsys):
    text = "make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)))"
    assert kiln(["draw", "-e", text, "-o", str(tmp_path / "mma.svg"), "--title", "one warp"]) == 0
    assert (
        "one warp" in texts((tmp_path / "mma.svg").read_text())
        and len(tiles_of((tmp_path / "mma.svg").read_text())) == 3
    )
    assert kiln(["draw", "-e", text, "-o", str(tmp_path / "mma.tex")]) == 0
    assert (tmp_path / "mma.tex").read_text().count(r"\begin{scope}") == 3
    assert kiln(["draw", "-e", "make_layout((4, 8))"]) == 0
    capsys.readouterr()
    for bad, why in (
        ("nothing(3)", "name 'nothing'"),
        ("make_layout(", "'make_layout('"),
        ("make_layout((2,2), stride=1)", "congruent"),
    ):
        assert kiln(["draw", "-e", bad]) == 2
        assert why in capsys.readouterr().err
