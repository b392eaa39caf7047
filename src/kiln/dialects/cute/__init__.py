"""The dialects `cute` and `cuda`: tiles, memory and the grid, which upstream dialects do not describe.

Types, then operations by subject, each beside the function that builds it; all names are here. Operations print in
MLIR's generic form.
"""

from . import grid, hints, memory, packing, reports, types
from .grid import *
from .hints import *
from .memory import *
from .packing import *
from .reports import *
from .types import *

OPERATIONS = (*types.Cute.operations, *types.Cuda.operations)
TYPES = (types.Ptr, types.Memref)

__all__ = ["OPERATIONS", "TYPES"]
__all__ += grid.__all__ + hints.__all__ + memory.__all__ + packing.__all__ + reports.__all__ + types.__all__
