"""The loss of the kernel library: rows shared by the blocks of a cluster, their mean, and its gradient."""

import numpy as np

LIBRARY = ("impl.cross_entropy.kernels",)


def run(kernels):
    rng = np.random.default_rng(8)
    x, target = rng.standard_normal((5, 512)).astype(np.float32), rng.integers(0, 512, 5)
    configs = (
        kernels.RowwiseConfig(threads=64, row_threads=64, cluster=2),
        kernels.RowwiseConfig(threads=128, row_threads=64),
    )
    made = [kernels.cross_entropy(x, target, reduction="none", config=config) for config in configs]
    p = np.exp(x.astype(np.float64))
    want = -np.log(p[np.arange(5), target] / p.sum(1))
    mean, lse = kernels.cross_entropy(x, target, return_lse=True)
    gradient = kernels.cross_entropy_backward(np.ones((), np.float32), x, target, lse=lse)
    p /= p.sum(1, keepdims=True)
    p[np.arange(5), target] -= 1
    right = abs(mean - want.mean()) < 1e-4 and np.abs(gradient - p / 5).max() < 1e-4
    return right and all(np.abs(got - want).max() < 1e-4 for got in made)
