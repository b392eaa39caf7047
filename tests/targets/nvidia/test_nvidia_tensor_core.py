"""Tensor-core operations for GPUs that are not there: the PTX says what was asked for, and ptxas takes it."""

from __future__ import annotations

import sys
from pathlib import Path

import cutlass.cute as cute
import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

from kiln.base_dsl.diagnostics import DSLNotImplemented

sys.path.insert(0, str(Path(__file__).parent.parent / "cpu"))
from kernel_testing import launcher
from test_tensor_core import CASES, NUMPY, mma_kernel


def arrays(*dtypes):
    return [cute.runtime.from_dlpack(np.zeros(4096, dtype), assumed_align=16) for dtype in dtypes]


@needs_ptxas
@pytest.mark.parametrize(("a_kind", "b_kind", "k", "d_kind"), CASES)
def test_mma(a_kind, b_kind, k, d_kind):
    kernel, m = mma_kernel(a_kind, b_kind, k, d_kind)
    register = np.float64 if a_kind == "f64" else np.int32
    function = launcher(kernel, 4, grid=1, block=32)
    compiled = compile_for(function, *arrays(register, register, NUMPY[d_kind], NUMPY[d_kind]))
    kind = {"i32": "s32"}.get(d_kind, d_kind)
    assert (
        f"mma.sync.aligned.m{m}n8k{k}.row.col.{kind}.{a_kind}.{b_kind}.{kind}" in compiled.executable.artifacts["ptx"]
    )


@needs_ptxas
def test_8_bit_floats_need_sm_89():
    kernel, _ = mma_kernel("e4m3", "e4m3", 32, "f32")
    function = launcher(kernel, 4, grid=1, block=32)
    with pytest.raises(DSLNotImplemented, match="sm_89"):
        compile_for(function, *arrays(np.int32, np.int32, np.float32, np.float32), arch="sm_80")


@needs_ptxas
def test_matrix_accesses_bulk_copies_and_match():
    from kiln.cute import arch
    from kiln.dialects import cute_nvgpu
    from kiln.mlir import ir

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile, barrier = arch.alloc_smem(cute.Int32, 256, 128), arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        address, size = tile.ir_value(), cute.Int32(128).ir_value()
        cute_nvgpu.build("bulk_load", (address, x.iterator.ir_value(), size, barrier.ir_value()))
        arch.mbarrier_wait(barrier, 0)
        word = cute.Int32.mlir_type
        for count in (1, 2, 4):
            for transpose in (True, None):
                made = cute_nvgpu.build_value(
                    "ldmatrix", ir.VectorType.get([count], word), (address,), count=count, transpose=transpose
                )
                cute_nvgpu.build("stmatrix", (address, made), count=count, transpose=transpose)
        cute_nvgpu.build("bulk_store", (out.iterator.ir_value(), address, size))
        mask = cute.Int32(-1).ir_value()
        for kind in ("any", "all"):
            out[t] = cute.Int32._make(cute_nvgpu.build_value("match", word, (t.ir_value(), mask), kind=kind))

    compiled = compile_for(launcher(kernel, 2, grid=1, block=32), *arrays(np.int32, np.int32))
    ptx = compiled.executable.artifacts["ptx"]
    for text in (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "cp.async.bulk.global.shared::cta.bulk_group",
        *(f"{kind}matrix.sync.aligned.m8n8.x{n}{t}.shared.b16" for kind in ("ld", "st") for n in (1, 2, 4) for t in ("", ".trans")),
        "match.any.sync.b32", "match.all.sync.b32",
    ):  # fmt: skip
        assert text in ptx
