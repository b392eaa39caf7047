"""Clusters: where a block is, the cluster's barrier, shared memory of other blocks."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import run, runs

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.nvgpu import warpgroup
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault
from kiln.utils import SmemAllocator


def shared(count: int, kind=cute.Int32):
    return cute.make_tensor(arch.alloc_smem(kind, count, 16), cute.make_layout(count))


@pytest.mark.parametrize(
    ("grid", "cluster"),
    [((4, 1, 1), (2, 1, 1)), ((4, 6, 2), (2, 3, 2)), ((8, 2, 1), (1, 2, 1)), ((3, 2, 2), (1, 1, 1))],
)
def test_indices(grid, cluster):
    @cute.kernel
    def kernel(out: cute.Tensor):
        bx, by, bz = arch.block_idx()
        gx, gy, _ = arch.grid_dim()
        at = (bx + gx * (by + gy * bz)) * 14
        values = (
            *arch.block_in_cluster_idx(), *arch.block_in_cluster_dim(), *arch.cluster_idx(), *arch.cluster_dim(),
            arch.block_idx_in_cluster(), arch.cluster_size(),
        )  # fmt: skip
        for n, value in enumerate(values):
            out[at + n] = value

    blocks = int(np.prod(grid))
    want = []
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                inside = [i % c for i, c in zip((x, y, z), cluster)]
                rank = inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2])
                want.append([
                    *inside, *cluster, *(i // c for i, c in zip((x, y, z), cluster)),
                    *(g // c for g, c in zip(grid, cluster)), rank, int(np.prod(cluster)),
                ])  # fmt: skip
    for (out,) in runs(kernel, np.zeros(blocks * 14, np.int32), grid=grid, block=1, cluster=cluster):
        np.testing.assert_array_equal(out.reshape(blocks, 14), want)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_exchange_through_distributed_shared_memory(size):
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(32)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        rank = arch.block_idx_in_cluster()
        tile[t] = b * 100 + t
        arch.cluster_arrive()
        arch.cluster_wait()
        other = cute.make_tensor(arch.map_dsmem_ptr(tile.iterator, (rank + 1) % size), cute.make_layout(32))
        got = other[31 - t]
        arch.cluster_arrive_relaxed()
        arch.cluster_wait()
        out[b * 32 + t] = got

    for (out,) in runs(kernel, np.zeros(3 * size * 32, np.int32), grid=3 * size, cluster=(size, 1, 1)):
        b = np.arange(3 * size)
        neighbour = b // size * size + (b + 1) % size
        np.testing.assert_array_equal(out.reshape(-1, 32), neighbour[:, None] * 100 + 31 - np.arange(32))


def test_writes_and_atomics_into_other_blocks():
    @cute.kernel
    def kernel(out: cute.Tensor):
        cell = shared(4)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        rank = arch.block_idx_in_cluster()
        if t < 4:
            cell[t] = 0
        arch.cluster_arrive()
        arch.cluster_wait()
        for peer in range(4):
            there = arch.map_dsmem_ptr(cell.iterator, peer)
            arch.atomic_add(there + rank, t + 1)
        arch.cluster_arrive()
        arch.cluster_wait()
        if t < 4:
            out[b * 4 + t] = cell[t]

    for (out,) in runs(kernel, np.zeros(8 * 4, np.int32), grid=8, cluster=(4, 1, 1)):
        assert (out == 32 * 33 // 2).all()


def test_arrivals_at_an_mbarrier_of_another_block():
    @cute.kernel
    def kernel(out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        box = shared(4)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        rank = arch.block_idx_in_cluster()
        if t == 0:
            arch.mbarrier_init(barrier, 4)
        arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if t < 4:
            there = cute.make_tensor(arch.map_dsmem_ptr(box.iterator, t), cute.make_layout(4))
            there[rank] = rank * 10 + t
            arch.mbarrier_arrive(barrier, t)
        arch.mbarrier_wait(barrier, 0)
        if t < 4:
            out[b * 4 + t] = box[t]
        arch.cluster_arrive()
        arch.cluster_wait()

    for (out,) in runs(kernel, np.zeros(8 * 4, np.int32), grid=8, cluster=(4, 1, 1)):
        want = [[sender * 10 + b % 4 for sender in range(4)] for b in range(8)]
        np.testing.assert_array_equal(out.reshape(8, 4), want)


def test_threads_that_exit_are_not_waited_for_by_the_cluster():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if t < 10 + b % 2 * 10:
            arch.cluster_arrive()
            arch.cluster_wait()
            out[b * 32 + t] = 1

    for (out,) in runs(kernel, np.zeros(4 * 32, np.int32), grid=4, cluster=(2, 1, 1)):
        np.testing.assert_array_equal(out.reshape(4, 32).sum(1), [10, 20, 10, 20])


def test_a_block_that_does_not_come_is_reported():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if b % 2 == 0:
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.barrier(barrier_id=1, number_of_threads=64)
        out[b * 32 + t] = 1

    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(128, np.int32), grid=4, cluster=(2, 1, 1))
    text = str(caught.value)
    assert "threads 0-31 (warp 0) of block (0, 0, 0) wait at a cluster barrier" in text
    assert "threads 0-31 (warp 0) of block (1, 0, 0) wait at a barrier (32 of 64 threads are there)" in text


def test_shared_memory_of_the_launch():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = cute.make_tensor(arch.get_dyn_smem(cute.Int32), cute.make_layout(64))
        t = arch.thread_idx()[0]
        tile[t] = t
        arch.sync_threads()
        out[t] = tile[63 - t]
        if t == 0:
            out[64] = arch.dynamic_smem_size()

    for (out,) in runs(kernel, np.zeros(65, np.int32), block=64, smem=256):
        np.testing.assert_array_equal(out, [*range(63, -1, -1), 256])


def test_a_swizzled_tile_of_another_block():
    """Elements lie in the other block as they do in this one."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        thread, rank = arch.thread_idx()[0], arch.block_idx_in_cluster()
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW64, cute.Int32)
        layout = cute.tile_to_shape(atom, (16, 16), (0, 1))
        tile = SmemAllocator().allocate_tensor(cute.Int32, layout.outer, 1024, layout.inner)
        for row in range(16):
            if thread < 16:
                tile[row, thread] = rank * 1000 + row * 16 + thread
        arch.cluster_arrive()
        arch.cluster_wait()
        other = cute.make_tensor(arch.map_dsmem_ptr(tile.iterator, 1 - rank), tile.layout)
        for row in range(16):
            if thread < 16:
                out[rank * 256 + row * 16 + thread] = other[row, thread]
        arch.cluster_arrive()
        arch.cluster_wait()

    @cute.jit
    def launch(out: cute.Tensor):
        kernel(out).launch(grid=2, block=32, cluster=(2, 1, 1))

    out = np.zeros(512, np.int32)
    with kiln.target("cpu"):
        launch(out)
    assert np.array_equal(out, [*range(1000, 1256), *range(256)])
