"""Arrays as matrices of rows, and the vector accesses that their rows allow."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.typing import BFloat16, Float16, Float32
from .arrays import require
from .problem import MAX_VECTOR_BYTES, Problem, TensorLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def require_floats(name: str, tensors: Iterable[TensorLayout], what: str = "elements") -> None:
    """Raise if the elements of a tensor are not f16, bf16 or f32."""
    for x in tensors:
        require(
            x.dtype in (Float16, BFloat16, Float32),
            f"{name} of {x.dtype.__name__} {what}",
            hint="Float16, BFloat16 or Float32: convert the array",
        )


class Matrix(NamedTuple):
    """An array as rows: their number, length and stride in elements, and the elements of a vector access."""

    rows: int
    n: int
    step: int
    width: int


def matrix_of(x: TensorLayout) -> Matrix | None:
    """Return the rows along an array's last mode; None if they are not contiguous or have no common stride."""
    shape = x.shape
    strides = x.strides
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


class RowwiseProblem(Problem):
    """A problem of row-wise kernels: its arrays have contiguous rows with a common stride."""

    name: Any

    @property
    def row_arrays(self) -> Sequence[TensorLayout]:
        """The arrays that are read and written by rows."""
        raise NotImplementedError

    @functools.cached_property
    def matrices(self) -> list[Matrix]:
        """The arrays as rows."""
        matrices = [m for m in map(matrix_of, self.row_arrays) if m is not None]
        require(
            len(matrices) == len(self.row_arrays),
            f"{self.name}: rows must be contiguous and have one stride, unlike {self.row_arrays}",
        )
        return matrices

    @property
    def rows(self) -> int:
        return self.matrices[0].rows

    @property
    def n(self) -> int:
        """Elements of a row."""
        return self.matrices[0].n

    @property
    def exceeds_32_bits(self) -> str | None:
        """Why kernels with 32-bit row and column indices cannot compute it; None if they can."""
        if max(self.rows, self.n) < 1 << 31:
            return None
        return f"{self.rows} rows of {self.n} elements exceed 32-bit indices"


def width_of(x: TensorLayout, n: int, *strides: int) -> int:
    """Return how many elements a vector access can take of rows of `n`, which lie at multiples of some strides."""
    size = x.size
    width = max(1, MAX_VECTOR_BYTES // size)
    while width > 1 and (n % width or any(s % width for s in strides) or x.offset % (width * size)):
        width //= 2
    return width


def shared_alignment(
    row_arrays: Sequence[TensorLayout], steps: Sequence[int], columns: Sequence[TensorLayout] = ()
) -> tuple[int, int] | None:
    """Return the elements of the widest vector access, and how far behind a multiple of it the first row begins.

    None if that differs among arrays or rows, or if a vector of `columns` does not begin at a multiple.
    """
    width = MAX_VECTOR_BYTES // max(x.size for x in (*row_arrays, *columns))
    if any(x.offset % (width * x.size) for x in columns):
        return None
    leads = {x.offset // x.size % width for x in row_arrays}
    if len(leads) > 1 or len({step % width for step in steps}) > 1:
        return None
    return (width, leads.pop()) if all(x.offset % x.size == 0 for x in row_arrays) else None
