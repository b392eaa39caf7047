"""A third set of kernels that the sanitizer was not developed on: ten, each right and with one mistake. Written when it was
finished, and run once for the record in docs/sanitizer.md; since then they are tests like others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, Int64, cute
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack

WARP = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def shared(kind: Any, *shape: int, stride: Any = None) -> Any:
    layout = cute.make_layout(shape if len(shape) > 1 else shape[0], stride=stride)
    return cute.make_tensor(cute.arch.alloc_smem(kind, cute.cosize(layout), 16), layout)


# --- blocks share a sum over K; the one that is last applies a function ----------------------------------------------


@cute.kernel
def split_k(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, counter: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    part, _, _ = cute.arch.block_idx()
    parts, _, _ = cute.arch.grid_dim()
    last = shared(Int32, 1)
    row, column = t // 8, t % 8
    total = Float32(0.0)
    for k in range(part * 8, part * 8 + 8):
        total += a[row, k] * b[k, column]
    cute.arch.atomic_add(c.iterator + (row * 8 + column), total)
    if kiln.const_expr(wrong == "acq_rel"):  # orders what the thread writes itself after it, and it writes nothing
        cute.arch.fence_acq_rel_gpu()
    elif kiln.const_expr(wrong == "sequential"):
        cute.arch.inline_ptx("membar.gl;")
    cute.arch.sync_threads()
    if t == 0:
        if kiln.const_expr(not wrong):
            cute.arch.fence_acq_rel_gpu()
        last[0] = cute.arch.atomic_add(counter.iterator, Int32(1))
        cute.arch.fence_acq_rel_gpu()
    cute.arch.sync_threads()
    if last[0] == parts - 1:
        c[row, column] = cute.arch.fmax(c[row, column], Float32(0.0))


@cute.jit
def run_split_k(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, counter: cute.Tensor, wrong: Constexpr):
    split_k(a, b, c, counter, wrong).launch(grid=4, block=64)


def case_split_k(wrong: Any) -> Any:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((8, 32), (32, 8)))
    c = np.zeros((8, 8), np.float32)
    return found(run_split_k, a, b, c, np.zeros(1, np.int32), wrong), np.array_equal(c, np.maximum(a @ b, 0))


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


# --- the blocks of a cluster add up what each of them has ------------------------------------------------------------


@cute.kernel
def cluster_sum(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rank = cute.arch.block_idx_in_cluster()
    mine = shared(Float32, WARP)
    mine[t] = x[block, t]
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    total = Float32(0.0)
    if rank == 0:
        for other in range(4):
            theirs = cute.make_tensor(cute.arch.map_dsmem_ptr(mine.iterator, other), mine.layout)
            total += theirs[WARP - 1 - t]
    if kiln.const_expr(not wrong):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    if rank == 0:
        y[block // 4, t] = total


@cute.jit
def run_cluster_sum(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    cluster_sum(x, y, wrong).launch(grid=8, block=WARP, cluster=(4, 1, 1))


def case_cluster_sum(wrong: bool) -> Any:
    x, y = np.arange(256, dtype=np.float32).reshape(8, 32), np.zeros((2, 32), np.float32)
    return found(run_cluster_sum, x, y, wrong), np.array_equal(y, x.reshape(2, 4, 32).sum(1)[:, ::-1])


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


# --- running sums of a long row: a block asks those before it --------------------------------------------------------


@cute.kernel
def running_sums(x: cute.Tensor, y: cute.Tensor, sums: cute.Tensor, flags: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    before = shared(Float32, 1)
    value = x[b * WARP + t]
    for k in kiln.range_constexpr(5):
        other = cute.arch.shuffle_sync_up(value, 1 << k)
        if t >= 1 << k:
            value += other
    if t == 31:
        start = Float32(0.0)
        if b > 0:
            ready = Int32(0)
            while ready == 0:
                ready = cute.arch.load(flags.iterator + (b - 1), Int32, sem="acquire", scope="gpu")
            start = sums[b - 1]
        sums[b] = start + value
        order = "relaxed" if kiln.const_expr(wrong) else "release"
        cute.arch.store(flags.iterator + b, Int32(1), sem=order, scope="gpu")
        before[0] = start
    cute.arch.sync_warp()
    y[b * WARP + t] = before[0] + value


@cute.jit
def run_running_sums(x: cute.Tensor, y: cute.Tensor, sums: cute.Tensor, flags: cute.Tensor, wrong: Constexpr):
    running_sums(x, y, sums, flags, wrong).launch(grid=5, block=WARP)


def case_running_sums(wrong: bool) -> Any:
    x, y = np.ones(160, np.float32), np.zeros(160, np.float32)
    flags, sums = np.zeros(5, np.int32), np.zeros(5, np.float32)
    return found(run_running_sums, x, y, sums, flags, wrong), np.array_equal(y, np.arange(1, 161))


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


@pytest.mark.parametrize("how", ["acq_rel", "sequential"])
def test_a_fence_before_the_barrier(how: str) -> None:
    """The first run had this among the right ones, with `acq_rel`: PTX orders it only for fences that are sequentially consistent."""
    findings, right = case_split_k(how)
    assert right
    assert {f.rule for f in findings} == ({"atomic"} if how == "acq_rel" else set())


CASES = [
    case_split_k, case_double_buffer, case_cluster_sum, case_one_for_three, case_transposed, case_counts, case_running_sums,
    case_pairs, case_neighbours, case_row_maxima,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_right_ones(case: Any) -> None:
    findings, right = case(False)
    assert not findings, "\n".join(map(str, findings))
    assert right


@pytest.mark.parametrize("case", CASES)
def test_wrong_ones(case: Any) -> None:
    findings, _ = case(True)
    assert findings
