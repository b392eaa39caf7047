"""Warp MMA with block scales and of floats below 8 bits (sm_120): layouts, a tile on the CPU target, PTX, refusals."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute, utils
from kiln.base_dsl.diagnostics import DSLNotImplemented
from kiln.cute.nvgpu import CopyUniversalOp, warp
from kiln.cute.runtime import from_dlpack
from kiln.utils import blackwell_helpers, blockscaled_layout

F4, E2M3, E4M3, E5M2 = kiln.Float4E2M1FN, kiln.Float6E2M3FN, kiln.Float8E4M3FN, kiln.Float8E5M2
UE8M0, F32 = kiln.Float8E8M0FNU, kiln.Float32
NVF4 = warp.MmaMXF4NVF4Op(F4, F32, E4M3)
OPS = [
    NVF4, warp.MmaMXF4Op(F4, F32, UE8M0), warp.MmaMXF8Op(E5M2, F32, UE8M0), warp.MmaMXF8F6F4Op(F4, E4M3, F32, UE8M0),
]  # fmt: skip
M, N, K = 128, 128, 128


def test_layouts_are_those_of_the_c_plus_plus_atoms():
    atom = cute.make_mma_atom(NVF4)
    assert str(atom.tv_layout_A) == "((4,8),(8,2,2)):((128,1),(16,8,512))"
    assert str(atom.tv_layout_B) == "((4,8),(8,2)):((64,1),(8,256))"
    assert atom.shape_mnk == (16, 8, 64)
    mixed = cute.make_mma_atom(OPS[3])
    assert str(mixed.tv_layout_A) == str(cute.make_mma_atom(warp.MmaFP8Op(E4M3)).tv_layout_A)
    assert warp.mma.MXF8F6F4_SUPPORTED_PAIRS == {(F4, E4M3), (F4, E5M2), (E4M3, F4), (E5M2, F4)}


def tiled(op: Any, tile: Any = (M, N, K)) -> Any:
    permutation = blackwell_helpers.get_permutation_mnk(tile, op.sf_vec_size, op.kind == "mxf8f6f4")
    return cute.make_tiled_mma(op, (2, 2, 1), permutation_mnk=permutation)


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


def tile_kernel(op: Any):
    """A CTA of four warps multiplies one tile; bytes of operands come as they lie in shared memory."""
    unpacks = [t is F4 and op.kind == "mxf8f6f4" for t in (op.a_dtype, op.b_dtype)]
    held = [kiln.Int8 if unpack else t for unpack, t in zip(unpacks, (op.a_dtype, op.b_dtype), strict=True)]

    def matrices(number: int) -> Any:
        if unpacks[number]:
            return cute.make_copy_atom(warp.LdMatrix8x16x8bOp(False, 4, 4), kiln.Int8)
        return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), held[number])

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
        thread, mma = cute.arch.thread_idx()[0], tiled(op)
        smem = utils.SmemAllocator()
        shared = [
            smem.allocate_tensor(held[0], cute.make_layout((M, K), stride=(K, 1)), 128),
            smem.allocate_tensor(held[1], cute.make_layout((N, K), stride=(K, 1)), 128),
            smem.allocate_tensor(
                op.sf_type, blockscaled_layout.sm120_make_smem_layout_sfa(mma, (M, N, K), op.sf_vec_size, 1), 128
            ),
            smem.allocate_tensor(
                op.sf_type, blockscaled_layout.sm120_make_smem_layout_sfb(mma, (M, N, K), op.sf_vec_size, 1), 128
            ),
        ]
        for source, target in zip((a, b, sfa, sfb), shared, strict=True):
            words = cute.make_tensor(
                cute.recast_ptr(target.iterator, dtype=kiln.Int32), cute.make_layout(cute.size(source))
            )
            for i in range(thread, cute.size(source), 128):
                words[i] = source[i]
        cute.arch.sync_threads()
        mine = mma.get_slice(thread)
        left, right = (
            mine.make_fragment_A(mine.partition_A(shared[0])),
            mine.make_fragment_B(mine.partition_B(shared[1])),
        )
        scales_a = blackwell_helpers.partition_fragment_SFA(shared[2][None, None, 0], mine, thread)
        scales_b = blackwell_helpers.partition_fragment_SFB(shared[3][None, None, 0], mine, thread)
        scales_a, scales_b = (cute.group_modes(x, 2, cute.rank(x)) for x in (scales_a, scales_b))
        for n, (make, fragment) in enumerate(((cute.make_tiled_copy_A, left), (cute.make_tiled_copy_B, right))):
            copy = make(matrices(n), mma)
            cute.copy(copy, copy.get_slice(thread).partition_S(shared[n]), copy.get_slice(thread).retile(fragment))
            if kiln.const_expr(unpacks[n]):
                bytes_ = cute.recast_tensor(fragment, kiln.Int8)
                for i in kiln.range_constexpr(cute.size(bytes_)):
                    bytes_[i] = kiln.Int8(bytes_[i] << 2)
        for x, fragment, layout, mode in (
            (shared[2], scales_a, blackwell_helpers.get_layoutSFA_TV(mma), 0),
            (shared[3], scales_b, blackwell_helpers.get_layoutSFB_TV(mma), 1),
        ):
            tiler = (mma.get_tile_size(mode), mma.get_tile_size(2))
            copy = cute.make_tiled_copy(cute.make_copy_atom(CopyUniversalOp(), op.sf_type), layout, tiler)
            part, registers = copy.get_slice(thread).partition_S(x)[None, None, None, 0], copy.retile(fragment)
            cute.copy(copy, cute.filter_zeros(part), cute.filter_zeros(registers))
        out = mine.partition_C(cute.make_tensor(c.iterator, cute.make_layout((M, N), stride=(N, 1))))
        sums = mma.make_fragment_C(out)
        sums.fill(0.0)
        for k in kiln.range_constexpr(cute.size(left, mode=[2])):
            pairs = ([left[None, None, k], scales_a[None, None, k]], [right[None, None, k], scales_b[None, None, k]])
            cute.gemm(mma, sums, *pairs, sums)
        cute.basic_copy(sums, out)

    @cute.jit
    def function(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
        kernel(a, b, sfa, sfb, c).launch(grid=1, block=128)

    return function


_CODES = {F4: ml_dtypes.float4_e2m1fn, E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def operand(rng: Any, dtype: Any, unpacked: bool) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of an operand in shared memory, and its numbers."""
    numbers = rng.choice([-3.0, -1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 4.0], (128, K)).astype(_CODES[dtype])
    codes = numbers.view(np.uint8)
    if dtype is F4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    if unpacked:  # 16 elements are 8 bytes, and 8 bytes follow that do not count
        codes = np.concatenate([codes.reshape(-1, 8), rng.integers(0, 256, (128 * K // 16, 8), dtype=np.uint8)], 1)
    return np.ascontiguousarray(codes).reshape(-1).view(np.int32), numbers.astype(np.float64)


def scales(rng: Any, op: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scale factors as they lie in shared memory, and one for each element."""
    count = K // op.sf_vec_size
    values = rng.choice([0.5, 1.0, 2.0], (128, count))
    held = np.zeros(128 * count, np.float32)
    for row in range(128):
        for n in range(count):
            held[n // 4 * 512 + row % 32 * 16 + row // 32 * 4 + n % 4] = values[row, n]
    code = ml_dtypes.float8_e8m0fnu if op.sf_type is UE8M0 else ml_dtypes.float8_e4m3fn
    return held.astype(code).view(np.int32), np.repeat(values, op.sf_vec_size, 1)


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_a_tile_on_the_cpu(op: Any):
    rng = np.random.default_rng(3)
    narrow = op.kind == "mxf8f6f4"
    (a, left), (b, right) = (operand(rng, t, narrow and t is F4) for t in (op.a_dtype, op.b_dtype))
    (sfa, by_row), (sfb, by_column) = (scales(rng, op) for _ in range(2))
    c = np.zeros((M, N), np.float32)
    with kiln.target("cpu"):
        tile_kernel(op)(*(from_dlpack(x) for x in (a, b, sfa, sfb, c)))
    np.testing.assert_array_equal(c, (left * by_row) @ (right * by_column).T)


@needs_ptxas
def test_instructions_of_sm_120():
    op = OPS[3]
    arrays = [from_dlpack(np.zeros(count, np.int32), assumed_align=16) for count in (4096, 4096, 128, 128)]
    arrays.append(from_dlpack(np.zeros((M, N), np.float32), assumed_align=16))
    ptx = compile_for(tile_kernel(op), *arrays, arch="sm_120a").executable.artifacts["ptx"]
    assert "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e2m1.e4m3.f32.ue8m0 {" in ptx
    assert "{0, 0}, %r" in ptx and "ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.b4x16_p64" in ptx
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
        cute.gemm(mma, sums, wrong[case], [b, good], sums)

    @cute.jit
    def function(case: kiln.Constexpr):
        kernel(case).launch(grid=1, block=32)

    for case, says in (
        ("plain", "takes A as a fragment and its scale factors"), ("type", "SFA has elements of Float8E8M0FNU"),
        ("layout", "SFA has the layout .*partition_fragment_SFA makes it"),
    ):  # fmt: skip
        with pytest.raises(Exception, match=f"(?s){says}"), kiln.target("cpu"):
            function(case)
