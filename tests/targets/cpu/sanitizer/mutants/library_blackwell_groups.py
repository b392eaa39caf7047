"""Grouped products of the kernel library with tcgen05: in pairs, with tiles that lie across the result, and with scale factors of vectors,
of groups that begin and end anywhere."""

import importlib
import os

import ml_dtypes
import numpy as np

LIBRARY = ("impl.gemm.sm100_epilogue", "parts.tma_store_epilogue")
RELEASES = True
ENDS = [5, 5, 150, 170]


def operand(rng, shape):
    """Small integers, in rows that begin at multiples of 16 bytes."""
    memory = np.zeros(int(np.prod(shape)) * 2 + 16, np.uint8)
    first = -memory.ctypes.data % 16
    x = memory[first : memory.size - 16 + first].view(np.float16).reshape(shape)
    x[...] = rng.integers(-4, 5, shape)
    return x


def run(kernels):
    importlib.import_module("kiln.kernels.dispatch.devices").max_active_clusters = lambda size: 1
    rng, config = np.random.default_rng(1), kernels.Sm100GemmConfig
    a, b, ends = operand(rng, (180, 128)), operand(rng, (4, 72, 128)), np.array(ENDS, np.int32)
    want = np.concatenate(
        [a[i:j].astype(np.float64) @ b[group].T for group, (i, j) in enumerate(zip([0, *ENDS], ENDS, strict=False))]
    )
    left, right = a.astype(ml_dtypes.float8_e4m3fn), b.astype(ml_dtypes.float8_e4m3fn)
    scales = [np.full((*x.shape[:-1], 4), 0.5, ml_dtypes.float8_e8m0fnu) for x in (left, right)]
    before = os.environ.get("CUTE_DSL_ARCH")
    os.environ["CUTE_DSL_ARCH"] = "sm_100a"
    try:
        pairs = [
            (kernels.grouped_gemm(a, b.swapaxes(1, 2), offsets=ends, config=one), want)
            for one in (
                config((256, 96, 64), (2, 1), 2, 2, 2, 1),
                config((128, 32, 64), (1, 1), 2, 1, 2, 1, pair=False, swap_ab=True),
            )
        ]
        scaled = kernels.grouped_gemm(
            left, right.swapaxes(1, 2), offsets=ends, scale_a=scales[0], scale_b=scales[1].swapaxes(1, 2),
            config=config((128, 128, 128), (1, 1), 2, 2, 2, 1, pair=False),
        )  # fmt: skip
        pairs.append((scaled, want / 4))
    finally:
        os.environ.pop("CUTE_DSL_ARCH")
        if before is not None:
            os.environ["CUTE_DSL_ARCH"] = before
    return all(np.array_equal(np.asarray(got)[:170].astype(np.float64), wanted) for got, wanted in pairs)
