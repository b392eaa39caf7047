"""Kernels that the sanitizer was not developed on: five right, five wrong. Written after it, and run once for the record
in docs/sanitizer.md; since then they are tests like others."""

from __future__ import annotations

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, cute, range_constexpr

WRONG, RIGHT = True, False


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


CASES = {
    "stencil": (run_stencil, lambda: [np.ones(64, np.float32), np.zeros(64, np.float32)], "race"),
    "warp sums": (run_warp_sums, lambda: [np.ones((3, 128), np.int32), np.zeros((3, 128), np.int32)], "race"),
    "lock": (run_locked, lambda: [np.zeros(1, np.int32), np.zeros(1, np.int32)], "race"),
    "halo": (run_halo, lambda: [np.ones(96, np.float32), np.zeros(96, np.float32)], "memory"),
    "halves": (run_halves, lambda: [np.ones(128, np.float32), np.zeros(128, np.float32)], "race"),
}


@pytest.mark.parametrize("case", CASES)
def test_right(case: str) -> None:
    main, arguments, _ = CASES[case]
    findings = found(main, *arguments(), RIGHT)
    assert not findings, "\n".join(map(str, findings))


@pytest.mark.parametrize("case", CASES)
def test_wrong(case: str) -> None:
    main, arguments, kind = CASES[case]
    assert kind in {finding.kind for finding in found(main, *arguments(), WRONG)}
