"""Arrays as matrices: their rows, where those lie, and how many elements of them can be accessed at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence


class Matrix(NamedTuple):
    """An array as rows: how many, how long, how far from one to the next, and how many elements an access can take."""

    rows: int
    n: int
    step: int
    width: int


def matrix_of(x: Any) -> Matrix | None:
    """An array as the rows along its last mode; None if they are not contiguous, or not at even distances."""
    shape, strides = tuple(x.shape), arrays.strides(x)
    n = shape[-1]
    if (n != 1 and strides[-1] != 1) or any(s < 0 for s in strides):
        return None
    outer = [(s, d) for s, d in zip(shape[:-1], strides[:-1], strict=True) if s != 1]
    for (_, far), (extent, near) in itertools.pairwise(outer):
        if far != near * extent:
            return None
    rows = 1
    for extent, _ in outer:
        rows *= extent
    step = outer[-1][1] if outer else n
    return Matrix(rows, n, step, width_of(x, n, step))


def width_of(x: Any, n: int, step: int) -> int:
    """How many elements of a row can be accessed at once."""
    size = arrays.itemsize(x)
    width = max(1, arrays.WIDEST // size)
    while width > 1 and (n % width or step % width or arrays.address(x) % (width * size)):
        width //= 2
    return width


def common_width(matrices: Sequence[Any], columns: Sequence[Any]) -> int:
    """How many elements of rows, and of numbers for each column, can be accessed at once everywhere."""
    laid = [m for m in map(matrix_of, matrices) if m is not None]
    return min([m.width for m in laid] + [width_of(c, laid[0].n, laid[0].n) for c in columns])
