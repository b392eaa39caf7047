"""Softmax of the kernel library: rows held by several warps, and rows shared by the blocks of a cluster; half in shared memory; or
read twice, in chunks.

Quantised LayerNorm: several rows of a block, the next of which is loaded while one is computed.

Last, two launches in one function, of which the second reads what the first writes, and may begin before it ends.
"""

import numpy as np

from kiln import Float8E4M3FN, cute
from kiln.base_dsl.typing import Float32, Int32, Int64
from kiln.cute.runtime import from_dlpack

LIBRARY = ("impl.rowwise.row_kernel",)


def softmax(x):
    p = np.exp(x.astype(np.float64))
    return p / p.sum(1, keepdims=True)


def run(kernels):
    x = np.random.default_rng(5).standard_normal((5, 512)).astype(np.float32)
    configs = (
        kernels.RowwiseConfig(threads=128, row_threads=64),
        kernels.RowwiseConfig(threads=64, row_threads=64, cluster=2),
        kernels.RowwiseConfig(threads=64, row_threads=64, smem_vectors=1),
    )
    right = all(np.abs(kernels.softmax(x, config=config) - softmax(x)).max() < 1e-5 for config in configs)
    long = np.random.default_rng(6).standard_normal((2, 8192)).astype(np.float32)
    chunks = kernels.RowwiseConfig(threads=32, row_threads=32, cluster=2)  # read twice: more than threads hold
    right = right and np.abs(kernels.softmax(long, config=chunks) - softmax(long)).max() < 1e-5
    return right and double_buffered(kernels, x) and twice(kernels, x)


def double_buffered(kernels, x):
    config = kernels.RowwiseConfig(threads=64, row_threads=64, smem_vectors=2, rows_per_cta=3)
    q, scales = kernels.layer_norm(x, quantize=Float8E4M3FN, config=config)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.astype(np.float64).var(1, keepdims=True) + 1e-5)
    return np.abs(q.astype(np.float32) * scales - normal).max() < 0.2


def twice(kernels, x):
    config = kernels.RowwiseConfig(threads=64, row_threads=64)
    problem = kernels.impl.rowwise.row_kernel.RowProblem(
        (Float32,), (Float32,), (), 0, 4, 2, True, config, overlaps=True
    )
    kernel = kernels.impl.rowwise.softmax_and_norms.Softmax(problem)
    steps = (Int64(512), Int64(512))

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, z: cute.Tensor):
        kernel((x, y), Int32(5), Int32(512), Int32(0), steps, (), Int32(5), Int64(0))
        kernel((y, z), Int32(5), Int32(512), Int32(0), steps, (), Int32(5), Int64(0))

    y, z = np.zeros_like(x), np.zeros_like(x)
    launch(*(from_dlpack(a) for a in (x, y, z)))
    return np.abs(z - softmax(softmax(x))).max() < 1e-5
