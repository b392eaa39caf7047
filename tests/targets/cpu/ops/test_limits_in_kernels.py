# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
"""Numbers of barriers and mbarriers that are known when a kernel runs are those that the hardware takes."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm

import kiln
from kiln import Int32, Int64, cute
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLUserCodeRuntimeError

MOST = (1 << 20) - 1


@cute.kernel
def meets(out: cute.Tensor, number: Int32, threads: Int32, arrives: kiln.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if kiln.const_expr(arrives):
        cute.arch.barrier_arrive(barrier_id=number, number_of_threads=threads)
    else:
        cute.arch.barrier(barrier_id=number, number_of_threads=threads)
    out[t] = t


@cute.jit
def launch_meets(out: cute.Tensor, number: Int32, threads: Int32, arrives: kiln.Constexpr):
    meets(out, number, threads, arrives).launch(grid=1, block=64)


@pytest.mark.parametrize(
    ("number", "threads", "arrives", "words"),
    [
        (16, 64, False, "barrier 16 .*thread .*a block has the barriers 0 to 15"),
        (-1, 64, False, "barrier -1 .*a block has the barriers 0 to 15"),
        (1000, 64, True, "barrier 1000 .*a block has the barriers 0 to 15"),
        (1, 48, False, "a barrier for 48 threads .*a multiple of 32 up to 1024"),
        (1, 2048, False, "a barrier for 2048 threads .*a multiple of 32 up to 1024"),
        (1, -32, False, "a barrier for -32 threads"),
        (1, 0, True, "a barrier for 0 threads"),
    ],
)
def test_a_barrier_that_no_block_has(number, threads, arrives, words):
    with pytest.raises(DSLUserCodeRuntimeError, match=f"(?s){words}") as caught:
        launch_meets(np.zeros(64, np.int32), number, threads, arrives)
    assert caught.value.span.line == meets.function.__code__.co_firstlineno + (4 if arrives else 6)


def test_barriers_that_blocks_have():
    for number in (0, 15):
        out = np.zeros(64, np.int32)
        launch_meets(out, number, 64, False)
        assert out.tolist() == [*range(64)]


@cute.kernel
def counts(out: cute.Tensor, arrivals: Int32, arriving: Int32, bytes_: Int32, more: Int32):
    t, _, _ = cute.arch.thread_idx()
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(barrier, arrivals)
        cute.arch.mbarrier_expect_tx(barrier, bytes_)
        cute.arch.mbarrier_expect_tx(barrier, more)
        cute.arch.mbarrier_arrive(barrier, arrive_count=arriving)
    out[t] = 1


@cute.jit
def launch_counts(out: cute.Tensor, arrivals: Int32, arriving: Int32, bytes_: Int32, more: Int32):
    counts(out, arrivals, arriving, bytes_, more).launch(grid=1, block=32)


@pytest.mark.parametrize(
    ("numbers", "words", "line"),
    [
        ((0, 1, 0, 0), "0 arrivals at an mbarrier .*it counts 1 to 1048575 arrivals", 5),
        ((MOST + 1, 1, 0, 0), "1048576 arrivals at an mbarrier", 5),
        ((4, 0, 0, 0), "0 arrivals at an mbarrier", 8),
        ((4, -1, 0, 0), "-1 arrivals at an mbarrier", 8),
        ((4, 1, MOST + 1, 0), "1048576 bytes at an mbarrier .*from -1048575 to 1048575", 6),
        ((4, 1, -MOST - 1, 0), "-1048576 bytes at an mbarrier", 6),
        ((4, 1, MOST, 1), "a phase of an mbarrier misses 1048576 bytes .*at most 1048575 bytes", 7),
    ],
)
def test_counts_that_no_mbarrier_has(numbers, words, line):
    with pytest.raises(DSLUserCodeRuntimeError, match=f"(?s){words}") as caught:
        launch_counts(np.zeros(32, np.int32), *numbers)
    assert caught.value.span.line == counts.function.__code__.co_firstlineno + line


def test_counts_that_mbarriers_have():
    for numbers in ((1, 1, 0, 0), (MOST, MOST, 0, 0), (4, 1, MOST - 1, 1), (4, 1, -MOST, MOST)):
        out = np.zeros(32, np.int32)
        launch_counts(out, *numbers)
        assert out.all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bar.sync 16, 64;", "barrier 16"),
        ("bar.sync 1, 2048;", "a barrier for 2048 threads"),
        ("bar.sync 1, 40;", "a barrier for 40 threads"),
    ],
)
def test_inline_ptx_is_checked_when_compiling(text, words):
    @cute.kernel
    def kernel(out: cute.Tensor):
        asm(None, [], text, "")
        out[0] = Int32(1)

    @cute.jit
    def launch(out: cute.Tensor):
        kernel(out).launch(grid=1, block=64)

    with pytest.raises(CompilerDiagnosticError, match=words):
        launch(np.zeros(1, np.int32))
