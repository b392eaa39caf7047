"""Operations of NVIDIA GPUs as atoms, a module for each unit, and those that every processor has."""

from __future__ import annotations

from ..._support import lazy
from .common import *

_UNITS = ("common", "cpasync", "tcgen05", "warp", "warpgroup")
_PLACES = {"make_tiled_tma_atom_A": ".tma_atom", "make_tiled_tma_atom_B": ".tma_atom"}
"""Names of modules that load when they are used."""

__getattr__ = lazy.names(__name__, _PLACES, _UNITS)
