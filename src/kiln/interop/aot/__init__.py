"""Ahead-of-time compilation: functions as object files that need neither Kiln nor Python, and loading them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(
        __name__,
        {"export_to_c": ".exporting", "load_module": ".loading", "read_metadata": ".loading"},
        ("runtime_files",),
    )
