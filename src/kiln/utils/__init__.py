"""What kernels are built from besides the language itself. Names load when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..cute.draw import print_latex, print_latex_tv
    from .hardware_info import HardwareInfo
    from .layout_enum import LayoutEnum
    from .reductions import reduce_in_block, reduce_in_warp
    from .smem_allocator import SmemAllocator, SmemPartition
    from .smem_capacity import get_smem_capacity_in_bytes
    from .tensor_helpers import create_cute_tensor_for_fp8, is_fp8_dtype
    from .tile_swizzle import swizzled_tile
    from .work_tile import WorkTileInfo

_PLACES = {
    "HardwareInfo": ".hardware_info",
    "LayoutEnum": ".layout_enum",
    "SmemAllocator": ".smem_allocator",
    "SmemPartition": ".smem_allocator",
    "get_smem_capacity_in_bytes": ".smem_capacity",
    "print_latex": "..cute.draw",
    "print_latex_tv": "..cute.draw",
    "create_cute_tensor_for_fp8": ".tensor_helpers",
    "is_fp8_dtype": ".tensor_helpers",
    "reduce_in_block": ".reductions",
    "reduce_in_warp": ".reductions",
    "swizzled_tile": ".tile_swizzle",
    "WorkTileInfo": ".work_tile",
}
"""Where a name is defined."""


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(_PLACES[name], __name__), name)
    else:
        try:
            value = importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
