"""Products of the kernel library on sm_90a: blocks of a cluster load for each other, one tile after the other; warpgroups in turns, with
a bias; K shared by the blocks of a cluster, operands swapped; weights that threads convert; 8-bit floats with factors of blocks, in turns;
groups, one with rows for one of two warpgroups only, the other with none."""

import importlib

import ml_dtypes
import numpy as np

LIBRARY = (
    "impl.gemm.sm90",
    "impl.gemm.sm90_epilogue",
    "parts.tma_store_epilogue",
    "impl.gemm.sm90_smem_epilogue",
    "impl.gemm.sm90_mixed_input",
)


def operand(rng, rows, columns, dtype=np.float16):
    """Small integers, in rows that begin at multiples of 16 bytes."""
    memory = np.zeros(rows * columns * np.dtype(dtype).itemsize + 16, np.uint8)
    first = -memory.ctypes.data % 16
    x = memory[first : memory.size - 16 + first].view(dtype).reshape(rows, columns)
    x[...] = rng.integers(-4, 5, (rows, columns))
    return x


def run(kernels):
    importlib.import_module("kiln.kernels.dispatch.devices").max_active_clusters = lambda size: 1
    rng, config = np.random.default_rng(1), kernels.Sm90GemmConfig
    a, b = operand(rng, 160, 96), operand(rng, 64, 96).T
    bias, weights = operand(rng, 1, 64, np.float32)[0], operand(rng, 64, 320, np.int8).T
    few = operand(rng, 8, 320)
    left, right = (operand(rng, rows, 256, ml_dtypes.float8_e4m3fn) for rows in (128, 32))
    factors = [np.ones(shape, np.float32) for shape in ((128, 2), (2, 1))]
    want = a.astype(np.float64) @ b.astype(np.float64)
    experts, ends = operand(rng, 3 * 32, 96).reshape(3, 32, 96).transpose(0, 2, 1), np.array([30, 30, 130])
    grouped = [
        a[first:end].astype(np.float64) @ b for first, end, b in zip((0, 30, 30), ends, experts.astype(np.float64))
    ]
    pairs = [
        (kernels.gemm(a, b, config=config((128, 32, 32), (2, 1), 2, 2)), want),
        (kernels.gemm(a, b, bias=bias, config=config((64, 64, 32), (1, 1), 2, 1, True)), want + bias),
        (
            kernels.gemm(a[:16], b, config=config((128, 16, 32), (1, 1), 2, 2, split_k_cluster=2, swap_ab=True)),
            want[:16],
        ),
        (
            kernels.gemm(few, weights, config=kernels.Sm90MixedInputConfig((128, 16, 64), (2, 1), 3, 2)),
            few.astype(np.float64) @ weights.astype(np.float64),
        ),
        (
            kernels.gemm(
                left, right.T, scale_a=factors[0], scale_b=factors[1], config=config((64, 32, 128), (1, 1), 2, 2, True)
            ),
            left.astype(np.float64) @ right.T.astype(np.float64),
        ),
        (
            kernels.grouped_gemm(a[:130], experts, offsets=ends, config=config((128, 32, 32), (1, 1), 2, 2)),
            np.concatenate(grouped),
        ),
    ]
    return all(np.array_equal(np.asarray(got).astype(np.float64), wanted) for got, wanted in pairs)
