"""Operations of NVIDIA GPUs as atoms, a module for each unit, and those that every processor has."""

from __future__ import annotations

import importlib
from typing import Any

from .common import *

_UNITS = ("common", "cpasync", "tcgen05", "warp", "warpgroup")


def __getattr__(name: str) -> Any:
    if name in _UNITS:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
