"""Layouts of shared memory by major mode."""

from __future__ import annotations

import pytest

from kiln import Float16, Float32
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.cute.nvgpu import OperandMajorMode, warpgroup
from kiln.utils import LayoutEnum, blackwell_helpers, hopper_helpers


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
