"""What the matrix operations of warp groups take: how their operands lie in shared memory."""

from __future__ import annotations

from .common import OperandMajorMode
from .smem_layouts import SmemLayoutAtomKind, make_smem_layout_atom

__all__ = ["OperandMajorMode", "SmemLayoutAtomKind", "make_smem_layout_atom"]
