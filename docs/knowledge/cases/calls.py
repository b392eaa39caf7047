"""What it costs to call a kernel with arrays of many shapes: x += 1 for matrices of (rows, columns)."""

import numpy as np
from arrays import array, dynamic, tensor

from kiln import Constexpr, cute, range_constexpr

problems = [{"shapes": [[8, 32], [16, 32], [24, 64], [8, 96]]}]
configs = [
    {"layout": "dynamic", "loop": "loop"},
    {"layout": "static", "loop": "loop"},
    {"layout": "array", "loop": "loop"},
    {"layout": "static", "loop": "unrolled"},
]
mutates = True
traced = []


@cute.kernel
def add_kernel(x: cute.Tensor, loop: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    if loop == "unrolled":
        for row in range_constexpr(x.shape[0]):
            for column in range_constexpr(x.shape[1] // 32):
                x[row, column * 32 + thread] = x[row, column * 32 + thread] + 1
    else:
        for row in range(x.shape[0]):
            for column in range(thread, x.shape[1], 32):
                x[row, column] = x[row, column] + 1


@cute.jit
def add(x: cute.Tensor, loop: Constexpr):
    traced.append(x.shape)  # while tracing: once for each program that is made
    add_kernel(x, loop).launch(grid=1, block=32)


def kernel_fn(*arrays, config):
    for x in arrays:
        as_argument = {"dynamic": dynamic, "static": tensor, "array": lambda x: x}[config["layout"]]
        add(as_argument(x), config["loop"])
    return arrays


def numbers(config, problem):
    """Programs that are traced and compiled for the problem's shapes."""
    import kiln

    traced.clear()
    with kiln.target("cpu"):
        kernel_fn(*(np.zeros(shape, np.float32) for shape in problem["shapes"]), config=config)
    return {"programs": len(traced)}


def reference_fn(*arrays):
    return tuple(x + 1 for x in arrays)


def get_inputs(shapes):
    return [array(np.zeros(shape, np.float32)) for shape in shapes]
