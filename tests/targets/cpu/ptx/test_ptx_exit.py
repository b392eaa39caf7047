"""`exit` in inline PTX: the thread ends, others go on, and barriers no longer count it."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run

import kiln
from kiln import cute
from kiln.cute import Int32, arch

LEAVE = "{ .reg .pred p; setp.ge.s32 p, $0, $1; @p exit; }"


def leave(number, limit):
    asm(None, [Int32(number), Int32(limit)], LEAVE, "r,r")


def test_threads_end_where_a_predicate_holds():
    @cute.kernel
    def kernel(y: cute.Tensor):
        t = arch.thread_idx()[0]
        memory = kiln.Array(Int32, 96, space=kiln.AddressSpace.smem)
        memory[t] = t
        leave(t, 70)
        arch.sync_threads()  # 70 of 96 threads are left, the last warp in part
        y[t] = memory[(t + 1) % 70]
        for i in range(4):
            leave(t, 60 - 10 * i)
            arch.sync_threads()
            y[t] += 1000
        asm(None, [], "exit;", "")
        y[t] = -1

    y = np.zeros(96, np.int32)
    run(kernel, y, block=96)
    t = np.arange(96)
    rounds = np.clip((70 - t - 1) // 10, 0, 4)
    np.testing.assert_array_equal(y, np.where(t < 70, (t + 1) % 70 + 1000 * rounds, 0))


def test_a_loop_of_branches_is_left():
    """In a program with branches registers lie in memory; a constant predicate ends the thread, too."""

    @cute.kernel
    def kernel(y: cute.Tensor):
        t = arch.thread_idx()[0]
        code = """{ .reg .pred p, q; .reg .b32 i; mov.b32 i, 0;
        again: add.s32 i, i, 1; setp.gt.s32 q, i, 20; @q exit; setp.lt.s32 p, i, $1; @p bra again; mov.b32 $0, i; }"""
        y[t] = Int32(asm(Int32.mlir_type, [t * 2], code, "=r,r"))
        code = (
            "{ .reg .pred p; setp.eq.s32 p, 1, 1; @!p exit; st.global.b32 [$0], $1; @p exit; st.global.b32 [$0], $1; }"
        )
        asm(None, [(y.iterator + t).toint(), y[t] + 100], code, "l,r")
        y[t] = -1

    y = np.zeros(32, np.int32)
    run(kernel, y)
    t = np.arange(32)
    np.testing.assert_array_equal(y, np.where(t <= 10, np.maximum(2 * t, 1) + 100, 0))


def test_who_waits_for_arrivals_of_an_mbarrier_still_does():
    """An mbarrier counts arrivals, not threads: those of threads that have ended are missing."""

    @cute.kernel
    def kernel(y: cute.Tensor):
        t = arch.thread_idx()[0]
        barrier = kiln.Array(cute.Int64, 1, space=kiln.AddressSpace.smem).data_ptr()
        if t == 0:
            arch.mbarrier_init(barrier, 32)
        arch.sync_threads()
        leave(t, 20)
        arch.mbarrier_arrive(barrier)
        arch.mbarrier_wait(barrier, 0)
        y[t] = 1

    with pytest.raises(kiln.base_dsl.diagnostics.DSLBaseError, match="deadlock"):
        run(kernel, np.zeros(32, np.int32))
