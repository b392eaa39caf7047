"""Names that programs take from the language's inner module."""

from __future__ import annotations

from .addresses import *  # noqa: F403
from .assumptions import *  # noqa: F403
from .composed_layout import ComposedLayout as _ComposedLayout  # noqa: F401 - a name programs know
from .layout_algebra import *  # noqa: F403
from .pointer import *  # noqa: F403
from .structures import *  # noqa: F403
from .tensor import *  # noqa: F403
from .tensor_ssa import *  # noqa: F403
