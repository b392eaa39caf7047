"""GPUs: architectures with features and limits, known devices, the current one, and the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._support import lazy
from . import options, settings

__dir__ = lazy.listing(__name__)

measuring_kernels: Callable[[], Any]
"""Returns the module of kernels for measurements, which a language above defines; the package `kiln` sets it."""
