"""GEMMs of the kernel library on Hopper, config by config: tiles, clusters, stages, raster order, pingpong."""

import numpy as np
from arrays import empty, normal, on_gpu

from kiln import kernels, utils

arch = "sm_90a"
problems = [{"m": 256, "n": 512, "k": 192}, {"m": 8192, "n": 8192, "k": 8192}, {"m": 4096, "n": 4096, "k": 512}]
configs = [
    {"tile": [128, 256, 64], "cluster": [2, 1], "stages": 4, "group": 8, "pingpong": False},
    {"tile": [128, 256, 64], "cluster": [2, 1], "stages": 4, "group": 1, "pingpong": False},
    {"tile": [128, 256, 64], "cluster": [1, 1], "stages": 4, "group": 16, "pingpong": False},
    {"tile": [128, 256, 64], "cluster": [2, 1], "stages": 2, "group": 8, "pingpong": False},
    {"tile": [128, 128, 64], "cluster": [2, 1], "stages": 4, "group": 8, "pingpong": False},
    {"tile": [128, 192, 64], "cluster": [2, 1], "stages": 4, "group": 8, "pingpong": True},
]


def gemm_config(config):
    return kernels.Sm90GemmConfig(
        tuple(config["tile"]), tuple(config["cluster"]), config["stages"], config["group"], config["pingpong"]
    )


def numbers(config, problem):
    """What a config asks of caches and shared memory."""
    (tile_m, tile_n, _), (cluster_m, cluster_n) = config["tile"], config["cluster"]
    tiles_m, tiles_n = problem["m"] // tile_m, problem["n"] // tile_n
    blocks = range(min(132, tiles_m * tiles_n))
    wave = [utils.swizzled_tile(number, tiles_m, tiles_n, config["group"]) for number in blocks]
    rows, columns = ({int(place[mode]) for place in wave} for mode in (0, 1))
    operands = len(rows) * tile_m + len(columns) * tile_n  # rows of A and of B
    reads = (tile_m + tile_n) / (tile_m * tile_n)  # elements per multiply-add
    return {
        "wave_kib": operands * problem["k"] * 2 >> 10,
        "loaded_bytes": (tile_m / cluster_n + tile_n / cluster_m) * 64 * 2,  # from the cache, by a block for 64 of K
        "read_per_cycle": 2048 * 2 * 2 * reads,  # bytes, written and read, at 2048 multiply-adds a cycle
    }


def kernel_fn(a, b, config):
    c = empty((a.shape[0], b.shape[0]), np.float16, a)
    return kernels.gemm(a, b.T, out=c, config=gemm_config(config))


def reference_fn(a, b):
    return a @ b.T


def get_inputs(m, n, k):
    return [normal((m, k), np.float16), normal((n, k), np.float16)]


def flops_bytes(m, n, k):
    return 2 * m * n * k, 2 * (m * k + n * k + m * n)


baselines = {"cublas": lambda a, b: a @ b.T} if on_gpu() else {}
