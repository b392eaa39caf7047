"""Products of the kernel library with tcgen05: pairs that take one tile after the other, two accumulators of a tile with a matrix added,
tiles by cluster launch control, in blocks that load for each other, and 8-bit floats with scale factors of vectors."""

import importlib
import os

import ml_dtypes
import numpy as np

LIBRARY = (
    "impl.gemm.sm100",
    "impl.gemm.sm100_epilogue",
    "impl.gemm.sm100_block_scaled",
    "parts.tmem_accumulator",
    "parts.clc_tiles",
    "parts.tma_store_epilogue",
)
RELEASES = True


def operand(rng, rows, columns):
    """Small integers, in rows that begin at multiples of 16 bytes."""
    memory = np.zeros(rows * columns * 2 + 16, np.uint8)
    first = -memory.ctypes.data % 16
    x = memory[first : memory.size - 16 + first].view(np.float16).reshape(rows, columns)
    x[...] = rng.integers(-4, 5, (rows, columns))
    return x


def run(kernels):
    importlib.import_module("kiln.kernels.dispatch.devices").max_active_clusters = lambda size: 1
    rng, config = np.random.default_rng(1), kernels.Sm100GemmConfig
    a, b, c = operand(rng, 520, 144), operand(rng, 72, 144).T, operand(rng, 520, 72)
    want = a.astype(np.float64) @ b.astype(np.float64)
    left, right = (x.astype(ml_dtypes.float8_e4m3fn) for x in (a[:, :128], b[:128].T))
    scales = [np.full((len(x), 4), 0.5, ml_dtypes.float8_e8m0fnu) for x in (left, right)]
    scaled = left.astype(np.float64) @ right.T.astype(np.float64) / 4
    before = os.environ.get("CUTE_DSL_ARCH")
    os.environ["CUTE_DSL_ARCH"] = "sm_100a"
    try:
        pairs = [
            (kernels.gemm(a, b, config=config((256, 96, 64), (2, 1), 2, 2, 2, 1)), want),
            (kernels.gemm(a, b, c=c, config=config((512, 32, 64), (2, 1), 2, 1, 2, 1)), want + c),
            (kernels.gemm(a, b, config=config((128, 32, 64), (2, 1), 2, 1, 3, 1, pair=False, dynamic=True)), want),
            (
                kernels.gemm(
                    left,
                    right.T,
                    scale_a=scales[0],
                    scale_b=scales[1].T,
                    config=config((256, 128, 128), (2, 1), 2, 2, 2, 1),
                ),
                scaled,
            ),
        ]
    finally:
        os.environ.pop("CUTE_DSL_ARCH")
        if before is not None:
            os.environ["CUTE_DSL_ARCH"] = before
    return all(np.array_equal(np.asarray(got).astype(np.float64), wanted) for got, wanted in pairs)
