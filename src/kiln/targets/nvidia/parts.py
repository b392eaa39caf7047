"""The parts of the native runtime that host code of this target may need."""

from __future__ import annotations

from ..host import jit, runtime
from . import tensor_maps

TENSOR_MAPS = jit.Part(tensor_maps.maps)
PARTS = (*runtime.PARTS, TENSOR_MAPS)
