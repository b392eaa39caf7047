"""Names that programs take from the language's inner module."""

from __future__ import annotations

from .assumptions import *
from .composed_layout import ComposedLayout as _ComposedLayout
from .layout_algebra import *
from .pointer import *
from .structures import *
from .tensor import *
from .tensor_ssa import *

__all__ = ["_ComposedLayout"]
