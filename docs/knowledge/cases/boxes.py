"""Tiles of f16 that TMA loads to shared memory and threads transpose from there: boxes, swizzles, alignment.

`swizzle` is the one of the tensor map, in bytes, `read` the one threads read the tile through; `tile` is (rows, columns).
"""

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float16, Int32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync, warpgroup

arch = "sm_90+"
problems = [{"m": 64, "n": 128, "pad": 0}]
configs = [
    {"swizzle": 128, "read": 128, "tile": [32, 64], "shift": 0},
    {"swizzle": 64, "read": 64, "tile": [32, 32], "shift": 0},
    {"swizzle": 0, "read": 0, "tile": [32, 64], "shift": 0},
]
KINDS = {
    128: warpgroup.SmemLayoutAtomKind.K_SW128,
    64: warpgroup.SmemLayoutAtomKind.K_SW64,
    32: warpgroup.SmemLayoutAtomKind.K_SW32,
}


def tile_layout(swizzle, tile):
    if swizzle == 0:
        return cute.make_layout(tuple(tile), stride=(tile[1], 1))
    atom = warpgroup.make_smem_layout_atom(KINDS[swizzle], Float16)
    return cute.tile_to_shape(atom, tuple(tile), (0, 1))


def view(pointer, layout):
    if isinstance(layout, cute.ComposedLayout):
        return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, Float16), layout.outer)
    return cute.make_tensor(pointer, layout)


@cute.kernel
def turn_kernel(load: cpasync.TmaInfo, y: cute.Tensor, config: Constexpr, shift: Int32):
    lane = cute.arch.lane_idx()
    m, n, _ = cute.arch.block_idx()
    rows, columns = config["tile"]
    smem = utils.SmemAllocator()
    memory = smem.allocate_tensor(Float16, cute.make_layout(rows * columns), 1024).iterator
    full = smem.allocate_array(Int64, 1)
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, rows * columns * 2)
    cute.arch.sync_warp()
    whole = cute.domain_offset((0, shift), load.tma_tensor)
    source = cute.local_tile(whole, (rows, columns), (m, n))
    written = view(memory, tile_layout(config["swizzle"], config["tile"]))
    shared, source = cpasync.tma_partition(
        load.atom, 0, cute.make_layout(1), cute.group_modes(written, 0, 2), cute.group_modes(source, 0, 2)
    )
    cute.copy(load.atom, source, shared, tma_bar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)
    tile = view(memory, tile_layout(config["read"], config["tile"]))
    target = cute.local_tile(y, (columns, rows), (n, m))
    for column in range(0, columns, 8):  # a lane has a row of the tile, eight columns at a time
        held = cute.make_rmem_tensor(8, Float16)
        cute.autovec_copy(cute.local_tile(tile[lane, None], (8,), (column // 8,)), held)
        for i in range(8):
            target[column + i, lane] = held[i]


@cute.jit
def turn(x: cute.Tensor, y: cute.Tensor, config: Constexpr, shift: Int32):
    tile = tuple(config["tile"])
    layout = tile_layout(config["swizzle"], tile)
    load = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, tile)
    turn_kernel(load, y, config, shift).launch(grid=(*cute.ceil_div(x.shape, tile), 1), block=32)


def kernel_fn(x, config):
    y = empty(x.shape[::-1], np.float16, x)
    turn(tensor(x, 2), tensor(y), config, config["shift"])
    return y


def reference_fn(x):
    return x.T


def get_inputs(m, n, pad):
    """A matrix in the first n columns of one with `pad` more: its rows lie 2 (n + pad) bytes apart."""
    return [normal((m, n + pad), np.float16)[:, :n]]
