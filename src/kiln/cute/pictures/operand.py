"""Pictures of operands of WGMMAs in shared memory: core matrices, and the offsets that descriptors hold."""

from __future__ import annotations

from itertools import product as all_of
from typing import Any

from ..layout.algebra import composition
from ..layout.composed_layout import ComposedLayout
from ..layout.layout import Layout, is_static, rank, size
from ..layout.leaf import LayoutError
from ..layout.swizzle import Swizzle
from ..nvgpu.common import OperandMajorMode
from ..nvgpu.matrix_descriptor import PIECE, SmemSwizzle, descriptor_offsets
from ..tensor.pointer import element_bits
from .draw import cell_color, document, heading, in_words
from .smem import GREY, ROWS, Cell, Panel, arrow, check_type, memory_panel, rect, text_at

__all__ = ["operand_svg"]


def operand_svg(smem_layout: Any, element_type: Any, major: Any, *, rows: int = 64, title: str | None = None) -> str:
    """Return a picture of an operand (MN, K, ...) of a WGMMA in shared memory as an SVG document.

    It is the operand in core matrices, 8 pieces of 16 bytes, with the offsets that the descriptor of a call of `rows`
    rows holds (64 of A, N of B), and its shared memory. `major` is an OperandMajorMode, "K" or "MN".
    """
    check_type(element_type)
    if major not in ("K", "MN", *OperandMajorMode):
        raise LayoutError(f"an operand is K-major or MN-major, got {major!r}")
    major = OperandMajorMode[major] if isinstance(major, str) else major
    k_major = major is OperandMajorMode.K
    plain = smem_layout
    swizzle = Swizzle(0, 4, 3)
    if isinstance(smem_layout, ComposedLayout) and isinstance(smem_layout.inner, Swizzle):
        plain = smem_layout.outer
        swizzle = smem_layout.inner
    if not isinstance(plain, Layout) or not is_static(plain) or rank(plain) < 2:
        raise LayoutError(f"an operand lies in shared memory by a static layout (MN, K, ...), got {smem_layout}")
    if swizzle.num_bits and ((swizzle.num_base, swizzle.num_shift) != (4, 3) or swizzle.num_bits > 3):
        raise LayoutError(f"the tensor cores know S<1,4,3>, S<2,4,3> and S<3,4,3> of bytes, got {swizzle}")
    bits = element_bits(element_type)
    if bits < 8:
        raise LayoutError(f"operands of WGMMAs have elements of whole bytes, got {element_type.__name__}")
    mn = plain[0]
    k = plain[1]
    depth = 2 * PIECE * 8 // bits
    if rows < 1 or size(mn) % rows or size(k) % depth:
        raise LayoutError(f"calls take {rows} x {depth} of an operand, which ({size(mn)},{size(k)}) is no multiple of")
    wide = 1 << swizzle.num_bits
    offsets = descriptor_offsets(composition(mn, rows), composition(k, depth), bits, major, SmemSwizzle("", wide))
    if isinstance(offsets, str):
        raise LayoutError(f"the tensor cores cannot read {smem_layout}, {major.name}-major: {offsets}")
    piece = PIECE * 8 // bits
    # the contiguous mode is drawn across: lines of pieces, 8 lines to a core matrix
    down, across = (mn, k) if k_major else (k, mn)
    counts = size(down) // ROWS, size(across) // piece
    call = (rows // ROWS, depth // piece) if k_major else (depth // ROWS, rows // piece)

    def place(line: int, p: int) -> int:
        return (down(line) + across(p * piece)) * bits // 8

    total = size(mn) * size(k) * bits // 8
    names = ("MN", "K") if k_major else ("K", "MN")
    leading = "across" if (k_major or wide > 1) else "down"
    read = not (k_major and wide > 1)
    other = "down" if leading == "across" else "across"
    arrows = {other: f"SBO {offsets.stride}", **({leading: f"LBO {offsets.leading}"} if read else {})}
    cores = _core_panel(counts, call, place, names, arrows, 1 if k_major else wide)
    cells: dict[int, Cell] = {}
    for line, p in all_of(range(size(down)), range(counts[1])):
        at = place(line, p)
        core = (line // ROWS, p)
        inside = core[0] < call[0] and core[1] < call[1]
        spot = int(swizzle(at)) // PIECE
        tip = f"line {line % ROWS} of core matrix {core}: byte {at} without swizzle, byte {spot * PIECE} with it"
        color = cell_color(core[0] * call[1] + core[1], line % 2) if inside else "#eeeeee"
        cells[spot] = Cell(f"{core[0]},{core[1]} r{line % ROWS}", color, False, tip)
    kind = f"{PIECE << swizzle.num_bits}b" if swizzle.num_bits else "none"
    notes = ["i,j rN: row N of core matrix i,j", "coloured: what one call reads"]
    memory = memory_panel("its shared memory", cells, total, swizzle.num_bits > 0, notes)
    last = f", leading offset (LBO) {offsets.leading} bytes" if read else "; the leading offset (LBO) is not read"
    lines = [
        f"operand     {element_type.__name__} ({size(mn)},{size(k)}), {major.name}-major, {smem_layout}",
        f"call        {rows} x {depth}: {call[0]} x {call[1]} core matrices of {ROWS} rows of 16 bytes",
        f"descriptor  swizzle {kind}, stride offset (SBO) {offsets.stride} bytes{last}",
    ]
    body = [text_at(8, 44 + 18 * i, line, anchor="start") for i, line in enumerate(lines)]
    top = 44 + 18 * len(lines) + 62
    left = 110
    for panel, x in ((cores, left), (memory, left + cores.width + 60)):
        body += [f'<g transform="translate({x},{top})">', *panel.body, "</g>"]
    title = title or f"Operand of a WGMMA, {major.name}-major, swizzle {kind}"
    width = max(left + cores.width + 60 + memory.width + 16, *(round(8.2 * len(line)) + 24 for line in (*lines, title)))
    return document((width, top + max(cores.height, memory.height) + 16), title, body, in_words(lines))


def _core_panel(
    counts: tuple[int, int],
    call: tuple[int, int],
    place: Any,
    names: tuple[str, str],
    arrows: dict[str, str],
    block: int,
) -> Panel:
    """Return an operand in core matrices with the offset of each; arrows are the steps that a descriptor holds,
    across from `block` to block."""
    width = 62
    height = 28
    most = 16
    shown = min(counts[0], most), min(counts[1], most)
    body = [heading(-90, -44, f"core matrices: {names[0]} down, {names[1]} across; first byte of each")]
    for i, j in all_of(range(shown[0]), range(shown[1])):
        inside = i < call[0] and j < call[1]
        color = cell_color(i * call[1] + j, 0) if inside else "#f4f4f4"
        at = place(i * ROWS, j)
        body.append(
            rect(
                j * width,
                i * height,
                width,
                height,
                color,
                "#999999",
                f"core matrix ({i},{j}) begins at byte {at} without swizzle",
            )
        )
        body.append(text_at(j * width + width / 2, i * height + 18.5, f"+{at}", 12, "#000000" if inside else GREY))
    w = min(call[1], shown[1]) * width
    h = min(call[0], shown[0]) * height
    body.append(f'<rect x="0" y="0" width="{w}" height="{h}" fill="none" stroke="#222222" stroke-width="2.5"/>')
    if "down" in arrows and call[0] > 1:
        body += [
            arrow(-14, height / 2, -14, 1.5 * height),
            text_at(-22, height + 4.5, arrows["down"], 12, anchor="end"),
        ]
    if "across" in arrows and call[1] > block:
        body += [arrow(width / 2, -12, (block + 0.5) * width, -12)]
        body += [text_at((block + 1) * width / 2, -18, arrows["across"], 12)]
    notes = [f"{c - s} more {what}" for c, s, what in zip(counts, shown, ("rows of them", "columns of them")) if c > s]
    body += [text_at(0, shown[0] * height + 20 + 16 * n, note, 12, GREY, "start") for n, note in enumerate(notes)]
    return Panel(body, max(shown[1] * width, 400), shown[0] * height + 16 * len(notes) + 8)
