"""GPUs: architectures with their features and limits, known devices, the one programs are compiled for, and the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import options, settings

measuring_kernels: Callable[[], Any]
"""The module of kernels that times are taken with: a language above makes them, and the package `kiln` says where."""
