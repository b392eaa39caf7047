"""The variance of rows in f32, a warp to a row: from sums and sums of squares, or from deviations that are merged."""

import operator

import numpy as np
from arrays import empty, normal, tensor

from kiln import Constexpr, Float32, cute, range_constexpr, utils

problems = [{"m": 8, "n": 1024, "mean": 1000.0}]
configs = [{"by": "deviations"}, {"by": "squares"}]
tolerance = {"rtol": 1e-4, "atol": 1e-5}


@cute.kernel
def variance_kernel(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    lane = cute.arch.lane_idx()
    row, _, _ = cute.arch.block_idx()
    columns = x.shape[1]
    values = cute.zipped_divide(x[row, None], 32)[lane, None].load()
    count = columns // 32
    total = values.reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
    if by == "squares":
        squares = (values * values).reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        mean = utils.reduce_in_warp(total, operator.add, 32) / columns
        variance = utils.reduce_in_warp(squares, operator.add, 32) / columns - mean * mean
    else:
        mean, size = total / count, Float32(count)
        apart = values - mean
        spread = (apart * apart).reduce(cute.ReductionOp.ADD, 0.0, reduction_profile=0)
        for step in range_constexpr(5):  # two parts of equal size become one
            other = cute.arch.shuffle_sync_bfly(mean, 1 << step)
            between = (other - mean) * (other - mean) * size / 2
            spread = spread + cute.arch.shuffle_sync_bfly(spread, 1 << step) + between
            mean, size = (mean + other) / 2, size * 2
        variance = spread / columns
    if lane == 0:
        y[row] = variance


@cute.jit
def variance(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    variance_kernel(x, y, by).launch(grid=x.shape[0], block=32)


def kernel_fn(x, config):
    y = empty(x.shape[:1], np.float32, x)
    variance(tensor(x), tensor(y), config["by"])
    return y


def reference_fn(x):
    return x.var(1) if isinstance(x, np.ndarray) else x.var(1, correction=0)


def get_inputs(m, n, mean):
    return [normal((m, n)) + np.float32(mean)]
