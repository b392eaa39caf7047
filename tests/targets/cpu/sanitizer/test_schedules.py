"""A launch that found nothing is tried under further schedules, and leaves no more behind than one run does."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, cute
from kiln.targets.cpu.runtime import parts
from kiln.targets.cpu.sanitizer import state

ALL = 1 + state.FURTHER


@cute.kernel
def last_kernel(count: cute.Tensor, y: cute.Tensor, wrong: cute.Constexpr):
    """The block that comes last writes the result; taking it for the last of the grid is right if they come in order."""
    b, _, _ = cute.arch.block_idx()
    n, _, _ = cute.arch.grid_dim()
    ticket = cute.arch.atomic_add(count.iterator.llvm_ptr, Int32(1), sem="acq_rel", scope="gpu")
    if ticket % n == n - 1:
        y[n - 1 - b if wrong else 0] = y[0] + 1.0


@cute.jit
def last(count: cute.Tensor, y: cute.Tensor, wrong: cute.Constexpr):
    last_kernel(count, y, wrong).launch(grid=4, block=1)


def test_what_only_another_schedule_shows_is_found():
    count, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
    with kiln.sanitize(raises=False) as report:
        last(count, y, True)
    (finding,) = report.findings
    assert finding.rule == "bounds"
    seed = int(finding.hint.partition("KILN_CPU_SEED=")[2].split()[0])
    assert 1 <= seed <= state.FURTHER
    assert (count[0], y[0]) == (4, 1)  # what the first schedule has done, once
    assert f"1 finding under {seed + 1} schedules" in str(report)
    try:
        parts.set_seed(seed)
        with kiln.sanitize(raises=False) as again:
            last(count, y, True)
    finally:
        parts.set_seed()
    assert [each.rule for each in again.findings] == ["bounds"] and again.schedules == 1
    assert "found under another schedule" not in str(again)


def test_how_many_were_tried():
    count, y = np.zeros(1, np.int32), np.zeros(1, np.float32)
    with kiln.sanitize() as report:
        assert report.schedules == 0 and str(report) == "the sanitizer found nothing"
        for _ in range(4):
            last(count, y, False)
    assert (count[0], y[0]) == (16, 4)
    assert report.schedules == ALL and str(report) == f"the sanitizer found nothing under {ALL} schedules"
    assert kiln.sanitize.report().schedules >= ALL
    try:
        parts.set_seed(2)
        with kiln.sanitize() as report:
            last(count, y, False)
    finally:
        parts.set_seed()
    assert report.schedules == 1 and str(report) == "the sanitizer found nothing under 1 schedule"


@cute.kernel
def sums_kernel(x: cute.Tensor, y: cute.Tensor):
    """Adds to memory in place, element by element, by vectors, and by atomics."""
    t, _, _ = cute.arch.thread_idx()
    s = cute.make_tensor(cute.arch.alloc_smem(Float32, 32, 16), cute.make_layout(32))
    s[t] = x[t]
    cute.arch.sync_threads()
    x[t] = x[t] + s[31 - t]
    cute.arch.atomic_add(y.iterator.llvm_ptr, s[t], sem="relaxed", scope="gpu")
    if t < 8:
        part = cute.local_tile(y, (4,), (1 + t,))
        part.store(part.load() * 2.0)


@cute.jit
def sums(x: cute.Tensor, y: cute.Tensor):
    sums_kernel(x, y).launch(grid=1, block=32)
    sums_kernel(x, y).launch(grid=1, block=32)


def test_results_are_those_of_one_run():
    x, y = np.arange(32, dtype=np.float32), np.ones(36, np.float32)
    with kiln.sanitize() as report:
        sums(x, y)
    expected = np.arange(32, dtype=np.float32)
    for _ in range(2):
        expected = expected + expected[::-1]
    assert report.schedules == ALL
    assert np.array_equal(x, expected)
    assert y[0] == 1 + np.arange(32).sum() + 31 * 32 and np.array_equal(y[4:], np.full(32, 4.0)) and np.all(y[1:4] == 1)


@cute.kernel
def turns_kernel(x: cute.Tensor, rounds: Int32):
    t, _, _ = cute.arch.thread_idx()
    for _ in range(rounds):
        cute.arch.sync_threads()
        x[t] = x[t] + 1.0


@cute.jit
def turns(x: cute.Tensor, rounds: Int32):
    turns_kernel(x, rounds).launch(grid=1, block=64)


def test_a_launch_that_takes_long_is_not_repeated():
    x = np.zeros(64, np.float32)
    with kiln.sanitize() as report:
        turns(x, 5000)
    assert report.schedules == 1 and x[0] == 5000


@cute.kernel
def printing_kernel(x: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    cute.arch.sync_threads()
    cute.printf("thread %d\n", t)
    x[t] = x[t] + 1.0


@cute.jit
def printing(x: cute.Tensor):
    printing_kernel(x).launch(grid=1, block=2)


def test_a_kernel_that_prints_is_not_repeated(capfd):
    x = np.zeros(2, np.float32)
    with kiln.sanitize() as report:
        printing(x)
    assert report.schedules == 1 and x.tolist() == [1, 1]
    assert capfd.readouterr().out.count("thread") == 2


def test_a_fault_in_a_further_schedule_leaves_the_seed_alone():
    @cute.kernel
    def waits(flag: cute.Tensor, y: cute.Tensor):
        """The second warp waits at a barrier of its own if the first one was quicker."""
        t, _, _ = cute.arch.thread_idx()
        if t == 0:
            cute.arch.atomic_add(flag.iterator.llvm_ptr, Int32(1), sem="relaxed", scope="gpu")
        elif t == 32 and cute.arch.atomic_add(flag.iterator.llvm_ptr, Int32(0), sem="relaxed", scope="gpu") == 0:
            y[64] = 1.0
        cute.arch.sync_threads()

    @cute.jit
    def run(flag: cute.Tensor, y: cute.Tensor):
        waits(flag, y).launch(grid=1, block=64)

    flag, y = np.zeros(1, np.int32), np.zeros(64, np.float32)
    with kiln.sanitize(raises=False) as report:
        run(flag, y)
    assert [each.rule for each in report.findings] == ["bounds"]
    assert parts.seed_variable().value == 0 and flag[0] == 1


@pytest.mark.parametrize("kinds", ["memory", "numeric"])
def test_kinds_that_do_not_depend_on_the_schedule(kinds):
    x, y = np.arange(32, dtype=np.float32), np.ones(36, np.float32)
    with kiln.sanitize(kinds) as report:
        sums(x, y)
    assert report.schedules == 1
