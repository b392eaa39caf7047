import numpy as np

from ..empty import launch


def kernel_fn(x):
    """Runs the kernel and returns its output."""
    y = np.empty_like(x)
    launch(x, y)
    return y


def reference_fn(x):
    """The same in plain numpy."""
    return x.copy()


def get_inputs(n=1 << 20, dtype="float32"):
    """The kernel's arguments; the parameters are the problem, and options of every `kiln` verb."""
    return [np.random.standard_normal(n).astype(dtype)]


# What else a contract may define: problems, configs, tolerance, flops_bytes, baselines, arch, ... (docs/workbench.md)
