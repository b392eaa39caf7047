"""Exercise 1 of lesson 7: choose S<b,m,s> for a tile of 32 rows of 16 floats."""

import kiln.cute as cute
from kiln import Float32, utils

ROWS = 32
COLUMNS = 16

# TODO: the numbers b, m and s; which bits of the offset row * 16 + column choose the bank, and which are free?
#: SWIZZLE = (0, 0, 5)
SWIZZLE = (4, 0, 5)
# END


@cute.kernel
def move_kernel(x: cute.Tensor, y: cute.Tensor):
    """One warp writes the tile two rows at a time, and reads it a column at a time: y is the transpose of x."""
    lane, _, _ = cute.arch.thread_idx()
    rows = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    layout = cute.make_composed_layout(cute.make_swizzle(*SWIZZLE), 0, rows)
    tile = utils.SmemAllocator().allocate_tensor(Float32, layout, 128)
    for i in range(0, ROWS, 2):
        tile[i + lane // 16, lane % 16] = x[i + lane // 16, lane % 16]
    cute.arch.sync_warp()
    for j in range(COLUMNS):
        y[j, lane] = tile[lane, j]


@cute.jit
def move(x: cute.Tensor, y: cute.Tensor):
    move_kernel(x, y).launch(grid=1, block=32)
