"""Everything public about shapes, coordinates, layouts and their algebra, in one list.

Plain Python: importing this starts no compiler and needs no GPU.
"""

from __future__ import annotations

from . import algebra, basis, composed_layout, int_tuple, inverses, layout, modes, recast, swizzle, tiling
from .algebra import *  # noqa: F403
from .basis import *  # noqa: F403
from .composed_layout import *  # noqa: F403
from .int_tuple import *  # noqa: F403
from .inverses import *  # noqa: F403
from .layout import *  # noqa: F403
from .modes import *  # noqa: F403
from .recast import *  # noqa: F403
from .swizzle import *  # noqa: F403
from .tiling import *  # noqa: F403

__all__: list[str] = []
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
