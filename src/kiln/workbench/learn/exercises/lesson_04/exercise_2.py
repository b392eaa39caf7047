"""Exercise 2 of lesson 4: each block fills one tile of a matrix with the tile's number."""

import kiln.cute as cute
from kiln import Float32

TILE = (4, 8)


@cute.kernel
def number_kernel(x: cute.Tensor):
    """x (M, N) has whole tiles. Thread t of a block handles element t of its tile: 32 threads, 32 elements."""
    thread, _, _ = cute.arch.thread_idx()
    n_tile, m_tile, _ = cute.arch.block_idx()
    across, _, _ = cute.arch.grid_dim()
    number = Float32(m_tile * across + n_tile)
    # TODO: take the tile of this block with cute.local_tile, and write the number to its element `thread`
    tile = cute.local_tile(x, TILE, (m_tile, n_tile))
    tile[thread] = number
    # END


@cute.jit
def number_tiles(x: cute.Tensor):
    m, n = x.shape
    number_kernel(x).launch(grid=(n // TILE[1], m // TILE[0], 1), block=32)
