"""Shared memory as a picture: lines of 128 bytes, its 32 banks, in pieces of 16 bytes, which swizzles permute."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ...base_dsl.typing import NumericMeta
from ..layout.leaf import LayoutError
from ..nvgpu.matrix_descriptor import PIECE
from .draw import heading

LINE = 128
"""Bytes of all banks once."""
ROWS = 8
"""Rows after which swizzles repeat, and of a core matrix."""
GREY = "#6b6b6b"


def check_type(element_type: object) -> None:
    if not isinstance(element_type, NumericMeta) or element_type.is_abstract:
        raise LayoutError(f"elements have a numeric type such as Float16, got {element_type!r}")


@dataclass
class Panel:
    body: list[str]
    width: int
    height: int


@dataclass(frozen=True)
class Cell:
    """A piece of 16 bytes: its text, its colour, whether it is outlined, and its tooltip."""

    text: str
    color: str
    outlined: bool
    tip: str


def lines_shown(total: int) -> int:
    """Return how many lines are drawn: all if they are few, else what a swizzle repeats."""
    lines = -(-total // LINE)
    return lines if lines <= 2 * ROWS else ROWS


def memory_panel(name: str, cells: dict[int, Cell], total: int, swizzled: bool, notes: list[str]) -> Panel:
    width = 58
    height = 26
    left = 34
    lines = lines_shown(total)
    body = [heading(0, -30, name), text_at(left - 8, -7, "banks", 11, GREY, "end")]
    for j in range(LINE // PIECE):
        body.append(text_at(left + j * width + width / 2, -7, f"{4 * j}-{4 * j + 3}", 11, GREY))
    outlines: list[str] = []
    for i in range(lines):
        body.append(text_at(left - 8, i * height + 17.5, f"+{i * LINE}", 11, GREY, "end"))
        for j in range(LINE // PIECE):
            cell = cells.get(i * LINE // PIECE + j)
            x = left + j * width
            y = i * height
            if cell is None:
                body.append(rect(x, y, width, height, "#ffffff", "#cccccc", "not part of it"))
                continue
            body += [
                rect(x, y, width, height, cell.color, "#ffffff", cell.tip),
                text_at(x + width / 2, y + 17.5, cell.text),
            ]
            if cell.outlined:
                outlines.append(f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}"/>')
    body += ['<g fill="none" stroke="#222222" stroke-width="2">', *outlines, "</g>"]
    rest = -(-total // LINE) - lines
    if rest > 0:
        notes = [f"{rest} more lines" + (": the pattern repeats every 1024 bytes" if swizzled else ""), *notes]
    for k, note in enumerate(notes):
        body.append(text_at(left, lines * height + 20 + 16 * k, note, 12, GREY, "start"))
    wide = max(left + 8 * width, left + round(7.5 * max(map(len, notes), default=0)))
    return Panel(body, wide, lines * height + 20 + 16 * len(notes))


def text_at(x: float, y: float, text: str, font: int = 13, fill: str = "#000000", anchor: str = "middle") -> str:
    kept = ' xml:space="preserve"' if "  " in text else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{font}" fill="{fill}" text-anchor="{anchor}"{kept}>{escape(text)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, fill: str, stroke: str, tip: str) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}">'
        f"<title>{escape(tip)}</title></rect>"
    )


def stroke(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#333333" stroke-width="2"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line right or down with a head at its end."""
    head = f"M{x2 - 4:g},{y2 - 7:g} l4,7 l4,-7" if x1 == x2 else f"M{x2 - 7:g},{y2 - 4:g} l7,4 l-7,4"
    return f'<path d="M{x1:g},{y1:g} L{x2:g},{y2:g} {head}" fill="none" stroke="#222222" stroke-width="1.5"/>'
