"""`HardwareInfo`: what the GPU is like. Without one, what a GPU of the architecture compiled for would be like."""

from __future__ import annotations

from typing import Any

from ..hardware import current

__all__ = ["HardwareInfo"]


class HardwareInfo:
    """The numbers of a GPU."""

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self._device = current.device(device_id)

    def get_device_multiprocessor_count(self) -> int:
        """How many multiprocessors the GPU has."""
        return self._device.multiprocessors

    def get_l2_cache_size_in_bytes(self) -> int:
        """Size of the L2 cache."""
        return self._device.l2_cache

    def get_max_smem_per_block_in_bytes(self) -> int:
        """Shared memory one block can have."""
        return self._device.smem

    def get_max_active_clusters(self, cluster_size: int, stream: Any = None) -> int:
        """How many clusters of that many blocks, each with all shared memory of a multiprocessor, run at a time."""
        if cluster_size < 1 or cluster_size > 32:
            raise ValueError(f"a cluster of {cluster_size} blocks: expected 1 to 32")
        return self._device.active_clusters(cluster_size, 0 if stream is None else int(stream))
