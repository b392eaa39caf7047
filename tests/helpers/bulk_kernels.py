"""Kernels with bulk copies in clusters of blocks, for tests on both targets."""

from __future__ import annotations

import kiln
import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64
from kiln.cute.nvgpu import cpasync

arch = cute.arch


def multicaster(priority):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, block = arch.thread_idx()[0], arch.block_idx_in_cluster()
        barrier = arch.alloc_smem(Int64, 1, 8)
        shared = cute.make_tensor(arch.alloc_smem(Float32, 64, 128), cute.make_layout((32, 2)))
        load = cute.make_copy_atom(cpasync.CopyBulkG2SMulticastOp(), Float32)
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_init_fence()
            arch.mbarrier_arrive_and_expect_tx(barrier, 256)
        arch.cluster_arrive()
        arch.cluster_wait()
        if t == 0:  # each block sends its half to both
            cute.prefetch(cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32), x[None, block])
            half = shared[None, block]
            cute.copy(load, x[None, block], half, mbar_ptr=barrier, mcast_mask=3, cache_policy=priority)
        arch.mbarrier_wait(barrier, 0)
        y[t, block] = shared[31 - t, 0] + shared[31 - t, 1]
        arch.cluster_arrive()
        arch.cluster_wait()

    return kernel


def sender(copy_op, dtype):
    """Each block sends what it has to the other one."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, block = arch.thread_idx()[0], arch.block_idx_in_cluster()
        barrier = arch.alloc_smem(Int64, 1, 8)
        mine = cute.make_tensor(arch.alloc_smem(dtype, 32, 128), cute.make_layout(32))
        box = cute.make_tensor(arch.alloc_smem(dtype, 32, 128), cute.make_layout(32))
        mine[t] = x[t, block]
        box[t] = dtype(100)
        arch.fence_proxy("async.shared", space="cluster")
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_init_fence()
            arch.mbarrier_arrive_and_expect_tx(barrier, 32 * dtype.width // 8)
        arch.cluster_arrive()
        arch.cluster_wait()
        there = cute.make_tensor(arch.map_dsmem_ptr(box.iterator, 1 - block), box.layout)
        full = arch.map_dsmem_ptr(barrier, 1 - block)
        if isinstance(copy_op, cpasync.CopyDsmemStoreOp):
            atom = cute.make_copy_atom(copy_op, dtype, num_bits_per_copy=32)
            count = 32 // dtype.width
            if t < 32 // count:
                values = cute.make_rmem_tensor(count, dtype)
                for n in kiln.range_constexpr(count):
                    values[n] = mine[t * count + n]
                cute.copy(atom, values, cute.local_tile(there, (count,), (t,)), mbar_ptr=full)
        else:
            atom = cute.make_copy_atom(copy_op, dtype)
            if t == 0:
                cute.copy(atom, mine, there, mbar_ptr=full)
        arch.mbarrier_wait(barrier, 0)
        y[t, block] = box[t]
        arch.cluster_arrive()
        arch.cluster_wait()

    return kernel


SENDERS = [
    (cpasync.CopyBulkS2SOp(), Float32, "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes ["),
    (cpasync.CopyReduceBulkS2SOp(), Int32, "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.s32"),
    (cpasync.CopyDsmemStoreOp(), Float32, "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"),
    (cpasync.CopyDsmemStoreOp(), Float16, "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32"),
]  # fmt: skip


def reducer(kind, priority=None):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, block = arch.thread_idx()[0], arch.block_idx()[0]
        shared = cute.make_tensor(arch.alloc_smem(x.element_type, 32, 128), cute.make_layout(32))
        shared[t] = x[t, block]
        arch.fence_view_async_shared()
        arch.sync_threads()
        if t == 0:
            atom = cute.make_copy_atom(cpasync.CopyReduceBulkS2GOp(kind), x.element_type)
            cute.copy(atom, shared, y[None, 0], cache_policy=priority)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    return kernel


def launcher(kernel, blocks):
    """A program that runs a kernel in one cluster of so many blocks."""

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=blocks, block=32, cluster=(blocks, 1, 1))

    return launch
