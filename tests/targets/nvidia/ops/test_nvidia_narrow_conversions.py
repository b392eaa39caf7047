"""Conversions to narrow floats for GPUs that are not there: by an instruction where there is one."""

from __future__ import annotations

import cutlass.cute as cute
import numpy as np
import pytest
from kernel_testing import launcher
from nvidia_testing import compile_for, needs_ptxas


def ptx_of(kernel, dtype, arch):
    given = cute.runtime.from_dlpack(np.zeros(4096, dtype), assumed_align=16)
    return compile_for(launcher(kernel, 1, grid=1, block=32), given, arch=arch).executable.artifacts["ptx"]


@needs_ptxas
@pytest.mark.parametrize(("arch", "instructions"), [("sm_90a", 3), ("sm_80", 0)])
def test_tf32_is_rounded_by_an_instruction_that_ties_to_even(arch, instructions):
    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        x[t] = x[t].to(cute.TFloat32).to(cute.Float32)
        pair = cute.make_tensor(x.iterator, cute.make_layout(2))
        pair.store(pair.load().to(cute.TFloat32).to(cute.Float32))

    ptx = ptx_of(kernel, np.float32, arch)
    assert ptx.count("cvt.rn.tf32.f32") == instructions  # before sm_90 the instruction rounds ties away from 0


@needs_ptxas
@pytest.mark.parametrize(("arch", "instructions"), [("sm_90a", 9), ("sm_80", 0)])
def test_two_floats_become_floats_of_8_bits_at_once(arch, instructions):
    """A number by one, eight by four (whatever their type), and three by as many as four."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        made = cute.make_tensor(cute.recast_ptr(x.iterator, dtype=cute.Float8E4M3FN), cute.make_layout(256))
        made[100] = x[cute.arch.thread_idx()[0]].to(cute.Float8E4M3FN)
        for at, count in ((0, 8), (16, 3)):
            found = cute.make_tensor(x.iterator + at, cute.make_layout(count)).load()
            cute.make_tensor(made.iterator + at, cute.make_layout(count)).store(found.to(cute.Float8E4M3FN))
        found = cute.make_tensor(x.iterator + 64, cute.make_layout(4)).load().to(cute.Float16)
        cute.make_tensor(made.iterator + 32, cute.make_layout(4)).store(found.to(cute.Float8E4M3FN))

    assert ptx_of(kernel, np.float32, arch).count("cvt.rn.satfinite.e4m3x2.f32") == instructions


@needs_ptxas
@pytest.mark.parametrize(
    ("arch", "instructions"), [("sm_100a", True), ("sm_120f", True), ("sm_100", False), ("sm_90a", False)]
)
def test_floats_below_8_bits_and_scale_factors(arch, instructions):
    """Pairs of numbers, rounded by an instruction, and widened by one, where there is one."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        for number, dtype in enumerate((cute.Float4E2M1FN, cute.Float6E2M3FN, cute.Float6E3M2FN)):
            made = cute.make_tensor(cute.recast_ptr(x.iterator + 64 * number, dtype=dtype), cute.make_layout(64))
            found = cute.make_tensor(x.iterator + 256, cute.make_layout(16)).load()
            cute.make_tensor(made.iterator, cute.make_layout(16)).store(found.to(dtype))
            made[33] = x[0].to(dtype)
            back = cute.make_tensor(made.iterator + 48, cute.make_layout(10)).load().to(cute.Float32)
            cute.make_tensor(x.iterator + 512 + 16 * number, cute.make_layout(10)).store(back)
        scales = cute.make_tensor(cute.recast_ptr(x.iterator + 300, dtype=cute.Float8E8M0FNU), cute.make_layout(4))
        cute.make_tensor(x.iterator + 600, cute.make_layout(4)).store(scales.load().to(cute.Float32))

    ptx = ptx_of(kernel, np.float32, arch)
    counts = {
        "cvt.rn.satfinite.e2m1x2.f32": 12, "cvt.rn.satfinite.e2m3x2.f32": 9, "cvt.rn.satfinite.e3m2x2.f32": 9,
        "cvt.rn.f16x2.e2m1x2": 8, "cvt.rn.f16x2.e2m3x2": 6, "cvt.rn.f16x2.e3m2x2": 6, "cvt.rn.bf16x2.ue8m0x2": 2,
    }  # fmt: skip
    assert {name: ptx.count(name) for name in counts} == (counts if instructions else dict.fromkeys(counts, 0))


@needs_ptxas
@pytest.mark.parametrize(("arch", "instructions"), [("sm_107a", 2), ("sm_100a", 0)])
def test_scale_factors_of_sm_107(arch, instructions):
    @cute.kernel
    def kernel(x: cute.Tensor):
        made = cute.make_tensor(cute.recast_ptr(x.iterator, dtype=cute.FloatNV8E5M3FNU), cute.make_layout(8))
        four = cute.make_layout(4)
        cute.make_tensor(made.iterator, four).store(
            cute.make_tensor(x.iterator + 64, four).load().to(made.element_type)
        )
        cute.make_tensor(x.iterator + 32, four).store(cute.make_tensor(made.iterator + 4, four).load().to(cute.Float32))

    ptx = ptx_of(kernel, np.float32, arch)
    assert ptx.count("cvt.rn.satfinite.ue5m3x2.f32") == ptx.count("cvt.rn.bf16x2.ue5m3x2") == instructions


@needs_ptxas
@pytest.mark.parametrize(("arch", "instructions"), [("sm_107a", 1), ("sm_100a", 0)])
def test_pairs_of_f32_with_a_pair_of_halves(monkeypatch, arch, instructions):
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)

    @cute.kernel
    def kernel(x: cute.Tensor):
        halves, pair = [x[n].to(cute.Float16) for n in (0, 1)], (x[2], x[3])
        x[4], x[5] = cute.arch.fma_packed_f32x2_f16x2_f32x2_f32x2(halves, pair, pair)

    assert ptx_of(kernel, np.float32, arch).count("fma.rn.f32x2.f16x2.f32x2.f32x2") == instructions
