"""The tensor-core product of the kernel library: `cp.async` into a ring, `ldmatrix`, `mma.sync`; tiles beyond the edge."""

import numpy as np

LIBRARY = ("tensor_core_gemm", "gemm_base")


def run(kernels):
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (40, 144)).astype(np.float16)
    b = rng.integers(-4, 5, (144, 24)).astype(np.float16)
    tiling = kernels.Tiling((32, 32, 32), (1, 2), 3)
    got = kernels.gemm(a, b, tiling=tiling, out_dtype=np.dtype(np.float32))
    return np.array_equal(np.asarray(got), a.astype(np.float64) @ b.astype(np.float64))
