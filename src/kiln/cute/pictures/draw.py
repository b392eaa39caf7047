# pyright: strict, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
"""Pictures of layouts: SVG for notebooks and the command line, TikZ for papers.

A layout is drawn as a table: mode 0 down, mode 1 (and the rest) across, the offset in every cell, heavier
lines where a nested mode starts over. A thread-value layout is drawn on its tile: in every cell the thread
and the value that own it, coloured by thread.
"""

from __future__ import annotations

import colorsys
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..atoms.mma import make_tiled_mma
from ..layout.int_tuple import flatten_to_tuple, pretty_str, product, product_each, wrap
from ..layout.layout import Layout, is_static, plain_layout
from ..layout.leaf import LayoutError

__all__ = [
    "atom_latex",
    "atom_svg",
    "layout_latex",
    "layout_svg",
    "print_latex",
    "print_latex_tv",
    "tikz_color_layout",
    "tikz_color_tv",
    "tv_latex",
    "tv_svg",
]

_FONT = 13
_Color = Callable[[int | None], str]

MAX_CELLS = 1 << 16
"""The most cells of a picture: more are an error, as nobody could read it."""


@dataclass
class _Table:
    """What a picture shows: text lines and a colour number per cell, and where nested modes start over."""

    title: str
    cells: list[list[tuple[str, ...]]]
    colors: list[list[int | None]]
    row_breaks: set[int]
    column_breaks: set[int]

    @property
    def rows(self) -> int:
        return len(self.cells)

    @property
    def columns(self) -> int:
        return len(self.cells[0])


def _breaks(shape: object) -> set[int]:
    """Return where the first level of a nested mode starts over, as cell indices; empty for a mode without nesting."""
    extents = [s for s in flatten_to_tuple(shape) if s != 1]
    if len(extents) < 2:
        return set()
    step = extents[0]
    return set(range(step, product(shape), step))


def _check(layout: object, cells: int) -> None:
    if not is_static(layout):
        raise LayoutError(f"only a static layout can be drawn, but the layout is {layout}")
    if not 0 < cells <= MAX_CELLS:
        raise LayoutError(f"a picture has 1 to {MAX_CELLS} cells, but {layout} has {cells}; draw a tile of it")


def _layout_table(layout: Any, title: str | None) -> _Table:
    shape = plain_layout(layout, "a picture").shape
    modes = wrap(shape) or (1,)
    if len(modes) == 1:
        modes = (1, modes[0])  # one mode is drawn as a row
        at: Callable[[int, int], Any] = lambda i, j: layout(j)
    else:
        at = lambda i, j: layout(i + product(modes[0]) * j)
    across = modes[1] if len(modes) == 2 else modes[1:]
    rows = product(modes[0])
    columns = product(across)
    _check(layout, rows * columns)
    values = [[at(i, j) for j in range(columns)] for i in range(rows)]
    return _Table(
        title=str(layout) if title is None else title,
        cells=[[(pretty_str(v),) for v in row] for row in values],
        colors=[[v % 8 if isinstance(v, int) else None for v in row] for row in values],  # coordinates stay white
        row_breaks=_breaks(modes[0]),
        column_breaks=_breaks(across),
    )


def _tv_table(layout_tv: Any, tile_mn: object, title: str | None) -> _Table:
    shape = plain_layout(layout_tv, "a thread-value picture").shape
    if len(wrap(shape)) != 2:
        raise LayoutError(f"a thread-value layout has two modes, threads and values, but the layout is {layout_tv}")
    where = Layout(tile_mn.shape if isinstance(tile_mn, Layout) else tile_mn)
    extents = product_each(where.shape)
    rows, columns = (1, extents[0]) if len(extents) == 1 else (extents[0], product(extents[1:]))
    _check(layout_tv, rows * columns)
    owners: dict[int, list[tuple[int, int]]] = {}
    threads, values = product_each(shape)
    for t in range(threads):
        for v in range(values):
            index = layout_tv((t, v))
            owners.setdefault(index if isinstance(index, int) else where(index), []).append((t, v))
    cells: list[list[tuple[str, ...]]] = []
    colors: list[list[int | None]] = []
    for i in range(rows):
        cells.append([])
        colors.append([])
        for j in range(columns):
            own = owners.get(i + rows * j, [])
            text = ("",) if not own else (f"T{own[0][0]}", f"V{own[0][1]}" + ("+" if len(own) > 1 else ""))
            cells[-1].append(text)
            colors[-1].append(own[0][0] if own else None)
    title = f"{layout_tv} on {pretty_str(where.shape)}" if title is None else title
    return _Table(title, cells, colors, set(), set())


def _hex(red: float, green: float, blue: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in (red, green, blue))


def _layout_color(number: int | None) -> str:
    """Return one of eight blues from nearly white to medium, all light enough for black text."""
    return "#ffffff" if number is None else _hex(*colorsys.hls_to_rgb(0.58, 0.97 - 0.045 * (number % 8), 0.75))


def _thread_color(number: int | None) -> str:
    """Return a light colour per thread; neighbours are far apart on the colour wheel."""
    if number is None:
        return "#ffffff"
    lightness = (0.84, 0.76, 0.90)[number // 8 % 3]
    return _hex(*colorsys.hls_to_rgb(number * 0.381966 % 1.0, lightness, 0.70))


def cell_color(number: int, shade: int, of: int | None = None) -> str:
    """Return a light colour by a number in a few shades; neighbours are far apart on the colour wheel. `of` colours,
    if given, as far as can be."""
    step = 0.381966 if of is None else (3 * of // 8 | 1) / of
    return _hex(*colorsys.hls_to_rgb(number * step % 1.0, (0.85, 0.77, 0.91, 0.71)[shade % 4], 0.70))


def tikz_color_layout(number: int) -> str:
    """Return the TikZ colour of a cell by its offset, eight shades in turn."""
    return f"blue!{5 * (number % 8)}"


def tikz_color_tv(thread: int, value: int = 0) -> str:
    """Return the TikZ colour of a cell by its thread, eight colours in turn."""
    names = ("red", "green", "blue", "yellow", "magenta", "cyan", "orange", "violet")
    return f"{names[thread % 8]}!{(20, 35, 12)[thread // 8 % 3]}"


def layout_svg(layout: object, *, title: str | None = None) -> str:
    """Return a picture of a static layout or composed layout as an SVG document."""
    return _svg(_layout_table(layout, title), _layout_color)


def tv_svg(layout_tv: object, tile_mn: object, *, title: str | None = None) -> str:
    """Return a picture of a thread-value layout on its tile (a shape or a layout) as an SVG document.

    A cell that several pairs own shows the first and a ``+``; a cell that nobody owns stays white.
    """
    return _svg(_tv_table(layout_tv, tile_mn, title), _thread_color)


def _svg(table: _Table, color: _Color) -> str:
    width, height = _cell_size([table])
    left = 18 + 8 * len(str(table.rows - 1))
    top = 54
    title_wide = round(len(table.title) * 15 * 0.62) + 16
    full = (max(left + table.columns * width + 12, title_wide), top + table.rows * height + 12)
    cell = "the thread and the value that own it" if color is _thread_color else "its offset"
    about = f"A table of {table.rows} rows and {table.columns} columns; each cell has {cell}."
    return document(full, table.title, _panel(table, color, left, top, width, height), about)


def _cell_size(tables: Sequence[_Table]) -> tuple[int, int]:
    """Return the width and height that fit the text of every cell."""
    texts = [text for table in tables for row in table.cells for text in row]
    longest = max(len(line) for text in texts for line in text)
    return max(30, round(longest * _FONT * 0.62) + 12), 15 * max(map(len, texts)) + 11


def document(full: tuple[int, int], title: str, body: Sequence[str], about: str) -> str:
    """Return a picture; `title` and `about`, what it shows in words, are read to who cannot see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{full[0]}" height="{full[1]}" '
            f'style="max-width:100%;height:auto" role="img" viewBox="0 0 {full[0]} {full[1]}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
            f'font-size="{_FONT}" text-anchor="middle">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(about)}</desc>",
            f'<rect width="{full[0]}" height="{full[1]}" fill="#ffffff"/>',
            heading(8, 20, title),
            *body,
            "</svg>",
            "",
        ]
    )


def in_words(lines: Sequence[str]) -> str:
    """Return the lines above a picture as one text."""
    return ". ".join(" ".join(line.split()) for line in lines) + "."


def heading(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="15" font-weight="bold" text-anchor="start">{escape(text)}</text>'


def _panel(table: _Table, color: _Color, left: int, top: int, width: int, height: int) -> list[str]:
    """Return a table with its cells from (left, top) on; the numbers of columns and rows are above and left of that."""
    columns_wide = table.columns * width
    rows_high = table.rows * height
    out = [
        f'<text x="{left + j * width + width / 2:g}" y="{top - 7}" fill="#6b6b6b">{j}</text>'
        for j in range(table.columns)
    ]
    for i in range(table.rows):
        y = top + i * height
        out.append(f'<text x="{left - 7}" y="{y + height / 2 + 4.5:g}" fill="#6b6b6b" text-anchor="end">{i}</text>')
        for j in range(table.columns):
            x = left + j * width
            out.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color(table.colors[i][j])}"/>')
            text = table.cells[i][j]
            first = y + height / 2 + 4.5 - 7.5 * (len(text) - 1)
            out += [
                f'<text x="{x + width / 2:g}" y="{first + 15 * k:g}">{escape(line)}</text>'
                for k, line in enumerate(text)
                if line
            ]
    out.append('<g stroke="#333333">')
    for i in range(table.rows + 1):
        out.append(_line(left, top + i * height, columns_wide, 0, i in table.row_breaks or i in (0, table.rows)))
    for j in range(table.columns + 1):
        heavy = j in table.column_breaks or j in (0, table.columns)
        out.append(_line(left + j * width, top, 0, rows_high, heavy))
    return [*out, "</g>"]


def _line(x: int, y: int, dx: int, dy: int, heavy: bool) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{x + dx}" y2="{y + dy}" stroke-width="{2 if heavy else 0.5}"/>'


def layout_latex(
    layout: object,
    *,
    color: Callable[[int], str] = tikz_color_layout,
    title: str | None = None,
    axis_labels: bool = True,
) -> str:
    """Return a picture of a static layout as a LaTeX document. ``color`` maps an offset to a TikZ colour."""
    table = _layout_table(layout, "" if title is None else title)
    return _latex(table, [[color(c or 0) for c in row] for row in table.colors], axis_labels)


def tv_latex(
    layout_tv: object,
    tile_mn: object,
    *,
    color: Callable[[int, int], str] = tikz_color_tv,
    title: str | None = None,
    axis_labels: bool = False,
) -> str:
    """Return a thread-value layout drawn as a LaTeX document. ``color`` maps thread and value to a TikZ colour."""
    table = _tv_table(layout_tv, tile_mn, "" if title is None else title)
    return _latex(table, _fills(table, color), axis_labels)


def _fills(table: _Table, color: Callable[[int, int], str]) -> list[list[str]]:
    """Return the TikZ colours of a table of threads and values."""

    def fill(thread: int | None, text: Sequence[str]) -> str:
        return "white" if thread is None else color(thread, int(text[1].strip("V+")))

    return [[fill(c, t) for c, t in zip(*row)] for row in zip(table.colors, table.cells)]


def _latex(table: _Table, fills: list[list[str]], axis_labels: bool) -> str:
    return _tikzdocument(_tikz(table, fills, axis_labels))


def _tikz(table: _Table, fills: list[list[str]], axis_labels: bool) -> list[str]:
    """Return a table in TikZ, one unit to a cell, from (0, 0) to the right and down."""
    body: list[str] = []
    for i in range(table.rows):
        for j in range(table.columns):
            text = r"\\".join(table.cells[i][j])
            body.append(rf"\cell{{{i}}}{{{j}}}{{{fills[i][j]}}}{{{text}}}")
    for i in sorted(table.row_breaks):
        body.append(rf"\draw[very thick] (0,-{i}) -- ({table.columns},-{i});")
    for j in sorted(table.column_breaks):
        body.append(rf"\draw[very thick] ({j},0) -- ({j},-{table.rows});")
    if axis_labels:
        body += [rf"\node[gray] at (-0.5,-{i}.5) {{{i}}};" for i in range(table.rows)]
        body += [rf"\node[gray] at ({j}.5,0.5) {{{j}}};" for j in range(table.columns)]
    if table.title:
        safe = table.title.replace("_", r"\_")
        body.append(rf"\node[anchor=west] at (0,1.3) {{\texttt{{{safe}}}}};")
    return body


def _tikzdocument(body: Sequence[str]) -> str:
    return "\n".join(
        [
            r"\documentclass{standalone}",
            r"\usepackage{tikz}",
            r"\newcommand{\cell}[4]{%",
            r"  \fill[#3] (#2,-#1) rectangle ++(1,-1);",
            r"  \draw (#2,-#1) rectangle ++(1,-1);",
            r"  \node[align=center,font=\footnotesize] at (#2.5,-#1.5) {#4};}",
            r"\begin{document}",
            r"\begin{tikzpicture}",
            *body,
            r"\end{tikzpicture}",
            r"\end{document}",
            "",
        ]
    )


@dataclass
class _Placed:
    """A table among others, its first cell so many cells down and to the right."""

    table: _Table
    down: int
    right: int


_GAP = 3
"""Cells between two tables."""


def tables_of(x: Any) -> list[_Placed]:
    """Return the tables of a tiled copy (source and destination) or a tiled MMA (A left of C, B above it, if in
    registers); none of others."""
    if hasattr(x, "layout_src_tv_tiled"):
        tile = _tile_of(x.tiler_mn)
        ends = [("source", x.layout_src_tv_tiled), ("destination", x.layout_dst_tv_tiled)]
        if ends[0][1] == ends[1][1]:
            ends = [("source and destination", ends[0][1])]
        tables = [_tv_table(layout, tile, f"{name} {pretty_str(tile)}") for name, layout in ends]
        return [_Placed(t, 0, k * (tables[0].columns + _GAP)) for k, t in enumerate(tables)]
    if hasattr(x, "tv_layout_A_tiled"):
        m, n, k = (x.get_tile_size(mode) for mode in range(3))
        if _in_memory(x.tv_layout_B):
            return _warpgroup_tables(x, m, n, k)
        a = _tv_table(x.tv_layout_A_tiled, (m, k), f"A ({m},{k})")
        b = _transposed(_tv_table(x.tv_layout_B_tiled, (n, k), f"B ({n},{k}), transposed"))
        c = _tv_table(x.tv_layout_C_tiled, (m, n), f"C ({m},{n})")
        return [_Placed(a, k + _GAP, 0), _Placed(b, 0, k + _GAP), _Placed(c, k + _GAP, k + _GAP)]
    if hasattr(x, "tv_layout_A"):  # an atom by itself: a tile of one
        return tables_of(make_tiled_mma(x))
    return []


_MOST_COLUMNS = 32
"""The columns of a WGMMA's accumulator that are drawn: further ones have the same threads, with further values."""


def _in_memory(layout_tv: Layout) -> bool:
    """Return whether an operand is read from shared memory: all threads have all of it."""
    return product(wrap(layout_tv.shape)[0]) > 1 and not any(flatten_to_tuple(wrap(layout_tv.stride)[0]))


def _warpgroup_tables(x: Any, m: int, n: int, k: int) -> list[_Placed]:
    """Return what threads hold of an MMA that reads operands from shared memory: C, and A if it is in registers."""
    shown = min(n, _MOST_COLUMNS)
    part = f", columns 0 to {shown - 1}" if shown < n else ""
    in_memory = _in_memory(x.tv_layout_A)
    c = _tv_table(x.tv_layout_C_tiled, (m, n), f"C ({m},{n}){part}; {'A and B' if in_memory else 'B'} in shared memory")
    c.cells = [row[:shown] for row in c.cells]
    c.colors = [row[:shown] for row in c.colors]
    if in_memory:
        return [_Placed(c, 0, 0)]
    return [_Placed(_tv_table(x.tv_layout_A_tiled, (m, k), f"A ({m},{k})"), 0, 0), _Placed(c, 0, k + _GAP)]


def _tile_of(tiler: object) -> tuple[Any, ...]:
    return tuple(product(t.shape) if isinstance(t, Layout) else t for t in wrap(tiler))


def _transposed(table: _Table) -> _Table:
    cells = [list(column) for column in zip(*table.cells)]
    return _Table(table.title, cells, [list(column) for column in zip(*table.colors)], set(), set())


def _is_atom(x: object) -> bool:
    return hasattr(x, "layout_src_tv_tiled") or hasattr(x, "tv_layout_A")


def need_tables(x: object) -> list[_Placed]:
    placed = tables_of(x)
    if not placed:
        raise TypeError(f"a tiled copy or a tiled MMA is drawn, but got {x!r}")
    return placed


def atom_svg(x: Any, *, title: str | None = None) -> str:
    """Return a picture of a tiled copy or a tiled MMA (or an MMA atom) as an SVG document: who holds which element.

    Of a copy the tile of the source and of the destination, of an MMA the tiles of A (left), B (above) and C.
    """
    placed = need_tables(x)
    width, height = _cell_size([p.table for p in placed])
    left = 40
    top = 84
    body: list[str] = []
    right = bottom = 0
    for p in placed:
        at = left + p.right * width, top + p.down * height
        body.append(heading(at[0], at[1] - 30, p.table.title))
        body += _panel(p.table, _thread_color, *at, width, height)
        right = max(right, at[0] + p.table.columns * width, at[0] + round(len(p.table.title) * 15 * 0.62))
        bottom = max(bottom, at[1] + p.table.rows * height)
    title = f"{type(x).__name__}, {x.size} threads" if title is None and hasattr(x, "size") else title
    title = type(x).__name__ if title is None else title
    about = "; ".join(f"{p.table.title}, {p.table.rows} rows and {p.table.columns} columns" for p in placed)
    return document(
        (max(right + 12, round(len(title) * 15 * 0.62) + 16), bottom + 12),
        title,
        body,
        f"Which thread and value hold each element: {about}.",
    )


def atom_latex(x: object, *, color: Callable[[int, int], str] = tikz_color_tv, axis_labels: bool = True) -> str:
    """Return a tiled copy or tiled MMA drawn as a LaTeX document. ``color`` maps thread and value to a TikZ colour."""
    body: list[str] = []
    for p in need_tables(x):
        body.append(rf"\begin{{scope}}[shift={{({p.right},-{p.down})}}]")
        body += [*_tikz(p.table, _fills(p.table, color), axis_labels), r"\end{scope}"]
    return _tikzdocument(body)


def print_latex(
    x: object,
    *,
    color: Callable[[int], str] = tikz_color_layout,
    title: str | None = None,
    axis_labels: bool = True,
    render_func: Callable[[str], None] | None = None,
) -> None:
    """Print a layout, tiled copy or tiled MMA as a LaTeX document.

    Args:
        x: the layout (at most two modes), tiled copy or tiled MMA.
        color: a function of an index that returns a TikZ colour.
        title: what stands above the picture.
        axis_labels: number the rows and columns.
        render_func: called with the document, in place of printing it.
    """
    if _is_atom(x):
        (render_func or print)(atom_latex(x, axis_labels=axis_labels))
        return
    (render_func or print)(layout_latex(x, color=color, title=title, axis_labels=axis_labels))


def print_latex_tv(
    layout_tv: object,
    tile_mn: object,
    *,
    color: Callable[[int, int], str] = tikz_color_tv,
    palette: str | Callable[..., str] | None = None,
    title: str | None = None,
    axis_labels: bool = False,
    render_func: Callable[[str], None] | None = None,
) -> None:
    """Print a thread-value layout on its tile as a LaTeX document.

    Args:
        layout_tv: the layout (thread, value) -> index in the tile.
        tile_mn: the extents (M, N) of the tile.
        color: a function of thread and value that returns a TikZ colour.
        palette: replaces ``color``: such a function, or the name of a TikZ colour that is used in eight strengths.
        title: what stands above the picture.
        axis_labels: number the rows and columns.
        render_func: called with the document, in place of printing it.
    """
    if isinstance(palette, str):
        name = palette
        color = lambda thread, value: f"{name}!{10 + 8 * (thread % 8)}"
    elif palette is not None:
        color = palette
    (render_func or print)(tv_latex(layout_tv, tile_mn, color=color, title=title, axis_labels=axis_labels))


class _Module(types.ModuleType):
    """`utils.print_latex` is this module and the function `print_latex` in one."""

    __call__ = staticmethod(print_latex)


sys.modules[__name__].__class__ = _Module
