"""`LayoutEnum`: whether a matrix is row- or column-major."""

from __future__ import annotations

import enum
from typing import Any

from ..base_dsl.diagnostics import type_error
from ..cute.nvgpu.common import OperandMajorMode


class LayoutEnum(enum.Enum):
    """The order of a matrix's elements. Operands are A (M, K), B (N, K) and C (M, N), each perhaps with more modes."""

    ROW_MAJOR = "row_major"
    COL_MAJOR = "col_major"

    def is_k_major_a(self) -> bool:
        """Return whether elements of A adjacent in K are adjacent in memory."""
        return self is LayoutEnum.ROW_MAJOR

    def is_m_major_a(self) -> bool:
        """Return whether elements of A adjacent in M are adjacent in memory."""
        return self is LayoutEnum.COL_MAJOR

    def is_k_major_b(self) -> bool:
        """Return whether elements of B adjacent in K are adjacent in memory."""
        return self is LayoutEnum.ROW_MAJOR

    def is_n_major_b(self) -> bool:
        """Return whether elements of B adjacent in N are adjacent in memory."""
        return self is LayoutEnum.COL_MAJOR

    def is_n_major_c(self) -> bool:
        """Return whether elements of C adjacent in N are adjacent in memory."""
        return self is LayoutEnum.ROW_MAJOR

    def is_m_major_c(self) -> bool:
        """Return whether elements of C adjacent in M are adjacent in memory."""
        return self is LayoutEnum.COL_MAJOR

    def mma_major_mode(self) -> OperandMajorMode:
        """Return the mode along which operand A (M, K) or B (N, K) of a WGMMA is contiguous."""
        return OperandMajorMode.K if self is LayoutEnum.ROW_MAJOR else OperandMajorMode.MN

    sm90_mma_major_mode = mma_major_mode

    @staticmethod
    def from_tensor(tensor: Any) -> LayoutEnum:
        """Return the order of a tensor's first two modes; one of them must be the leading mode."""
        leading = tensor.leading_dim
        if isinstance(leading, tuple):
            leading = leading[0] if leading else None
        if leading not in (0, 1):
            raise type_error(
                f"a tensor with layout {tensor.layout} is neither row- nor column-major",
                "mode 0 or mode 1 must have stride 1",
            )
        return LayoutEnum.COL_MAJOR if leading == 0 else LayoutEnum.ROW_MAJOR
