"""Tiles brought to shared memory by asynchronous copies, three stages deep, each read by other threads than its copier."""

import numpy as np

from kiln import Float32, cute, range_constexpr
from kiln.cute.nvgpu import cpasync

THREADS = 64
STAGES = 3
TILES = 7


@cute.kernel
def pipeline(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    memory = cute.arch.alloc_smem(Float32, STAGES * THREADS)
    staged = cute.make_tensor(memory, cute.make_layout((1, THREADS, STAGES), stride=(1, 1, THREADS)))
    source = cute.make_tensor(x.iterator, cute.make_layout((1, THREADS, TILES), stride=(1, 1, THREADS)))
    for tile in range_constexpr(STAGES - 1):
        cute.copy(atom, source[None, t, tile], staged[None, t, tile])
        cute.arch.cp_async_commit_group()
    total = Float32(0.0)
    for tile in range_constexpr(TILES):
        following = tile + STAGES - 1
        cute.arch.cp_async_wait_group(STAGES - 2)
        cute.arch.sync_threads()
        if following < TILES:
            cute.copy(atom, source[None, t, following], staged[None, t, following % STAGES])
        cute.arch.cp_async_commit_group()
        total += staged[0, THREADS - 1 - t, tile % STAGES]
    y[t] = total


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor):
    pipeline(x, y).launch(grid=1, block=THREADS)


def run():
    x = np.random.default_rng(3).integers(0, 100, TILES * THREADS).astype(np.float32)
    y = np.zeros(THREADS, np.float32)
    main(x, y)
    return np.array_equal(y, x.reshape(TILES, -1).sum(0)[::-1])
