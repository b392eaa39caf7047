"""A second set of kernels that the sanitizer was not developed on: five right, five wrong. Written when it was finished, and run
once for the record in docs/sanitizer.md; since then they are tests like others."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, Int64, cute

WRONG, RIGHT = True, False


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


# --- blocks take tiles from a counter, which one thread asks for all -------------------------------------------------


@cute.kernel
def queue(counter: cute.Tensor, x: cute.Tensor, y: cute.Tensor, tiles: Int32, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    ticket = cute.make_tensor(cute.arch.alloc_smem(Int32, 1), cute.make_layout(1))
    tile = Int32(0)
    while tile < tiles:
        if t == 0:
            ticket[0] = cute.arch.atomic_add(counter.iterator, Int32(1))
        cute.arch.sync_threads()
        tile = ticket[0]
        if kiln.const_expr(not wrong):
            cute.arch.sync_threads()
        if tile < tiles:
            y[tile, t] = x[tile, t] * 2.0


@cute.jit
def run_queue(counter: cute.Tensor, x: cute.Tensor, y: cute.Tensor, tiles: Int32, wrong: Constexpr):
    queue(counter, x, y, tiles, wrong).launch(grid=3, block=64)


# --- blocks add their part of a sum one after another, by a semaphore ------------------------------------------------


@cute.kernel
def in_turn(turn: cute.Tensor, x: cute.Tensor, total: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    if t == 0:
        seen = Int32(-1)
        while seen != b:
            seen = cute.arch.load(turn.iterator, Int32, sem="acquire", scope="gpu")
    if kiln.const_expr(not wrong):
        cute.arch.sync_threads()
    total[t] = total[t] + x[b, t]
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.store(turn.iterator, b + 1, sem="release", scope="gpu")


@cute.jit
def run_in_turn(turn: cute.Tensor, x: cute.Tensor, total: cute.Tensor, wrong: Constexpr):
    in_turn(turn, x, total, wrong).launch(grid=3, block=64)


# --- the blocks of a cluster count into the memory of the first ------------------------------------------------------


@cute.kernel
def counts(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    rank = cute.arch.block_idx_in_cluster()
    memory = cute.arch.alloc_smem(Int32, 32)
    bins = cute.make_tensor(memory, cute.make_layout(32))
    bins[t] = Int32(0)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    first = cute.arch.map_dsmem_ptr(memory, 0)
    for i in range(4):
        cute.arch.atomic_add(first + x[rank, i * 32 + t], Int32(1))
    if kiln.const_expr(not wrong):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    if rank == 0:
        y[t] = bins[t]


@cute.jit
def run_counts(x: cute.Tensor, y: cute.Tensor, wrong: Constexpr):
    counts(x, y, wrong).launch(grid=2, block=32, cluster=(2, 1, 1))


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


def _integers(*shape: int, most: int = 9) -> np.ndarray:
    return np.random.default_rng(8).integers(0, most, shape)


CASES = {
    "queue": (
        run_queue,
        lambda: [np.zeros(1, np.int32), np.ones((7, 64), np.float32), np.zeros((7, 64), np.float32), 7],
        lambda counter, x, y, tiles: np.array_equal(y, 2 * x),
    ),
    "in turn": (
        run_in_turn,
        lambda: [np.zeros(1, np.int32), _integers(3, 64).astype(np.float32), np.zeros(64, np.float32)],
        lambda turn, x, total: np.array_equal(total, x.sum(0)),
    ),
    "counts": (
        run_counts,
        lambda: [_integers(2, 128, most=32).astype(np.int32), np.zeros(32, np.int32)],
        lambda x, y: np.array_equal(y, np.bincount(x.ravel(), minlength=32)),
    ),
    "largest": (
        run_largest,
        lambda: [-1.0 - _integers(20).astype(np.float32), np.zeros(1, np.float32), 20],
        lambda x, y, n: y[0] == x.max(),
    ),
    "gathers": (
        run_gathers,
        lambda: [_integers(3, 32).astype(np.float32), np.zeros(32, np.float32)],
        lambda x, y: np.array_equal(y, (x + x[:, ::-1]).sum(0)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_right(case: str) -> None:
    main, make, check = CASES[case]
    arguments = make()
    findings = found(main, *arguments, RIGHT)
    assert check(*arguments)
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("case", CASES)
def test_wrong(case: str) -> None:
    main, make, _ = CASES[case]
    assert found(main, *make(), WRONG)
