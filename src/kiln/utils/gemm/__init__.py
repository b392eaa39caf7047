"""Parts of GEMM kernels, by architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy
from . import sm100 as sm100

if TYPE_CHECKING:
    from . import tensor_utils as tensor_utils
else:
    __getattr__ = lazy.names(__name__, {}, ("tensor_utils",))
