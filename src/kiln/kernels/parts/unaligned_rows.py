"""Unaligned rows: whole vectors between a few elements before and behind them.

A row of 16-bit elements of odd length begins at a multiple of 16 bytes once in eight rows. Up to the next such
multiple, and behind the last whole vector, elements are accessed one by one: its edges, fewer than two vectors
together, one to a thread. Arrays whose rows all begin equally far from such multiples have the same vectors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, const_expr, cute, range_constexpr, select_
from .vectors import vector_atom

if TYPE_CHECKING:
    from ... import Boolean, Int32, Int64


class Span:
    """The vectors of a row of `n` elements: after `head` elements come `units` vectors, then the rest.

    `begin` is how many elements behind the beginning of a vector the row begins; None: it begins and ends at one. The
    last `spare` vectors are accessed element by element, too.
    """

    __kiln_static__ = True

    def __init__(self, begin: Int32 | None, n: Any, width: int, spare: int = 0) -> None:
        self.width = width
        self._unaligned = begin is not None
        self._most = 2 * (width - 1) + spare * width
        self.head: Int32 | int = 0
        if begin is not None:
            head = -begin & (width - 1)
            self.head = select_(head < n, head, n)
        self.units = (n - self.head) // width
        if spare:
            self.units: Any = select_(self.units > spare, self.units - spare, 0)

    def middle(self, row: cute.Tensor) -> cute.Tensor:
        """Return the vectors of a row, given as a tensor of one mode, as an aligned tensor."""
        if not self._unaligned:
            return row
        pointer = (row.iterator + self.head).with_alignment(self.width * row.element_type.width // 8)
        return cute.make_tensor(pointer, cute.make_layout(self.units * self.width))

    def edges(self, lane: Int32, lanes: int) -> list[Int32]:
        """Return the columns of the edges of one of some lanes; those from the row's length on do not exist."""
        if not self._unaligned:
            return []
        taken = [lane + k for k in range(0, self._most, lanes)]
        return [select_(k < self.head, k, k + self.units * self.width) for k in taken]


@cute.jit
def element_at(row: cute.Tensor, column: Int32 | Int64, pred: Boolean, instead: float = 0.0):
    """Load an element of a row as f32, or another number where it does not exist."""
    value = Float32(instead)
    if pred:
        value = row[column].to(Float32)
    return value


@cute.jit
def vectors_at(middle: cute.Tensor, width: int, count: int, first: Int32, apart: int, units: Any, instead: float = 0.0):
    """Load some of a row's vectors, `apart` from each other, each a column; another number from vector `units` on
    (None: all exist)."""
    held = cute.make_rmem_tensor((width, count), middle.element_type)
    if const_expr(units is not None):
        held.fill(instead)
    for v in range_constexpr(count):
        at = first + v * apart
        pred = None if const_expr(units is None) else at < units
        part = cute.local_tile(middle, (width,), (at,))
        cute.copy(vector_atom(middle.element_type, width), part, held[None, v], pred=pred)
    return held
