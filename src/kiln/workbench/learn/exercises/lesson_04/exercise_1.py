"""Exercise 1 of lesson 4: four layouts. Each function returns one; draw it with `kiln draw` if you are in doubt."""

import kiln.cute as cute


def padded(m: int, n: int, extra: int) -> cute.Layout:
    """Return a row-major matrix of m rows and n columns with `extra` unused elements after each row."""
    # TODO: one step down moves more than n
    layout = cute.make_layout((m, n), stride=(n + extra, 1))
    # END
    return layout


def transposed(m: int, n: int) -> cute.Layout:
    """Return the transpose, n by m, of a row-major matrix of m rows and n columns: the same memory, other coordinates."""
    # TODO: exchange the modes, with their strides
    layout = cute.make_layout((n, m), stride=(1, n))
    # END
    return layout


def tile_by_tile(m: int, n: int) -> cute.Layout:
    """Return an m by n matrix stored in tiles of 2 rows and 4 columns: one whole tile after the other.

    Inside a tile rows lie one after the other, and so do the tiles: first those of the first row of tiles.
    """
    # TODO: nested modes, ((2, m // 2), (4, n // 4)); what does a step inside a tile move, and a step to the next tile?
    layout = cute.make_layout(((2, m // 2), (4, n // 4)), stride=((4, 2 * n), (1, 8)))
    # END
    return layout


def every_fourth_row(m: int, n: int) -> cute.Layout:
    """Return a layout (thread, (row, column)) over a row-major matrix: thread t of 4 holds the rows t, t + 4, t + 8, ..."""
    # TODO: the shape is (4, (m // 4, n))
    layout = cute.make_layout((4, (m // 4, n)), stride=(n, (4 * n, 1)))
    # END
    return layout
