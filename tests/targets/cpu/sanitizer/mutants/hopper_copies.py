"""The copy engine moves tiles through a ring, no thread holds an element; the last block adds up what all have stored, and a launch that may start early goes on with it."""

import numpy as np
from hopper_tiles import loads, parts, stores

from kiln import Float32, Int32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync

M, N = TILE = (8, 32)
BYTES = M * N * 4
STAGES = 2
ROUNDS = 4
BLOCKS = 2


@cute.kernel
def copies(
    load, x: cute.Tensor, store, z: cute.Tensor, y: cute.Tensor, counter: cute.Tensor, total: cute.Tensor, layout
):
    lane = cute.arch.thread_idx()[0]
    block = cute.arch.block_idx()[0]
    cpasync.prefetch_descriptor(load)
    cpasync.prefetch_descriptor(store)
    smem = utils.SmemAllocator()
    tiles = smem.allocate_tensor(Float32, layout, 128)
    full = smem.allocate_array(Int64, STAGES)
    is_last = smem.allocate_tensor(Int32, cute.make_layout(1), 16)
    here, of = parts(load, tiles, cute.local_tile(x, TILE, (block, None)))
    _, to = parts(store, tiles, cute.local_tile(z, TILE, (block, None)))
    with cute.arch.elect_one():
        for stage in range(STAGES):
            cute.arch.mbarrier_init(full + stage, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_warp()
    for i in range(Int32(ROUNDS)):
        stage = i % STAGES
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_wait_group(STAGES - 1, read=True)
            cute.arch.mbarrier_arrive_and_expect_tx(full + stage, BYTES)
        cute.copy(load, of[None, i], here[None, stage], tma_bar_ptr=full + stage)
        cute.arch.mbarrier_wait(full + stage, i // STAGES % 2)
        cute.copy(store, here[None, stage], to[None, i])
        with cute.arch.elect_one():
            cute.arch.cp_async_bulk_commit_group()
    with cute.arch.elect_one():
        cute.arch.cp_async_bulk_wait_group(0)
        cute.arch.fence_acq_rel_gpu()
        before = cute.arch.atomic_add(counter.iterator, Int32(1))
        cute.arch.fence_acq_rel_gpu()
        is_last[0] = before
    cute.arch.sync_warp()
    if is_last[0] == BLOCKS - 1:
        result = Float32(0.0)
        for i in range(Int32(BLOCKS * M)):
            result += y[i, (ROUNDS - 1) * N + lane]
        total[lane] = result
    cute.arch.griddepcontrol_launch_dependents()


@cute.kernel
def again(load, z: cute.Tensor, total: cute.Tensor, out: cute.Tensor, layout):
    lane = cute.arch.thread_idx()[0]
    smem = utils.SmemAllocator()
    tiles = smem.allocate_tensor(Float32, layout, 128)
    full = smem.allocate_array(Int64, 1)
    here, of = parts(load, tiles, cute.local_tile(z, TILE, (0, None)))
    with cute.arch.elect_one():
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
    cute.arch.sync_warp()
    cute.arch.griddepcontrol_wait()
    cute.copy(load, of[None, 0], here[None, 0], tma_bar_ptr=full)
    cute.arch.mbarrier_wait(full, 0)
    out[lane] = tiles[0, lane, 0] + total[lane]


@cute.jit
def main(x: cute.Tensor, y: cute.Tensor, counter: cute.Tensor, total: cute.Tensor, out: cute.Tensor):
    layout = cute.make_layout((M, N, STAGES), stride=(N, 1, M * N))
    load, store = loads(x, layout, TILE), stores(y, layout, TILE)
    copies(*load, *store, y, counter, total, layout).launch(grid=BLOCKS, block=32)
    again(*loads(y, layout, TILE), total, out, layout).launch(grid=1, block=32, use_pdl=True)


def run():
    x = np.random.default_rng(4).integers(0, 100, (BLOCKS * M, ROUNDS * N)).astype(np.float32)
    y, counter, total, out = np.zeros_like(x), np.zeros(1, np.int32), np.zeros(N, np.float32), np.zeros(N, np.float32)
    main(x, y, counter, total, out)
    sums = x[:, -N:].sum(0)
    return np.array_equal(y, x) and np.array_equal(total, sums) and np.array_equal(out, x[0, :N] + sums)
