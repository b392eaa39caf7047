"""Symmetric memory: memory of every device that all of them reach, and multicast addresses that stand for several.

Each device has a range of addresses, so that an address tells its device. It begins as zeros, and takes pages when they
are touched. A multicast address belongs to a range that nothing is mapped to: only `multimem` instructions and TMA
stores take it (`targets/cpu/runtime/multicast.py`), other accesses are faults.
"""

from __future__ import annotations

import bisect
import ctypes
import dataclasses
import mmap
from collections.abc import Sequence

from kiln._support import fork_safe
from kiln.targets.cpu.runtime import multicast

from ..serve_cuda import device as served
from . import checked

_STRIDE = 1 << 36
"""Bytes of addresses of a device, and of multicast addresses."""
ALIGNMENT = 512

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_NORESERVE = 0x4000
_DONT_NEED = 4
_PROT_NONE = 0


@dataclasses.dataclass(frozen=True)
class Block:
    """An allocation of a device."""

    device: int
    address: int
    size: int


class Heap:
    """The symmetric memory of some devices."""

    def __init__(self, devices: int) -> None:
        self.devices = devices
        self._lock = fork_safe.rlock()
        self._bases: list[int] = [_reserve(mmap.PROT_READ | mmap.PROT_WRITE) for _ in range(devices)]
        self._multicast_base: int = _reserve(_PROT_NONE)
        self._multicast_end: int = self._multicast_base
        self._ends: list[int] = list(self._bases)
        self._blocks: list[dict[int, Block]] = [{} for _ in range(devices)]
        self._free: list[dict[int, list[int]]] = [{} for _ in range(devices)]
        self._multicasts: dict[tuple[int, ...], int] = {}

    def allocate(self, device: int, size: int) -> Block:
        """Return new memory of a device, zeros. What was freed is used again for the same size."""
        rounded = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        checked.tell_pending()
        with self._lock:
            free = self._free[device].get(rounded)
            address = free.pop(0) if free else self._ends[device]
            is_new = address == self._ends[device]
            if is_new:
                if address + rounded > self._bases[device] + _STRIDE:
                    raise MemoryError(f"device {device} has no {size} bytes of symmetric memory left")
                self._ends[device] = address + rounded
            block = self._blocks[device][address] = Block(device, address, size)
        if not is_new:  # not locked: the sanitizer may wait for a thread whose garbage collector calls `free`
            checked.takes(device, address, address + rounded)
            ctypes.memset(address, 0, rounded)
        return block

    def free(self, block: Block) -> None:
        """Give memory back."""
        with self._lock:
            if self._blocks[block.device].pop(block.address, None) is not None:
                rounded = -(-max(block.size, 1) // ALIGNMENT) * ALIGNMENT
                if not checked.gives_back(block.device, block.address, block.address + rounded):
                    self.reuse(block.device, block.address, rounded)

    def reuse(self, device: int, address: int, size: int) -> None:
        """Let memory that was given back be used again."""
        with self._lock:
            self._free[device].setdefault(-(-size // ALIGNMENT) * ALIGNMENT, []).append(address)

    def allocations(self, device: int) -> list[tuple[int, int]]:
        """Return where each allocation of a device begins and ends."""
        with self._lock:
            return [(block.address, block.address + max(block.size, 1)) for block in self._blocks[device].values()]

    def ranges(self) -> list[tuple[int, int]]:
        """Return where the memory of each device begins and ends."""
        return [(base, base + _STRIDE) for base in self._bases]

    def multicast_range(self) -> tuple[int, int]:
        return self._multicast_base, self._multicast_base + _STRIDE

    def block_at(self, address: int) -> Block | None:
        """Return the allocation that contains an address; None if there is none."""
        device = self.device_of(address)
        if device is None:
            return None
        with self._lock:
            starts = sorted(self._blocks[device])
            place = bisect.bisect_right(starts, address) - 1
            block = self._blocks[device][starts[place]] if place >= 0 else None
            return block if block is not None and address < block.address + max(block.size, 1) else None

    def device_of(self, address: int) -> int | None:
        """Return the device in whose symmetric memory an address is; None if it is in no device's."""
        return next((number for number, base in enumerate(self._bases) if base <= address < base + _STRIDE), None)

    def multicast(self, addresses: Sequence[int], size: int) -> int:
        """Return an address that stands for memory of several devices, always the same for the same memory."""
        with self._lock:
            key = (*addresses, size)
            if key not in self._multicasts:
                start = self._multicast_end
                self._multicast_end += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
                multicast.bind(start, size, addresses)
                self._multicasts[key] = start
            return self._multicasts[key]

    def is_multicast(self, address: int) -> bool:
        """Return whether an address is a multicast address."""
        return self._multicast_base <= address < self._multicast_end


def _reserve(access: int) -> int:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    address = _libc.mmap(None, _STRIDE, access, flags, -1, 0)
    if address == _FAILED or address is None:
        raise MemoryError(f"there are no {_STRIDE} bytes of addresses for symmetric memory")
    return address


_lock = fork_safe.rlock()
_heaps: list[Heap] = []


def heap() -> Heap:
    """Return the symmetric memory of this process, made when first used."""
    with _lock:
        if not _heaps:
            _heaps.append(Heap(served.count()))
        return _heaps[0]


def describe(address: int) -> str:
    """Return which allocation an address belongs to; empty if it is not known."""
    block = heap().block_at(address)
    if block is None:
        return ""
    return f"byte {address - block.address} of an allocation of {block.size} bytes of device {block.device}"
