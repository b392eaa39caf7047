"""The tensor cores of sm_100 to sm_110: MMAs with accumulators in tensor memory, and copies of tensor memory."""

from __future__ import annotations

from ...._support import unavailable
from ..smem_layouts import make_smem_layout_atom, tile_to_mma_shape
from . import copy, mma
from .copy import *
from .mma import *
from .tensor_memory import find_tmem_tensor_col_offset

__all__ = ["find_tmem_tensor_col_offset", "make_smem_layout_atom", "tile_to_mma_shape"]
__all__ += copy.__all__
__all__ += mma.__all__


def __getattr__(name: str) -> object:
    return unavailable.name(__name__, name)
