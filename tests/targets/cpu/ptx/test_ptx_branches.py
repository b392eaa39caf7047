"""Inline PTX with labels and branches, and barriers that reduce."""

from __future__ import annotations

import numpy as np
from kernel_testing import asm, runs

import kiln
from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.cute import arch
from kiln.mlir import ir

FEW = [(1, 0), (1, 1), (2, 2)]


def test_branches_forward_and_back():
    collatz = """{
        .reg .pred p, odd;
        .reg .u32 n, steps, low;
        mov.u32 n, $1;
        mov.u32 steps, 0;
    next:
        setp.le.u32 p, n, 1;
        @p bra done;
        add.u32 steps, steps, 1;
        and.b32 low, n, 1;
        setp.eq.u32 odd, low, 1;
        @odd bra up;
        shr.u32 n, n, 1;
        bra next;
    up:
        mad.lo.u32 n, n, 3, 1;
        bra.uni next;
    done:
        mov.u32 $0, steps;
    }"""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = cute.Int32._make(asm(cute.Int32.mlir_type, [t], collatz, "=r,r"))

    def steps(n):
        count = 0
        while n > 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    for (out,) in runs(kernel, np.zeros(64, np.int32), block=64, schedules=FEW):
        np.testing.assert_array_equal(out, [steps(n) for n in range(64)])


def test_a_loop_of_ptx_waits_for_other_threads():
    """The usual wait for an mbarrier, and a lock that is taken by a loop around `atom.cas`."""
    wait = """{
        .reg .pred complete;
    again:
        mbarrier.try_wait.parity.shared::cta.b64 complete, [$0], $1;
        @complete bra done;
        bra again;
    done:
    }"""
    take = """{
        .reg .pred taken;
        .reg .b32 old;
    again: atom.acquire.gpu.global.cas.b32 old, [$0], 0, 1;
        setp.ne.u32 taken, old, 0;
        @taken bra again;
    }"""

    @cute.kernel
    def kernel(lock: cute.Tensor, count: cute.Tensor, out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        box = cute.make_tensor(arch.alloc_smem(cute.Int32, 1), cute.make_layout(1))
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        arch.sync_threads()
        if t == 63:
            box[0] = 42
            arch.mbarrier_arrive(barrier)
        asm(None, [barrier.toint(), cute.Int32(0)], wait, "r,r")
        out[t] = box[0]
        asm(None, [lock.iterator.toint()], take, "l")
        count[0] = count[0] + 1
        asm(None, [lock.iterator.toint()], "st.release.gpu.global.u32 [$0], 0;", "l")

    zeros = np.zeros(1, np.int32)
    for _, count, out in runs(kernel, zeros, zeros, np.zeros(64, np.int32), grid=2, block=64, schedules=FEW):
        np.testing.assert_array_equal(out, 42)
        assert count[0] == 128


def test_barriers_that_reduce():
    text = """{
        .reg .pred p, every, some;
        setp.lt.s32 p, $3, $4;
        barrier.cta.red.popc.aligned.u32 $0, 1, 64, p;
        bar.red.and.pred every, 2, 64, p;
        bar.red.or.pred some, 2, 64, !p;
        selp.u32 $1, 1, 0, every;
        selp.u32 $2, 1, 0, some;
    }"""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        i32 = cute.Int32.mlir_type
        struct = ir.Type.parse(f"!llvm.struct<({i32}, {i32}, {i32})>")
        for limit in kiln.range_constexpr(12):
            got = asm(struct, [t, cute.Int32(limit * 6)], text, "=r,=r,=r,r,r")
            for n in kiln.range_constexpr(3):
                part = tracing.emit_value("llvm.extractvalue", i32, (got,), {"position": ir.DenseI64ArrayAttr.get([n])})
                out[(limit * 3 + n) * 64 + t] = cute.Int32._make(part)

    for (out,) in runs(kernel, np.zeros(12 * 3 * 64, np.int32), block=64):
        for limit in range(12):
            holds = min(64, limit * 6)
            want = [holds, holds == 64, holds < 64]
            np.testing.assert_array_equal(out.reshape(12, 3, 64)[limit], np.repeat(want, 64).reshape(3, 64))
