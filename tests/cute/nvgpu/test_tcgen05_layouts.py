"""Layouts of `tcgen05` and of sm_100's helpers, against what CuTe DSL 4.8.1 was seen to answer, and against the PTX manual."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blackwell_questions import answers

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import CtaGroup, OperandMajorMode, tcgen05
from kiln.cute.nvgpu.tcgen05 import OperandSource, Pack, Repetition
from kiln.utils import blockscaled_layout, get_num_tmem_alloc_cols, sm100

OBSERVED = json.loads((Path(__file__).parent / "observed_tcgen05.json").read_text())
K, MN = OperandMajorMode.K, OperandMajorMode.MN
ONE, TWO = CtaGroup.ONE, CtaGroup.TWO
SMEM, TMEM = OperandSource.SMEM, OperandSource.TMEM


def test_what_was_observed() -> None:
    wrong: list[str] = []
    for (question, there), here in zip(OBSERVED.items(), answers(list(OBSERVED)), strict=True):
        if here != there and not (there == "refused" and here.startswith(("ERR ValueError", "ERR DSL"))):
            wrong.append(f"{question}: {here}, there {there}")
    assert wrong == []
    assert len(OBSERVED) > 500


def lane_and_column(offset: int, bits: int = 32) -> tuple[int, int]:
    """The place in tensor memory of an element that a pointer of `bits` reaches."""
    assert offset * bits % 32 == 0
    return divmod(offset * bits // 32, 1 << 16)


def accumulator_place(m: int, n: int, rows: int, columns: int, ctas: int) -> tuple[int, int]:
    """(lane, column) of an element of a CTA's part of D, by the manual's figures."""
    if rows // ctas == 128:
        return m, n
    if ctas == 2:
        return m + 64 * (n // (columns // 2)), n % (columns // 2)
    return m % 16 + 32 * (m // 16), n


@pytest.mark.parametrize(("rows", "columns", "group"), [(128, 48, ONE), (64, 24, ONE), (256, 32, TWO), (128, 64, TWO)])
@pytest.mark.parametrize("acc", [kiln.Float32, kiln.Float16])
def test_accumulators_lie_where_the_manual_draws_them(rows: int, columns: int, group: Any, acc: Any) -> None:
    @cute.jit
    def f():
        mma = sm100.make_trivial_tiled_mma(kiln.Float16, K, K, acc, group, (rows, columns))
        layout = mma.make_fragment_C(mma.partition_shape_C((rows, columns))).layout
        for m in kiln.range_constexpr(rows // group.value):
            for n in kiln.range_constexpr(columns):
                place = lane_and_column(layout(((m, n), 0, 0)), acc.width)
                assert place == accumulator_place(m, n, rows, columns, group.value)

    cute.compile(f)


def loaded_cell(shape: str, repeat: int, thread: int, register: int) -> tuple[int, int]:
    """(lane, column) of a register of `tcgen05.ld`, by the manual's figures."""
    quad, place = divmod(thread, 4)
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, register + repeat * (thread // 16)
    if shape == "16x64b":
        return quad + 8 * (place % 2), 2 * register + place // 2
    if shape == "16x128b":
        return quad + 8 * (register % 2), 4 * (register // 2) + place
    return quad + 8 * (register // 2 % 2), 8 * (register // 4) + 2 * place + register % 2


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"])
@pytest.mark.parametrize("repeat", [1, 2, 4])
def test_registers_hold_the_cells_that_the_manual_draws(shape: str, repeat: int) -> None:
    for kind in ("Ld", "St"):
        op = getattr(tcgen05, f"{kind}{shape}Op")(Repetition(repeat))
        atom = cute.make_copy_atom(op, kiln.Float32)
        registers = atom.layout_dst_tv if kind == "Ld" else atom.layout_src_tv
        columns = op.shape.bits // 32 * repeat
        for thread in range(32):
            for register in range(op.shape.registers * repeat):
                found = divmod(registers((thread, register)), columns)
                assert found == loaded_cell(shape, repeat, thread, register)
        assert tcgen05.is_tmem_load(atom) is (kind == "Ld") and tcgen05.is_tmem_store(atom) is (kind == "St")


def elements_of(tensor: Any) -> set[Any]:
    return {tensor[i] for i in range(cute.size(tensor))}


def test_threads_of_an_epilogue_cover_the_tile_once() -> None:
    @cute.jit
    def f():
        for op, rows, group in (
            (tcgen05.Ld32x32bOp, 128, ONE), (tcgen05.Ld16x256bOp, 64, ONE), (tcgen05.Ld32x32bOp, 128, TWO),
        ):  # fmt: skip
            mma = sm100.make_trivial_tiled_mma(kiln.BFloat16, K, K, kiln.Float32, group, (rows, 64))
            tensor = mma.make_fragment_C(mma.partition_shape_C((rows, 64)))[(None, None), 0, 0]
            tiled = tcgen05.make_tmem_copy(cute.make_copy_atom(op(Repetition.x4), kiln.Float32), tensor)
            tile = cute.make_identity_tensor((rows // group.value, 64))
            seen = set()
            for thread in kiln.range_constexpr(tiled.size):
                part = tiled.get_slice(thread).partition_D(tile)
                seen |= elements_of(part)
            assert len(seen) == rows // group.value * 64

    cute.compile(f)


def test_properties_of_copies() -> None:
    load = cute.make_copy_atom(tcgen05.Ld16x128bOp(Repetition.x8, Pack.PACK_16b_IN_32b), kiln.Float16)
    assert tcgen05.get_tmem_copy_properties(load) == (16, 128, 8, Pack.PACK_16b_IN_32b)
    store = cute.make_copy_atom(tcgen05.St32x32bOp(Repetition.x2), kiln.Float32)
    assert tcgen05.get_tmem_copy_properties(store) == (32, 32, 2, tcgen05.Unpack.NONE)
    assert tcgen05.LdRed32x32bOp(Repetition.x4).redOp is tcgen05.TmemLoadRedOp.MAX
    assert OperandMajorMode("k") is K and OperandMajorMode("mn") is MN


def test_operations_know_their_operands() -> None:
    op = tcgen05.MmaMXF4NVF4Op(kiln.Float8E4M3FN, (256, 128, 64), TWO, SMEM)
    assert (op.a_dtype, op.acc_dtype, op.sf_dtype, op.sf_vec_size) == (
        kiln.Float4E2M1FN, kiln.Float32, kiln.Float8E4M3FN, 16,
    )  # fmt: skip
    assert tcgen05.SM103MmaMXF4Op((128, 64), ONE, SMEM).shape_mnk == (128, 64, 96)
    assert tcgen05.MmaFP8Op(kiln.Float8E5M2, kiln.Float32, (64, 16, 32), ONE, SMEM, K, MN).b_major_mode is MN
    assert tcgen05.MmaMXF8Op(kiln.Float8E5M2, (128, 16, 32), ONE, SMEM, K, K).sf_vec_size == 32
    assert tcgen05.MmaI8Op(kiln.Uint8, (64, 24, 32), ONE, SMEM, K, K).acc_dtype is kiln.Int32
    by_name = sm100.make_trivial_tiled_mma(
        ab_dtype=kiln.Float16, a_leading_mode=K, b_leading_mode=MN, acc_dtype=kiln.Float32, cta_group=ONE,
        mma_tiler_mn=(64, 8),
    )  # fmt: skip
    assert by_name.op == tcgen05.MmaF16BF16Op(kiln.Float16, kiln.Float32, (64, 8, 16), ONE, SMEM, K, MN)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tcgen05.MmaF16BF16Op(kiln.Float16, kiln.Float32, (64, 8, 16), TWO, SMEM, K, K), "MmaF16BF16Op: m is 64"),
        (lambda: tcgen05.MmaF16BF16Op(kiln.Float16, kiln.Float32, (64, 12, 16), ONE, SMEM, K, K), "MmaF16BF16Op: n is 12"),
        (lambda: tcgen05.MmaF16BF16Op(kiln.Float16, kiln.Float32, (64, 8, 8), ONE, SMEM, K, K), "K of MmaF16BF16Op is 8"),
        (lambda: tcgen05.MmaF16BF16Op(kiln.BFloat16, kiln.Float16, (64, 8, 16), ONE, SMEM, K, K), "MmaF16BF16Op: acc is f16"),
        (lambda: tcgen05.MmaF16BF16Op(kiln.Float32, kiln.Float32, (64, 8, 16), ONE, SMEM, K, K), "a_dtype .* is Float32"),
        (lambda: tcgen05.MmaTF32Op((128, 16, 8), ONE, TMEM, MN, K), "a_src is TMEM"),
        (lambda: tcgen05.MmaTF32Op((128, 16, 8), 1, SMEM, K, K), "cta_group of MmaTF32Op is 1"),
        (lambda: tcgen05.MmaI8Op(kiln.Int8, (128, 40, 32), ONE, SMEM, K, K), "MmaI8Op: n is 40"),
        (lambda: tcgen05.MmaMXF4Op((64, 64, 64), ONE, SMEM), "MmaMXF4Op: m is 64"),
        (lambda: tcgen05.MmaMXF4NVF4Op(kiln.Float16, (128, 64, 64), ONE, SMEM), "sf_dtype .* is Float16"),
        (lambda: tcgen05.Ld16x256bOp(Repetition.x64), "repeat of Ld16x256bOp"),
        (lambda: tcgen05.LdRed32x32bOp(Repetition.x1), "repeat of LdRed32x32bOp"),
        (lambda: tcgen05.St32x32bOp(Repetition.x1, Pack.NONE), "unpack of St32x32bOp"),
        (lambda: tcgen05.Cp4x32x128bOp(1), "cta_group of Cp4x32x128bOp is 1"),
        (lambda: tcgen05.make_s2t_copy(1, 1), "takes an atom of Cp4x32x128bOp"),
        (lambda: sm100.make_trivial_tiled_mma(kiln.Float16, kiln.Int8, K, K, kiln.Float32, ONE, (64, 8)), "no tcgen05 MMA"),
        (lambda: blockscaled_layout.BlockScaledBasicChunk(8), "sf_vec_size is 8"),
        (lambda: tcgen05.tile_to_mma_shape(cute.make_layout((8, 8)), (64, 64)), "mma_tile_shape"),
        (lambda: tcgen05.find_tmem_tensor_col_offset(1), "takes a tensor in tensor memory"),
    ],
)  # fmt: skip
def test_refusals(make: Any, message: str) -> None:
    with pytest.raises(DSLUserCodeTypeError, match=message):
        make()


def test_operands_in_the_wrong_memory_are_refused() -> None:
    @cute.kernel
    def k():
        mma = sm100.make_trivial_tiled_mma(kiln.Float16, K, K, kiln.Float32, ONE, (128, 64))
        acc = mma.make_fragment_C(mma.partition_shape_C((128, 64)))
        with pytest.raises(DSLUserCodeTypeError, match="tcgen05.mma takes A by descriptors of shared memory"):
            cute.gemm(mma, acc, acc, acc, acc)
        load = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.Ld32x32bOp(), kiln.Float32), acc)
        with pytest.raises(DSLUserCodeTypeError, match="the registers of a copy with Ld32x32bOp"):
            cute.copy(load, acc, acc)
        with pytest.raises(DSLUserCodeTypeError, match=r"mode 0 is \(128,64\)"):
            mma.make_fragment_C((128, 64))

    @cute.jit
    def f():
        k().launch(grid=(1, 1, 1), block=(32, 1, 1))

    cute.compile(f)


def test_fields_of_an_mma_are_state() -> None:
    @cute.jit
    def f(n: kiln.Int32):
        mma = sm100.make_blockscaled_trivial_tiled_mma(kiln.Float4E2M1FN, K, K, kiln.Float8E8M0FNU, 32, ONE, (128, 64))
        assert mma.get(tcgen05.Field.ACCUMULATE) is False
        for k in kiln.range(n):
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)
        mma.set(tcgen05.Field.ACCUMULATE, True)
        assert mma.get(tcgen05.Field.ACCUMULATE) is True
        with pytest.raises(DSLUserCodeTypeError, match="SFA is set to 1"):
            mma.set(tcgen05.Field.SFA, 1)
        with pytest.raises(DSLUserCodeTypeError, match="has no field 'metadata'"):
            mma.set(tcgen05.Field.METADATA, 1)

    cute.compile(f, 1)


def test_columns_that_do_not_fit() -> None:
    @cute.jit
    def f():
        mma = sm100.make_trivial_tiled_mma(kiln.Float16, K, K, kiln.Float32, ONE, (128, 256))
        acc = mma.make_fragment_C(cute.append(mma.partition_shape_C((128, 256)), 2))
        assert get_num_tmem_alloc_cols(acc) == 512
        with pytest.raises(ValueError, match="1024 exceeds the maximum capacity of 512"):
            get_num_tmem_alloc_cols([acc, acc])

    cute.compile(f)


def test_scale_factors_in_tensor_memory_lie_as_the_shared_memory_is_cut():
    """K = 96 has chunks of four scale factors in shared memory, and reads six of them: both cut the same cells."""
    mma = cute.make_tiled_mma(
        tcgen05.SM103MmaMXF4NVF4Op(kiln.Float8E4M3FN, (128, 256, 96), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
    )
    chunks = cute.make_layout((((8, 4, 4), (16, 4)), 2, 3))
    single = cute.make_layout(((((32, 4), 2), (16, 1)), 1, 24))
    copied, read = (
        blockscaled_layout.make_tmem_layout_sfb(mma, (128, 256, 768), 16, layout) for layout in (chunks, single)
    )
    assert str(copied) == "((((32,4),4),(16,4)),2,3):((((262144,4),8388608),(0,1)),16,32)"
    assert str(read) == "((((32,8),4),(16,1)),1,(4,6)):((((262144,4),8388608),(0,0)),0,(1,32))"
    assert read((0, 0, 6)) == copied(((0, (0, 2)), 0, 1))


@pytest.mark.parametrize(
    ("tile", "message"),
    [
        ((128, 128, 64), "K = 64"),
        ((128, 128, 192), "K = 192"),
        ((192, 128, 128), "M = 192"),
        ((128, 192, 128), "N = 192"),
    ],
)
def test_tiles_of_parts_of_a_chunk_of_scale_factors_are_refused(tile: tuple[int, int, int], message: str) -> None:
    mma = sm100.make_blockscaled_trivial_tiled_mma(kiln.Float8E4M3FN, K, K, kiln.Float8E8M0FNU, 32, ONE, (128, 128))
    with pytest.raises(DSLUserCodeTypeError, match=message):
        blockscaled_layout.make_smem_layout_sfa(mma, tile, 32, 1)
        blockscaled_layout.make_smem_layout_sfb(mma, tile, 32, 1)
    k96 = cute.make_tiled_mma(tcgen05.SM103MmaMXF4NVF4Op(kiln.Float8E4M3FN, (128, 128, 96), ONE, SMEM))
    with pytest.raises(DSLUserCodeTypeError, match="MMA with K = 96"):
        blockscaled_layout.make_smem_layout_sfa(k96, (128, 128, 768), 16, 1)


def test_a_cta_of_a_pair_partitions_its_own_half() -> None:
    """A tensor in shared memory that has the columns of one CTA only is no part of a tile that is cut off."""

    @cute.kernel
    def kernel():
        mma = sm100.make_trivial_tiled_mma(kiln.Float16, K, K, kiln.Float32, TWO, (256, 128))
        half = cute.make_tensor(cute.arch.alloc_smem(kiln.Float16, 64 * 64, 128), cute.make_layout((64, 64)))
        assert mma.get_slice(0).partition_B(half).shape == ((64, 16), 1, 4)

    @cute.jit
    def f():
        kernel().launch(grid=1, block=32)

    cute.compile(f, target="cpu")


class _AnyBlock(tcgen05.MmaMXF4NVF4Op):
    """The operation with a scale factor for 32 or for 16 elements, as a program derives it."""

    def __init__(self, sf_dtype: type, block: int, shape: tuple[int, int, int]) -> None:
        tcgen05.BlockScaledMmaOp.__init__(
            self, kiln.Float4E2M1FN, kiln.Float4E2M1FN, kiln.Float32, sf_dtype, block, shape, ONE, SMEM, OperandMajorMode.K, OperandMajorMode.K,
        )  # fmt: skip
        self._verify()


def test_operations_that_programs_derive_are_verified():
    wide, narrow = _AnyBlock(kiln.Float8E8M0FNU, 32, (128, 64, 64)), _AnyBlock(kiln.Float8E4M3FN, 16, (128, 64, 64))
    assert (wide.sf_vec_size, narrow.sf_vec_size) == (32, 16) and wide.kind == "mxf4nvf4"
    with pytest.raises(DSLUserCodeTypeError, match="_AnyBlock"):
        _AnyBlock(kiln.Float8E4M3FN, 32, (128, 64, 64))
    wide.shape_mnk = (128, 12, 64)
    with pytest.raises(DSLUserCodeTypeError, match="_AnyBlock"):
        wide._verify()
