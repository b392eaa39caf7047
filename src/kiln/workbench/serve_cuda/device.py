"""The GPU that programs see: the one that represents the architecture they are compiled for."""

from __future__ import annotations

import os
import threading

from kiln.hardware import current as hardware
from kiln.hardware.devices import Device as Model
from kiln.hardware.limits import STATIC_SMEM

CUDA_VERSION = 13000
"""The version of CUDA that programs see, as the driver and the runtime state it."""


class Device:
    """Properties by torch's names; sizes in bytes."""

    shared_memory_per_block = STATIC_SMEM
    clock_rate = 1_500_000
    memory_clock_rate = 2_000_000
    memory_bus_width = 5120
    is_integrated = is_multi_gpu_board = 0
    pci_bus_id = pci_device_id = pci_domain_id = 0
    uuid = "00000000-0000-0000-0000-000000000000"

    def __init__(self, model: Model) -> None:
        limits = model.generation
        self.major: int = model.capability[0]
        self.minor: int = model.capability[1]
        self.name: str = f"Kiln host memory as sm_{limits.number}"
        self.multi_processor_count: int = model.sm_count
        self.L2_cache_size: int = model.l2_cache
        self.shared_memory_per_block_optin: int = limits.smem_optin
        self.shared_memory_per_multiprocessor: int = limits.smem
        self.max_threads_per_multi_processor: int = limits.threads
        self.max_blocks_per_multi_processor: int = limits.blocks
        self.max_threads_per_block: int = limits.threads_per_block
        self.regs_per_multiprocessor: int = limits.registers
        self.regs_per_block: int = limits.registers
        self.warp_size: int = limits.warp

    @property
    def total_memory(self) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def free_memory(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def current() -> Device:
    """Return the device of the current architecture."""
    return Device(hardware.device())


class _Devices:
    """How many devices programs see, all alike."""

    count = 1


class _Current(threading.local):
    """The device of a thread."""

    number = 0


_devices = _Devices()
_current = _Current()


def count() -> int:
    """Return how many devices programs see."""
    return _devices.count


def set_count(number: int) -> None:
    """Let programs see so many devices."""
    _devices.count = number


def current_number() -> int:
    """Return the number of this thread's device."""
    return _current.number


def set_current(number: int | None) -> None:
    """Make a device this thread's; -1 changes nothing."""
    _current.number = check_number(number)


def check_number(number: int | None) -> int:
    """Return the number of a device; None and -1 stand for this thread's. RuntimeError if there is no such device."""
    if number is None or number == -1:
        return _current.number
    if not 0 <= number < _devices.count:
        are = "is one device" if _devices.count == 1 else f"are {_devices.count} devices"
        raise RuntimeError(f"CUDA error: invalid device ordinal: there {are}, and {number} was asked for")
    return number
