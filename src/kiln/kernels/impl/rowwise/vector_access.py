"""Vectors of rows whose threads have every so many-th vector, and those of unaligned rows between edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import cute
from ...parts.vectors import load_vector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .... import Boolean, Int32


class VectorAccess:
    """Which vectors of a row a thread has: every `step`-th.

    A thread's first vector may lie before an unaligned row, if `problem.alignment` is more than 1; those from `partial`
    on may lie behind its end.
    """

    problem: Any
    config: Any
    vectors: int
    step: int
    partial: int

    def at(self, unit: Int32, v: int) -> Int32:
        """Return the index in the row of a thread's vector `v`."""
        return unit + v * self.step

    def starts_in_row(self, unit: Int32) -> Boolean | None:
        """Return whether a thread's first vector does not lie before the row; None if it never does."""
        return unit >= 0 if self.problem.alignment > 1 else None

    def in_row(self, unit: Int32, units: Int32, v: int) -> Any:
        """Return whether a row of `units` vectors has a thread's vector `v`; None if it has for all threads."""
        pred = self.starts_in_row(unit) if v == 0 else None
        if v < self.partial:
            return pred
        inside = self.at(unit, v) < units
        return inside if pred is None else pred & inside

    def partial_first(self, vectors: Iterable[int]) -> list[int]:
        """Return vectors in an order in which those that may lie behind the end of the row are first."""
        return sorted(vectors, key=lambda v: v < self.partial)

    def read_vector(self, x: cute.Tensor, unit: Int32, units: Int32, v: int) -> cute.Tensor:
        """Read a thread's vector `v` of a column vector, zeros behind its end."""
        width = self.problem.width
        tile = cute.local_tile(x, (width,), (self.at(unit, v),))
        return load_vector(tile, width, self.in_row(unit, units, v))
