"""Where operands of `tcgen05` instructions lie in tensor memory (TMEM), as functions of plain Python.

A CTA's tensor memory has 128 lanes and 512 columns of 32-bit cells; an address has the lane in bits 16 to 31 and the
column in bits 0 to 15. Rows of matrices lie along lanes. Cells are relative to the address of the operand. CTAs of a
pair (`cta_group` 2) are numbered 0, the even one, and 1. Names of layouts are those of the PTX manual.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

LANES = 128
COLUMNS = 512
LEAST_COLUMNS = 32
"""The smallest allocation; sizes of allocations are powers of two."""
WARP_LANES = 32
"""Lanes that a warp may load and store: warp w has 32 (w % 4) and the following ones."""


class Cell(NamedTuple):
    """A 32-bit cell of tensor memory of one CTA."""

    lane: int
    column: int
    cta: int = 0


class Part(NamedTuple):
    """Bits of a cell: those of an element that starts at `bit`."""

    lane: int
    column: int
    bit: int
    cta: int = 0


def address(lane: int, column: int) -> int:
    """Return the address of a cell."""
    return lane << 16 | column


# --- operands of tcgen05.mma -----------------------------------------------------------------------------------------


def accumulator_layout(m: int, cta_group: int = 1, *, ws: bool = False, sparse: bool = False) -> str:
    """Return PTX's letter for the layout of an accumulator D with `m` rows, counted over both CTAs of a pair."""
    layouts = {
        (256, 2, False): "A",
        (128, 2, False): "C" if sparse else "B",
        (128, 1, False): "D",
        (128, 1, True): "D",
        (64, 1, True): "E",
        (64, 1, False): "F",
        (32, 1, True): "G",
    }
    layout = layouts.get((m, cta_group, ws))
    if layout is None:
        raise ValueError(f"there is no tcgen05.mma{'.ws' * ws} with m={m} and cta_group={cta_group}")
    return layout


_COLUMN_PARTS = {"B": 2, "E": 2, "G": 4}
"""Layouts in which lanes are divided between parts of N: the number of parts."""


def accumulator_cell(
    row: int, column: int, m: int, n: int, cta_group: int = 1, *, ws: bool = False, sparse: bool = False
) -> Cell:
    """Return the cell of element (row, column) of an `m` x `n` accumulator; 16-bit elements are its lower half.

    In layouts C and F only 16 of each 32 lanes are used, and the address may have lane 0 or 16.
    """
    layout = accumulator_layout(m, cta_group, ws=ws, sparse=sparse)
    cta, lane = divmod(row, m // cta_group)
    if parts := _COLUMN_PARTS.get(layout):
        part, column = divmod(column, n // parts)
        lane += LANES // parts * part
    elif layout in "CF":
        lane = _half_lane(lane)
    return Cell(lane, column, cta)


def accumulator_columns(m: int, n: int, cta_group: int = 1, *, ws: bool = False, sparse: bool = False) -> int:
    """Return how many columns an accumulator takes."""
    return n // _COLUMN_PARTS.get(accumulator_layout(m, cta_group, ws=ws, sparse=sparse), 1)


def _half_lane(row: int) -> int:
    """Return the lane of a row where each warp has 16 rows."""
    quarter, inside = divmod(row, 16)
    return WARP_LANES * quarter + inside


def a_parts(
    row: int, k: int, bits: int, m: int, cta_group: int = 1, *, ws: bool = False, sparse: bool = False
) -> list[Part]:
    """Return where element (row, k) of an A in tensor memory lies: in all lanes in which D has elements of its row.

    `bits` is what an element takes: 8 for elements of 4 and 6 bits of the kinds f8f6f4 and mxf8f6f4, 4 for those of
    mxf4 and mxf4nvf4.
    """
    column, bit = divmod(k * bits, 32)
    layout = accumulator_layout(m, cta_group, ws=ws, sparse=sparse)
    cta, lane = divmod(row, m // cta_group)
    if parts := _COLUMN_PARTS.get(layout):
        return [Part(lane + LANES // parts * part, column, bit, cta) for part in range(parts)]
    return [Part(_half_lane(lane) if layout in "CF" else lane, column, bit, cta)]


METADATA_COLUMNS = 2
"""Columns that the metadata of a sparse A take; they start at an even one."""


def metadata_part(row: int, chunk: int, kind: str, m: int, cta_group: int = 1, sparse_id: int = 0) -> Part:
    """Return where the 4 bits of metadata of a chunk of a row of a sparse A lie.

    A chunk is 4 elements along K (2 of tf32), of which A has half. Kinds of 8 bits have 16 chunks in a row, which take
    both columns of the row's lane. The others have 8, in the column that the sparsity selector names: of rows r and r + 8
    the first four lie in the lane of r, the others in that of r + 8, those of row r in the lower half.
    """
    cta, own = divmod(row, m // cta_group)
    lane = own
    column, place = divmod(chunk, 8)
    if kind in ("f16", "tf32"):
        lane = own & ~8 | 8 * (chunk // 4)
        column = sparse_id
        place = chunk % 4 + 4 * (own >> 3 & 1)
    half = accumulator_layout(m, cta_group, sparse=True) in "CF"
    return Part(_half_lane(lane) if half else lane, column, 4 * place, cta)


def scale_parts(row: int, scale: int, first: int = 0) -> list[Part]:
    """Return where a scale factor of a row of A (of a column of B) lies: in the same place of all four warps' lanes.

    `scale` counts along K. `first` is the byte that the scale factor id of the instruction descriptor selects. SFA has
    the rows of the CTA, SFB all n columns of the pair in both CTAs.
    """
    column, lane = divmod(row, WARP_LANES)
    return [Part(lane + start, column, 8 * (first + scale)) for start in range(0, LANES, WARP_LANES)]


def sfb_parts_2x2(column: int, n: int, scale: int, first: int = 0) -> list[Part]:
    """Return where a scale factor of B lies for a pair with m = 128 (layout B): halves of N have halves of the lanes."""
    half, column = divmod(column, n // 2)
    return [part for part in scale_parts(column, scale, first) if part.lane // 64 == half]


# --- tcgen05.ld and tcgen05.st ---------------------------------------------------------------------------------------


class LdShape(NamedTuple):
    """A shape of `tcgen05.ld` and `tcgen05.st`: what a thread and the warp have of one repetition."""

    lanes: int
    columns: int
    """Of each half for 16x32bx2."""
    registers: int


LD_SHAPES = {
    "32x32b": LdShape(32, 1, 1),
    "16x64b": LdShape(16, 2, 1),
    "16x128b": LdShape(16, 4, 2),
    "16x256b": LdShape(16, 8, 4),
    "16x32bx2": LdShape(16, 1, 1),
}
MOST_REGISTERS = 128


def repeats(shape: str) -> tuple[int, ...]:
    """Return the repetitions that a shape may have: powers of two, with at most 128 registers for a thread."""
    each = LD_SHAPES[shape].registers
    return tuple(count for count in (1, 2, 4, 8, 16, 32, 64, 128) if each * count <= MOST_REGISTERS)


def ld_registers(shape: str, repeat: int) -> int:
    """Return how many 32-bit registers a thread loads or stores."""
    return LD_SHAPES[shape].registers * repeat


def ld_columns(shape: str, repeat: int, *, pack: bool = False) -> int:
    """Return how many columns are accessed, in each half for 16x32bx2."""
    return LD_SHAPES[shape].columns * repeat * (2 if pack else 1)


def ld_cell(shape: str, thread: int, register: int, split: int = 0) -> Cell:
    """Return the cell of a thread's register, relative to the address that all lanes of the warp give.

    `split` is the distance in columns of the two halves of 16x32bx2.
    """
    group, inside = divmod(thread, 4)
    if shape == "32x32b":
        return Cell(thread, register)
    if shape == "16x64b":
        return Cell(group + 8 * (inside % 2), 2 * register + inside // 2)
    if shape == "16x128b":
        return Cell(group + 8 * (register % 2), 4 * (register // 2) + inside)
    if shape == "16x256b":
        return Cell(group + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * inside + register % 2)
    if shape == "16x32bx2":
        half, lane = divmod(thread, 16)
        return Cell(lane, register + split * half)
    raise ValueError(f"shape is {shape!r}: it is one of {', '.join(LD_SHAPES)}")


def packed_ld_cells(shape: str, thread: int, register: int, split: int = 0) -> tuple[Cell, Cell]:
    """Return the cells whose lower halves are the lower and the upper half of a register (`pack`, `unpack`)."""
    lane, column, _ = ld_cell(shape, thread, register)
    moved = split if shape == "16x32bx2" and thread >= 16 else 0
    return Cell(lane, 2 * column + moved), Cell(lane, 2 * column + 1 + moved)


# --- tcgen05.cp ------------------------------------------------------------------------------------------------------


class CpShape(NamedTuple):
    """A shape of `tcgen05.cp`: rows of shared memory, their bytes, and their copies in tensor memory."""

    rows: int
    row_bytes: int
    copies: int


CP_SHAPES = {
    "128x256b": CpShape(128, 32, 1),
    "128x128b": CpShape(128, 16, 1),
    "4x256b": CpShape(4, 32, 1),
    "64x128b.warpx2::02_13": CpShape(64, 16, 2),
    "64x128b.warpx2::01_23": CpShape(64, 16, 2),
    "32x128b.warpx4": CpShape(32, 16, 4),
}


def cp_lanes(shape: str, row: int) -> list[int]:
    """Return the lanes that a row of shared memory is copied to; its bytes fill the columns from the address on."""
    rows, _, copies = CP_SHAPES[shape]
    if shape == "4x256b":
        return [WARP_LANES * row]
    if shape == "64x128b.warpx2::01_23":  # both copies of a row are in neighbouring warps
        warp, lane = divmod(row, WARP_LANES)
        return [64 * warp + lane, 64 * warp + lane + WARP_LANES]
    return [row + rows * copy for copy in range(copies)]


def cp_columns(shape: str) -> int:
    """Return how many columns `tcgen05.cp` writes."""
    return CP_SHAPES[shape].row_bytes // 4


def cp_cells(shape: str) -> Iterator[tuple[int, int, Cell]]:
    """Return (row, 32-bit word of the row, cell) of all cells that `tcgen05.cp` writes."""
    for row in range(CP_SHAPES[shape].rows):
        for lane in cp_lanes(shape, row):
            for word in range(cp_columns(shape)):
                yield row, word, Cell(lane, word)
