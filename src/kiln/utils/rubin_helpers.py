"""Building blocks of GEMMs for sm_107 (Rubin): MMAs of a given shape that keep an operand for the next MMA.

The instructions of sm_107 that multiply twice as much along K, and scale factors of FloatNV8E5M3FNU, are refused: how they
round is not documented. All else is as on sm_100 (`blackwell_helpers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .._support import lazy
from ..base_dsl.diagnostics import DSLNotImplemented, error
from ..base_dsl.typing import FloatNV8E5M3FNU, NumericMeta
from ..cute import Layout, TiledMma, make_tiled_mma
from ..cute.nvgpu.tcgen05 import CollectorOp, OperandSource
from . import blackwell_helpers
from .layout_enum import LayoutEnum

__dir__ = lazy.listing(__name__)
__all__ = ["compute_epilogue_tile_shape", "make_blockscaled_trivial_tiled_mma", "make_trivial_tiled_mma"]


def make_trivial_tiled_mma(
    a_dtype: object,
    b_dtype: object,
    a_leading_mode: object,
    b_leading_mode: object,
    acc_dtype: object,
    cta_group: object,
    mma_inst_shape_mnk: Sequence[int],
    a_source: object = OperandSource.SMEM,
    *,
    a_collector_op: CollectorOp = CollectorOp.DISCARD,
    b_collector_op: CollectorOp = CollectorOp.DISCARD,
    atom_layout_mnk: object = (1, 1, 1),
    permutation_mnk: object = None,
    loc: object = None,
    ip: object = None,
) -> TiledMma:
    """Return a tiled MMA of `tcgen05.mma` for operands of given types. `CollectorOp` of B needs sm_107a.

    Args:
        a_dtype: the element type of A.
        b_dtype: the element type of B.
        a_leading_mode: the contiguous mode of A, `OperandMajorMode.K` or `MN`.
        b_leading_mode: the contiguous mode of B.
        acc_dtype: the type of the accumulators.
        cta_group: `CtaGroup.ONE`, or `TWO` for a CTA pair.
        mma_inst_shape_mnk: M, N and K of one MMA, of a pair those of both CTAs.
        a_source: `OperandSource.SMEM`, or `TMEM` for A in tensor memory.
        a_collector_op: what becomes of A in the tensor core.
        b_collector_op: what becomes of B in the tensor core.
        atom_layout_mnk: how MMAs of several CTA groups lie on the tile.
        permutation_mnk: the order of rows and columns of the tile.
    """
    types = (a_dtype, b_dtype, a_leading_mode, b_leading_mode, acc_dtype, cta_group)
    mma = blackwell_helpers.make_trivial_tiled_mma(*types, mma_inst_shape_mnk, a_source)
    return _tiled(mma, mma_inst_shape_mnk, a_collector_op, b_collector_op, atom_layout_mnk, permutation_mnk)


def make_blockscaled_trivial_tiled_mma(
    a_dtype: object,
    b_dtype: object,
    a_leading_mode: object,
    b_leading_mode: object,
    sf_dtype: object,
    sf_vec_size: int,
    cta_group: object,
    mma_inst_shape_mnk: Sequence[int],
    a_source: object = OperandSource.SMEM,
    *,
    a_collector_op: CollectorOp = CollectorOp.DISCARD,
    b_collector_op: CollectorOp = CollectorOp.DISCARD,
    atom_layout_mnk: object = (1, 1, 1),
    permutation_mnk: object = None,
    loc: object = None,
    ip: object = None,
) -> TiledMma:
    """Return a tiled MMA of `tcgen05.mma` whose operands have scale factors. `CollectorOp` of B needs sm_107a.

    Args:
        a_dtype: the element type of A, a float of 4, 6 or 8 bits.
        b_dtype: the element type of B.
        a_leading_mode: the contiguous mode of A, `OperandMajorMode.K` or `MN`.
        b_leading_mode: the contiguous mode of B.
        sf_dtype: the type of the scale factors.
        sf_vec_size: the elements along K that share one: 32, or 16 for Float4E2M1FN twice.
        cta_group: `CtaGroup.ONE`, or `TWO` for a CTA pair.
        mma_inst_shape_mnk: M, N and K of one MMA, of a pair those of both CTAs.
        a_source: `OperandSource.SMEM`, or `TMEM` for A in tensor memory.
        a_collector_op: what becomes of A in the tensor core.
        b_collector_op: what becomes of B in the tensor core.
        atom_layout_mnk: how MMAs of several CTA groups lie on the tile.
        permutation_mnk: the order of rows and columns of the tile.
    """
    if sf_dtype is FloatNV8E5M3FNU:
        raise error(DSLNotImplemented, "tcgen05.mma with scale factors of FloatNV8E5M3FNU", hint=_UNKNOWN)
    types = (a_dtype, b_dtype, a_leading_mode, b_leading_mode, sf_dtype, sf_vec_size, cta_group)
    mma = blackwell_helpers.make_blockscaled_trivial_tiled_mma(*types, mma_inst_shape_mnk, a_source)
    return _tiled(mma, mma_inst_shape_mnk, a_collector_op, b_collector_op, atom_layout_mnk, permutation_mnk)


_UNKNOWN = "how this instruction of sm_107 rounds is not documented"


def _tiled(
    mma: TiledMma,
    shape: Sequence[int],
    a_collector: CollectorOp,
    b_collector: CollectorOp,
    layout: object,
    permutation: object,
) -> TiledMma:
    k = mma.shape_mnk[2]
    if len(shape) > 2 and shape[2] != k:
        name = type(mma.op).__name__
        raise error(DSLNotImplemented, f"tcgen05.mma of {name} with K = {shape[2]}", hint=f"{_UNKNOWN}; K = {k} is")
    return make_tiled_mma(mma.op.with_collectors(a_collector, b_collector), layout, permutation)


def compute_epilogue_tile_shape(
    mma_op: object,
    cta_tile_shape: Sequence[object],
    use_2cta_instrs: bool,
    layout_d: LayoutEnum,
    elem_ty_d: NumericMeta,
    *,
    layout_c: LayoutEnum | None = None,
    elem_ty_c: object = None,
    loc: object = None,
    ip: object = None,
) -> tuple[Layout, Layout]:
    """Return the epilogue's tile as `blackwell_helpers.compute_epilogue_tile_shape` does; it does not depend on the MMA."""
    tile = blackwell_helpers.compute_epilogue_tile_shape
    return tile(cta_tile_shape, use_2cta_instrs, layout_d, elem_ty_d, layout_c=layout_c, elem_ty_c=elem_ty_c)
