"""Everything public about shapes, coordinates, layouts and their algebra, in one list.

Plain Python: importing this starts no compiler and needs no GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import algebra, basis, composed_layout, int_tuple, inverses, layout, modes, recast, swizzle, tiling
from .algebra import *
from .basis import *
from .composed_layout import *
from .int_tuple import *
from .inverses import *
from .layout import *
from .modes import *
from .recast import *
from .swizzle import *
from .tiling import *

if not TYPE_CHECKING:  # checkers follow the stars above; mypy cannot add up lists
    __all__ = []
    __all__ += algebra.__all__
    __all__ += basis.__all__
    __all__ += composed_layout.__all__
    __all__ += int_tuple.__all__
    __all__ += inverses.__all__
    __all__ += layout.__all__
    __all__ += modes.__all__
    __all__ += recast.__all__
    __all__ += swizzle.__all__
    __all__ += tiling.__all__
