"""Kiln's dialects, loaded when a kernel is first traced, so that importing the language loads no MLIR bindings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:
    from ..dialects import cute, nvgpu
else:
    cute = lazy.Module("kiln.dialects.cute")
    nvgpu = lazy.Module("kiln.dialects.nvgpu")

__all__ = ["cute", "nvgpu"]
