"""Elements and rows whose number is no multiple of the block; the arrays are parts of larger ones."""

import numpy as np

from kiln import Float32, Int32, cute

GUARDS = True
BLOCK = 32


@cute.kernel
def scaled(x: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32):
    t, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    column = part * BLOCK + t
    if row < rows and column < columns:
        y[row, column] = x[row, column] * Float32(2.0)


@cute.kernel
def smoothed(x: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32):
    t, _, _ = cute.arch.thread_idx()
    row, part, _ = cute.arch.block_idx()
    column = part * BLOCK + t
    if row < rows and column < columns:
        total = x[row, column]
        if column > 0:
            total += x[row, column - 1]
        if column + 1 < columns:
            total += x[row, column + 1]
        y[row, column] += total


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32):
    scaled(x, y, rows, columns).launch(grid=(8, 2, 1), block=BLOCK)
    smoothed(x, y, rows, columns).launch(grid=(8, 2, 1), block=BLOCK)


def run():
    x = np.random.default_rng(5).integers(0, 100, (8, 64)).astype(np.float32)
    y = np.zeros((8, 64), np.float32)
    x, y = x[1:7, 8:50], y[1:7, 8:50]
    main(x, y, *x.shape)
    wide = np.pad(x, ((0, 0), (1, 1)))
    return np.array_equal(y, 3 * x + wide[:, :-2] + wide[:, 2:])
