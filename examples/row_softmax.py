"""A kernel with its contract: softmax of the rows of a matrix, a warp for each row.

    kiln verify examples/row_softmax.py          is it right?
    kiln bench examples/row_softmax.py           how long does it take, beside PyTorch?
    kiln tune examples/row_softmax.py            how many rows should a block take?

docs/workbench.md goes through it.
"""

import torch

import cutlass
from cutlass import cute

# --- the kernel ------------------------------------------------------------------------------------------------------


@cute.kernel
def row_softmax(x: cute.Tensor, y: cute.Tensor, rows: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    lane, row = thread % 32, block * rows + thread // 32
    if row < x.shape[0]:
        largest = -cutlass.Float32.inf
        for column in range(lane, x.shape[1], 32):
            largest = cute.arch.fmax(largest, x[row, column].to(cutlass.Float32))
        largest = cute.arch.warp_reduction_max(largest)
        total = cutlass.Float32(0)
        for column in range(lane, x.shape[1], 32):
            total += cute.math.exp(x[row, column].to(cutlass.Float32) - largest)
        total = cute.arch.warp_reduction_sum(total)
        for column in range(lane, x.shape[1], 32):
            y[row, column] = (cute.math.exp(x[row, column].to(cutlass.Float32) - largest) / total).to(y.element_type)


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, rows: cutlass.Constexpr):
    row_softmax(x, y, rows).launch(grid=cute.ceil_div(x.shape[0], rows), block=32 * rows)


# --- the contract ----------------------------------------------------------------------------------------------------


def kernel_fn(x, config=None):
    y = torch.empty_like(x)
    launch(x, y, config["rows"] if config else 4)
    return y


def reference_fn(x):
    return torch.softmax(x, dim=1)


def get_inputs(m=4096, n=1024, dtype="float16"):
    return [torch.randn(m, n, dtype=getattr(torch, dtype), device="cuda")]


problems = [{"m": 4096, "n": 1024}, {"m": 512, "n": 16384, "dtype": "float32"}]
configs = {"rows": [1, 2, 4, 8, 16]}
baselines = {"float32": lambda x: torch.softmax(x.float(), dim=1)}
arch = "sm_80+"


def flops_bytes(m, n, dtype):
    return 4 * m * n, 2 * m * n * getattr(torch, dtype).itemsize
