"""y = 2 x + 1 of f16: what Python's numbers do to the type of a value, and in which type an expression is computed."""

import numpy as np
from arrays import dynamic, empty, normal

from kiln import Constexpr, Float16, cute

problems = [{"n": 2048}]
configs = [{"by": "f16"}, {"by": "f32"}, {"by": "promoted"}]


@cute.kernel
def line_kernel(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    place = (block * 128 + thread,)
    values = cute.local_tile(x, (8,), place).load()
    if by == "f16":
        result = values * Float16(2.0) + Float16(1.0)
    elif by == "f32":
        result = (values * 2.0 + 1.0).to(Float16)
    else:
        result = values * 2.0 + 1.0  # a vector of f32
    cute.local_tile(y, (8,), place).store(result)


@cute.jit
def line(x: cute.Tensor, y: cute.Tensor, by: Constexpr):
    line_kernel(x, y, by).launch(grid=cute.ceil_div(cute.size(x), 1024), block=128)


def kernel_fn(x, config):
    y = empty(x.shape, np.float16, x)
    line(dynamic(x), dynamic(y), config["by"])
    return y


def reference_fn(x):
    return 2 * x + 1


def get_inputs(n):
    return [normal(n, np.float16)]
