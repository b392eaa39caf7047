"""Exercise 2 of lesson 7: transpose a matrix of any size through shared memory, without bank conflicts."""

import kiln
import kiln.cute as cute
from kiln import Float32, utils

TILE = 32


@cute.kernel
def transpose_kernel(x: cute.Tensor, y: cute.Tensor):
    """y (N, M) is the transpose of x (M, N); a block has 32 by 8 threads and moves a tile of 32 by 32."""
    lane, warp, _ = cute.arch.thread_idx()
    n_tile, m_tile, _ = cute.arch.block_idx()
    m, n = x.shape
    # TODO: a tile in shared memory with a layout that has no conflicts; fill it from x, wait, empty it into y
    rows = cute.make_layout((TILE, TILE), stride=(TILE, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(5, 0, 5), 0, rows)
    tile = utils.SmemAllocator().allocate_tensor(Float32, layout, 128)
    for k in kiln.range_constexpr(0, TILE, 8):
        i = m_tile * TILE + warp + k
        j = n_tile * TILE + lane
        if i < m and j < n:
            tile[warp + k, lane] = x[i, j]
    cute.arch.sync_threads()
    for k in kiln.range_constexpr(0, TILE, 8):
        i = m_tile * TILE + lane
        j = n_tile * TILE + warp + k
        if i < m and j < n:
            y[j, i] = tile[lane, warp + k]
    # END


@cute.jit
def transpose(x: cute.Tensor, y: cute.Tensor):
    m, n = x.shape
    grid = (cute.ceil_div(n, TILE), cute.ceil_div(m, TILE), 1)
    transpose_kernel(x, y).launch(grid=grid, block=(32, 8, 1))
