"""Arrays as matrices: their rows, where those lie, and how many elements of them can be accessed at once."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from .arrays import require
from .problem import WIDEST, Laid, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence


class Matrix(NamedTuple):
    """An array as rows: how many, how long, how far from one to the next, and how many elements an access can take."""

    rows: int
    n: int
    step: int
    width: int


def matrix_of(x: Laid) -> Matrix | None:
    """An array as the rows along its last mode; None if they are not contiguous, or not at even distances."""
    shape, strides = x.shape, x.strides
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


class RowsProblem(Problem):
    """What is asked of the rows of some arrays, which are contiguous and at even distances."""

    name: Any

    @property
    def row_arrays(self) -> Sequence[Laid]:
        """These arrays."""
        raise NotImplementedError

    @functools.cached_property
    def matrices(self) -> list[Matrix]:
        """The arrays as rows."""
        given = self.row_arrays
        found = [m for m in map(matrix_of, given) if m is not None]
        require(len(found) == len(given), f"{self.name}: rows are contiguous and at even distances, unlike {given}")
        return found

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @property
    def n(self) -> int:
        """Elements of a row."""
        return self.matrices[0].n

    @property
    def uncountable(self) -> str | None:
        """Why kernels that count rows and their elements in 32 bits cannot take it; None: they can."""
        if max(self.rows, self.n) < 1 << 31:
            return None
        return f"{self.rows} rows of {self.n} elements: more than 32 bits count"


def width_of(x: Laid, n: int, step: int) -> int:
    """How many elements of a row can be accessed at once."""
    size = x.size
    width = max(1, WIDEST // size)
    while width > 1 and (n % width or step % width or x.offset % (width * size)):
        width //= 2
    return width


def in_step(given: Sequence[Laid], steps: Sequence[int], columns: Sequence[Laid] = ()) -> tuple[int, int] | None:
    """Elements of the widest access to arrays whose rows are so far apart, and how many after a multiple of it the first begins.

    None if that is not the same in all arrays and all rows, or if a vector of `columns` does not begin at a multiple.
    """
    width = WIDEST // max(x.size for x in (*given, *columns))
    if any(x.offset % (width * x.size) for x in columns):
        return None
    leads = {x.offset // x.size % width for x in given}
    if len(leads) > 1 or len({step % width for step in steps}) > 1:
        return None
    return (width, leads.pop()) if all(x.offset % x.size == 0 for x in given) else None
