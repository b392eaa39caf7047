"""How many columns of tensor memory to allocate."""

from __future__ import annotations

from ..base_dsl.diagnostics import type_error
from ..cute import Layout, cosize, recast_layout
from ..cute.nvgpu.tcgen05 import find_tmem_tensor_col_offset
from ..cute.tensor.pointer import element_bits

__all__ = ["compute_tmem_cols_from_layout", "get_num_tmem_alloc_cols"]

_LEAST = 32
_MOST = 512
_COLUMN = 32
"""The bits of a column."""


def get_num_tmem_alloc_cols(
    tmem_tensors: object, rounding: bool = True, *, arch: str = "sm_100", loc: object = None, ip: object = None
) -> int:
    """Return how many columns to allocate for tensors that lie side by side in tensor memory.

    Args:
        tmem_tensors: a tensor in tensor memory, or a list of them.
        rounding: round up to a power of two from 32 to 512, which can be allocated. More than 512 raise ValueError.
        arch: the architecture.
    """
    tensors = tmem_tensors if isinstance(tmem_tensors, (list, tuple)) else [tmem_tensors]
    columns = sum(find_tmem_tensor_col_offset(tensor) for tensor in tensors)
    if rounding:
        columns = max(_LEAST, 1 << (columns - 1).bit_length())
    if not _LEAST <= columns <= _MOST:
        raise ValueError(
            f"TMEM allocation columns {columns} exceeds the maximum capacity of {_MOST} or less than {_LEAST}"
        )
    return columns


def compute_tmem_cols_from_layout(layout: object, dtype: object, *, loc: object = None, ip: object = None) -> int:
    """Return how many columns a layout of tensor memory takes for elements of a type.

    Args:
        layout: a static layout, as that of `make_fragment_C`; others raise TypeError.
        dtype: the element type.
    """
    plain = getattr(layout, "outer", layout)
    if not isinstance(plain, Layout) or not plain.is_static():
        raise type_error(f"compute_tmem_cols_from_layout takes a static layout, got {layout}")
    return cosize(recast_layout(_COLUMN, element_bits(dtype), plain)) & 0xFFFF
