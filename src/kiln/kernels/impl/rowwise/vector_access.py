"""Vectors of rows whose threads have every so many-th vector, and those of unaligned rows between edges."""

from __future__ import annotations

from typing import Any

from ...parts.vectors import either
from .row_part import RowPart


class VectorAccess:
    """Which vectors of a row a thread has: those of all threads of the row come before the next of each.

    A thread's first vector may lie before an unaligned row, if `problem.alignment` is more than 1; those from `partial`
    on may lie behind its end.
    """

    problem: Any
    config: Any
    partial: int

    def at(self, unit: Any, v: int) -> Any:
        """Return the index in the row of a thread's vector `v`."""
        return unit + v * (self.config.cluster * self.config.row_threads)

    def starts_in_row(self, unit: Any) -> Any:
        """Return whether a thread's first vector does not lie before the row; None if it never does."""
        return unit >= 0 if self.problem.alignment > 1 else None

    def in_row(self, unit: Any, units: Any, v: int) -> Any:
        """Return whether a row of `units` vectors has a thread's vector `v`; None if it has for all threads."""
        pred = self.starts_in_row(unit) if v == 0 else None
        if v < self.partial:
            return pred
        inside = self.at(unit, v) < units
        return inside if pred is None else pred & inside


class AccessedPart(RowPart):
    """A thread's vectors of a row by a `VectorAccess`."""

    def __init__(self, access: Any, unit: Any, units: Any) -> None:
        self._access = access
        self._unit = unit
        self._units = units
        self.count: int = access.problem.vectors
        self.width: int = access.problem.width

    def in_row(self, v: int) -> Any:
        return self._access.in_row(self._unit, self._units, v)

    def first(self) -> list[Any]:
        pred = self._access.starts_in_row(self._unit) if self.count > 1 else None
        return self.values(0) if pred is None else either(pred, self.values(0), self.values(1))
