"""The GPU that programs are told they have: the one of `CUTE_DSL_ARCH`, else an H200-like one of compute capability 9.0."""

from __future__ import annotations

import dataclasses
import os
import re


@dataclasses.dataclass(frozen=True)
class Device:
    """Numbers of a GPU as the driver reports them; sizes in bytes."""

    major: int
    minor: int
    multi_processor_count: int
    L2_cache_size: int
    shared_memory_per_block_optin: int
    max_threads_per_multi_processor: int = 2048
    max_blocks_per_multi_processor: int = 32
    max_threads_per_block: int = 1024
    warp_size: int = 32
    shared_memory_per_block: int = 48 << 10
    regs_per_multiprocessor: int = 65536
    regs_per_block: int = 65536
    clock_rate: int = 1_500_000
    memory_clock_rate: int = 2_000_000
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"

    @property
    def name(self) -> str:
        return f"Kiln host memory as sm_{self.major}{self.minor}"

    @property
    def gcnArchName(self) -> str:
        return self.name

    @property
    def total_memory(self) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def free_memory(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def shared_memory_per_multiprocessor(self) -> int:
        return self.shared_memory_per_block_optin + 1024


_KIB = 1024
# Multiprocessors, L2 and shared memory of a well-known GPU of each compute capability.
_DEVICES = {
    (8, 0): Device(8, 0, 108, 40 << 20, 163 * _KIB),
    (8, 6): Device(8, 6, 84, 6 << 20, 99 * _KIB, 1536, 16),
    (8, 7): Device(8, 7, 16, 4 << 20, 163 * _KIB, 1536, 16),
    (8, 9): Device(8, 9, 128, 72 << 20, 99 * _KIB, 1536, 24),
    (9, 0): Device(9, 0, 132, 50 << 20, 227 * _KIB),
    (10, 0): Device(10, 0, 148, 126 << 20, 227 * _KIB),
    (10, 3): Device(10, 3, 148, 126 << 20, 227 * _KIB),
    (12, 0): Device(12, 0, 170, 96 << 20, 99 * _KIB, 1536, 24),
    (12, 1): Device(12, 1, 48, 24 << 20, 99 * _KIB, 1536, 24),
}
_DEFAULT = (9, 0)


def current() -> Device:
    """The device, by the architecture in `CUTE_DSL_ARCH` now."""
    asked = re.fullmatch(r"sm_(\d+)(\d)[af]?", os.environ.get("CUTE_DSL_ARCH", "").strip().lower())
    if asked is None:
        return _DEVICES[_DEFAULT]
    capability = int(asked[1]), int(asked[2])
    if capability in _DEVICES:
        return _DEVICES[capability]
    nearest = max((known for known in _DEVICES if known <= capability), default=_DEFAULT)
    return dataclasses.replace(_DEVICES[nearest], major=capability[0], minor=capability[1])


def check_number(number: int) -> int:
    """The number of a device, which must be 0: there is one."""
    if number not in (-1, 0):
        raise RuntimeError(f"CUDA error: invalid device ordinal: there is one device, and {number} was asked for")
    return 0
