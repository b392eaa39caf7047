"""Building blocks of GEMMs for sm_90: the MMA, shared-memory layouts of operands, the epilogue's tile, store atoms."""

from __future__ import annotations

from typing import Any

from .._support import lazy
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, NumericMeta, TFloat32, Uint8
from ..cute import ComposedLayout, CopyAtom, TiledMma, make_copy_atom, make_tiled_mma, size, tile_to_shape
from ..cute.nvgpu import CopyUniversalOp
from ..cute.nvgpu.warp import StMatrix8x8x16bOp
from ..cute.nvgpu.warpgroup import (
    MmaF8Op,
    MmaF16BF16Op,
    MmaI8Op,
    MmaTF32Op,
    OperandSource,
    SmemLayoutAtomKind,
    make_smem_layout_atom,
)
from .layout_enum import LayoutEnum
from .smem_capacity import SMEM_CAPACITY

__dir__ = lazy.listing(__name__)
__all__ = [
    "SMEM_CAPACITY",
    "SmemLayoutAtomKind",
    "compute_tile_shape_or_override",
    "get_smem_layout_atom",
    "make_smem_layout_a",
    "make_smem_layout_atom",
    "make_smem_layout_b",
    "make_smem_layout_epi",
    "make_trivial_tiled_mma",
    "sm90_get_smem_store_op",
]


def make_trivial_tiled_mma(
    a_dtype: object,
    b_dtype: object,
    a_leading_mode: object,
    b_leading_mode: object,
    acc_dtype: object,
    atom_layout_mnk: object,
    tiler_mn: object,
    a_source: OperandSource = OperandSource.SMEM,
    *,
    loc: object = None,
    ip: object = None,
) -> TiledMma:
    """Return a tiled WGMMA for operands of given types. Needs sm_90a.

    Float32 is multiplied as TFloat32.

    Args:
        a_dtype: the element type of A.
        b_dtype: the element type of B; TypeError if there is no WGMMA of the two.
        a_leading_mode: the contiguous mode of A, `OperandMajorMode.K` or `MN` (16-bit types only).
        b_leading_mode: the contiguous mode of B.
        acc_dtype: the type of the accumulators.
        atom_layout_mnk: how many warpgroups work side by side along M, N and K.
        tiler_mn: the tile of one warpgroup, (64, N) with N a multiple of 8 up to 256.
        a_source: `OperandSource.SMEM`, or `RMEM` for A in registers.
    """
    m, n = _tile("tiler_mn", tiler_mn, 2)
    places = (a_source, a_leading_mode, b_leading_mode)
    if a_dtype in (Float16, BFloat16) and a_dtype is b_dtype:
        op: Any = MmaF16BF16Op(a_dtype, acc_dtype, (m, n, 16), *places)
    elif a_dtype in _BYTE_FLOATS and b_dtype in _BYTE_FLOATS:
        op = MmaF8Op(a_dtype, b_dtype, acc_dtype, (m, n, 32), *places)
    elif a_dtype in _BYTES and b_dtype in _BYTES:
        op = MmaI8Op(a_dtype, b_dtype, acc_dtype, (m, n, 32), *places)
    elif a_dtype in _WORDS and b_dtype in _WORDS and acc_dtype is Float32:
        op = MmaTF32Op((m, n, 8), *places)
    else:
        a, b, acc = (getattr(x, "__name__", repr(x)) for x in (a_dtype, b_dtype, acc_dtype))
        raise type_error(
            f"there is no WGMMA of {a} and {b} accumulated in {acc}",
            "Float16 twice, BFloat16 twice, two of Float8E4M3FN and Float8E5M2, of Int8 and Uint8, or of Float32 and TFloat32 "
            "(accumulated in Float32)",
        )
    return make_tiled_mma(op, atom_layout_mnk)


_BYTE_FLOATS = (Float8E4M3FN, Float8E5M2)
_BYTES = (Int8, Uint8)
_WORDS = (TFloat32, Float32)


def get_smem_layout_atom(
    layout: LayoutEnum, element_type: Any, major_mode_size: int, *, loc: object = None, ip: object = None
) -> SmemLayoutAtomKind:
    """Return the kind of layout atom with the widest swizzle that fits a tile in shared memory.

    Args:
        layout: `LayoutEnum.ROW_MAJOR` or `COL_MAJOR`.
        element_type: the type of the elements.
        major_mode_size: the extent of the contiguous mode, which the atom's rows divide.
    """
    _check_layout(layout)
    bits = _whole("major_mode_size", major_mode_size) * _width(element_type)
    if bits % 8:
        raise type_error(
            f"rows of {major_mode_size} {element_type.__name__} take {bits} bits, which are not whole bytes",
            "major_mode_size times the bits of an element is a multiple of 8",
        )
    swizzle = next((f"SW{row}" for row in (128, 64, 32) if bits % (row * 8) == 0), "INTER")
    return SmemLayoutAtomKind[f"{'K' if layout is LayoutEnum.ROW_MAJOR else 'MN'}_{swizzle}"]


def make_smem_layout_a(
    a_layout: LayoutEnum,
    mma_tiler_mnk: object,
    a_dtype: object,
    num_stages: int,
    *,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the layout of operand A (M, K, stages) in shared memory, swizzled for WGMMA.

    Args:
        a_layout: whether A is row- or column-major, `LayoutEnum.from_tensor(a)`.
        mma_tiler_mnk: the tile (M, N, K).
        a_dtype: the element type of A.
        num_stages: the stages of the pipeline.
    """
    m, _, k = _tile("mma_tiler_mnk", mma_tiler_mnk, 3)
    return _staged(a_layout, a_dtype, (m, k), num_stages)


def make_smem_layout_b(
    b_layout: LayoutEnum,
    mma_tiler_mnk: object,
    b_dtype: object,
    num_stages: int,
    *,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the layout of operand B (N, K, stages) in shared memory, swizzled for WGMMA.

    Args:
        b_layout: whether B is row- or column-major, `LayoutEnum.from_tensor(b)`.
        mma_tiler_mnk: the tile (M, N, K).
        b_dtype: the element type of B.
        num_stages: the stages of the pipeline.
    """
    _, n, k = _tile("mma_tiler_mnk", mma_tiler_mnk, 3)
    return _staged(b_layout, b_dtype, (n, k), num_stages)


def make_smem_layout_epi(
    epi_dtype: object,
    epi_layout: LayoutEnum,
    epi_tile: object,
    epi_stage: int,
    smem_trg_shape: object = None,
    smem_order: object = None,
    *,
    loc: object = None,
    ip: object = None,
) -> ComposedLayout:
    """Return the layout of the epilogue's tile (M, N, stages) in shared memory, swizzled for `stmatrix` and TMA
    stores.

    Args:
        epi_dtype: the element type of the output.
        epi_layout: whether the output is row- or column-major.
        epi_tile: the tile (M, N) of one store.
        epi_stage: how many tiles.
        smem_trg_shape: another shape to fill; by default (M, N, stages).
        smem_order: the order of its modes.
    """
    return _staged(epi_layout, epi_dtype, _tile("epi_tile", epi_tile, 2), epi_stage, smem_trg_shape, smem_order)


def _staged(layout: Any, dtype: Any, tile: Any, stages: int, shape: Any = None, order: object = None) -> Any:
    """Return the atom for the tile's contiguous mode, repeated along the other mode, this one, and the stages."""
    _check_layout(layout)
    rows = layout is LayoutEnum.ROW_MAJOR
    atom = make_smem_layout_atom(get_smem_layout_atom(layout, dtype, tile[1 if rows else 0]), dtype)
    if shape is None:
        shape = (*tile, _whole("the number of stages", stages))
    if order is None:
        order = (0, 1, 2) if rows else (1, 0, 2)
    return tile_to_shape(atom, shape, order)


def compute_tile_shape_or_override(
    tile_shape_mnk: object, element_type: object, is_cooperative: bool = False, epi_tile_override: Any = None
) -> tuple[int, int]:
    """Return the epilogue's tile (M, N): what one warpgroup stores at a time.

    Args:
        tile_shape_mnk: the tile of the CTA, (M, N, K).
        element_type: the type of the output.
        is_cooperative: two warpgroups share the tile.
        epi_tile_override: a tile to return as it is.
    """
    if epi_tile_override is not None:
        return epi_tile_override
    m, n, _ = _tile("tile_shape_mnk", tile_shape_mnk, 3)
    if is_cooperative:
        return min(128, m), min(32, n)
    return min(64, m), min(64 if _width(element_type) == 8 else 32, n)


def sm90_get_smem_store_op(
    layout_d: LayoutEnum, elem_ty_d: object, elem_ty_acc: object, *, loc: object = None, ip: object = None
) -> CopyAtom:
    """Return the atom that stores results to shared memory: `stmatrix` for 16 bits, transposed if M is contiguous.

    Args:
        layout_d: whether the output is row- or column-major.
        elem_ty_d: the element type of the output.
        elem_ty_acc: the type of the accumulators.
    """
    _check_layout(layout_d)
    _width(elem_ty_acc)
    if _width(elem_ty_d) == 16:
        return make_copy_atom(StMatrix8x8x16bOp(layout_d.is_m_major_c(), 4), elem_ty_d)
    return make_copy_atom(CopyUniversalOp(), elem_ty_d)


def _check_layout(layout: object) -> None:
    if not isinstance(layout, LayoutEnum):
        raise type_error(
            f"layout is {layout!r}", "LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR, or LayoutEnum.from_tensor(tensor)"
        )


def _width(dtype: object) -> int:
    if not isinstance(dtype, NumericMeta) or dtype.is_abstract:
        raise type_error(f"the element type is {dtype!r}", "a numeric type such as Float16")
    return dtype.width


def _whole(what: str, x: object) -> int:
    if isinstance(x, bool) or not isinstance(x, int) or x < 1:
        raise type_error(f"{what} is {x!r}", "at least 1, known when compiling")
    return x


def _tile(what: str, tile: object, rank: int) -> tuple[int, ...]:
    """Return the extents of a tile; nested modes and layouts count as their size."""
    if not isinstance(tile, tuple) or len(tile) != rank:
        raise type_error(f"{what} is {tile!r}", f"{rank} extents")
    return tuple(_whole(f"an extent of {what}", size(extent)) for extent in tile)


get_smem_store_op = sm90_get_smem_store_op
sm90_get_smem_layout_atom = get_smem_layout_atom
sm90_make_trivial_tiled_mma = make_trivial_tiled_mma
