"""Pictures of tensor memory: lanes and columns of what a `tcgen05.mma` reads and writes there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ...dialects.nvgpu import tensor_memory as places
from ..atoms.mma import MmaAtom
from ..layout.leaf import LayoutError
from ..nvgpu.matrix_descriptor import PIECE
from ..nvgpu.tcgen05.mma import BlockScaledMmaOp, MmaOp, OperandSource
from .draw import cell_color, document, heading, in_words
from .smem import GREY, Cell, Panel, memory_panel, rect, text_at

__all__ = ["accumulator_svg", "mma_svg", "tcgen05_op"]

_LANES = 128
_WARP_LANES = 32
_CHUNK_ROWS = 128
_CHUNK_SCALES = 4
_ACROSS = 8
"""The parts of an accumulator's columns that are drawn."""
_LETTERS = {
    "A": "row m in lane m % 128 of CTA m / 128",
    "B": "64 rows for each CTA; half of the columns in half of the lanes",
    "C": "16 lanes of each warp",
    "D": "row m in lane m",
    "E": "half of the columns in half of the lanes",
    "F": "16 rows in 16 lanes of each warp",
    "G": "a quarter of the columns in a quarter of the lanes",
}
"""PTX's layouts of accumulators."""


class _Spot(NamedTuple):
    """An element at a cell of tensor memory."""

    lane: int
    column: int
    first: int
    second: int


def tcgen05_op(x: object) -> MmaOp | None:
    """Return the operation of an MMA with its accumulator in tensor memory, or of a tiled one; None of others."""
    op = x.op if isinstance(x, MmaAtom) else x
    return op if isinstance(op, MmaOp) else None


def mma_svg(x: object, *, title: str | None = None) -> str:
    """Return a picture of the tensor memory of one `tcgen05.mma` as an SVG document.

    It is the accumulator in each CTA; A, if it is there; and scale factors, with a chunk of them in shared memory. `x`
    is a tiled MMA, an atom or an operation.
    """
    op = tcgen05_op(x)
    if op is None:
        raise TypeError(f"an MMA with its accumulator in tensor memory is drawn, but got {x!r}")
    m, n, k = op.shape_mnk
    ctas = op.cta_group.value
    rows = [_accumulator_panels(m, n, ctas, False)]
    if op.a_src is OperandSource.TMEM:
        bits = 8 if op.kind in ("f8f6f4", "mxf8f6f4") else op.a_dtype.width
        rows.append(_operand_panels(m, k, bits, ctas))
    if isinstance(op, BlockScaledMmaOp):
        rows.append(_scale_panels(op, m, n, k, ctas))
    title = title or f"{type(op).__name__} ({m},{n},{k}), {'a pair of CTAs' if ctas == 2 else 'one CTA'}"
    return _page(title, [_of_accumulator(m, ctas, False), f"A   from {_source(op)}; B   from shared memory"], rows)


def accumulator_svg(m: int, n: int, cta_group: int = 1, *, ws: bool = False, title: str | None = None) -> str:
    """Return a picture of an accumulator of `m` x `n` as an SVG document; `m` counts the rows of both CTAs of a pair.

    `ws` is for the weight-stationary MMA (`tcgen05.mma.ws`).
    """
    try:
        text = _of_accumulator(m, cta_group, ws)
    except ValueError as rule:
        raise LayoutError(str(rule)) from None
    if n < 8 or n > 256 or n % 8:
        raise LayoutError(f"an accumulator has 8 to 256 columns, in steps of 8, got {n}")
    title = title or f"Accumulator of {m} x {n}{', .ws' if ws else ''}"
    return _page(title, [text], [_accumulator_panels(m, n, cta_group, ws)])


def _source(op: MmaOp) -> str:
    return "tensor memory" if op.a_src is OperandSource.TMEM else "shared memory"


def _of_accumulator(m: int, ctas: int, ws: bool) -> str:
    letter = places.accumulator_layout(m, ctas, ws=ws)
    return f"D   layout {letter} of PTX: {_LETTERS[letter]}"


def _accumulator_panels(m: int, n: int, ctas: int, ws: bool) -> list[Panel]:
    """Return the accumulator of each CTA."""
    columns = places.accumulator_columns(m, n, ctas, ws=ws)
    panels = []
    for cta in range(ctas):
        rows = range(cta * m // ctas, (cta + 1) * m // ctas)
        spots: list[_Spot] = []
        for row in rows:
            for column in range(n):
                cell = places.accumulator_cell(row, column, m, n, ctas, ws=ws)
                spots.append(_Spot(cell.lane, cell.column, row, column))
        name = f"accumulator in CTA {cta}" if ctas == 2 else "accumulator"
        panels.append(_panel(f"{name}: {columns} columns", spots, columns, 16, -(-columns // _ACROSS), ("m", "n"), cta))
    return panels


def _operand_panels(m: int, k: int, bits: int, ctas: int) -> list[Panel]:
    """Return A in the tensor memory of each CTA."""
    panels = []
    for cta in range(ctas):
        spots = [
            _Spot(part.lane, part.column, row, step)
            for row in range(cta * m // ctas, (cta + 1) * m // ctas)
            for step in range(k)
            for part in places.a_parts(row, step, bits, m, ctas)
        ]
        name = f"A in CTA {cta}" if ctas == 2 else "A"
        panels.append(_panel(f"{name}: K of one MMA, 8 columns", spots, 8, 16, 1, ("m", "k"), cta))
    return panels


def _scale_panels(op: BlockScaledMmaOp, m: int, n: int, k: int, ctas: int) -> list[Panel]:
    """Return the scale factors of A and of B in the first CTA, and a chunk of them in shared memory."""
    scales = -(-k // op.sf_vec_size)
    half = ctas == 2 and m == 128  # halves of N in halves of the lanes

    def parts(operand: str, row: int, scale: int) -> Any:
        if operand == "SFB" and half:
            return places.sfb_parts_2x2(row, n, scale)
        return places.scale_parts(row, scale)

    panels = []
    for operand, rows, letter in (("SFA", m // ctas, "m"), ("SFB", n, "n")):
        spots = [
            _Spot(part.lane, part.column, row, scale)
            for row in range(rows)
            for scale in range(min(scales, _CHUNK_SCALES))
            for part in parts(operand, row, scale)
        ]
        columns = max(spot.column for spot in spots) + 1
        name = f"{operand}: {scales} of {op.sf_vec_size} elements for a row"
        panels.append(_panel(name, spots, columns, _WARP_LANES, 1, (letter, "byte"), 0))
    return [*panels, _chunk_panel()]


def _chunk_panel() -> Panel:
    """Return the 512 bytes of a chunk of scale factors in shared memory, as `tcgen05.cp` reads them."""
    cells = {}
    for lane in range(_WARP_LANES):
        rows = [lane + _WARP_LANES * i for i in range(4)]
        tip = f"bytes {PIECE * lane} to {PIECE * lane + 15}: 4 factors each of rows {', '.join(map(str, rows))}"
        cells[lane] = Cell(f"{lane} +32", cell_color(lane // 8, lane % 2), False, tip)
    notes = ["j +32: factors 0 to 3 of row j, then of j + 32, j + 64, j + 96", "piece j goes to lane j of all warps"]
    return memory_panel("a chunk in shared memory: 128 rows x 4", cells, _CHUNK_ROWS * _CHUNK_SCALES, False, notes)


def _panel(
    name: str, spots: Iterable[_Spot], columns: int, tall: int, wide: int, letters: tuple[str, str], cta: int
) -> Panel:
    """Return tensor memory in blocks of `tall` lanes and `wide` columns, with what each of them holds."""
    blocks: dict[tuple[int, int], list[int]] = {}
    for lane, column, first, second in spots:
        block = blocks.setdefault((lane // tall, column // wide), [first, first, second, second])
        block[:] = [min(block[0], first), max(block[1], first), min(block[2], second), max(block[3], second)]
    width = 84
    height = 36
    left = 74
    across = -(-columns // wide)
    body = [heading(0, -30, name), text_at(left - 8, -7, "lanes", 11, GREY, "end")]
    for j in range(across):
        body.append(text_at(left + (j + 0.5) * width, -7, _range(j * wide, min((j + 1) * wide, columns) - 1), 11, GREY))
    for i in range(_LANES // tall):
        y = i * height
        lanes = (i * tall, (i + 1) * tall - 1)
        body.append(text_at(left - 8, y + 15, _range(*lanes), 11, GREY, "end"))
        if i * tall % _WARP_LANES == 0:
            body.append(text_at(left - 8, y + 29, f"warp {i * tall // _WARP_LANES}", 11, GREY, "end"))
        for j in range(across):
            x = left + j * width
            held = blocks.get((i, j))
            where = (
                f"CTA {cta}, lanes {lanes[0]} to {lanes[1]}, columns {j * wide} to {min((j + 1) * wide, columns) - 1}"
            )
            if held is None:
                body.append(rect(x, y, width, height, "#ffffff", "#cccccc", f"{where}: not part of it"))
                continue
            says = [
                f"{letter} {low} to {high}" for letter, low, high in zip(letters, held[::2], held[1::2], strict=True)
            ]
            tip = f"{where}: {', '.join(says)}"
            body.append(rect(x, y, width, height, cell_color(held[0] // tall, held[2] // wide), "#ffffff", tip))
            for line, letter in enumerate(letters):
                text = f"{letter} {_range(*held[2 * line : 2 * line + 2])}"
                body.append(text_at(x + width / 2, y + 15 + 14 * line, text, 11))
    for i in range(1, _LANES // _WARP_LANES):
        y = i * _WARP_LANES // tall * height
        body.append(f'<path d="M{left},{y} h{across * width}" stroke="#222222" stroke-width="1.5"/>')
    return Panel(body, max(left + across * width, round(9.3 * len(name))), _LANES // tall * height)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _page(title: str, lines: list[str], rows: list[list[Panel]]) -> str:
    """Return a document of rows of panels below lines of text."""
    body = [text_at(8, 44 + 18 * i, line, anchor="start") for i, line in enumerate(lines)]
    y = 44 + 18 * len(lines)
    right = max(round(9.3 * len(title)), *(round(8.2 * len(line)) for line in lines))
    for panels in rows:
        x = 16
        y = y + 44
        for panel in panels:
            body += [f'<g transform="translate({x},{y})">', *panel.body, "</g>"]
            x += panel.width + 48
        y = y + max(panel.height for panel in panels)
        right = max(right, x - 48)
    return document((right + 16, y + 16), title, body, in_words(lines))
