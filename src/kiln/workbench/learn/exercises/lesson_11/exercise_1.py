"""Exercise 1 of lesson 11: an order of tiles in which CTAs that run at the same time share operands."""

GROUP = 4
"""Rows of tiles that are computed together."""


def tile_of(number: int, m_tiles: int, n_tiles: int) -> tuple[int, int]:
    """Return row and column of the tile with this number, in a grid of m_tiles by n_tiles tiles.

    Tiles go down GROUP rows, then to the next column, until the band of GROUP rows is done; then the next band follows.
    m_tiles is a multiple of GROUP.
    """
    # TODO: which band, which column of the band, which row of the band?
    band, inside = divmod(number, GROUP * n_tiles)
    row = band * GROUP + inside % GROUP
    column = inside // GROUP
    # END
    return row, column
