"""Step 1: copy a matrix tile by tile through shared memory. TMA moves every byte.

Run it with `kiln run examples/hopper/step_1_copy.py`.

The host describes both matrices in TMA descriptors. One warp issues the load of a tile, an mbarrier counts its bytes,
and TMA stores it: no thread ever holds an element, and TMA clips tiles at the edge of the matrix.
"""

import harness
import numpy as np

import kiln.cute as cute
from kiln import Float16, Int64, utils
from kiln.cute.nvgpu import cpasync

TILE = (64, 64)
BYTES = TILE[0] * TILE[1] * 2


@cute.kernel
def copy_kernel(load: cute.CopyAtom, x: cute.Tensor, store: cute.CopyAtom, y: cute.Tensor, layout: cute.Layout):
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile = smem.allocate_tensor(Float16, layout, 1024)
    full = smem.allocate_array(Int64)
    # x and y are coordinate tensors: a TMA copy gets the coordinate at which its box starts
    no_multicast = (0, cute.make_layout(1))
    smem_tile, source = cpasync.tma_partition(
        load, *no_multicast, cute.group_modes(tile, 0, 2), cute.zipped_divide(x, TILE)
    )
    _, target = cpasync.tma_partition(store, *no_multicast, cute.group_modes(tile, 0, 2), cute.zipped_divide(y, TILE))
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
        cute.copy(
            load, source[None, (m, n)], smem_tile, tma_bar_ptr=full
        )  # the whole warp calls it, one lane issues it
        cute.arch.mbarrier_wait(full, 0)
        cute.copy(store, smem_tile, target[None, (m, n)])
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def copy(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout(TILE, stride=(TILE[1], 1))
    load, from_ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
    store, target = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, TILE)
    grid = cute.ceil_div(x.shape, TILE)
    copy_kernel(load, from_, store, target, layout).launch(grid=(*grid, 1), block=32)


if __name__ == "__main__":
    x, _, _ = harness.matrices(200, 1, 328)
    y = x * 0
    copy(x, y)
    np.testing.assert_array_equal(harness.host(y), harness.host(x))
    print("200 x 328: every element is there")
