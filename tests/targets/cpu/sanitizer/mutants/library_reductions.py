"""Reductions of the kernel library: several warps for a row, and columns; parts merged by a second kernel."""

import numpy as np

LIBRARY = ("impl.reduction.kernels",)


def run(kernels):
    x = np.random.default_rng(4).integers(-9, 10, (6, 600)).astype(np.float32)
    config = kernels.ReductionConfig(threads=128, row_threads=64, vectors=1, parts=2)
    rows, columns = kernels.sum(x, axis=1, config=config), kernels.max(x, axis=0, config=config)
    return np.array_equal(rows, x.sum(1)) and np.array_equal(columns, x.max(0))
