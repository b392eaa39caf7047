"""Transpose a matrix: 16-byte accesses to global memory on both sides, and no bank conflicts between them.

    python examples/transpose.py               compare with numpy
    kiln verify examples/transpose.py          check it: odd sizes, strides, races
    kiln profile examples/transpose.py         registers, occupancy and instructions, without a GPU
    kiln bench examples/transpose.py           time it beside PyTorch, on a GPU

The one idea is the swizzle. A block moves a square tile through shared memory. It writes rows of the tile, a vector of
16 bytes for each thread, and reads columns, an element at a time. Without a swizzle all elements of a column lie in
the same bank. Here the vectors of a row are permuted, differently in each group of V rows, so that 32 lanes read from 32
different banks:

    tile (T, T), vectors of V elements, U = T / V vectors in a row:  S<log2 U, log2 V, log2 T>

16-byte accesses need rows of whole vectors. Where M or N is not a multiple of V, the same kernel runs with V = 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln
from kiln import Constexpr, cute, utils

THREADS = 128
VECTOR_BYTES = 16


def tile_layout(tile: int, vector: int) -> Any:
    """Return the layout of a tile in shared memory: row-major, the vectors of a row permuted."""
    log_tile, log_vector = tile.bit_length() - 1, vector.bit_length() - 1
    swizzle = cute.make_swizzle(log_tile - log_vector, log_vector, log_tile)
    return cute.make_composed_layout(swizzle, 0, cute.make_layout((tile, tile), stride=(tile, 1)))


@cute.kernel
def transpose_kernel(x: cute.Tensor, y: cute.Tensor, vector: Constexpr, tile: Constexpr):
    """Move one tile of x, an (M, N / V, V) view, to y, an (N, M / V, V) view."""
    thread, _, _ = cute.arch.thread_idx()
    tile_n, tile_m, _ = cute.arch.block_idx()
    across = tile // vector  # vectors in a row of the tile
    smem = utils.SmemAllocator().allocate_tensor(x.element_type, tile_layout(tile, vector), 128)
    vectors = cute.zipped_divide(smem, (1, vector))  # ((1, V), (T, T / V))
    column, first_row = thread % across, thread // across

    # `column` runs fastest: neighbouring lanes load neighbouring vectors of x, and write them side by side
    for row in kiln.range_constexpr(0, tile, THREADS // across):
        m, n = tile_m * tile + first_row + row, tile_n * across + column
        if m < x.shape[0] and n < x.shape[1]:
            cute.autovec_copy(x[m, n, None], vectors[(0, None), (first_row + row, column)])
    cute.arch.sync_threads()

    # the same for rows of y, which are columns of the tile: V elements below each other become a vector of y
    for row in kiln.range_constexpr(0, tile, THREADS // across):
        n, m = tile_n * tile + first_row + row, tile_m * across + column
        if n < y.shape[0] and m < y.shape[1]:
            turned = cute.make_rmem_tensor(vector, x.element_type)
            for i in kiln.range_constexpr(vector):
                turned[i] = smem[column * vector + i, first_row + row]
            cute.autovec_copy(turned, y[n, m, None])


def in_vectors(t: cute.Tensor, vector: int) -> cute.Tensor:
    """Return a row-major matrix (R, C) as (R, C / V, V)."""
    rows, columns = t.shape
    pitch = cute.assume(columns, divby=vector)
    return cute.make_tensor(t.iterator, cute.make_layout((rows, columns // vector, vector), stride=(pitch, vector, 1)))


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, vector: Constexpr):
    tile = 8 * vector if vector > 1 else 32  # a row of a tile is 128 bytes, or 32 elements: a warp reads whole sectors
    grid = (cute.ceil_div(x.shape[1], tile), cute.ceil_div(x.shape[0], tile), 1)
    transpose_kernel(in_vectors(x, vector), in_vectors(y, vector), vector, tile).launch(grid=grid, block=THREADS)


def transpose(x: Any, y: Any) -> None:
    """y = x.T for contiguous matrices that begin at a multiple of 16 bytes: x (M, N), y (N, M)."""
    vector = VECTOR_BYTES // x.itemsize
    launch(x, y, 1 if any(extent % vector for extent in x.shape) else vector)


# --- a check against numpy -------------------------------------------------------------------------------------------


def main() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.uint8, np.float64):
        for shape in ((128, 256), (64, 80), (37, 129), (1, 5)):
            x = rng.integers(0, 100, shape).astype(dtype)
            y = np.zeros(shape[::-1], dtype)
            with kiln.target("cpu"), kiln.bank_conflicts() as report:
                transpose(x, y)
            assert np.array_equal(y, x.T), f"{np.dtype(dtype).name} {shape}: not the transpose"
            assert report.conflicts == 0, report
        print(f"{np.dtype(dtype).name:8} agrees with numpy, no bank conflicts")


# --- the contract: what `kiln verify`, `kiln profile` and `kiln bench` take ------------------------------------------


def kernel_fn(x):
    import torch

    y = torch.empty(x.shape[::-1], dtype=x.dtype, device=x.device)
    transpose(x.contiguous(), y)
    return y


def reference_fn(x):
    return x.T.contiguous()


def get_inputs(m=8192, n=8192, dtype="float32"):
    import torch

    return [torch.randn(m, n, device="cuda").to(getattr(torch, dtype))]


problems = [{"m": 8192, "n": 8192}, {"m": 8192, "n": 8192, "dtype": "float16"}, {"m": 8191, "n": 8193}]
tolerance = "exact"
arch = "sm_80+"


def flops_bytes(m, n, dtype):
    return 0, 2 * m * n * np.dtype(dtype).itemsize


if __name__ == "__main__":
    main()
