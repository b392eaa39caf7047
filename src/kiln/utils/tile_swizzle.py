"""In which order the blocks of a grid take the tiles of a matrix."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..cute import jit

__all__ = ["swizzled_tile"]


def swizzled_tile(number: Any, tiles_m: Any, tiles_n: Any, group: int = 8) -> tuple[Any, Any]:
    """The tile (m, n) that a block of a one-dimensional grid of `tiles_m * tiles_n` blocks takes.

    Blocks that run at the same time take `group` rows of tiles side by side, down each column of tiles, then on to the next
    column, so that they find each other's operands in the L2 cache. The last group may have fewer rows; each tile is taken
    once.
    """
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise error(DSLUserCodeTypeError, f"groups of {group!r} rows of tiles", hint="at least 1, known when compiling")
    return _place(number, tiles_m, tiles_n, group)


@jit
def _place(number: Any, tiles_m: Any, tiles_n: Any, group: Any):
    whole = group * tiles_n
    first = number // whole * group
    rows = min(tiles_m - first, group)
    return first + number % whole % rows, number % whole // rows
