"""How many columns of tensor memory to allocate."""

from __future__ import annotations

from ..cute.nvgpu.tcgen05 import find_tmem_tensor_col_offset

__all__ = ["get_num_tmem_alloc_cols"]

_LEAST = 32
_MOST = 512


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
