"""What kernels ask of the device they are made for."""

from __future__ import annotations

from ...hardware.current import device as current
from ...hardware.devices import Device, device_of

__all__ = ["Device", "clusters", "current", "device_of"]


def clusters(size: int) -> int:
    """How many clusters of so many blocks, each with a multiprocessor to itself, run at a time on the current device."""
    return max(1, current().active_clusters(size))
