"""Row sums by a cluster of two CTAs: each adds half a row and sends it to the other through distributed shared memory."""

import operator

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync

arch = "sm_90+"
THREADS = 128
problems = [{"m": 4, "n": 2048}, {"m": 8192, "n": 32768}]
configs = [{"signal": "barrier"}, {"signal": "st.async"}]


@cute.kernel
def row_sum_kernel(x: cute.Tensor, y: cute.Tensor, signal: Constexpr, fault: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    smem = utils.SmemAllocator()
    parts = smem.allocate_tensor(Float32, cute.make_layout(2), 16)
    come = smem.allocate_array(Int64, 1)
    if signal == "st.async" and thread == 0:
        cute.arch.mbarrier_init(come, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(come, 4)
    if fault != "before the other began":
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()  # the other CTA has started: its shared memory exists
    total = Float32(0.0)
    half = x.shape[1] // 2
    for i in range(thread, half, THREADS):
        total += x[block // 2, rank * half + i]
    total = utils.reduce_in_block(total, operator.add, THREADS, THREADS)
    if thread == 0:
        parts[rank] = total
        there = cute.make_tensor(cute.arch.map_dsmem_ptr(parts.iterator + rank, rank ^ 1), cute.make_layout(1))
        if signal == "barrier":
            there[0] = total
        else:  # st.async: the store signals the mbarrier of the other CTA
            held = cute.make_rmem_tensor(1, Float32)
            held[0] = total
            counted = cute.make_copy_atom(cpasync.CopyDsmemStoreOp(), Float32)
            cute.copy(counted, held, there, mbar_ptr=cute.arch.map_dsmem_ptr(come, rank ^ 1))
    if signal == "barrier" and fault != "not waited for":
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    if thread == 0:
        if signal != "barrier":
            cute.arch.mbarrier_wait(come, 0)
        if rank == 0:
            y[block // 2] = parts[0] + parts[1]


@cute.jit
def row_sum(x: cute.Tensor, y: cute.Tensor, signal: Constexpr, fault: Constexpr):
    row_sum_kernel(x, y, signal, fault).launch(grid=2 * x.shape[0], block=THREADS, cluster=(2, 1, 1))


def kernel_fn(x, config):
    y = empty(x.shape[:1], np.float32, x)
    row_sum(tensor(x), tensor(y), config["signal"], config.get("fault"))
    return y


def reference_fn(x):
    return x.sum(1)


def get_inputs(m, n):
    return [normal((m, n))]


def flops_bytes(m, n):
    return m * n, 4 * m * n
