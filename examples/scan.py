"""Inclusive and exclusive prefix sums of a vector of any length, in one pass over memory.

    python examples/scan.py               compare with numpy
    kiln verify examples/scan.py          check it: odd sizes, strides, races
    kiln profile examples/scan.py         registers, occupancy and instructions, without a GPU
    kiln bench examples/scan.py           time it beside PyTorch, on a GPU

The one idea is decoupled look-back (Merrill and Garland, 2016). A sum over everything before an element seems to need
two passes: one to add up the tiles, one to write the results. Here a block publishes the sum of its tile at once, and
then looks back at its predecessors until it meets one that already knows the sum of all tiles before it. Elements
are read once and written once.

Three levels, from fast to slow:

- a thread adds up the 16 bytes that it loads;
- a warp scans the sums of its lanes by shuffles, a block those of its warps through shared memory;
- tiles pass sums on through global memory, in one 64-bit word each: the state in the upper half, the sum in the lower.
  One word is written and read as a whole, so neither fences nor release and acquire are needed.

Blocks take their tiles from a counter. A block then waits only for blocks that have started already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln
from kiln import Constexpr, Float32, Int32, Int64, Uint32, cute, utils

WARPS = 8
ROWS = 4
"""Vectors of a thread. A warp has ROWS * 32 consecutive vectors, and loads 32 of them at a time."""
NOTHING, SUM, PREFIX = 0, 1, 2
"""What a tile has published: nothing, the sum of its own elements, or the sum of all elements up to its end."""


def accumulator(dtype: Any) -> Any:
    """Return the type of sums, which has 32 bits."""
    return Float32 if dtype.is_float else Int32


@cute.jit
def warp_scan(v):
    """Return the sum of the lanes up to and with this one."""
    lane = cute.arch.lane_idx()
    for step in (1, 2, 4, 8, 16):
        below = cute.arch.shuffle_sync_up(v, step, mask_and_clamp=0)
        v = v + kiln.select_(lane >= step, below, v.dtype(0))
    return v


@cute.jit
def publish(state: cute.Tensor, tile, what: Constexpr, v):
    word = Int64(what) << 32 | Int64(v.bitcast(Uint32))
    cute.arch.store(state.iterator + tile, word, sem="relaxed", scope="gpu")


@cute.jit
def look_back(state: cute.Tensor, tile, dtype: Constexpr):
    """Return the sum of all tiles before this one, in every lane of the warp that looks: 32 tiles at a time."""
    lane = cute.arch.lane_idx()
    total, last, searching = dtype(0), tile - 1, tile > 0
    while searching:
        other = last - lane
        word = Int64(PREFIX << 32)  # before the first tile: a prefix of 0
        if other >= 0:
            word = cute.arch.load(state.iterator + other, Int64, sem="relaxed", scope="gpu")
            while word >> 32 == NOTHING:
                word = cute.arch.load(state.iterator + other, Int64, sem="relaxed", scope="gpu")
        cute.arch.sync_warp()
        prefixes = cute.arch.vote_ballot_sync(word >> 32 == PREFIX)
        nearest = cute.arch.popc((prefixes & -prefixes) - 1)  # 32 if none of them knows its prefix
        v = Uint32(word & 0xFFFFFFFF).bitcast(dtype)
        total += cute.arch.warp_reduction_sum(kiln.select_(lane <= nearest, v, dtype(0)))
        searching = prefixes == 0
        last -= 32
    return total


@cute.kernel
def scan_kernel(x: cute.Tensor, y: cute.Tensor, state: cute.Tensor, vector: Constexpr, inclusive: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    lane, warp = cute.arch.lane_idx(), cute.arch.warp_idx()
    dtype = accumulator(x.element_type)
    smem = utils.SmemAllocator()
    shared_tile = smem.allocate_tensor(Int32, cute.make_layout(1))
    warp_sums = smem.allocate_tensor(dtype, cute.make_layout(WARPS))
    before_tile = smem.allocate_tensor(dtype, cute.make_layout(1))
    if thread == 0:
        shared_tile[0] = Int32(cute.arch.atomic_add(state.iterator + (cute.size(state) - 1), Int64(1)))
    cute.arch.sync_threads()
    tile = shared_tile[0]

    # load ROWS vectors, all of them before the first is used, and scan each within its thread
    count = cute.size(x)
    first = (tile * WARPS + warp) * (ROWS * 32) + lane  # in vectors
    whole = (tile + 1) * (WARPS * ROWS * 32 * vector) <= count
    loaded = cute.make_rmem_tensor((vector, ROWS), x.element_type)
    if whole:
        for row in kiln.range_constexpr(ROWS):
            cute.autovec_copy(cute.local_tile(x, (vector,), (first + row * 32,)), loaded[None, row])
    else:
        loaded.fill(0)
        for row in kiln.range_constexpr(ROWS):
            for i in kiln.range_constexpr(vector):
                if (first + row * 32) * vector + i < count:
                    loaded[i, row] = x[(first + row * 32) * vector + i]
    values = cute.make_rmem_tensor((vector, ROWS), dtype)
    values.store(loaded.load().to(dtype))
    for row in kiln.range_constexpr(ROWS):
        for i in kiln.range_constexpr(1, vector):
            values[i, row] += values[i - 1, row]

    # scan the lanes: `befores[row]` becomes the sum of the warp's elements before this thread's vector
    befores = cute.make_rmem_tensor(ROWS, dtype)
    warp_sum = dtype(0)
    for row in kiln.range_constexpr(ROWS):
        through = warp_scan(values[vector - 1, row])
        below = cute.arch.shuffle_sync_up(through, 1, mask_and_clamp=0)
        befores[row] = warp_sum + kiln.select_(lane > 0, below, dtype(0))
        warp_sum += cute.arch.shuffle_sync(through, 31)

    # scan the warps; the first warp looks back, and tells the others what lies before the tile
    if lane == 31:
        warp_sums[warp] = warp_sum
    cute.arch.sync_threads()
    before, tile_sum = dtype(0), dtype(0)
    for other in kiln.range_constexpr(WARPS):
        before += kiln.select_(other < warp, warp_sums[other], dtype(0))
        tile_sum += warp_sums[other]
    if warp == 0:
        if lane == 0 and tile > 0:
            publish(state, tile, SUM, tile_sum)
        prefix = look_back(state, tile, dtype)
        if lane == 0:
            publish(state, tile, PREFIX, prefix + tile_sum)
            before_tile[0] = prefix
    cute.arch.sync_threads()
    before += before_tile[0]

    result = cute.make_rmem_tensor((vector, ROWS), y.element_type)
    for row in kiln.range_constexpr(ROWS):
        for i in kiln.range_constexpr(vector):
            inside = values[i, row] if inclusive else values[i - 1, row] if i else dtype(0)
            result[i, row] = (before + befores[row] + inside).to(y.element_type)
    if whole:
        for row in kiln.range_constexpr(ROWS):
            cute.autovec_copy(result[None, row], cute.local_tile(y, (vector,), (first + row * 32,)))
    else:
        for row in kiln.range_constexpr(ROWS):
            for i in kiln.range_constexpr(vector):
                if (first + row * 32) * vector + i < count:
                    y[(first + row * 32) * vector + i] = result[i, row]


@cute.kernel
def clear_kernel(state: cute.Tensor):
    i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
    if i < cute.size(state):
        state[i] = Int64(NOTHING)


def tile_size(itemsize: int) -> int:
    """Return the number of elements of a tile."""
    return WARPS * ROWS * 32 * (16 // itemsize)


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, state: cute.Tensor, inclusive: Constexpr):
    vector = 128 // x.element_type.width
    clear_kernel(state).launch(grid=cute.ceil_div(cute.size(state), 256), block=256)
    scan_kernel(x, y, state, vector, inclusive).launch(
        grid=cute.ceil_div(cute.size(x), tile_size(16 // vector)), block=32 * WARPS
    )


def scan(x: Any, y: Any, state: Any, inclusive: bool = True) -> None:
    """y[i] = x[0] + ... + x[i], or without x[i]. `state`: a word of 64 bits for each tile, and one more."""
    launch(x, y, state, inclusive)


def words(count: int, itemsize: int) -> int:
    """Return how many 64-bit words `state` has for so many elements."""
    return -(-count // tile_size(itemsize)) + 1


# --- a check against numpy -------------------------------------------------------------------------------------------


def main() -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.int32, np.float32, np.float16):
        for count in (1, 129, 4096, 70001):
            x = rng.integers(-8, 9, count).astype(dtype)
            state = np.zeros(words(count, x.itemsize), np.int64)
            for inclusive in (True, False):
                y = np.zeros(count, np.int32 if dtype == np.int32 else np.float32)
                with kiln.target("cpu"):
                    scan(x, y, state, inclusive)
                want = np.cumsum(x, dtype=np.int64) - (0 if inclusive else x.astype(np.int64))
                assert np.array_equal(y, want), f"{np.dtype(dtype).name}, {count} elements, inclusive={inclusive}"
        print(f"{np.dtype(dtype).name:8} inclusive and exclusive agree with numpy")


# --- the contract: what `kiln verify`, `kiln profile` and `kiln bench` take ------------------------------------------


def kernel_fn(x):
    import torch

    y = torch.empty_like(x, dtype=torch.float32 if x.is_floating_point() else torch.int32)
    state = torch.empty(words(len(x), x.itemsize), dtype=torch.int64, device=x.device)
    scan(x.contiguous(), y, state)
    return y


def reference_fn(x):
    import torch

    return torch.cumsum(x, 0, dtype=torch.float32 if x.is_floating_point() else torch.int32)


def get_inputs(count=1 << 26, dtype="float32"):
    import torch

    return [torch.randn(count, device="cuda").mul(8).to(getattr(torch, dtype))]


problems = [{"count": 1 << 26, "dtype": dtype} for dtype in ("int32", "float32")]
nondeterministic = True  # which prefix a tile meets first is left to chance, and sums of floats round by their order
arch = "sm_80+"


def flops_bytes(count, dtype):
    return count, count * (np.dtype(dtype).itemsize + 4)


if __name__ == "__main__":
    main()
