"""What kernels ask of the device they are made for."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from ..base_dsl.target import get_target
from ..utils import gpu_models
from ..utils.hardware_info import HardwareInfo


class Device(NamedTuple):
    """Multiprocessors, bytes of shared memory of a block, and blocks of a cluster, at most.

    `float8`: whether `mma.sync` takes 8-bit floats. Elsewhere ptxas converts them, and adds up the products of each.
    """

    multiprocessors: int
    smem: int
    cluster: int
    float8: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may begin while the one before it ends, as on all devices that have clusters."""
        return self.cluster > 1


@functools.lru_cache(maxsize=32)
def _of(modelled: bool, architecture: str, number: int) -> Device:
    if modelled or architecture:
        model = gpu_models.chosen()
        return Device(
            model.multiprocessors,
            model.smem_per_block,
            16 if model.major >= 9 else 1,
            _has_float8(model.major, model.minor),
        )
    info = HardwareInfo(number)
    major, minor = (info._number(name, f"COMPUTE_CAPABILITY_{name.upper()}") for name in ("major", "minor"))
    return Device(
        info.get_device_multiprocessor_count(),
        info.get_max_smem_per_block_in_bytes(),
        16 if major >= 9 else 1,
        _has_float8(major, minor),
    )


def _has_float8(major: int, minor: int) -> bool:
    return (major, minor) == (8, 9) or major == 12


@functools.lru_cache(maxsize=256)
def _clusters(modelled: bool, architecture: str, number: int, size: int) -> int:
    if size == 1 or modelled or architecture:
        return max(1, _of(modelled, architecture, number).multiprocessors // size)
    return max(1, HardwareInfo(number).get_max_active_clusters(size))


def clusters(size: int) -> int:
    """How many clusters of so many blocks, each with a multiprocessor to itself, run at a time on the current device."""
    target = get_target()
    return _clusters(target.on_host, os.environ.get("CUTE_DSL_ARCH", ""), target.current_device(), size)


def current() -> Device:
    """The device that the next call runs on; on the host, the one whose programs run there."""
    target = get_target()
    return _of(target.on_host, os.environ.get("CUTE_DSL_ARCH", ""), target.current_device())
