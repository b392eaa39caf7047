"""`hopper_helpers` under the name of its architecture."""

from __future__ import annotations

from .._support import lazy
from .hopper_helpers import *  # noqa: F403

__dir__ = lazy.listing(__name__)
