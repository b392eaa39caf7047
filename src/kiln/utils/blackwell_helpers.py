"""Shared-memory layouts under the names of sm_100's helpers: those of `hopper_helpers`, by the operand's major mode."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import type_error
from ..cute.nvgpu.common import OperandMajorMode
from ..cute.nvgpu.smem_layouts import SmemLayoutAtomKind, make_smem_layout_atom
from .hopper_helpers import get_smem_layout_atom, make_smem_layout_epi
from .layout_enum import LayoutEnum

__all__ = ["get_smem_layout_atom_ab", "make_smem_layout", "make_smem_layout_atom", "make_smem_layout_epi"]


def _layout(major_mode: Any) -> LayoutEnum:
    if not isinstance(major_mode, OperandMajorMode):
        raise type_error(
            f"major_mode is {major_mode!r}",
            "OperandMajorMode.K or OperandMajorMode.MN, as LayoutEnum.from_tensor(tensor).mma_major_mode() gives it",
        )
    return LayoutEnum.ROW_MAJOR if major_mode is OperandMajorMode.K else LayoutEnum.COL_MAJOR


def get_smem_layout_atom_ab(
    major_mode: OperandMajorMode, element_type: Any, smem_shape_mn_k: Any, *, loc: Any = None, ip: Any = None
) -> SmemLayoutAtomKind:
    """Return the layout atom with the widest swizzle whose span divides the contiguous mode of a tile (MN, K)."""
    return get_smem_layout_atom(
        _layout(major_mode), element_type, smem_shape_mn_k[1 if major_mode is OperandMajorMode.K else 0]
    )


def make_smem_layout(
    leading_mode: OperandMajorMode, smem_tile_shape: Any, a_dtype: Any, num_stages: int, *, loc: Any = None,
    ip: Any = None,
) -> Any:  # fmt: skip
    """Return the layout of a tile (MN, K, stages) in shared memory, contiguous along `leading_mode`."""
    return make_smem_layout_epi(a_dtype, _layout(leading_mode), smem_tile_shape, num_stages)
