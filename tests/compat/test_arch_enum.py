# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Architectures as programs compare them, and helpers of kernels that communicate."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Int32
from kiln.base_dsl.arch import Arch
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cutlass_dsl import BaseDSL
from kiln.targets.nvidia import codegen
from kiln.utils import distributed

needs_ptxas = pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")


def test_order_and_families():
    assert Arch.sm_80 < Arch.sm_89 < Arch.sm_90 < Arch.sm_90a < Arch.sm_100 < Arch.sm_100a < Arch.sm_100f < Arch.sm_101
    assert Arch.sm_100 <= Arch.from_string("SM_100a") <= Arch.sm_100f
    assert Arch.HopperArchs() == (Arch.sm_90, Arch.sm_90a)
    assert Arch.sm_120 in Arch.BlackwellArchs()
    assert Arch.sm_89 in Arch.AdaArchs()
    assert Arch.sm_89 not in Arch.AmpereArchs()
    assert Arch.filter(lambda arch: arch >= Arch.sm_121) == [Arch.sm_121, Arch.sm_121a, Arch.sm_121f]
    assert Arch.sm_90a.to_string() == "sm_90a"
    with pytest.raises(ValueError, match="'sm_42' is not an architecture"):
        Arch.from_string("sm_42")


@pytest.mark.parametrize(
    ("gpu", "code", "runs"),
    [
        ("sm_90", "sm_90a", True),
        ("sm_103", "sm_100a", False),
        ("sm_103", "sm_100f", True),
        ("sm_89", "sm_80", True),
        ("sm_80", "sm_89", False),
        ("sm_100", "sm_90", False),
    ],
)
def test_what_runs_where(gpu, code, runs):
    assert Arch[gpu].can_run_binary_built_for(Arch[code]) == runs


def test_a_program_asks_what_it_is_compiled_for(monkeypatch):
    @cute.jit
    def number():
        return Int32(BaseDSL._get_dsl().get_arch_enum().major)

    def compiled(options=""):
        return cute.compile(number, target="cpu", options=options)()

    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    assert compiled() == 9
    assert compiled("--gpu-arch sm_120a") == 12
    assert compiled() == 9  # the choice ended with the compilation
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    assert compiled() == 8


def test_one_of_two_values():
    @cute.jit
    def chosen(x: Int32):
        return kiln.select_(x > 3, x, -1)

    assert [chosen(x) for x in (2, 5)] == [-1, 5]


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


@needs_ptxas
def test_multicast_memory():
    @cute.kernel
    def kernel(x: cute.Tensor):
        distributed.multimem_red_add1(x.iterator, order="release", scope="sys")
        halves = distributed.multimem_ld_reduce(x.iterator, dtype=kiln.Float16, num_elements=8)
        distributed.multimem_st(x.iterator, *halves)
        distributed.multimem_st_4xb32(x.iterator, *distributed.multimem_ld_reduce_4xf32(x.iterator))

    @cute.jit
    def launch(x: cute.Tensor):
        kernel(x).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(kiln.Int32, (64,), assumed_align=16)
    ptx = cute.compile(launch, x, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    assert "multimem.red.release.sys.global.add.u32" in ptx
    assert "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {" in ptx
    assert "multimem.st.relaxed.sys.global.v4.f32" in ptx


def test_bad_multicasts():
    @cute.kernel
    def kernel(x: cute.Tensor, how: kiln.Constexpr):
        how(x)

    @cute.jit
    def launch(x: cute.Tensor, how: kiln.Constexpr):
        kernel(x, how).launch(grid=1, block=32)

    x = cute.runtime.make_fake_compact_tensor(kiln.Int32, (64,), assumed_align=16)
    for how, words in (
        (lambda x: distributed.multimem_st(x.iterator, Int32(1), Int32(2), Int32(3)), "multimem_st of 3 words"),
        (
            lambda x: distributed.multimem_ld_reduce(x.iterator, dtype=kiln.Float32, num_elements=3),
            "3 elements of Float32",
        ),
        (lambda x: distributed.multimem_red_add1(x.iterator, order="acquire", scope="sys"), "order is 'acquire'"),
    ):
        with pytest.raises(DSLUserCodeTypeError, match=words):
            cute.compile(launch, x, how, target="nvidia", options="--gpu-arch sm_90a")
