"""Kernels whose blocks wait for each other, or share what they compute, each right and with one mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found, integers, shared

import kiln
from kiln import Constexpr, Float32, Int32, cute

WARP = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


# --- a lock between blocks -------------------------------------------------------------------------------------------


@cute.kernel
def locked(lock: cute.Tensor, total: cute.Tensor, wrong: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if t == 0:
        taken = Int32(1)
        while taken != 0:
            taken = cute.arch.atomic_cas(lock.iterator, cmp=Int32(0), val=Int32(1), sem="acquire", scope="gpu")
        total[0] = total[0] + 1
        if kiln.const_expr(wrong):
            lock[0] = Int32(0)
        else:
            cute.arch.atomic_exch(lock.iterator, Int32(0), sem="release", scope="gpu")


@cute.jit
def run_locked(lock: cute.Tensor, total: cute.Tensor, wrong: Constexpr):
    locked(lock, total, wrong).launch(grid=4, block=32)


def case_locked(wrong: bool) -> Any:
    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    return found(run_locked, lock, total, wrong), total[0] == 4


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


def case_queue(wrong: bool) -> Any:
    x, y = np.ones((7, 64), np.float32), np.zeros((7, 64), np.float32)
    return found(run_queue, np.zeros(1, np.int32), x, y, 7, wrong), np.array_equal(y, 2 * x)


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


def case_in_turn(wrong: bool) -> Any:
    x, total = integers(3, 64).astype(np.float32), np.zeros(64, np.float32)
    return found(run_in_turn, np.zeros(1, np.int32), x, total, wrong), np.array_equal(total, x.sum(0))


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


def case_counts(wrong: bool) -> Any:
    x, y = integers(2, 128, most=32).astype(np.int32), np.zeros(32, np.int32)
    return found(run_counts, x, y, wrong), np.array_equal(y, np.bincount(x.ravel(), minlength=32))


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


@pytest.mark.parametrize("how", ["acq_rel", "sequential"])
def test_a_fence_before_the_barrier(how: str) -> None:
    """PTX orders it only for fences that are sequentially consistent."""
    findings, right = case_split_k(how)
    assert right
    assert {f.rule for f in findings} == ({"atomic"} if how == "acq_rel" else set())


CASES = {
    case_locked: "race",
    case_queue: "",
    case_in_turn: "",
    case_counts: "",
    case_split_k: "",
    case_cluster_sum: "",
    case_running_sums: "",
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
