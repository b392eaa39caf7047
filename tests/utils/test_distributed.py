# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Helpers of kernels that communicate: locks and multicast memory."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Int32
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.targets.nvidia import codegen
from kiln.utils import distributed

needs_ptxas = pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")


def test_locks():
    @cute.kernel
    def kernel(lock: cute.Tensor, out: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        b, _, _ = cute.arch.block_idx()
        if t == 0:
            distributed.red_add1(lock.iterator, order="release", scope="gpu")
            distributed.spin_lock_ld_lt_relaxed_wait(lock.iterator, expected_val=4, scope="gpu")
            if b == 2:
                distributed.spin_lock_atom_cas_acquire_wait(lock.iterator, expected_val=4, reset_val=7, scope="gpu")
            out[b] = b + 1

    @cute.jit
    def launch(lock: cute.Tensor, out: cute.Tensor):
        kernel(lock, out).launch(grid=4, block=32, cooperative=True)

    lock, out = np.zeros(1, np.int32), np.zeros(4, np.int32)
    arguments = [cute.runtime.from_dlpack(x) for x in (lock, out)]
    cute.compile(launch, *arguments, target="cpu")(*arguments)
    assert (lock[0], out.tolist()) == (7, [1, 2, 3, 4])


def test_atomic_add():
    @cute.kernel
    def kernel(sum_: cute.Tensor, before: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        before[t] = distributed.atomicAdd(sum_.iterator, 2)

    @cute.jit
    def launch(sum_: cute.Tensor, before: cute.Tensor):
        kernel(sum_, before).launch(grid=1, block=32)

    sum_, before = np.ones(1, np.int32), np.zeros(32, np.int32)
    with kiln.target("cpu"):
        launch(sum_, before)
    assert (sum_[0], sorted(before)) == (65, list(range(1, 64, 2)))


@needs_ptxas
def test_multicast_memory():
    @cute.kernel
    def kernel(x: cute.Tensor):
        distributed.multimem_red_release_sys_add1(x.iterator)
        distributed.multimem_red_relaxed_gpu_add1(x.iterator)
        halves = distributed.multimem_ld_reduce(x.iterator, dtype=kiln.Float16, num_elements=8)
        distributed.multimem_st(x.iterator, *halves)
        distributed.multimem_st_4xb32(x.iterator, *distributed.multimem_ld_reduce_4xf32(x.iterator))
        stronger = "multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {$0, $1, $2, $3}, [$4];"
        distributed.multimem_st_4xb32(
            x.iterator, *distributed.multimem_ld_reduce_4xf32(x.iterator, ptx_string=stronger)
        )
        distributed.multimem_st_4xb32(x.iterator, *distributed.multimem_ld_reduce_16xe4m3(x.iterator))
        distributed.multimem_st_2xb32(x.iterator, *distributed.multimem_ld_reduce_4xbf16(x.iterator))
        distributed.multimem_st_1xb32(x.iterator, *distributed.multimem_ld_reduce_1xf32(x.iterator))

    @cute.jit
    def launch(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(kiln.Int32, (64,), assumed_align=16)
    ptx = cute.compile(launch, x, target="nvidia", options="--gpu-arch sm_100a").__ptx__
    assert "multimem.red.release.sys.global.add.u32" in ptx and "multimem.red.relaxed.gpu.global.add.u32" in ptx
    assert "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {" in ptx
    assert "multimem.st.relaxed.sys.global.v4.f32" in ptx
    for kind in (".v4.f32", ".acc::f16.v4.e4m3x4", ".acc::f32.v2.bf16x2", ".f32"):
        assert f"multimem.ld_reduce.relaxed.sys.global.add{kind} " in ptx
    assert "multimem.st.relaxed.sys.global.v2.f32" in ptx and "multimem.st.relaxed.sys.global.f32" in ptx


def test_bad_multicasts():
    @cute.kernel
    def kernel(x: cute.Tensor, how: kiln.Constexpr):
        how(x)

    @cute.jit
    def launch(x: cute.Tensor, how: kiln.Constexpr):
        kernel(x, how).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(kiln.Int32, (64,), assumed_align=16)
    for how, words in (
        (
            lambda x: distributed.multimem_st(x.iterator, Int32(1), Int32(2), Int32(3)),
            "multimem_st takes 1, 2 or 4 words, got 3",
        ),
        (
            lambda x: distributed.multimem_ld_reduce(x.iterator, dtype=kiln.Float32, num_elements=3),
            "3 elements of Float32",
        ),
        (lambda x: distributed.multimem_red_add1(x.iterator, order="acquire", scope="sys"), "order is 'acquire'"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=words):
            cute.compile(launch, x, how, target="nvidia", options="--gpu-arch sm_90a")
