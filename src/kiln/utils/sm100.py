"""`blackwell_helpers` under the name of its architecture."""

from __future__ import annotations

from .blackwell_helpers import *  # noqa: F403
