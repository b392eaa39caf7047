"""Operations of NVIDIA GPUs as atoms, a module for each unit, and those that every processor has."""

from __future__ import annotations

from ..._support import lazy
from .common import *

_UNITS = ("common", "cpasync", "tcgen05", "warp", "warpgroup")


__getattr__ = lazy.names(__name__, {}, _UNITS)
