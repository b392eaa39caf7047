"""Kiln's dialects, and what they declare, loaded when a kernel is first traced, so that importing the language loads no MLIR bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:
    from ..analysis import effects
    from ..dialects import cute, nvgpu
    from ..dialects.cute import external
else:
    cute = lazy.Module("kiln.dialects.cute")
    external = lazy.Module("kiln.dialects.cute.external")
    nvgpu = lazy.Module("kiln.dialects.nvgpu")
    effects = lazy.Module("kiln.analysis.effects")

__all__ = ["cute", "effects", "external", "nvgpu"]
