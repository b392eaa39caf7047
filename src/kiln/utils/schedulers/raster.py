"""Raster order: which tile (m, n) of a matrix a tile number stands for.

Tile numbers run down `group` rows of tiles (a raster group), then on to the next column, so that CTAs that run at the
same time share more of their operands in the L2 cache.
"""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.operators import select_
from ...cute import fast_divmod_create_divisor, jit

__all__ = ["raster_divisors", "raster_tile", "swizzled_tile"]


def swizzled_tile(number: object, tiles_m: object, tiles_n: object, group: int = 8) -> tuple[Any, Any]:
    """Return the tile (m, n) of a CTA in a one-dimensional grid of `tiles_m * tiles_n` CTAs, in raster groups.

    The last group may have fewer rows; each tile is taken once. The function divides by dynamic extents: a kernel that
    cannot wait for that prepares divisors on the host (`raster_divisors`, `raster_tile`).

    Args:
        number: the CTA's number in the grid.
        tiles_m: the tiles along M.
        tiles_n: the tiles along N.
        group: rows of tiles in a raster group, static.
    """
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise type_error(f"group is {group!r}", "at least 1, known when compiling")
    return _tile(number, tiles_m, tiles_n, group)


@jit
def _tile(number: Any, tiles_m: Any, tiles_n: Any, group: Any):
    whole = group * tiles_n
    first = number // whole * group
    rows = min(tiles_m - first, group)
    return first + number % whole % rows, number % whole // rows


@jit
def raster_divisors(tiles_m: Any, tiles_n: Any, group: Any):
    """Return what `raster_tile` divides by, computed on the host, where a division is cheap.

    Args:
        tiles_m: the tiles along M.
        tiles_n: the tiles along N.
        group: rows of tiles in a raster group.
    """
    last = tiles_m - (max(tiles_m, 1) - 1) // group * group
    # With fewer rows than a group's, that is all tiles: it always fits 32 bits.
    return [fast_divmod_create_divisor(max(x, 1)) for x in (min(group, tiles_m) * tiles_n, last)]


def raster_tile(number: Any, tiles_m: object, divisors: Any, group: int) -> tuple[Any, Any]:
    """Return the tile (m, n) of `swizzled_tile` without divisions, which a CTA would wait for before its first load.

    Args:
        number: the CTA's number in the grid.
        tiles_m: the tiles along M.
        divisors: what `raster_divisors` returned on the host.
        group: rows of tiles in a raster group, static.
    """
    group_tiles, last = divisors
    strip, number = divmod(number, group_tiles)
    first = strip * group
    whole = first + group <= tiles_m
    n = select_(whole, number // group, number // last)
    return first + number - n * select_(whole, group, last.divisor), n
