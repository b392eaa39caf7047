"""Ahead of time: compiled functions as object files that need neither Kiln nor Python, and how they are loaded again."""

from __future__ import annotations

from .exporting import export_to_c as export_to_c
from .loading import load_module as load_module
