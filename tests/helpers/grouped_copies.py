"""A kernel that copies tiles of tensors of several shapes with tensor maps that it edits, for tests on both targets."""

from __future__ import annotations

import kiln
from kiln import cute, utils
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync

TILE = (16, 32)
SHAPES = [(16, 32), (5, 32), (16, 12), (23, 40), (1, 4)]
GMEM, SMEM = utils.TensorMapUpdateMode.GMEM, utils.TensorMapUpdateMode.SMEM


def first_tile(atom, tile, tensor):
    """The tile in shared memory, and the first one of a tensor, as a copy takes them."""
    parts = (cute.group_modes(x, 0, 2) for x in (tile, cute.local_tile(tensor, TILE, (0, 0))))
    return cpasync.tma_partition(atom, 0, cute.make_layout(1), *parts)


def copier(mode, manager=utils.TensorMapManager, begins_elsewhere=False):
    """Copy the first tile of each of some matrices, whose shapes and addresses are in memory, to matrices of the same shape."""

    @cute.kernel
    def kernel(
        load,
        store,
        source,
        target,
        shapes: cute.Tensor,
        places: cute.Tensor,
        maps: cute.Tensor,
        smem_layout: kiln.Constexpr,
    ):
        manages = manager(mode, 128)
        smem = utils.SmemAllocator()
        tile = smem.allocate_tensor(kiln.Float32, smem_layout, 128)
        full = smem.allocate_array(kiln.Int64, 1)
        edited = smem.allocate_array(kiln.Int64, 32, byte_alignment=128)
        thread, warp = arch.thread_idx()[0], arch.make_warp_uniform(arch.warp_idx())
        if thread == 0:
            arch.mbarrier_init(full, 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        shared, of = first_tile(load, tile, source)
        from_shared, to = first_tile(store, tile, target)
        if warp == 0:
            used = tuple(manages.get_tensormap_ptr(maps[n, None].iterator) for n in range(2))
            copied = tuple(edited + 16 * n for n in range(2)) if mode is SMEM else used
            for atom, place in zip((load, store), used if begins_elsewhere else copied):
                manages.init_tensormap_from_atom(atom, place, 0)
            manages.fence_tensormap_initialization()
            for group in range(shapes.shape[0]):
                tensors = tuple(
                    cute.make_tensor(
                        cute.make_ptr(kiln.Float32, places[group, n], cute.AddressSpace.gmem, assumed_align=16),
                        cute.make_layout(
                            (shapes[group, 0], shapes[group, 1]), stride=(shapes[group, 1], kiln.Int32(1))
                        ),
                    )
                    for n in range(2)
                )
                manages.update_tensormap(tensors, (load, store), used, 0, copied if mode is SMEM else (None, None))
                for pointer in used:
                    manages.fence_tensormap_update(pointer)
                found = [manages.get_tensormap_ptr(pointer, cute.AddressSpace.generic) for pointer in used]
                with arch.elect_one():
                    arch.mbarrier_arrive_and_expect_tx(full, TILE[0] * TILE[1] * 4)
                cute.copy(load, of, shared, tma_bar_ptr=full, tma_desc_ptr=found[0])
                arch.mbarrier_wait(full, group % 2)
                cute.copy(store, from_shared, to, tma_desc_ptr=found[1])
                with arch.elect_one():
                    arch.cp_async_bulk_commit_group()
                    arch.cp_async_bulk_wait_group(0)
                arch.sync_warp()

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, shapes: cute.Tensor, places: cute.Tensor, maps: cute.Tensor):
        layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        load, source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
        store, target = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), y, layout, TILE)
        kernel(load, store, source, target, shapes, places, maps, layout).launch(grid=1, block=64)

    return launch
