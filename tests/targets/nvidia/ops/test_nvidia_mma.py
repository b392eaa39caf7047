"""Tensor-core operations for GPUs that are not there: the PTX says what was asked for, and ptxas takes it."""

from __future__ import annotations

import cutlass.cute as cute
import numpy as np
import pytest
from kernel_testing import launcher
from mma_cases import CASES, NUMPY, mma_kernel
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute.nvgpu import cpasync, warp


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


NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
SCALED = [
    *(("mxf8f6f4", 32, a, b, "ue8m0", 32) for a in NARROW for b in NARROW),
    *((kind, 64, "e2m1", "e2m1", "ue8m0", 32) for kind in ("mxf4", "mxf4nvf4")),
    *(("mxf4nvf4", 64, "e2m1", "e2m1", scale, 16) for scale in ("ue4m3", "ue8m0")),
]
"""Kind, K, types of A, B and scale factors, and elements that share a scale factor: all that sm_120 has."""


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_120a", "sm_120f", "sm_121a"])
def test_block_scales_and_narrow_floats_of_sm_120(arch):
    """ptxas takes every form of `mma.sync` with scale factors, and of narrow floats without."""
    from kiln.dialects import nvgpu

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        a, b, c = (
            cute.make_rmem_tensor(count, dtype)
            for count, dtype in ((4, kiln.Int32), (2, kiln.Int32), (4, kiln.Float32))
        )
        for part in (a, b):
            for i in range(cute.size(part)):
                part[i] = x[i]
        c.fill(0.0)
        left, right, scale = a.load().ir_value(), b.load().ir_value(), x[8].ir_value()
        sums = c.load().ir_value()
        for kind, k, a_type, b_type, scale_type, vector in SCALED:
            operands = (left, right, sums, scale, scale)
            sums = nvgpu.mma.mma_block_scale((16, 8, k), kind, a_type, b_type, scale_type, vector, *operands)
        for a_type in NARROW:
            for b_type in NARROW:
                sums = nvgpu.mma.mma_sync((16, 8, 32), a_type, b_type, left, right, sums)
        c.store(cute.TensorSSA(sums, (4,), kiln.Float32))
        for i in range(4):
            out[i] = c[i]

    function = launcher(kernel, 2, grid=1, block=32)
    ptx = compile_for(function, *arrays(np.int32, np.float32), arch=arch).executable.artifacts["ptx"]
    sizes = {32: "1X", 64: "2X"}
    for kind, k, a_type, b_type, scale_type, vector in SCALED:
        size = "4X" if vector == 16 else sizes[k]
        head = f"m16n8k{k}.row.col.kind::{kind}.block_scale.scale_vec::{size}.f32.{a_type}.{b_type}.f32.{scale_type} "
        assert head in ptx
    assert ptx.count("mma.sync.aligned.m16n8k32.row.col.") == 2 * len(NARROW) ** 2


@needs_ptxas
def test_matrix_accesses_bulk_copies_and_match():
    from kiln.cute import arch
    from kiln.dialects import nvgpu
    from kiln.mlir import ir

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile, barrier = arch.alloc_smem(cute.Int32, 256, 128), arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        address, size = tile.ir_value(), cute.Int32(128).ir_value()
        nvgpu.async_copy.bulk_load(address, x.iterator.ir_value(), size, barrier.ir_value())
        arch.mbarrier_wait(barrier, 0)
        word = cute.Int32.mlir_type
        for count in (1, 2, 4):
            for transpose in (True, False):
                made = nvgpu.mma.ldmatrix(address, ir.VectorType.get([count], word), count=count, transpose=transpose)
                nvgpu.mma.stmatrix(address, made, count=count, transpose=transpose)
        nvgpu.async_copy.bulk_store(out.iterator.ir_value(), address, size)
        mask = cute.Int32(-1).ir_value()
        for kind in ("any", "all"):
            out[t] = cute.Int32._make(nvgpu.warp.match(kind, t.ir_value(), mask))

    compiled = compile_for(launcher(kernel, 2, grid=1, block=32), *arrays(np.int32, np.int32))
    ptx = compiled.executable.artifacts["ptx"]
    for text in (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "cp.async.bulk.global.shared::cta.bulk_group",
        *(f"{kind}matrix.sync.aligned.m8n8.x{n}{t}.shared.b16" for kind in ("ld", "st") for n in (1, 2, 4) for t in ("", ".trans")),
        "match.any.sync.b32", "match.all.sync.b32",
    ):  # fmt: skip
        assert text in ptx


def _with_operation(op, types):
    """A kernel that multiplies the fragments of one call."""
    atom = cute.make_mma_atom(op)
    m, n, k = op.shape_mnk

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        thread = cute.make_tiled_mma(op).get_slice(cute.arch.thread_idx()[0])
        parts = []
        for part, fragment in (
            (thread.partition_A(cute.make_tensor(a.iterator, cute.make_layout((m, k)))), atom.make_fragment_A),
            (thread.partition_B(cute.make_tensor(b.iterator, cute.make_layout((n, k)))), atom.make_fragment_B),
            (thread.partition_C(cute.make_tensor(c.iterator, cute.make_layout((m, n)))), atom.make_fragment_C),
        ):
            held = fragment(part)
            cute.basic_copy(part, held)
            parts.append((part, held))
        cute.gemm(atom, parts[2][1], parts[0][1], parts[1][1], parts[2][1])
        cute.basic_copy(parts[2][1], parts[2][0])

    return launcher(kernel, 3, grid=1, block=32), arrays(*types)


@needs_ptxas
@pytest.mark.parametrize("k", [4, 8, 16])
def test_f64_of_16_rows_needs_sm_90(k):
    function, data = _with_operation(warp.MmaF64Op((16, 8, k)), (np.float64,) * 3)
    compiled = compile_for(function, *data)
    assert f"mma.sync.aligned.m16n8k{k}.row.col.f64.f64.f64.f64" in compiled.executable.artifacts["ptx"]
    with pytest.raises(DSLNotImplemented, match="sm_90"):
        compile_for(function, *data, arch="sm_80")


@needs_ptxas
def test_bytes_of_8_rows():
    function, data = _with_operation(warp.MmaI8Op(shape_mnk=(8, 8, 16)), (np.int8, np.int8, np.int32))
    assert "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32" in compile_for(function, *data).executable.artifacts["ptx"]


@needs_ptxas
def test_prefetch_brings_each_line_once():
    @cute.kernel
    def kernel(x: cute.Tensor):
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cute.Float32, num_bits_per_copy=128)
        row = cute.make_tensor(x.iterator, cute.make_layout((4, 16), stride=(1, 4)))  # 256 bytes
        cute.prefetch(atom, row)

    ptx = compile_for(launcher(kernel, 1, grid=1, block=32), *arrays(np.float32)).executable.artifacts["ptx"]
    assert ptx.count("prefetch.L2 ") + ptx.count("prefetch.global.L2 ") == 2


BYTE_MATRICES = [
    (warp.LdMatrix16x16x8bOp(True, 2), "ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 "),
    (warp.LdMatrix16x16x8bOp(True, 1, 6), "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8x16.b6x16_p32 "),
    (warp.LdMatrix8x16x8bOp(False, 4, 4), "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64 "),
    (warp.StMatrix16x8x8bOp(True, 4), "stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 "),
]


@needs_ptxas
@pytest.mark.parametrize(("op", "instruction"), BYTE_MATRICES, ids=[text for _, text in BYTE_MATRICES])
def test_matrices_of_bytes_need_sm_100(op, instruction):
    @cute.kernel
    def kernel(out: cute.Tensor):
        atom = cute.make_copy_atom(op, cute.Int8)
        lanes = atom.layout_src_tv if instruction.startswith("st") else atom.layout_dst_tv
        covered = cute.size(lanes)
        t = cute.arch.thread_idx()[0]
        tile = cute.make_tensor(cute.arch.alloc_smem(cute.Int8, 512, 128), cute.make_layout(covered))
        copy = cute.make_tiled_copy(atom, lanes, (covered,)).get_slice(t)
        held = cute.make_rmem_tensor(((covered // 32,), 1), cute.Int8)
        if kiln.const_expr(instruction.startswith("st")):
            held.fill(out[t])
            cute.copy(copy, held, copy.partition_D(tile))
            out[t] = tile[t]
        else:
            cute.copy(copy, copy.partition_S(tile), held)
            out[t] = held[0]

    function, data = launcher(kernel, 1, grid=1, block=32), arrays(np.int8)
    assert instruction in compile_for(function, *data, arch="sm_100a").executable.artifacts["ptx"]
    for arch in ("sm_90a", "sm_100", "sm_120"):
        with pytest.raises(DSLNotImplemented, match="needs sm_100a or newer"):
            compile_for(function, *data, arch=arch)
