"""Pictures of tensor maps: a tensor in tiles, a tile in the boxes of its instructions, a box in shared memory.

Nothing here is traced: pictures are made of layouts, types and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as all_of
from math import prod
from typing import Any

from ..layout.algebra import composition
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import flatten_to_tuple, pretty_str, product, wrap
from ..layout.layout import Layout, is_static, make_identity_layout, make_layout, rank, size
from ..layout.leaf import LayoutError, is_one
from ..layout.swizzle import Swizzle
from ..nvgpu.matrix_descriptor import PIECE
from ..nvgpu.tensor_map import SWIZZLES, TensorMapFacts, describe, extents
from ..nvgpu.tma_partition import order_of
from ..tensor.pointer import element_bits
from .draw import cell_color, document, heading, in_words
from .smem import GREY, LINE, ROWS, Cell, Panel, check_type, lines_shown, memory_panel, rect, stroke, text_at

__all__ = ["atom_svg", "tile_layout", "tma_svg"]

_MOST_BOXES = 1024


@dataclass(frozen=True)
class _Tensor:
    """What a tensor map has to know of a tensor in global memory."""

    element_type: Any
    layout: Layout

    @property
    def shape(self) -> Any:
        return self.layout.shape

    def __str__(self) -> str:
        return f"a tensor of {self.element_type.__name__} {self.layout}"


def tma_svg(
    layout: Any,
    element_type: Any,
    smem_layout: object,
    tile: object,
    *,
    num_multicast: int = 1,
    internal_type: object = None,
    title: str | None = None,
) -> str:
    """Return a picture of the copies of tiles of a tensor, which lie in shared memory by a layout, as an SVG document.

    It is the tensor in tiles, a tile in the boxes of its instructions, and the shared memory of a box. Arguments are
    those of `make_tiled_tma_atom`, with the tensor's layout and element type in place of the tensor.
    """
    check_type(element_type)
    tiler = _tiler(layout, tile)
    if not isinstance(num_multicast, int) or num_multicast < 1:
        raise LayoutError(f"a number of blocks from 1 on shares a tile, got {num_multicast!r}")
    tensor: Any = _Tensor(element_type, layout if isinstance(layout.shape, tuple) else make_layout([layout]))
    whole = composition(make_identity_layout(tensor.shape), tiler)
    facts = describe(tensor, smem_layout, whole, num_multicast, internal_type)
    _, strides, _ = extents(facts, tensor)
    return _map_svg(facts, tensor.shape, element_type, smem_layout, whole, ["", *map(str, strides)], str(layout), title)


def _tiler(layout: object, tile: object) -> tuple[Any, ...]:
    """Return the extents of a tile of a tensor, if both can be drawn."""
    if not isinstance(layout, Layout) or not is_static(layout):
        raise LayoutError(f"a tensor is drawn by a static layout without swizzle, got {layout}")
    tiler = wrap(tile)
    if len(tiler) > len(wrap(layout.shape)) or any(not isinstance(t, int) or t < 1 for t in flatten_to_tuple(tiler)):
        raise LayoutError(
            f"a tile has an extent from 1 on for each of the first modes of its tensor {layout}, got {pretty_str(tile)}"
        )
    return tiler


def atom_svg(x: Any, *, title: str | None = None) -> str | None:
    """Return the picture of a `TmaInfo`, or of the atom of one: without its tile the map and the shared memory of a
    box. None for others."""
    atom = getattr(x, "atom", x)
    facts = getattr(getattr(atom, "trait", None), "facts", None)
    if not isinstance(facts, TensorMapFacts) or facts.im2col:
        return None
    tile = getattr(x, "tile", None)
    smem = getattr(x, "smem_layout", None)
    shape = x.tma_tensor.shape if tile is not None else None
    return _map_svg(facts, shape, atom.value_type, smem, tile, [""] * facts.rank, pretty_str(shape), title)


def tile_layout(layout: Any, element_type: object, tile: object, swizzle: str | None = None) -> Any:
    """Return the layout of a tile of a tensor in shared memory with a swizzle ("none", "32b", "64b", "128b"); by
    default the widest that fits.

    Rows along the contiguous mode of the tensor are as long as the swizzle is wide; longer ones continue after all
    rows.
    """
    check_type(element_type)
    shape = tuple(product(t) for t in _tiler(layout, tile))
    if swizzle is not None and swizzle not in SWIZZLES:
        raise LayoutError(f"a swizzle is one of {', '.join(SWIZZLES)}, got {swizzle}")
    strides = [flatten_to_tuple(d) for d in wrap(layout.stride)][: len(shape)]
    contiguous = next((i for i, d in enumerate(strides) if is_one(d[0])), None)
    if contiguous is None:
        raise LayoutError(f"a tile has the mode of stride 1 of its tensor, which is {layout}")
    bits = element_bits(element_type)
    row = shape[contiguous] * bits // 8
    if swizzle is None:
        swizzle = next((name for name in ("128b", "64b", "32b") if row % SWIZZLES[name] == 0), "none")
    span = min(SWIZZLES[swizzle] * 8 // bits or shape[contiguous], shape[contiguous])
    parts: list[Any] = [None] * len(shape)
    step = span
    for mode in sorted((i for i in range(len(shape)) if i != contiguous), key=lambda i: strides[i]):
        parts[mode] = make_layout(shape[mode], stride=step)
        step = step * shape[mode]
    if shape[contiguous] % span:
        raise LayoutError(
            f"rows of {row} bytes are no multiple of the {SWIZZLES[swizzle]} bytes of the swizzle {swizzle}"
        )
    parts[contiguous] = make_layout((span, shape[contiguous] // span), stride=(1, step))
    pattern = _pattern(swizzle)
    return ComposedLayout(pattern, 0, make_layout(parts)) if pattern.num_bits else make_layout(parts)


def _pattern(swizzle: str) -> Swizzle:
    """Return the swizzle of byte addresses that a map has by name."""
    if swizzle == "128b_32b":
        return Swizzle(2, 5, 2)
    return Swizzle({"none": 0, "32b": 1, "64b": 2, "128b": 3}[swizzle], 4, 3)


def _map_svg(
    facts: TensorMapFacts,
    shape: Any,
    dtype: Any,
    smem: object,
    tile: Layout | None,
    strides: list[str],
    text: str,
    title: str | None,
) -> str:
    """Return the picture of a tensor map; with a tile that of a copy. `strides` has the bytes between elements of
    modes, where known."""
    lines = [f"tensor   {dtype.__name__} {text}"] if shape is not None else []
    parts: list[_Box] = []
    extent: list[int] = []
    if tile is not None:
        parts, extent = _boxes(facts, shape, smem, tile)
        lines.append(f"tile     {pretty_str(tile.shape)}, in shared memory {smem}")
    for i, (modes, count) in enumerate(zip(facts.modes, facts.box)):
        where = " and ".join(map(str, modes))
        apart = f", {strides[i]} bytes apart" if strides[i] else ""
        lines.append(f"{'map' if i == 0 else '':8} mode {i}: mode {where} of the tensor, a box takes {count}{apart}")
    of = f" of {facts.element}" if facts.ratio != (1, 1) else ""
    lines.append(f"box      {' x '.join(map(str, facts.box))}{of}, {facts.bytes} bytes, swizzle {facts.swizzle}")
    blocks = facts.values // _values_of_box(facts)
    if tile is not None:
        count = len(parts) // blocks
        each = f" in each of {blocks} blocks" if blocks > 1 else ""
        lines.append(f"copy     {count} instruction{'s' * (count != 1)}{each}")
    if blocks > 1:
        lines.append("         block b loads part b of each, into the shared memory of every block")
    body = [text_at(8, 44 + 18 * i, line, anchor="start") for i, line in enumerate(lines)]
    top = 44 + 18 * len(lines) + 50
    left = 40
    bottom = 0
    panels = [_memory_of_box(facts)]
    if tile is not None:
        panels = [_tensor_panel(shape, extent), _tile_panel(parts, extent, blocks, shape), *panels]
    for panel in panels:
        body += [f'<g transform="translate({left},{top})">', *panel.body, "</g>"]
        left = left + panel.width + 60
        bottom = max(bottom, top + panel.height)
    title = title or f"Tensor map, {dtype.__name__}, box {pretty_str(facts.box)}, swizzle {facts.swizzle}"
    wide = max([left - 40, *(round(8.2 * len(line)) + 24 for line in lines), round(9.4 * len(title)) + 16])
    return document((wide, bottom + 16), title, body, in_words(lines))


@dataclass(frozen=True)
class _Box:
    """The box of one instruction of one CTA: its start in the tile and its extent, by the tensor's flat modes."""

    instruction: int
    block: int
    first: tuple[int, ...]
    extent: tuple[int, ...]


def _values_of_box(facts: TensorMapFacts) -> int:
    """Return the elements of the tensor that one instruction of one block copies."""
    return prod(facts.box) * facts.ratio[1] // facts.ratio[0]


def _boxes(facts: TensorMapFacts, shape: Any, smem: Any, tile: Layout) -> tuple[list[_Box], list[int]]:
    """Return the boxes of a copy of a tile, and how much of each mode of the tensor the tile spans."""
    plain = smem.outer if isinstance(smem, ComposedLayout) else smem
    order = order_of(make_layout([plain[i] for i in range(rank(tile))]), facts.values)
    each = _values_of_box(facts)
    count = size(tile) // each
    if count > _MOST_BOXES:
        raise LayoutError(f"a picture has at most {_MOST_BOXES} boxes, but the tile has {count}; draw a smaller tile")

    def at(index: int) -> tuple[int, ...]:
        return tuple(_flat_place(tile(order(index)), shape))

    boxes: list[_Box] = []
    blocks = facts.values // each
    for i in range(count):
        first = at(i * each)
        last = at((i + 1) * each - 1)
        boxes.append(_Box(i // blocks, i % blocks, first, tuple(b - a + 1 for a, b in zip(first, last))))
    return boxes, [max(b.first[m] + b.extent[m] for b in boxes) for m in range(len(boxes[0].first))]


def _flat_place(place: Any, shape: Any) -> list[int]:
    """Return a coordinate with a number for each leaf of a shape: modes that it does not name are 0."""
    if not isinstance(shape, tuple):
        return [place if isinstance(place, int) else _flat_place(place[0], shape)[0]]
    items = wrap(place)
    return [x for i, s in enumerate(shape) for x in _flat_place(items[i] if i < len(items) else 0, s)]


def _tensor_panel(shape: Any, extent: list[int]) -> Panel:
    """Return the first tiles of a tensor, along its first two modes; the tile that is drawn is the first."""
    modes = [flatten_to_tuple(mode) for mode in (*shape, 1)[:2]]
    sizes = [prod(mode) if all(isinstance(s, int) for s in mode) else None for mode in modes]
    second = len(modes[0])
    tiles = [prod(extent[:second]), prod(extent[second : second + len(modes[1])])]
    most = 4
    steps = [max(36, round(52 * t / max(tiles))) for t in tiles]
    counts = [None if s is None else -(-s // t) for s, t in zip(sizes, tiles)]
    shown = [most if c is None else min(c, most) for c in counts]
    more = [c is None or c > most for c in counts]
    ends = [n * d + 14 * m for n, d, m in zip(shown, steps, more)]
    for axis in (0, 1):
        s = sizes[axis]
        c = counts[axis]
        if s is not None and c == shown[axis]:
            ends[axis] = round(s / tiles[axis] * steps[axis])
    body = [heading(0, -30, f"tensor {pretty_str(shape)}")]
    body.append(f'<rect width="{ends[1]}" height="{ends[0]}" fill="#eeeeee"/>')
    for i, j in all_of(range(shown[0]), range(shown[1])):
        fill = "#bcd4f5" if i == j == 0 else "#ffffff00"
        body.append(rect(j * steps[1], i * steps[0], steps[1], steps[0], fill, "#aaaaaa", f"tile ({i},{j})"))
    body.append(text_at(steps[1] / 2, steps[0] / 2 + 4.5, "tile", 11))
    body.append(f'<path d="M0,{ends[0]} V0 H{ends[1]}" fill="none" stroke="#333333" stroke-width="2"/>')
    if not more[0]:
        body.append(stroke(0, ends[0], ends[1], ends[0]))
    if not more[1]:
        body.append(stroke(ends[1], 0, ends[1], ends[0]))
    bottom = max(ends[0], shown[0] * steps[0])
    right = max(ends[1], shown[1] * steps[1])
    body += [text_at(right / 2, bottom + 16, "…", fill=GREY)] if more[0] else []
    body += [text_at(right + 10, bottom / 2, "…", fill=GREY)] if more[1] else []
    inside = any(n * d > e + 1 for n, d, e in zip(shown, steps, ends))
    if inside:
        body.append(text_at(0, bottom + 34, "outside: read as zeros,", 11, GREY, "start"))
        body.append(text_at(0, bottom + 48, "never written", 11, GREY, "start"))
    return Panel(
        body, max(right + 20, round(9.4 * len(f"tensor {pretty_str(shape)}"))), bottom + (52 if inside else 20)
    )


def _runs(box: _Box, extent: list[int], modes: range) -> list[tuple[int, int]]:
    """Return where a box lies along modes that are drawn as one: (start, length) of each run."""
    places = [0]
    step = 1
    for m in modes:
        places = [p + step * x for x in range(box.first[m], box.first[m] + box.extent[m]) for p in places]
        step *= extent[m]
    runs: list[tuple[int, int]] = []
    for p in sorted(places):
        if runs and sum(runs[-1]) == p:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((p, 1))
    return runs


def _tile_panel(boxes: list[_Box], extent: list[int], blocks: int, shape: Any) -> Panel:
    """Return a tile in the boxes of its instructions."""
    down = len(flatten_to_tuple(shape[0]))  # the first mode down, all others across
    axes = range(down), range(down, len(extent))
    lengths = [prod(extent[m] for m in axis) for axis in axes]
    high, wide = (min(400, max(180, 3 * n)) for n in lengths)
    left = iter(extent)
    name = f"tile {pretty_str(tuple(prod(next(left) for _ in flatten_to_tuple(mode)) for mode in shape))}: instruction numbers"
    body = [heading(0, -30, name)]
    edges: list[set[int]] = [set(), set()]
    for box in boxes:
        runs = [_runs(box, extent, axis) for axis in axes]
        for (i, rows), (j, columns) in all_of(*runs):
            x = j * wide / lengths[1]
            y = i * high / lengths[0]
            w = columns * wide / lengths[1]
            h = rows * high / lengths[0]
            label = f"instruction {box.instruction}" + (f" of block {box.block}" if blocks > 1 else "")
            tip = f"{label}: rows {i} to {i + rows - 1}, columns {j} to {j + columns - 1}"
            body.append(rect(x, y, w, h, cell_color(box.instruction, box.block), "#333333", tip))
            words = [f"{box.instruction}", *([f"block {box.block}"] if blocks > 1 else [])]
            if h >= 15 * len(words) and w >= 8 * max(map(len, words)) + 4:
                middle = y + h / 2 + 4.5 - 7.5 * (len(words) - 1)
                body += [text_at(x + w / 2, middle + 15 * n, word) for n, word in enumerate(words)]
            edges[0] |= {i, i + rows}
            edges[1] |= {j, j + columns}
    for axis, (ends, length, pixels) in enumerate(zip(edges, lengths, (high, wide))):
        gap = -1e9
        for edge in sorted(ends):
            at = edge * pixels / length
            if at - gap < (13 if axis == 0 else 30):
                continue
            gap = at
            body.append(
                text_at(-6, at + 4.5, str(edge), 11, GREY, "end") if axis == 0 else text_at(at, -7, str(edge), 11, GREY)
            )
    body.append(f'<rect x="0" y="0" width="{wide}" height="{high}" fill="none" stroke="#333333" stroke-width="2"/>')
    return Panel(body, max(wide, round(9.4 * len(name))), high)


def _memory_of_box(facts: TensorMapFacts) -> Panel:
    """Return the shared memory of a box: which piece of which of its rows lies where."""
    row = facts.box[0] * facts.shared_bits // 8
    swizzle = _pattern(facts.swizzle)
    cells: dict[int, Cell] = {}
    groups: list[int] = []
    for at in range(0, min(facts.bytes, lines_shown(facts.bytes) * LINE), PIECE):
        r, p = divmod(at, row)
        p //= PIECE
        place = int(swizzle(at))
        mark = p == 0 and r < ROWS
        if mark:
            groups.append(place % LINE)
        tip = f"row {r}, piece {p} of the box: byte {at} without swizzle, byte {place} with it"
        cells[place // PIECE] = Cell(f"r{r} p{p}", cell_color(p, r % 2, 8), mark, tip)
    notes = ["rN pM: row N of the box, its piece M of 16 bytes"]
    if len(groups) > 1:
        most = max(groups.count(g) for g in groups)
        how = "each in its own banks: no conflict" if most == 1 else f"{most} of them in the same banks: a conflict"
        notes.append(f"outlined: piece 0 of {len(groups)} rows, {how}")
    return memory_panel("shared memory of a box", cells, facts.bytes, facts.swizzle != "none", notes)
