"""What kernels ask of the device they are made for."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from ..base_dsl.target import target_name
from ..utils import gpu_models
from ..utils.hardware_info import HardwareInfo


class Device(NamedTuple):
    """Multiprocessors, bytes of shared memory of a block, and blocks of a cluster, at most."""

    multiprocessors: int
    smem: int
    cluster: int

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may begin while the one before it ends, as on all devices that have clusters."""
        return self.cluster > 1


@functools.lru_cache(maxsize=32)
def _of(target: str, architecture: str) -> Device:
    if target == "cpu" or architecture:
        model = gpu_models.chosen()
        return Device(model.multiprocessors, model.smem_per_block, 16 if model.major >= 9 else 1)
    info = HardwareInfo()
    clusters = info._number("major", "COMPUTE_CAPABILITY_MAJOR") >= 9
    return Device(info.get_device_multiprocessor_count(), info.get_max_smem_per_block_in_bytes(), 16 if clusters else 1)


def current() -> Device:
    """The device that the next call runs on."""
    return _of(target_name(), os.environ.get("CUTE_DSL_ARCH", ""))
