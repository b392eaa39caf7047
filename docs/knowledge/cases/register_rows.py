"""Sums of two rows in each thread, stored by a loop over the rows of its part of an accumulator, or its columns."""

import numpy as np
from arrays import empty, normal, tensor

import kiln
from kiln import Constexpr, Float32, cute, range_constexpr

ROWS, COLUMNS, THREADS = 2, 16, 32
problems = [{"m": 64}]
configs = [{"loop": "rows"}, {"loop": "columns"}]


@cute.kernel
def row_sum_kernel(x: cute.Tensor, y: cute.Tensor, loop: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row_sum = cute.make_rmem_tensor(ROWS, Float32)
    for row in range_constexpr(ROWS):
        row_sum[row] = 0.0
        for column in range_constexpr(COLUMNS):
            row_sum[row] += x[ROWS * thread + row, column]
    # as the thread's part of an accumulator: the second mode of rows has one element and the stride 0
    layout = cute.make_layout(((ROWS, 1), COLUMNS), stride=((1, 0), 0))
    part = cute.make_tensor(y.iterator + ROWS * thread, layout)
    for m in kiln.range(cute.size(part, mode=[0 if loop == "rows" else 1]), unroll_full=True):
        part[m, 0] = row_sum[m]


@cute.jit
def row_sum(x: cute.Tensor, y: cute.Tensor, loop: Constexpr):
    row_sum_kernel(x, y, loop).launch(grid=1, block=THREADS)


def kernel_fn(x, config):
    y = empty(x.shape[:1], np.float32, x)
    row_sum(tensor(x), tensor(y), config["loop"])
    return y


def reference_fn(x):
    return x.sum(1)


def get_inputs(m):
    return [normal((m, COLUMNS))]
