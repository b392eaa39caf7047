"""Exercise 1 of lesson 10: load a tile by TMA, double it with threads, store it by TMA."""

import kiln.cute as cute
from kiln import Float32, Int64, utils
from kiln.cute.nvgpu import cpasync

TILE = (8, 32)


@cute.kernel
def double_kernel(load: cpasync.TmaInfo, store: cpasync.TmaInfo):
    lane, _, _ = cute.arch.thread_idx()
    smem = utils.SmemAllocator()
    tile = smem.allocate_tensor(Float32, load.smem_layout, 128)
    full = smem.allocate_array(Int64, 1)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_warp()
    place = cute.arch.block_idx()[:2]
    source, target = (cute.local_tile(x.tma_tensor, TILE, place) for x in (load, store))
    grouped = [cute.group_modes(x, 0, 2) for x in (source, target)]
    shared, source, target = cpasync.tma_partition(
        load.atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), grouped
    )
    # TODO: one lane tells the mbarrier how many bytes will arrive; the warp issues the load; all wait for phase 0
    with cute.arch.elect_one():
        cute.arch.mbarrier_arrive_and_expect_tx(full, cute.size_in_bytes(Float32, load.smem_layout))
    cute.copy(load.atom, source, shared, tma_bar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)
    # END
    for row in range(TILE[0]):
        tile[row, lane] = 2 * tile[row, lane]
    # TODO: make what the threads wrote visible to TMA, and wait for the whole warp
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_warp()
    # END
    cute.copy(store.atom, shared, target)
    cute.arch.cp_async_bulk_commit_group()
    cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def double(x: cute.Tensor, y: cute.Tensor):
    layout = cute.make_layout(TILE, stride=(TILE[1], 1))
    load = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
    store = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, TILE)
    double_kernel(load, store).launch(grid=(*cute.ceil_div(x.shape, TILE), 1), block=32)
