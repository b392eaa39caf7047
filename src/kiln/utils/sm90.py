"""`hopper_helpers` under the name of its architecture."""

from __future__ import annotations

from .hopper_helpers import *  # noqa: F403
