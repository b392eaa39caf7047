"""Warp MMA with block scales and of floats below 8 bits (sm_120): layouts, a tile on the CPU target, PTX, refusals."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from block_scaled_cases import E4M3, E5M2, F4, F32, NVF4, OPS, UE8M0, K, M, N, a_tile, tile_kernel, tiled
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute, utils
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute.nvgpu import warp
from kiln.cute.runtime import from_dlpack
from kiln.hardware import toolchain
from kiln.utils import blackwell_helpers, blockscaled_layout

E2M3 = kiln.Float6E2M3FN


def test_layouts_are_those_of_the_c_plus_plus_atoms():
    atom = cute.make_mma_atom(NVF4)
    assert str(atom.tv_layout_A) == "((4,8),(8,2,2)):((128,1),(16,8,512))"
    assert str(atom.tv_layout_B) == "((4,8),(8,2)):((64,1),(8,256))"
    assert atom.shape_mnk == (16, 8, 64)
    mixed = cute.make_mma_atom(OPS[3])
    assert str(mixed.tv_layout_A) == str(cute.make_mma_atom(warp.MmaFP8Op(E4M3)).tv_layout_A)
    assert warp.mma.MXF8F6F4_SUPPORTED_PAIRS == {(F4, E4M3), (F4, E5M2), (E4M3, F4), (E5M2, F4)}


def test_names_of_operations_and_traits():
    assert NVF4.descriptive_name == "warp-level MXF4NVF4 MMA Operation" and not NVF4.use_sf_layout_TV
    common = cute.nvgpu.common
    atom = cute.make_copy_atom(common.CopyG2ROp(), F32)
    assert isinstance(atom.trait, common.CopyG2RTrait) and isinstance(atom.trait, cute.nvgpu.CopyUniversalTrait)
    assert isinstance(cute.make_mma_atom(common.MmaUniversalOp(F32)).trait, common.MmaUniversalTrait)


def test_helpers_of_a_tile():
    """Which scale factor a thread holds, and where a tile of them lies: as the formulas of PTX say."""
    mma = tiled(NVF4)
    rows, columns = blackwell_helpers.get_layoutSFA_TV(mma), blackwell_helpers.get_layoutSFB_TV(mma)
    m, n = 128, 32
    for thread in range(0, 128, 5):
        lane, warp_m, warp_n = thread % 32, thread // 32 % 2, thread // 64
        for value in (0, 17, 63):
            assert rows((thread, value)) == lane // 4 + 8 * (lane % 2) + 16 * warp_m + m * value
            column = lane // 4 + 8 * warp_n
            place = column % 8 + 16 * (column // 8 % 2) + 8 * (column // 16)
            assert columns((thread, value)) == place + n * value
    for vector, scales in ((16, 4), (32, 2)):
        op = NVF4 if vector == 16 else OPS[1]
        layout = blockscaled_layout.sm120_make_smem_layout_sfb(tiled(op), (M, 256, 256), vector, 3)
        for row, k, stage in ((0, 0, 0), (37, 20, 1), (200, 255, 2), (255, 128, 0)):
            number = k // vector
            chunk = number // 4 * 2 + row // 128
            expected = (
                stage * 512 * 2 * (256 // vector // 4) + chunk * 512 + row % 32 * 16 + row // 32 % 4 * 4 + number % 4
            )
            assert layout((row, k, stage)) == expected
        assert cute.size(layout[1][1]) == scales
    store = blackwell_helpers.sm120_get_smem_store_op(utils.LayoutEnum.ROW_MAJOR, kiln.Float16, F32)
    assert store.op == warp.StMatrix8x8x16bOp(False, 2)
    assert blackwell_helpers.get_permutation_mnk((256, 16, 64), 16, False)[0] == 128


@pytest.mark.quick(2)
@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_a_tile_on_the_cpu(op: Any):
    def run(function: Any, *arrays: np.ndarray) -> None:
        with kiln.target("cpu"):
            function(*map(from_dlpack, arrays))

    a_tile(run, op)


def test_a_thread_part_of_scale_factors():
    """Thread and value have the place in the tile that the thread-value layout says."""
    mma = tiled(NVF4)
    for thrfrg, places, rows, mode in (
        (blackwell_helpers.thrfrg_SFA, blackwell_helpers.get_layoutSFA_TV(mma), M, 1),
        (blackwell_helpers.thrfrg_SFB, blackwell_helpers.get_layoutSFB_TV(mma), N, 2),
    ):
        staged = blockscaled_layout.make_smem_layout_sf((rows, K), NVF4.sf_vec_size, 1)
        layout = cute.slice_(staged, (None, None, 0))
        whole = thrfrg(layout, mma)
        extent = mma.get_tile_size(mode - 1)
        for thread in range(0, 128, 7):
            at = mma.thr_layout_vmnk.get_flat_coord(thread)
            for value in (0, 17, 63):
                place = places((thread, value))
                found = whole(((at[0], (at[mode], at[3])), (value, (0, 0))))
                assert found == layout((place % extent, place // extent))


def test_scale_factors_as_fields():
    """Set before a loop, in it, and after the MMA of an iteration, for the next: as a list gives them."""

    @cute.kernel
    def kernel(out: cute.Tensor, trips: kiln.Int32):
        a, b = cute.make_rmem_tensor(32, F4), cute.make_rmem_tensor(16, F4)
        a.fill(1.0)
        b.fill(1.0)
        scales = cute.make_rmem_tensor((4, 3), E4M3)
        for i in kiln.range_constexpr(12):
            scales[i] = E4M3(float(1 + i // 4))
        sums = cute.make_rmem_tensor((4, 4), F32)
        sums.fill(0.0)
        one, two, three = (scales[None, i].iterator for i in range(3))
        for n, (before, inside, after) in enumerate(((two, None, None), (None, two, None), (one, None, three))):
            mma = cute.make_mma_atom(NVF4)
            mma.set(warp.Field.SFB, one)
            if kiln.const_expr(before is not None):
                mma.set(warp.Field.SFA, before)
            for _ in range(trips):
                if kiln.const_expr(inside is not None):
                    mma.set("sf_a", inside)
                cute.gemm(mma, sums[None, n], a, b, sums[None, n])
                if kiln.const_expr(after is not None):
                    mma.set(warp.Field.SFA, after)
        mma = cute.make_mma_atom(NVF4)
        mma.set(warp.Field.ACCUMULATE, trips > 100)
        mma.set(warp.Field.SFA, three)
        mma.set(warp.Field.SFB, one)
        for _ in range(trips):
            cute.gemm(mma, sums[None, 3], a, b, sums[None, 3])
        for n in kiln.range_constexpr(4):
            out[n] = sums[0, n]

    @cute.jit
    def function(out: cute.Tensor, trips: kiln.Int32):
        kernel(out, trips).launch(grid=1, block=32)

    out = np.zeros(4, np.float32)
    with kiln.target("cpu"):
        function(from_dlpack(out), 3)
    assert out.tolist() == [3 * 128, 3 * 128, 64 + 2 * 192, 192]


@needs_ptxas
def test_instructions_of_sm_120():
    op = OPS[3]
    arrays = [from_dlpack(np.zeros(count, np.int32), assumed_align=16) for count in (4096, 4096, 128, 128)]
    arrays.append(from_dlpack(np.zeros((M, N), np.float32), assumed_align=16))
    made = compile_for(tile_kernel(op), *arrays, arch="sm_120a").executable.artifacts
    ptx = made["ptx"]
    assert "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e4m3.f32.ue8m0 {" in ptx
    assert "{0, 0}, %r" in ptx and "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64" in ptx
    if toolchain.find("nvdisasm") is not None:
        assert made["sass"].count("QMMA.SF.16832.F32.E2M1.E4M3.E8") == 4 * 8 * 4  # of a warp: 64 x 64 x 128
    with pytest.raises(DSLNotImplemented, match=r"mma.sync with block scales needs sm_120a.*sm_100 has tcgen05.mma"):
        compile_for(tile_kernel(op), *arrays, arch="sm_100a")


@needs_ptxas
@pytest.mark.parametrize(("arch", "refused"), [("sm_121a", ""), ("sm_90a", "mma.sync of floats of 4 or 6 bits needs")])
def test_floats_of_4_and_6_bits_without_scale_factors(arch: str, refused: str):
    op = warp.MmaF8F6F4Op(F4, E2M3)

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        mma = cute.make_tiled_mma(op)
        mine = mma.get_slice(cute.arch.thread_idx()[0])
        parts = [mine.partition_A(a), mine.partition_B(b), mine.partition_C(c)]
        left, right, sums = mma.make_fragment_A(parts[0]), mma.make_fragment_B(parts[1]), mma.make_fragment_C(parts[2])
        assert left.element_type is kiln.Int8 and right.element_type is kiln.Int8
        cute.basic_copy(parts[0], left)
        cute.basic_copy(parts[1], right)
        sums.fill(0.0)
        cute.gemm(mma, sums, left, right, sums)
        cute.basic_copy(sums, parts[2])

    @cute.jit
    def function(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kernel(a, b, c).launch(grid=1, block=32)

    arrays = [from_dlpack(np.zeros(shape, t)) for shape, t in (((16, 32), "i1"), ((8, 32), "i1"), ((16, 8), "f4"))]
    if refused:
        with pytest.raises(DSLNotImplemented, match=refused):
            compile_for(function, *arrays, arch=arch)
        return
    ptx = compile_for(function, *arrays, arch=arch).executable.artifacts["ptx"]
    assert "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m3.f32" in ptx
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (16, 32), dtype=np.uint8), rng.integers(0, 64, (8, 32), dtype=np.uint8)
    numbers = [x.view(t).astype(np.float64) for x, t in zip(codes, (ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn))]
    c = np.zeros((16, 8), np.float32)
    with kiln.target("cpu"):
        function(*map(from_dlpack, ((codes[0] << 2).view(np.int8), codes[1].view(np.int8), c)))
    np.testing.assert_array_equal(c, numbers[0] @ numbers[1].T)


REFUSED = [
    (lambda: warp.MmaMXF4Op(kiln.Int8, F32, UE8M0), "a_dtype of MmaMXF4Op is Int8"),
    (lambda: warp.MmaMXF4Op(F4, F32, E4M3), "sf_type of MmaMXF4Op is Float8E4M3FN.*it is Float8E8M0FNU"),
    (lambda: warp.MmaMXF8F6F4Op(E4M3, E5M2, kiln.Float16, UE8M0), "acc_dtype of MmaMXF8F6F4Op is Float16"),
    (lambda: warp.MmaF8F6F4Op(F4, kiln.Float16), "MmaF8F6F4Op does not accumulate Float16 in Float32"),
    (lambda: warp.MmaF8F6F4Op(F4, F4, F32, (16, 8, 64)), r"has no shape \(16, 8, 64\)"),
    (lambda: blackwell_helpers.get_permutation_mnk((M, N, K), 16, True), "sf_vec_size is 16"),
    (lambda: blackwell_helpers.get_layoutSFA_TV(cute.make_tiled_mma(warp.MmaFP8Op(E4M3))), "has no scale factors"),
    (
        lambda: blockscaled_layout.sm120_make_smem_layout_sfa(tiled(OPS[1]), (M, N, 64), 32, 1),
        "64 elements along K has scale factors for 32 each.*multiples of 128 and of 128",
    ),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_refused(make: Any, says: str) -> None:
    with pytest.raises(Exception) as caught:  # without its lines of this file, which has the words
        make()
    assert re.search(says, f"{caught.value.args[0]} {getattr(caught.value, 'hint', '')}")


def test_operands_without_scale_factors_are_refused():
    @cute.kernel
    def kernel(case: kiln.Constexpr):
        mma = cute.make_tiled_mma(NVF4)
        a, b = (cute.make_rmem_tensor(shape, F4) for shape in ((32, 1), (16, 1)))
        sums = cute.make_rmem_tensor((4, 1, 1), F32)
        good = cute.make_rmem_tensor(cute.make_layout(((16, 4), 1), stride=((0, 1), 0)), E4M3)
        wrong = {
            "plain": a, "type": [a, cute.make_rmem_tensor(good.layout, UE8M0)],
            "layout": [a, cute.make_rmem_tensor((64, 1), E4M3)],
        }  # fmt: skip
        if kiln.const_expr(case == "field"):
            mma.set(warp.Field.SFA, cute.make_rmem_tensor(4, UE8M0).iterator)
        if kiln.const_expr(case == "unset"):  # set in a loop that may have no iteration
            for _ in range(kiln.Int32(cute.arch.thread_idx()[0])):
                mma.set(warp.Field.SFA, good.iterator)
        cute.gemm(mma, sums, wrong.get(case, a), [b, good], sums)

    @cute.jit
    def function(case: kiln.Constexpr):
        kernel(case).launch(grid=1, block=32)

    for case, says in (
        ("plain", "takes A as a fragment and its scale factors"), ("type", "SFA has elements of Float8E8M0FNU"),
        ("layout", "SFA has the layout .*partition_fragment_SFA makes it"),
        ("field", "warp.Field.SFA is set to .*a pointer to Float8E4M3FN in registers"),
        ("unset", "mma.set.warp.Field.SFA, sfa.iterator. comes before"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=f"(?s){says}"), kiln.target("cpu"):
            function(case)
