"""The CPU target: kernels and host functions as native code of this machine. Needs no GPU."""

from __future__ import annotations

from .target import CpuTarget


def load_target() -> CpuTarget:
    """Return the target, for the registry."""
    return CpuTarget()
