"""Column sums of a matrix whose rows are no whole tiles: `cp.async` brings tiles of 32 x 64 to shared memory, and what lies outside is zeros."""

import numpy as np
from arrays import empty, normal, tensor

from kiln import Boolean, Constexpr, Float32, cute, range_constexpr, utils
from kiln.cute.nvgpu import cpasync

ROWS, COLUMNS, THREADS = 32, 64, 128
problems = [{"m": 75, "n": 128}, {"m": 16000, "n": 4096}]
configs = [{"edge": "zeros"}, {"edge": "branches"}]


@cute.kernel
def column_sum_kernel(x: cute.Tensor, y: cute.Tensor, edge: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    n, _, _ = cute.arch.block_idx()
    tile = utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)), 128)
    fill = cute.make_tiled_copy_tv(
        cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL), Float32, num_bits_per_copy=128),
        cute.make_ordered_layout((8, 16), order=(1, 0)),
        cute.make_layout((1, 4)),
    ).get_slice(thread)
    source = fill.partition_S(cute.local_tile(x, (ROWS, COLUMNS), (None, n)))
    where = fill.partition_S(cute.local_tile(cute.make_identity_tensor(x.shape), (ROWS, COLUMNS), (None, n)))
    target = fill.partition_D(tile)
    total = Float32(0.0)
    for m in range(source.shape[3]):
        if edge == "zeros":
            inside = cute.make_rmem_tensor((1, source.shape[1], source.shape[2]), Boolean)
            for i in range_constexpr(cute.size(inside)):
                inside[i] = cute.elem_less(where[0, i, 0, m], x.shape)
            cute.copy(fill, source[None, None, None, m], target, pred=inside)
        else:
            for i in range_constexpr(source.shape[1]):
                if cute.elem_less(where[0, i, 0, m], x.shape):
                    cute.copy(fill, source[None, i, None, m], target[None, i, None])
                else:
                    target[None, i, None].fill(0.0)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        if thread < COLUMNS:
            for row in range(ROWS):
                total += tile[row, thread]
        cute.arch.sync_threads()
    if thread < COLUMNS:
        y[n * COLUMNS + thread] = total


@cute.jit
def column_sum(x: cute.Tensor, y: cute.Tensor, edge: Constexpr):
    column_sum_kernel(x, y, edge).launch(grid=x.shape[1] // COLUMNS, block=THREADS)


def kernel_fn(x, config):
    y = empty(x.shape[1:], np.float32, x)
    column_sum(tensor(x), tensor(y), config["edge"])
    return y


def reference_fn(x):
    return x.sum(0)


def get_inputs(m, n):
    return [normal((m, n))]
