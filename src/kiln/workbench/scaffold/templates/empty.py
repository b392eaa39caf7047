"""my_kernel: y = x, until you write what it should be.

kiln verify kernel.py            check it against reference_fn
kiln bench kernel.py             time it beside the baselines

Next: write my_kernel and reference_fn, and verify again.
"""

import torch
from kiln import cute

THREADS = 256


@cute.kernel
def my_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * THREADS + thread
    if i < cute.size(x):
        y[i] = x[i]


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    my_kernel(x, y).launch(grid=cute.ceil_div(cute.size(x), THREADS), block=THREADS)


def kernel_fn(x):
    """Runs the kernel and returns its output."""
    y = torch.empty_like(x)
    launch(x, y)
    return y


def reference_fn(x):
    """The same in plain PyTorch."""
    return x.clone()


def get_inputs(n=1 << 20, dtype="float32"):
    """The kernel's arguments; the parameters are the problem, and options of every `kiln` verb."""
    return [torch.randn(n, dtype=getattr(torch, dtype), device="cuda")]


# What else a contract may define: problems, configs, tolerance, flops_bytes, baselines, arch, ... (docs/workbench.md)
