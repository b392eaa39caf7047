"""Closure cells, which are empty while their variable has no value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types


def contents(cell: types.CellType, empty: object = None) -> Any:
    """Return the value in a cell, or `empty` if there is none."""
    try:
        return cell.cell_contents
    except ValueError:
        return empty
