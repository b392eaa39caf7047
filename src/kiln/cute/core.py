"""The core vocabulary under the name of its module: the same objects as in `kiln.cute`."""

from __future__ import annotations

from .composed_layout import ComposedLayout
from .layout_algebra import *  # noqa: F403
from .pointer import *  # noqa: F403
from .tensor import *  # noqa: F403
from .tensor_ssa import *  # noqa: F403

_ComposedLayout = ComposedLayout
