"""`HardwareInfo`: the properties of the GPU; without one, those of a GPU of the architecture compiled for."""

from __future__ import annotations

from typing import Any

from ..hardware import current

__all__ = ["HardwareInfo"]


class HardwareInfo:
    """The properties of a GPU."""

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self._device = current.device(device_id)

    def get_device_multiprocessor_count(self) -> int:
        """Return the number of SMs of the GPU."""
        return self._device.sm_count

    def get_l2_cache_size_in_bytes(self) -> int:
        """Return the size of the L2 cache in bytes."""
        return self._device.l2_cache

    def get_max_smem_per_block_in_bytes(self) -> int:
        """Return the shared memory that one CTA can have, in bytes."""
        return self._device.smem

    def get_max_active_clusters(self, cluster_size: int, stream: Any = None) -> int:
        """Return how many clusters of `cluster_size` CTAs run at once if each CTA takes all shared memory of an SM."""
        if cluster_size < 1 or cluster_size > 32:
            raise ValueError(f"a cluster of {cluster_size} blocks: expected 1 to 32")
        return self._device.active_clusters(cluster_size, 0 if stream is None else int(stream))
