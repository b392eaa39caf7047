"""Parts of the interface that may still change."""

from __future__ import annotations

from .._support import lazy

__getattr__ = lazy.names(__name__, {}, ("cuda", "primitives", "task_scheduling"))
