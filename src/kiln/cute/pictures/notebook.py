"""The pictures that notebooks show of layouts and atoms."""

from __future__ import annotations

from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import product
from ..layout.layout import Layout, rank
from ..layout.leaf import LayoutError
from . import tensor_map
from .draw import atom_svg, layout_svg, tables_of
from .tensor_memory import mma_svg, tcgen05_op

_MAX_CELLS = 4096
"""The most cells of a layout that are drawn: more are too small to read."""


def picture(x: object) -> str | None:
    """Return the picture of a layout, a tiled copy or an MMA; None if there is none, or it would be too large."""
    if isinstance(x, (Layout, ComposedLayout)):
        plain = x.is_static() and (isinstance(x, Layout) or x.is_normal)
        return layout_svg(x) if plain and 1 <= rank(x) <= 2 and 0 < product(x.shape) <= _MAX_CELLS else None
    if tcgen05_op(x) is not None:
        return mma_svg(x)
    placed = tables_of(x)
    if placed:
        return atom_svg(x) if sum(p.table.rows * p.table.columns for p in placed) <= 2 * _MAX_CELLS else None
    try:
        return tensor_map.atom_svg(x)
    except LayoutError:
        return None
