"""Exercise 1 of lesson 9: a sum over tiles with two buffers; its commits and waits are missing."""

import kiln.cute as cute
from kiln import Float32, utils
from kiln.cute.nvgpu import cpasync

TILE = 128
"""Elements of a tile: one warp brings 16 bytes a lane."""


@cute.kernel
def total_kernel(x: cute.Tensor, y: cute.Tensor):
    """y[lane] = the sum over all tiles of x[tile, 127 - lane]; one warp."""
    lane, _, _ = cute.arch.thread_idx()
    tiles = x.shape[0]
    buffers = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((TILE, 2)), 128)
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128)
    total = Float32(0)
    cute.copy(atom, cute.local_tile(x[0, None], (4,), (lane,)), cute.local_tile(buffers[None, 0], (4,), (lane,)))
    cute.arch.cp_async_commit_group()
    for tile in range(tiles):
        ahead = tile + 1
        if ahead < tiles:
            target = cute.local_tile(buffers[None, ahead % 2], (4,), (lane,))
            cute.copy(atom, cute.local_tile(x[ahead, None], (4,), (lane,)), target)
        # TODO: end the group of copies; wait until the tile (not the one ahead) is here; make it visible to the warp
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(1)
        cute.arch.sync_warp()
        # END
        total += buffers[TILE - 1 - lane, tile % 2]
        # TODO: the next iteration overwrites this buffer: what has to happen before?
        cute.arch.sync_warp()
        # END
    y[lane] = total


@cute.jit
def total(x: cute.Tensor, y: cute.Tensor):
    total_kernel(x, y).launch(grid=1, block=32)
