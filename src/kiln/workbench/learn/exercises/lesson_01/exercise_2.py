"""Exercise 2 of lesson 1: add a row to every row of a matrix, with a grid of two dimensions."""

import kiln.cute as cute

ROWS = 8
COLUMNS = 32
"""Threads of a block: COLUMNS along x, ROWS along y."""


@cute.kernel
def add_row_kernel(x: cute.Tensor, row: cute.Tensor, out: cute.Tensor):
    column_thread, row_thread, _ = cute.arch.thread_idx()
    column_block, row_block, _ = cute.arch.block_idx()
    # TODO: find your row i and your column j, guard both, and write x[i, j] + row[j] to out[i, j]
    i = row_block * ROWS + row_thread
    j = column_block * COLUMNS + column_thread
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + row[j]
    # END


@cute.jit
def add_row(x: cute.Tensor, row: cute.Tensor, out: cute.Tensor):
    m, n = out.shape
    grid = (cute.ceil_div(n, COLUMNS), cute.ceil_div(m, ROWS), 1)
    add_row_kernel(x, row, out).launch(grid=grid, block=(COLUMNS, ROWS, 1))
