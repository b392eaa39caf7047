"""Transposing a matrix of 32-bit elements through tiles of 32 x 32 in shared memory, which lie as they come, padded, or swizzled."""

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float32, cute, range_constexpr, utils

problems = [{"m": 64, "n": 96}, {"m": 8192, "n": 8192}]
configs = [{"shared": "plain"}, {"shared": "padded"}, {"shared": "swizzled"}]
ROWS = 8  # rows of threads; each thread moves four elements


def tile_layout(shared):
    if shared == "padded":
        return cute.make_layout((32, 32), stride=(33, 1))
    rows = cute.make_layout((32, 32), stride=(32, 1))
    return rows if shared == "plain" else cute.make_composed_layout(cute.make_swizzle(5, 0, 5), 0, rows)


@cute.kernel
def transpose_kernel(x: cute.Tensor, y: cute.Tensor, shared: Constexpr):
    column, row, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    tile = utils.SmemAllocator().allocate_tensor(Float32, tile_layout(shared), 128)
    source, target = cute.local_tile(x, (32, 32), (m, n)), cute.local_tile(y, (32, 32), (n, m))
    for i in range_constexpr(32 // ROWS):
        tile[row + i * ROWS, column] = source[row + i * ROWS, column]
    cute.arch.sync_threads()
    for i in range_constexpr(32 // ROWS):
        target[row + i * ROWS, column] = tile[column, row + i * ROWS]


@cute.jit
def transpose(x: cute.Tensor, y: cute.Tensor, shared: Constexpr):
    grid = (*cute.ceil_div(x.shape, (32, 32)), 1)
    transpose_kernel(x, y, shared).launch(grid=grid, block=(32, ROWS, 1))


def kernel_fn(x, config):
    y = empty(x.shape[::-1], np.float32, x)
    transpose(tensor(x), tensor(y), config["shared"])
    return y


def reference_fn(x):
    return x.T


def get_inputs(m, n):
    return [normal((m, n))]


def flops_bytes(m, n):
    return 0, 8 * m * n
