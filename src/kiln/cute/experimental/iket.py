"""Marks and ranges for a tracer of what happens inside kernels. Kiln has none: they do nothing, and cost nothing."""

from __future__ import annotations

from typing import Any

__all__ = ["mark", "range_pop", "range_push"]


def mark(event_name: str, payload: Any = None, *, loc: Any = None, ip: Any = None) -> None:
    """Name a moment of a kernel."""


def range_push(event_name: str, payload: Any = None, *, loc: Any = None, ip: Any = None) -> None:
    """Begin a named range."""


def range_pop(*, loc: Any = None, ip: Any = None) -> None:
    """End the range that began last."""
