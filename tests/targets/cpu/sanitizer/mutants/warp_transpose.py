"""Warps transpose tiles of 32 by 4 through their own part of shared memory: lanes wait for each other only."""

import numpy as np

from kiln import Float32, cute, range_constexpr

WARPS = 2


@cute.kernel
def transpose(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % 32, t // 32
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, WARPS * 128), cute.make_layout((32, 4, WARPS)))
    for i in range_constexpr(2):
        for j in range_constexpr(4):
            tile[lane, j, warp] = x[i, warp, j, lane]
        cute.arch.sync_warp()
        for j in range_constexpr(4):
            y[i, warp, lane, j] = tile[(lane + 1) % 32, j, warp]
        cute.arch.sync_warp()


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    transpose(x, y).launch(grid=1, block=WARPS * 32)


def run():
    x = np.arange(2 * WARPS * 128, dtype=np.float32).reshape(2, WARPS, 4, 32)
    y = np.zeros((2, WARPS, 32, 4), np.float32)
    main(x, y)
    return np.array_equal(y, np.roll(x, -1, axis=3).transpose(0, 1, 3, 2))
