"""The NVIDIA target: kernels as cubins, host functions as native code that launches them through the CUDA driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .target import NvidiaTarget


def load_target() -> NvidiaTarget:
    """Return the target, for the registry."""
    from .target import NvidiaTarget  # here, so that looking for tools loads no compiler

    return NvidiaTarget()
