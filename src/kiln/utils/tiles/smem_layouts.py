"""Layouts of tiles in shared memory."""

from __future__ import annotations

import math

from ... import cute

_BANKS = 128
"""Bytes of all banks: a row of that length has each bank once."""


def swizzled(
    dtype: type[cute.Numeric], shape: tuple[int, ...], contiguous: int, paired: bool = False
) -> cute.ComposedLayout:
    """A tile of `shape` (rows, columns, ...) and `dtype` whose mode `contiguous` (0 or 1) lies in rows of at most 128
    bytes, swizzled.

    Pieces of 16 bytes are permuted within each row, differently in each of eight rows in succession: eight pieces at
    the same place of eight rows lie in different banks. Rows are a multiple of 16 bytes. `paired`: of sixteen rows the
    pairs 0, 2, 4 and 6 succeed each other, then the pairs 1, 3, 5 and 7.
    """
    row_bytes = math.gcd(shape[contiguous] * dtype.width // 8, _BANKS)
    elements = row_bytes * 8 // dtype.width
    pieces = row_bytes // 16
    bits = pieces.bit_length() - 1
    base = (128 // dtype.width).bit_length() - 1  # elements of a piece
    # Rows shorter than all banks: the rows that share them are told apart by the next bits.
    shift = (_BANKS // 16).bit_length() - 1
    if paired:
        rows: int | tuple[int, ...] = (2, 2, 4)
        strides: int | tuple[int, ...] = (elements, 8 * elements, 2 * elements)
    else:
        rows = math.gcd(8, shape[1 - contiguous])
        strides = elements
    atom = cute.make_layout(
        (elements, rows) if contiguous == 0 else (rows, elements),
        stride=(1, strides) if contiguous == 0 else (strides, 1),
    )
    tiled = cute.make_composed_layout(cute.make_swizzle(bits, base, shift), 0, atom)
    return cute.tile_to_shape(tiled, shape, tuple(range(len(shape))))
