"""Gradients of norms of the kernel library: sums over rows by the warps of a block, one after another in the same memory."""

import numpy as np

LIBRARY = ("impl.rowwise.weight_gradients",)


def run(kernels):
    rng = np.random.default_rng(6)
    x, dy = (rng.standard_normal((37, 200)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(200).astype(np.float32)
    config = kernels.RowwiseConfig(threads=128, row_threads=64)
    _, dweight, dbias = kernels.layer_norm_backward(dy, x, weight, bias=True, config=config)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.astype(np.float64).var(1, keepdims=True) + 1e-5)
    return np.abs(dweight - (dy * normal).sum(0)).max() < 1e-3 and np.abs(dbias - dy.sum(0)).max() < 1e-3
