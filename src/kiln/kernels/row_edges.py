"""Rows that begin anywhere: whole vectors between a few elements before and after them.

A row of elements of 16 bits whose length is odd begins at a multiple of 16 bytes once in eight rows. Up to the next such
multiple, and after the last whole vector, elements are accessed one by one: its edges, fewer than two vectors together, one to a
thread. Arrays whose rows all begin equally far from such multiples are in step: their vectors are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import cute
from ..base_dsl.numeric.operators import select
from . import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence


def in_step(given: Sequence[Any], steps: Sequence[int]) -> tuple[int, int] | None:
    """Elements of the widest access to arrays whose rows are so far apart, and how many after a multiple of it the first begins.

    None if that is not the same in all arrays and all rows.
    """
    sizes = [arrays.itemsize(x) for x in given]
    width = arrays.WIDEST // max(sizes)
    leads = {arrays.address(x) // size % width for x, size in zip(given, sizes, strict=True)}
    if len(leads) > 1 or len({step % width for step in steps}) > 1:
        return None
    return (width, leads.pop()) if all(arrays.address(x) % s == 0 for x, s in zip(given, sizes, strict=True)) else None


class Span:
    """Where a row of `n` elements has its vectors: after `head` elements come `units` vectors, then what is left.

    `begin` is how many elements after the beginning of a vector the row begins; None: at one, and it ends at one.
    """

    __kiln_static__ = True

    def __init__(self, begin: Any, n: Any, width: int) -> None:
        self.width = width
        self.odd = begin is not None
        self.head: Any = 0
        if begin is not None:
            head = -begin & (width - 1)
            self.head = select(head < n, head, n)
        self.units = (n - self.head) // width

    def middle(self, row: Any) -> Any:
        """The vectors of a row, given as a tensor of one mode: one that begins at a multiple of theirs."""
        if not self.odd:
            return row
        pointer = (row.iterator + self.head).with_alignment(self.width * row.element_type.width // 8)
        return cute.make_tensor(pointer, cute.make_layout(self.units * self.width))

    def edges(self, lane: Any, lanes: int) -> list[Any]:
        """The columns of the edges that are for one of some lanes; those from the row's length on do not exist."""
        if not self.odd:
            return []
        taken = [lane + k for k in range(0, 2 * (self.width - 1), lanes)]
        return [select(k < self.head, k, k + self.units * self.width) for k in taken]
