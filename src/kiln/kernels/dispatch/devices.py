"""The device that kernels are compiled for, and the features that it may have."""

from __future__ import annotations

from ...hardware import features
from ...hardware.current import device as current
from ...hardware.devices import Device, device_of

__all__ = ["Device", "current", "device_of", "features", "max_active_clusters"]


def max_active_clusters(size: int) -> int:
    """Return how many clusters of `size` CTAs run at a time on the current device with one CTA on each SM; at least
    1."""
    return max(1, current().active_clusters(size))
