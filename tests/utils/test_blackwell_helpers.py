"""Layouts of shared memory by major mode."""

from __future__ import annotations

import pytest

import kiln
from kiln import Float16, Float32, cute, utils
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import OperandMajorMode, tcgen05, warpgroup
from kiln.utils import LayoutEnum, blackwell_helpers, blockscaled_layout, hopper_helpers


@pytest.mark.parametrize("tile", [(64, 64), (128, 32), (32, 16), (64, 8)])
def test_tiles_lie_as_those_of_warp_groups(tile):
    k, mn = OperandMajorMode.K, OperandMajorMode.MN
    made = blackwell_helpers.make_smem_layout(k, tile, Float16, 3)
    assert str(made) == str(hopper_helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (tile[0], 8, tile[1]), Float16, 3))
    made = blackwell_helpers.make_smem_layout(mn, tile, Float16, 3)
    assert str(made) == str(hopper_helpers.make_smem_layout_a(LayoutEnum.COL_MAJOR, (tile[0], 8, tile[1]), Float16, 3))


def test_operands_that_tma_cannot_load():
    check = blackwell_helpers.check_gemm_tma_alignment
    check(7, 8, 16, Float16, Float16, Float16, "k", "n", "n")
    check(7, 8, 16, Float16, Float16, None, "k", "k", None)
    with pytest.raises(ValueError, match="A is contiguous along M, which has 7 elements of Float16"):
        check(7, 8, 16, Float16, Float16, Float16, "m", "n", "n")
    with pytest.raises(ValueError, match="C is contiguous along N, .* multiples of 16 bytes, 4 elements"):
        check(8, 6, 16, Float16, Float16, Float32, "m", "k", "n", output_tensor_name="C")
    with pytest.raises(DSLUserCodeTypeError, match="the major mode of B is 'x'"):
        check(8, 6, 16, Float16, Float16, Float32, "m", "x", "n")


def test_the_widest_permutation_is_taken():
    kinds = warpgroup.SmemLayoutAtomKind
    atom = blackwell_helpers.get_smem_layout_atom_ab
    assert atom(OperandMajorMode.K, Float32, (8, 32)) is kinds.K_SW128
    assert atom(OperandMajorMode.MN, Float16, (16, 64)) is kinds.MN_SW32
    with pytest.raises(DSLUserCodeTypeError, match="major_mode is 'k'"):
        atom("k", Float16, (64, 64))


@pytest.mark.parametrize(
    ("m", "n", "pair", "mma_n", "in_tmem"),
    [
        (128, 256, False, 256, False),
        (64, 256, False, 128, False),
        (64, 128, False, 128, True),
        (64, 64, True, 64, False),
    ],
)
def test_columns_of_accumulators(m, n, pair, mma_n, in_tmem):
    """As many as the layout of accumulators has."""
    group = tcgen05.CtaGroup.TWO if pair else tcgen05.CtaGroup.ONE
    source = tcgen05.OperandSource.TMEM if in_tmem else tcgen05.OperandSource.SMEM
    k = OperandMajorMode.K
    mma = blackwell_helpers.make_trivial_tiled_mma(
        Float16, Float16, k, k, Float32, group, (m * (1 + pair), mma_n), source
    )
    found = blackwell_helpers.compute_acc_tmem_cols_per_stage(m, n, pair, mma_n, in_tmem)
    seen = []

    @cute.kernel
    def kernel():
        shape = mma.partition_shape_C((m * (1 + pair), n))
        layout = mma.make_fragment_C(shape).layout
        seen.append(utils.compute_tmem_cols_from_layout(layout, Float32))

    @cute.jit
    def function():
        kernel().launch(grid=1, block=32)

    with kiln.target("cpu"):
        cute.compile(function)
    assert [found] == seen


def test_columns_of_accumulators_that_there_are_not():
    with pytest.raises(DSLUserCodeTypeError, match="cta_tile_m is 32"):
        blackwell_helpers.compute_acc_tmem_cols_per_stage(32, 64, False, 64, False)
    with pytest.raises(DSLUserCodeTypeError, match="takes a static layout"):
        utils.compute_tmem_cols_from_layout((1, 2), Float32)


def test_scale_factors_of_a_tile_lie_as_in_global_memory():
    for vector, shape in ((16, (256, 128)), (32, (128, 256))):
        made = blockscaled_layout.make_smem_layout_sf(shape, vector, 3)
        whole = blockscaled_layout.tile_atom_to_shape_SF((*shape, 3), vector)
        for row, k, stage in ((0, 0, 0), (37, 20, 1), (127, 127, 2), (33, 64, 1)):
            assert made((row, k, stage)) == whole((row, k, stage))
    with pytest.raises(DSLUserCodeTypeError, match="a tile of 64 rows"):
        blockscaled_layout.make_smem_layout_sf((64, 128), 32, 1)


def test_helpers_under_the_names_of_utils():
    assert utils.make_smem_layout_a is blackwell_helpers.make_smem_layout_a
    assert utils.sm90_make_trivial_tiled_mma is hopper_helpers.make_trivial_tiled_mma
    kind = utils.get_smem_layout_atom_epi(LayoutEnum.ROW_MAJOR, Float16, (128, 32))
    assert kind is tcgen05.SmemLayoutAtomKind.K_SW64
