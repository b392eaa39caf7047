"""Devices: what kernels ask of a GPU, whether this machine has it or it stands for an architecture."""

from __future__ import annotations

import dataclasses
import functools

from . import driver
from .architectures import Generation, generation_of


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU; sizes in bytes."""

    name: str
    generation: Generation
    multiprocessors: int
    l2_cache: int
    number: int | None = None
    """By which the driver knows it; None for one that this machine need not have."""
    specific: bool = True
    """Whether code for it may use what GPUs of its architecture alone have: it is compiled for sm_90a, not for sm_90."""

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability, (9, 0) for an H100."""
        return self.generation.major, self.generation.minor

    @property
    def smem(self) -> int:
        """Shared memory one block can have."""
        return self.generation.smem_per_block

    @property
    def cluster(self) -> int:
        """The most blocks of a cluster."""
        return self.generation.cluster

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may begin while the one before it ends, as on all devices that have clusters."""
        return self.cluster > 1

    @property
    def float8(self) -> bool:
        """Whether `mma.sync` takes 8-bit floats. Elsewhere ptxas converts them, and adds up the products of each."""
        return self.capability == (8, 9) or self.generation.major == 12

    @property
    def warp_groups(self) -> bool:
        """Whether warp groups multiply what lies in shared memory (`wgmma`)."""
        return self.capability == (9, 0) and self.specific

    def active_clusters(self, size: int, stream: int = 0) -> int:
        """How many clusters of so many blocks, each with all shared memory of a multiprocessor, run at a time.

        Measured by the driver, for not every group of multiprocessors is whole; of a device that is not here, as if all were.
        """
        if self.number is None or size == 1 or self.cluster == 1:
            return self.multiprocessors // size
        return driver.active_clusters(self.number, self.smem, size, stream)


_MIB = 1 << 20
_KNOWN = {
    (8, 0): ("A100", 108, 40 * _MIB),
    (8, 6): ("RTX A6000", 84, 6 * _MIB),
    (8, 7): ("Jetson AGX Orin", 16, 4 * _MIB),
    (8, 9): ("GeForce RTX 4090", 128, 72 * _MIB),
    (9, 0): ("H100 SXM", 132, 50 * _MIB),
    (10, 0): ("B200", 148, 126 * _MIB),
    (10, 1): ("Jetson Thor", 20, 32 * _MIB),
    (10, 3): ("B300", 148, 126 * _MIB),
    (11, 0): ("Jetson Thor", 20, 32 * _MIB),
    (12, 0): ("GeForce RTX 5090", 170, 96 * _MIB),
    (12, 1): ("GB10", 48, 24 * _MIB),
}
"""A well-known GPU of a compute capability: its name, multiprocessors and L2 cache."""


@functools.lru_cache(maxsize=64)
def device_of(architecture: str) -> Device:
    """The GPU that stands for an architecture such as "sm_90a"; for one without a well-known GPU, the next older one's numbers."""
    generation = generation_of(architecture)
    known = max(which for which in _KNOWN if which <= (generation.major, generation.minor))
    return Device(_KNOWN[known][0], generation, *_KNOWN[known][1:], specific=not architecture[-1].isdigit())


@functools.lru_cache(maxsize=64)
def device_here(number: int) -> Device:
    """The GPU that the driver knows by a number."""
    if not 0 <= number < driver.device_count():
        raise ValueError(f"there is no device {number}: the driver shows {driver.device_count()}")
    major, minor = driver.capability(number)
    generation = generation_of(f"sm_{major}{minor}")
    count, cache = driver.attribute("multiprocessors", number), driver.attribute("l2_bytes", number)
    return Device(driver.device_name(number), generation, count, cache, number)
