"""Exercise 2 of lesson 5: add a column to every column of a row-major matrix, coalesced."""

import kiln.cute as cute

ROWS = 32
COLUMNS = 8
"""The tile of a block of 256 threads."""


def place(thread):
    """Return the row and the column of a thread in its tile; `thread` is a number of Python, or of a kernel."""
    # TODO: lanes of a warp are neighbours in `thread`: let them be neighbours in memory
    #: return thread % ROWS, thread // ROWS
    return thread // COLUMNS, thread % COLUMNS
    # END


@cute.kernel
def add_column_kernel(x: cute.Tensor, column: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    n_tile, m_tile, _ = cute.arch.block_idx()
    row, col = place(thread)
    i = m_tile * ROWS + row
    j = n_tile * COLUMNS + col
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + column[i]


@cute.jit
def add_column(x: cute.Tensor, column: cute.Tensor, out: cute.Tensor):
    m, n = out.shape
    grid = (cute.ceil_div(n, COLUMNS), cute.ceil_div(m, ROWS), 1)
    add_column_kernel(x, column, out).launch(grid=grid, block=ROWS * COLUMNS)
