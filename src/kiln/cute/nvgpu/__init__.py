"""Operations of NVIDIA GPUs as atoms, a module for each unit, and those that every processor has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy
from .common import *

if TYPE_CHECKING:  # what loads when it is first used
    from . import common as common
    from . import cpasync as cpasync
    from . import tcgen05 as tcgen05
    from . import warp as warp
    from . import warpgroup as warpgroup
    from .im2col import make_im2col_tma_atom_A as make_im2col_tma_atom_A
    from .tma_atom import make_tiled_tma_atom_A as make_tiled_tma_atom_A
    from .tma_atom import make_tiled_tma_atom_B as make_tiled_tma_atom_B

_UNITS = ("common", "cpasync", "tcgen05", "warp", "warpgroup")
_PLACES = {
    "make_im2col_tma_atom_A": ".im2col",
    "make_tiled_tma_atom_A": ".tma_atom",
    "make_tiled_tma_atom_B": ".tma_atom",
}
"""Names of modules that load when they are used."""

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, _UNITS)
