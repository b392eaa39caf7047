"""Sums of rows that the two blocks of a cluster share: each adds up half a row and tells the other through its shared memory."""

import operator

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync

arch = "sm_90+"
THREADS = 128
problems = [{"m": 4, "n": 2048}, {"m": 8192, "n": 32768}]
configs = [{"told": "barrier"}, {"told": "counted stores"}]


@cute.kernel
def sums_kernel(x: cute.Tensor, y: cute.Tensor, told: Constexpr, fault: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    smem = utils.SmemAllocator()
    parts = smem.allocate_tensor(Float32, cute.make_layout(2), 16)
    come = smem.allocate_array(Int64, 1)
    if told == "counted stores" and thread == 0:
        cute.arch.mbarrier_init(come, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(come, 4)
    if fault != "before the other began":
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()  # the other block has begun: its memory is there
    total = Float32(0.0)
    half = x.shape[1] // 2
    for i in range(thread, half, THREADS):
        total += x[block // 2, rank * half + i]
    total = utils.reduce_in_block(total, operator.add, THREADS, THREADS)
    if thread == 0:
        parts[rank] = total
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(parts.iterator + rank, rank ^ 1), cute.make_layout(1))
        if told == "barrier":
            there[0] = total
        else:  # a store that counts itself at the other block's mbarrier
            held = cute.make_rmem_tensor(1, Float32)
            held[0] = total
            counted = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), Float32)
            cute.copy(counted, held, there, mbar_ptr=cute.arch.map_dsmem_ptr(come, rank ^ 1))
    if told == "barrier" and fault != "not waited for":
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    if thread == 0:
        if told != "barrier":
            cute.arch.mbarrier_wait(come, 0)
        if rank == 0:
            y[block // 2] = parts[0] + parts[1]


@cute.jit
def sums(x: cute.Tensor, y: cute.Tensor, told: Constexpr, fault: Constexpr):
    sums_kernel(x, y, told, fault).launch(grid=2 * x.shape[0], block=THREADS, cluster=(2, 1, 1))


def kernel_fn(x, config):
    y = empty(x.shape[:1], np.float32, x)
    sums(tensor(x), tensor(y), config["told"], config.get("fault"))
    return y


def reference_fn(x):
    return x.sum(1)


def get_inputs(m, n):
    return [normal((m, n))]


def flops_bytes(m, n):
    return m * n, 4 * m * n
