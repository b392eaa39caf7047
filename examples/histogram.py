"""Count how many elements of an array fall into each bin, without conflicts between lanes.

    python examples/histogram.py               compare with numpy
    kiln verify examples/histogram.py          check it: odd sizes, strides, races
    kiln profile examples/histogram.py         registers, occupancy and instructions, without a GPU
    kiln bench examples/histogram.py           time it beside PyTorch, on a GPU

The one idea is privatised bins. If all threads counted in global memory, they would queue for the popular bins. So each
block counts in shared memory, and adds its counts to those of the others at the end. And each block has not one set of
bins but 32, side by side: lane L counts in column L.

    bin 0:   lane 0, lane 1, ... lane 31        word bin * 32 + lane: always bank `lane`
    bin 1:   lane 0, lane 1, ... lane 31

Lanes of a warp never meet in a bin, nor in a bank, however skewed the data are. Only warps of one block share columns,
so counting is still atomic. With many bins there is room for fewer columns, and lanes share them.

Which bin an element is in is a Python function, which is traced into the kernel. Bins that do not exist count nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kiln
from kiln import Constexpr, Float32, Int32, cute, utils

THREADS = 512
VECTORS = 4
"""Vectors of 16 bytes that a thread loads before it counts the first."""
SMS = 132
"""SMs of an H200; four blocks are launched for each."""
SMEM_BYTES = 32 << 10
"""Shared memory for the bins of a block: four blocks of 512 threads fill an SM."""


def columns_for(bins: int) -> int:
    """Return how many copies of the bins a block has: a power of two, at most 32."""
    return min(32, 1 << max(SMEM_BYTES // 4 // bins, 1).bit_length() - 1)


@cute.kernel
def histogram_kernel(x: cute.Tensor, counts: cute.Tensor, bin_of: Constexpr, bins: Constexpr, vector: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    columns = columns_for(bins)
    private = utils.SmemAllocator().allocate_tensor(Int32, cute.make_layout((bins, columns), stride=(columns, 1)), 128)
    flat = cute.make_tensor(private.iterator, cute.make_layout(bins * columns))
    for i in range(thread, bins * columns, THREADS):
        flat[i] = 0
    cute.arch.sync_threads()

    # All blocks walk through the array together, a tile of VECTORS * THREADS vectors each.
    mine = private[None, lane % columns]
    count = cute.size(x)
    size = VECTORS * THREADS * vector
    for tile in range(block, cute.ceil_div(count, size), blocks):
        first = tile * (VECTORS * THREADS) + thread  # in vectors
        if (tile + 1) * size <= count:
            loaded = cute.make_rmem_tensor((vector, VECTORS), x.element_type)
            for k in kiln.range_constexpr(VECTORS):
                cute.autovec_copy(cute.local_tile(x, (vector,), (first + k * THREADS,)), loaded[None, k])
            for i in kiln.range_constexpr(VECTORS * vector):
                add_one(mine, bin_of(loaded[i]), bins)
        else:
            for i in range(tile * size + thread, count, THREADS):
                add_one(mine, bin_of(x[i]), bins)
    cute.arch.sync_threads()

    # A warp adds up the columns of a bin: 32 words side by side.
    for b in range(warp, bins, THREADS // 32):
        total = Int32(0)
        if lane < columns:
            total = private[b, lane]
        total = cute.arch.warp_reduction_sum(total)
        if lane == 0 and total > 0:
            cute.arch.atomic_add(counts.iterator + b, total)


@cute.jit
def add_one(mine: cute.Tensor, b, bins: Constexpr):
    if b >= 0 and b < bins:
        cute.arch.atomic_add(mine.iterator + mine.layout(b), Int32(1), scope="cta")


@cute.jit
def histogram(x: cute.Tensor, counts: cute.Tensor, bin_of: Constexpr, bins: Constexpr, blocks: Int32):
    """counts[b] += how many elements of x are in bin b = bin_of(element), for x of one mode, by at most `blocks` blocks."""
    vector = 128 // x.element_type.width
    tiles = cute.ceil_div(cute.size(x), VECTORS * THREADS * vector)
    histogram_kernel(x, counts, bin_of, bins, vector).launch(grid=kiln.minimum(tiles, blocks), block=THREADS)


def even_bins(low: float, high: float, bins: int) -> Callable[[Any], Any]:
    """Return the function for bins of one width between `low` and `high`; the last bin includes `high`."""

    def bin_of(v: Any) -> Any:
        v = v.to(Float32)
        inside = (v >= low) & (v <= high)  # false for NaN
        b = kiln.select_(inside, (v - low) * (bins / (high - low)), Float32(-1)).to(Int32)
        return kiln.minimum(b, bins - 1)

    return bin_of


def value_bins(v: Any) -> Any:
    """Return the bin of an integer: the integer itself."""
    return v.to(Int32)


# --- a check against numpy -------------------------------------------------------------------------------------------


def main() -> None:
    rng = np.random.default_rng(0)
    for bins in (10, 256, 1000):
        for count in (5, 20_000):
            x = rng.standard_normal(count).astype(np.float32)
            x[:2] = np.nan, 4.0
            counts = np.zeros(bins, np.int32)
            with kiln.target("cpu"):
                histogram(x, counts, even_bins(-4.0, 4.0, bins), bins, 2)
            kept = x[(x >= -4) & (x <= 4)]
            want = np.bincount(
                np.minimum((kept + np.float32(4)) * np.float32(bins / 8), bins - 1).astype(int), minlength=bins
            )
            assert np.array_equal(counts, want), f"{bins} bins, {count} elements"
    x = np.full(10_001, 7, np.uint8)  # the worst case: one bin
    counts = np.zeros(256, np.int32)
    with kiln.target("cpu"):
        histogram(x, counts, value_bins, 256, 2)
    assert np.array_equal(counts, np.bincount(x, minlength=256))
    print("float32 and uint8 agree with numpy")


# --- the contract: what `kiln verify`, `kiln profile` and `kiln bench` take ------------------------------------------


def kernel_fn(x, bins):
    import torch

    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    histogram(x.contiguous(), counts, even_bins(0.0, 1.0, bins), bins, 4 * SMS)
    return counts


def reference_fn(x, bins):
    import torch

    return torch.histc(x, bins, 0.0, 1.0).to(torch.int32)


def get_inputs(count=1 << 26, bins=256):
    import torch

    return [torch.rand(count, device="cuda"), bins]


problems = [{"count": 1 << 26, "bins": bins} for bins in (256, 4096)]
tolerance = "exact"
arch = "sm_80+"


def flops_bytes(count, bins):
    return 0, 4 * count


if __name__ == "__main__":
    main()
