"""my_kernel: the sum of each row of a matrix, in fp32.

A block takes a row: its threads add up every THREADS-th element, then the lanes of each warp, then the warps.

kiln verify kernel.py            check it against reference_fn
kiln bench kernel.py             time it beside the baselines

Next: try `kiln tune kernel.py`, then loads of 16 bytes (kiln kb show sixteen-byte-accesses).
"""

import kiln
import torch
from kiln import cute

configs: dict[str, list[int]] = {"threads": [128, 256, 512]}


@cute.kernel
def my_kernel(x: cute.Tensor, y: cute.Tensor, threads: kiln.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    warps = threads // 32
    partial = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, warps), cute.make_layout(warps))

    total = kiln.Float32(0)
    for column in range(thread, x.shape[1], threads):
        total += x[row, column].to(kiln.Float32)
    total = cute.arch.warp_reduction_sum(total)
    if thread % 32 == 0:
        partial[thread // 32] = total
    cute.arch.sync_threads()
    if thread == 0:
        for warp in kiln.range_constexpr(1, warps):
            total += partial[warp]
        y[row] = total


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, threads: kiln.Constexpr):
    my_kernel(x, y, threads).launch(grid=x.shape[0], block=threads)


def kernel_fn(x, config=None):
    y = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    launch(x, y, (config or {"threads": 256})["threads"])
    return y


def reference_fn(x):
    return x.float().sum(dim=1)


def get_inputs(m=4096, n=4096, dtype="float16"):
    return [torch.randn(m, n, dtype=getattr(torch, dtype), device="cuda")]


def flops_bytes(m, n, dtype):
    return m * n, m * n * getattr(torch, dtype).itemsize + 4 * m


baselines = {"torch": reference_fn}
