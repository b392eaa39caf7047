"""Copies of matrices whose addresses and shapes are in memory: one warp edits maps in global memory, others copy with them."""

import numpy as np
from hopper_tiles import loads, matrices, parts, stores

from kiln import Float16, Int32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

TILE = (16, 32)
BYTES = TILE[0] * TILE[1] * 2
SHAPES = [(16, 32), (5, 32), (16, 16)]


@cute.jit
def matrix(place, rows, columns):
    pointer = cute.make_ptr(Float16, place, cute.AddressSpace.gmem, assumed_align=16)
    return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, Int32(1))))


@cute.kernel
def groups(
    load, x: cute.Tensor, store, y: cute.Tensor, layout, shapes: cute.Tensor, places: cute.Tensor, maps: cute.Tensor
):
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    manager = utils.TensorMapManager(utils.TensorMapUpdateMode.GMEM)
    smem = utils.SmemAllocator()
    tile = smem.allocate_tensor(Float16, layout, 128)
    full = smem.allocate_array(Int64, 1)
    here, of = parts(load, tile, cute.local_tile(x, TILE, (None, 0)))
    _, to = parts(store, tile, cute.local_tile(y, TILE, (None, 0)))
    if thread == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    first, second = (manager.get_tensormap_ptr(maps[n, None].iterator) for n in range(2))
    to_load, to_store = (manager.get_tensormap_ptr(p, cute.AddressSpace.generic) for p in (first, second))
    manager.init_tensormap_from_atom(load, first, 0)
    manager.init_tensormap_from_atom(store, second, 0)
    manager.fence_tensormap_initialization()
    for g in range(shapes.shape[0]):
        target = matrix(places[g, 1], shapes[g, 0], shapes[g, 1])
        manager.update_tensormap((target,), (store,), (second,), 0, (None,))
        if warp == 0:
            cpasync.update_tma_descriptor(load, matrix(places[g, 0], shapes[g, 0], shapes[g, 1]), first)
            cpasync.fence_tma_desc_release()
        cute.arch.sync_threads()
        if warp == 1:
            manager.fence_tensormap_update(first)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
            cute.copy(load, of[None, 0], here[None, 0], tma_bar_ptr=full, tma_desc_ptr=to_load)
        cute.arch.mbarrier_wait(full, g % 2)
        if warp == 0:
            manager.fence_tensormap_update(second)
            cute.copy(store, here[None, 0], to[None, 0], tma_desc_ptr=to_store)
            with cute.arch.elect_one():
                cute.arch.cp_async_bulk_commit_group()
                cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.sync_threads()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor, shapes: cute.Tensor, places: cute.Tensor, maps: cute.Tensor):
    layout = cute.make_layout((*TILE, 1), stride=(TILE[1], 1, TILE[0] * TILE[1]))
    kernel = groups(*loads(x, layout, TILE), *stores(y, layout, TILE), layout, shapes, places, maps)
    kernel.launch(grid=1, block=64)


def aligned(array):
    memory = np.zeros(array.nbytes + 128, np.uint8)
    place = memory[-memory.ctypes.data % 128 :][: array.nbytes].view(array.dtype).reshape(array.shape)
    place[:] = array
    return place


def run():
    any_x, any_y, *given = map(aligned, matrices(TILE, TILE, *SHAPES))
    found = [aligned(np.zeros_like(x)) for x in given]
    places = np.array([[x.ctypes.data, y.ctypes.data] for x, y in zip(given, found)], np.int64)
    maps = aligned(np.zeros((2, 16), np.int64))
    first, last = (from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in (any_x, any_y))
    main(first, last, np.array(SHAPES, np.int32), places, from_dlpack(maps, assumed_align=128))
    return all(map(np.array_equal, given, found))
