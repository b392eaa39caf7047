"""The operations of this package under the name of the module that programs take its constants from."""

from __future__ import annotations

from . import *  # noqa: F403
from .cluster import map_dsmem_ptr as mapa
from .values import FULL_MASK, WARP_SIZE

__all__ = ["FULL_MASK", "WARP_SIZE", "mapa"]
