"""The product of the kernel library without tensor cores: `cp.async` into a ring, fragments loaded a step ahead.

Once as it is, and once with a bias: sums go through shared memory.
"""

import numpy as np

LIBRARY = ("impl.gemm.sm80_mainloop",)


def run(kernels):
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (70, 40)).astype(np.float32)
    b = rng.integers(-4, 5, (40, 36)).astype(np.float32)
    bias = rng.integers(-4, 5, 36).astype(np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64)
    config = kernels.Sm80GemmConfig((64, 64, 8), (2, 1), 3)
    got, after = kernels.gemm(a, b, config=config), kernels.gemm(a, b, bias=bias, config=config)
    return np.array_equal(np.asarray(got), want) and np.array_equal(np.asarray(after), want + bias)
