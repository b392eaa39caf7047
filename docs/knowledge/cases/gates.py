"""y = x * sigmoid(x) of f16, computed in f32: how an epilogue divides."""

import numpy as np
from arrays import dynamic, empty, normal

from kiln import Constexpr, Float16, Float32, cute

problems = [{"n": 4096}]
configs = [{"by": "precise"}, {"by": "approximate"}]


@cute.kernel
def silu_kernel(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = (block * 128 + thread,)
    values = cute.local_tile(x, (8,), place).load().to(Float32)
    below = 1.0 + cute.math.exp(-values, fastmath=True)
    result = values / below if by == "precise" else values * cute.math.rcp(below, approx=True)
    cute.local_tile(y, (8,), place).store(result.to(Float16))


@cute.jit
def silu(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    silu_kernel(x, y, by).launch(grid=cute.ceil_div(cute.size(x), 1024), block=128)


def kernel_fn(x, config):
    y = empty(x.shape, np.float16, x)
    silu(dynamic(x), dynamic(y), config["by"])
    return y


def reference_fn(x):
    return x / (1 + np.exp(-x)) if isinstance(x, np.ndarray) else x * x.sigmoid()


def get_inputs(n):
    return [normal(n, np.float16)]


def flops_bytes(n):
    return 4 * n, 4 * n
