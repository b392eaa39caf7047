"""`rubin_helpers` under the name of its architecture."""

from __future__ import annotations

from .._support import lazy
from .rubin_helpers import *  # noqa: F403

__dir__ = lazy.listing(__name__)
