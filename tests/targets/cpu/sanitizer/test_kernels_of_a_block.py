"""Kernels whose threads share the memory of their block, each right and with one mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found, integers, shared

import kiln
from kiln import Constexpr, Float32, Int32, Int64, cute, range_constexpr
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

WARP = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


# --- a stencil, several steps in shared memory -----------------------------------------------------------------------


@cute.kernel
def stencil(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    size = kiln.const_expr(64 if wrong else 128)
    line = cute.make_tensor(cute.arch.alloc_smem(Float32, size), cute.make_layout(size))
    line[t] = x[t]
    cute.arch.sync_threads()
    for step in range_constexpr(3):
        source = 0 if wrong else 64 * (step % 2)
        target = 0 if wrong else 64 - source
        left = line[source + (t + 63) % 64]
        right = line[source + (t + 1) % 64]
        line[target + t] = left + right
        cute.arch.sync_threads()
    y[t] = line[(0 if wrong else 64) + t]


@cute.jit
def run_stencil(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    stencil(x, y, wrong).launch(grid=1, block=64)


def case_stencil(wrong: bool) -> Any:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    return found(run_stencil, x, y, wrong), (y == 8).all()


# --- sums of warps, in rounds ----------------------------------------------------------------------------------------


@cute.kernel
def warp_sums(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    sums = cute.make_tensor(cute.arch.alloc_smem(Int32, 4), cute.make_layout(4))
    for i in range(3):
        part = cute.arch.warp_redux_sync(x[i, t], "add")
        if t % 32 == 0:
            sums[t // 32] = part
        cute.arch.sync_threads()
        y[i, t] = sums[0] + sums[1] + sums[2] + sums[3]
        if kiln.const_expr(not wrong):
            cute.arch.sync_threads()


@cute.jit
def run_warp_sums(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    warp_sums(x, y, wrong).launch(grid=1, block=128)


def case_warp_sums(wrong: bool) -> Any:
    x, y = np.ones((3, 128), np.int32), np.zeros((3, 128), np.int32)
    return found(run_warp_sums, x, y, wrong), (y == 128).all()


# --- a halo from global memory ---------------------------------------------------------------------------------------


@cute.kernel
def halo(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 34), cute.make_layout(34))
    i = b * 32 + t
    tile[t + 1] = x[i]
    if t == 0:
        tile[0] = Float32(0.0)
        if i > 0:
            tile[0] = x[i - 1]
    if t == 31:
        tile[33] = Float32(0.0)
        if i < (96 if wrong else 95):
            tile[33] = x[i + 1]
    cute.arch.sync_threads()
    y[i] = tile[t] + tile[t + 1] + tile[t + 2]


@cute.jit
def run_halo(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    halo(x, y, wrong).launch(grid=3, block=32)


def case_halo(wrong: bool) -> Any:
    x, y = np.ones(96, np.float32), np.zeros(96, np.float32)
    return found(run_halo, x, y, wrong), np.array_equal(y, np.convolve(x, np.ones(3, np.float32), "same"))


# --- halves of a block, each with a barrier of its own ---------------------------------------------------------------


@cute.kernel
def halves(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    half = t // 64
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 128), cute.make_layout(128))
    tile[t] = x[t]
    if kiln.const_expr(wrong):
        # pairs warps as they come: 0 with 1 only by luck
        cute.arch.barrier(barrier_id=1 + t // 32 % 2, number_of_threads=64)
    else:
        cute.arch.barrier(barrier_id=1 + half, number_of_threads=64)
    y[t] = tile[half * 64 + (t + 32) % 64]


@cute.jit
def run_halves(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    halves(x, y, wrong).launch(grid=1, block=128)


def case_halves(wrong: bool) -> Any:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    return found(run_halves, x, y, wrong), np.array_equal(y, x.reshape(2, 2, 32)[:, ::-1].ravel())


# --- the largest of a short row: lanes beyond its end ----------------------------------------------------------------


@cute.kernel
def largest(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    mine = cute.make_rmem_tensor(cute.make_layout(1), Float32)
    if kiln.const_expr(not wrong):
        mine[0] = Float32(-float("inf"))
    if t < n:
        mine[0] = x[t]
    value = mine[0]
    for k in kiln.range_constexpr(5):
        value = max(value, cute.arch.shuffle_sync_bfly(value, offset=16 >> k))
    if t == 0:
        y[0] = value


@cute.jit
def run_largest(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    largest(x, y, n, wrong).launch(grid=1, block=32)


def case_largest(wrong: bool) -> Any:
    x, y = -1.0 - integers(20).astype(np.float32), np.zeros(1, np.float32)
    return found(run_largest, x, y, 20, wrong), y[0] == x.max()


# --- warps leave rows of sums for the last one, which waits for one arrival of each ----------------------------------


@cute.kernel
def gathers(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % 32, t // 32
    rows = cute.make_tensor(cute.arch.alloc_smem(Float32, 96), cute.make_layout((3, 32), stride=(32, 1)))
    ready = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(ready, 3)
    cute.arch.sync_threads()
    if warp < 3:
        rows[warp, lane] = x[warp, lane] + x[warp, 31 - lane]
        if kiln.const_expr(not wrong):
            cute.arch.sync_warp()
        if lane == 0:
            cute.arch.mbarrier_arrive(ready)
    else:
        cute.arch.mbarrier_wait(ready, 0)
        y[lane] = rows[0, lane] + rows[1, lane] + rows[2, lane]


@cute.jit
def run_gathers(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    gathers(x, y, wrong).launch(grid=1, block=128)


def case_gathers(wrong: bool) -> Any:
    x, y = integers(3, 32).astype(np.float32), np.zeros(32, np.float32)
    return found(run_gathers, x, y, wrong), np.array_equal(y, (x + x[:, ::-1]).sum(0))


# --- two buffers, filled by asynchronous copies one tile ahead -------------------------------------------------------


@cute.kernel
def double_buffer(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    buffers = shared(Float32, 1, 64, 2)
    tiles = cute.zipped_divide(x, (1, 64))
    count = 6
    cute.copy(atom, x[(None, t, 0)], buffers[(None, t, 0)])
    cute.arch.cp_async_commit_group()
    total = Float32(0.0)
    for tile in range(count):
        if tile + 1 < count:
            cute.copy(atom, x[(None, t, tile + 1)], buffers[(None, t, (tile + 1) % 2)])
        if kiln.const_expr(not wrong):
            cute.arch.cp_async_commit_group()
        elif tile + 1 < count:  # the last wait leaves the last copy in flight
            cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(1)
        cute.arch.sync_threads()
        total += buffers[0, 63 - t, tile % 2]
        cute.arch.sync_threads()
    y[t] = total


@cute.jit
def run_double_buffer(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    shaped = cute.make_tensor(x.iterator, cute.make_layout((1, 64, 6), stride=(1, 1, 64)))
    double_buffer(shaped, y, wrong).launch(grid=1, block=64)


def case_double_buffer(wrong: bool) -> Any:
    x, y = np.arange(384, dtype=np.float32), np.zeros(64, np.float32)
    return found(run_double_buffer, x, y, wrong), np.array_equal(y, x.reshape(6, 64).sum(0)[::-1])


# --- a warp fills buffers for three others ---------------------------------------------------------------------------


@cute.kernel
def one_for_three(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    stages, tiles = 3, 7
    buffers = shared(Float32, WARP, stages)
    full, empty = cute.arch.alloc_smem(Int64, stages), cute.arch.alloc_smem(Int64, stages)
    if t < stages:
        cute.arch.mbarrier_init(full + t, WARP)
        cute.arch.mbarrier_init(empty + t, 3)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    if warp == 3:
        for tile in range(tiles):
            cute.arch.mbarrier_wait(empty + tile % stages, (tile // stages % 2) ^ 1)
            buffers[lane, tile % stages] = x[tile, lane]
            cute.arch.mbarrier_arrive(full + tile % stages)
    else:
        total = Float32(0.0)
        for tile in range(tiles):
            phase = tile % 2 if kiln.const_expr(wrong) else tile // stages % 2
            cute.arch.mbarrier_wait(full + tile % stages, phase)
            total += buffers[(lane + warp) % WARP, tile % stages]
            cute.arch.sync_warp()
            if lane == 0:
                cute.arch.mbarrier_arrive(empty + tile % stages)
        y[warp, lane] = total


@cute.jit
def run_one_for_three(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    one_for_three(x, y, wrong).launch(grid=1, block=4 * WARP)


def case_one_for_three(wrong: bool) -> Any:
    x, y = np.arange(224, dtype=np.float32).reshape(7, 32), np.zeros((3, 32), np.float32)
    return found(run_one_for_three, x, y, wrong), np.array_equal(y, [np.roll(x.sum(0), -w) for w in range(3)])


# --- a matrix is transposed in its own memory ------------------------------------------------------------------------


@cute.kernel
def transposed(x: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    i, j, _ = cute.arch.block_idx()
    upper, lower = (shared(Float32, 8, 8, stride=(9, 1)) for _ in range(2))
    row, column = t // 8, t % 8
    if wrong or i <= j:
        upper[row, column] = x[i * 8 + row, j * 8 + column]
        lower[row, column] = x[j * 8 + row, i * 8 + column]
        cute.arch.sync_threads()
        x[j * 8 + row, i * 8 + column] = upper[column, row]
        if i != j:
            x[i * 8 + row, j * 8 + column] = lower[column, row]


@cute.jit
def run_transposed(x: cute.Tensor, wrong: Constexpr):
    transposed(x, wrong).launch(grid=(3, 3, 1), block=64)


def case_transposed(wrong: bool) -> Any:
    x = np.arange(576, dtype=np.float32).reshape(24, 24)
    want = x.T.copy()
    return found(run_transposed, x, wrong), np.array_equal(x, want)


# --- every warp counts for itself, then the counts are added ---------------------------------------------------------


@cute.kernel
def counts(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    bins = shared(Int32, 16, 4)
    if lane < 16:
        bins[lane, warp] = Int32(0)
    cute.arch.sync_warp()
    for i in range(t, n, 128):
        cute.arch.atomic_add(bins.iterator + (warp * 16 + x[i]), Int32(1))
    if kiln.const_expr(wrong):
        cute.arch.sync_warp()
    else:
        cute.arch.sync_threads()
    if t < 16:
        total = Int32(0)
        for w in range(4):
            total += bins[t, w]
        y[t] = total


@cute.jit
def run_counts(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    counts(x, y, n, wrong).launch(grid=1, block=128)


def case_counts(wrong: bool) -> Any:
    x, y = np.random.default_rng(2).integers(0, 16, 1000).astype(np.int32), np.zeros(16, np.int32)
    return found(run_counts, x, y, 1000, wrong), np.array_equal(y, np.bincount(x, minlength=16))


# --- two pairs of warps, each with a barrier of its own --------------------------------------------------------------


@cute.kernel
def pairs(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % WARP, t // WARP
    pair = warp // 2
    staged = shared(Float32, 64, 2)
    barrier = 1 if kiln.const_expr(wrong) else 1 + pair
    total = Float32(0.0)
    for i in range(3):
        staged[warp % 2 * WARP + lane, pair] = x[i, t]
        cute.arch.barrier(barrier_id=barrier, number_of_threads=64)
        total += staged[63 - (warp % 2 * WARP + lane), pair]
        cute.arch.barrier(barrier_id=barrier, number_of_threads=64)
    y[t] = total


@cute.jit
def run_pairs(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    pairs(x, y, wrong).launch(grid=1, block=128)


def case_pairs(wrong: bool) -> Any:
    x, y = np.arange(384, dtype=np.float32).reshape(3, 128), np.zeros(128, np.float32)
    want = x.sum(0).reshape(2, 64)[:, ::-1].reshape(-1)
    return found(run_pairs, x, y, wrong), np.array_equal(y, want)


# --- a tile with its neighbours --------------------------------------------------------------------------------------


@cute.kernel
def neighbours(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    tile = shared(Float32, WARP + 2)
    i = b * WARP + t
    tile[t + 1] = x[i] if i < n else Float32(0.0)
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else Float32(0.0)
    if t == WARP - 1:
        if kiln.const_expr(wrong):
            if i + 1 < n:
                tile[WARP + 1] = x[i + 1]
        else:
            tile[WARP + 1] = x[i + 1] if i + 1 < n else Float32(0.0)
    cute.arch.sync_warp()
    if i < n:
        y[i] = tile[t] + tile[t + 1] + tile[t + 2]


@cute.jit
def run_neighbours(x: cute.Tensor, y: cute.Tensor, n: Int32, wrong: Constexpr):
    neighbours(x, y, n, wrong).launch(grid=3, block=WARP)


def case_neighbours(wrong: bool) -> Any:
    x, y = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    wide = np.pad(x, 1)
    return found(run_neighbours, x, y, 96, wrong), np.array_equal(y, wide[:-2] + wide[1:-1] + wide[2:])


# --- rows read four elements at a time -------------------------------------------------------------------------------


@cute.kernel
def row_maxima(x: cute.Tensor, y: cute.Tensor, columns: Int32, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    row = cute.zipped_divide(x[b, None], (4,))
    held = cute.make_rmem_tensor(4, Float32)
    best = Float32(-1e30)
    place = Int32(0)
    if t * 4 < columns:
        if t * 4 + 4 <= columns or wrong:
            cute.autovec_copy(row[(None,), t], held)
            for k in kiln.range_constexpr(4):
                if held[k] > best:
                    best, place = held[k], t * 4 + k
        else:
            for k in range(columns - t * 4):
                if x[b, t * 4 + k] > best:
                    best, place = x[b, t * 4 + k], t * 4 + k
    for step in kiln.range_constexpr(5):
        other = cute.arch.shuffle_sync_bfly(best, 1 << step)
        where = cute.arch.shuffle_sync_bfly(place, 1 << step)
        if other > best:
            best, place = other, where
    if t == 0:
        y[b] = place


@cute.jit
def run_row_maxima(x: cute.Tensor, y: cute.Tensor, columns: Int32, wrong: Constexpr):
    row_maxima(x, y, columns, wrong).launch(grid=4, block=WARP)


def case_row_maxima(wrong: bool) -> Any:
    x, y = np.random.default_rng(3).permutation(4 * 64).astype(np.float32).reshape(4, 64), np.zeros(4, np.int32)
    part = from_dlpack(x[:, :50], assumed_align=16)
    return found(run_row_maxima, part, y, 50, wrong), np.array_equal(y, x[:, :50].argmax(1))


# --- all lanes copy a scale factor to shared memory --------------------------------------------------------------------


@cute.kernel
def scaled_rows(x: cute.Tensor, scales: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    """Every lane copies the scale factor of the rows by `cp.async`; what lies behind the last one is zero."""
    t, _, _ = cute.arch.thread_idx()
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
    shared_scales = shared(Float32, 1, 4)
    for stage in range(4):
        which = stage + t % 2 if wrong else stage
        inside = cute.make_rmem_tensor(1, cute.Boolean)
        inside[0] = stage < 3
        cute.copy(atom, scales[(None, which)], shared_scales[(None, stage)], pred=inside)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    for stage in range(4):
        y[t, stage] = x[t, stage] * shared_scales[0, stage]


@cute.jit
def run_scaled_rows(x: cute.Tensor, scales: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    shaped = cute.make_tensor(scales.iterator, cute.make_layout((1, 5)))
    scaled_rows(x, shaped, y, wrong).launch(grid=1, block=WARP)


def case_scaled_rows(wrong: bool) -> Any:
    x, y = integers(WARP, 4).astype(np.float32), np.zeros((WARP, 4), np.float32)
    scales = np.float32([2, 4, 8, 16, 32])
    return found(run_scaled_rows, x, scales, y, wrong), np.array_equal(y, x * np.float32([2, 4, 8, 0]))


CASES = {
    case_stencil: "race",
    case_warp_sums: "race",
    case_halo: "memory",
    case_halves: "race",
    case_largest: "",
    case_gathers: "",
    case_double_buffer: "",
    case_one_for_three: "",
    case_transposed: "",
    case_counts: "",
    case_pairs: "",
    case_neighbours: "",
    case_row_maxima: "",
    case_scaled_rows: "race",
}
"""What is wrong with the wrong ones, where one word says it."""


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_found_in_the_right_one(case: Any) -> None:
    findings, right = case(False)
    assert not findings, "\n".join(map(str, findings))
    assert right


@pytest.mark.parametrize("case", CASES)
def test_the_mistake_is_found(case: Any) -> None:
    findings, _ = case(True)
    assert findings
    assert CASES[case] in {"", *(finding.kind for finding in findings)}
