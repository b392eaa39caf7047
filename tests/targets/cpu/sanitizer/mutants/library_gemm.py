"""The tensor-core product of the kernel library: `cp.async` into a ring, `ldmatrix`, `mma.sync`; tiles beyond the edge.

Once as it is, once with a bias, and with K shared by the two blocks of a cluster: in tiles whose results a thread has at
once, and in larger ones.
"""

import numpy as np

LIBRARY = ("impl.gemm.sm80_mainloop", "impl.gemm.sm80_epilogue")


def run(kernels):
    rng = np.random.default_rng(1)
    a = rng.integers(-4, 5, (40, 144)).astype(np.float16)
    b = rng.integers(-4, 5, (144, 24)).astype(np.float16)
    bias = rng.integers(-4, 5, 24).astype(np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64)
    float32 = np.dtype(np.float32)
    plain, *shared = (
        kernels.Sm80GemmConfig(tile, (1, 2), 3, split_k)
        for tile, split_k in (((32, 32, 32), 1), ((32, 32, 32), 2), ((64, 128, 32), 2))
    )
    got = kernels.gemm(a, b, config=plain, out_dtype=float32)
    more = [kernels.gemm(a, b, bias=bias, config=config, out_dtype=float32) for config in (plain, *shared)]
    return np.array_equal(np.asarray(got), want) and all(np.array_equal(np.asarray(x), want + bias) for x in more)
