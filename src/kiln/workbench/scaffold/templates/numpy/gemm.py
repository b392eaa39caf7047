import numpy as np

from ..gemm import launch


def kernel_fn(a, b, config=None):
    config = config or {"tile_m": 64, "tile_n": 64}
    c = np.empty((a.shape[0], b.shape[0]), a.dtype)
    launch(a, b, c, config["tile_m"], config["tile_n"])
    return c


def reference_fn(a, b):
    wide = np.result_type(a, np.float32)
    return (a.astype(wide) @ b.T.astype(wide)).astype(a.dtype)


def get_inputs(m=2048, n=2048, k=2048, dtype="float16"):
    return [np.random.standard_normal((extent, k)).astype(dtype) for extent in (m, n)]


def flops_bytes(m, n, k, dtype):
    return 2 * m * n * k, (m * k + n * k + m * n) * np.dtype(dtype).itemsize
