"""Operations of a warp on matrices: multiply-accumulate (`mma.sync`), loads and stores of 8x8 matrices."""

from __future__ import annotations

from ...._support import lazy
from . import copy, mma
from .copy import *
from .mma import *

__dir__ = lazy.listing(__name__)
__all__: list[str] = []
__all__ += copy.__all__
__all__ += mma.__all__
