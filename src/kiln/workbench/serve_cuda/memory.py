"""Memory that programs allocate through cuda-bindings: host memory, aligned as CUDA's is.

Every access through the bindings is checked first. Sizes of allocations made here are known; for other memory (torch's
tensors, the program's own buffers) it is known whether it exists. Freed memory is no longer accessible, and its
addresses are not reused for a while.
"""

from __future__ import annotations

import bisect
import collections
import ctypes
import mmap
from typing import Any

import numpy

from kiln._support import fork_safe

from . import ranks

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10
_NORESERVE = 0x4000
_MS_ASYNC = 1
_PROT_NONE = 0

_PAGE = mmap.PAGESIZE
_KEPT_BYTES = 4 << 30
_KEPT_COUNT = 1024
"""Limits of freed address space that is not reused yet: bytes, and ranges."""

_lock = fork_safe.rlock()
_sizes: dict[int, int] = {}
_kinds: dict[int, str] = {}
_starts: list[int] = []
_freed: collections.deque[tuple[int, int]] = collections.deque()
_freed_bytes = 0


class BadAddress(RuntimeError):
    """An access to memory that does not exist."""

    def __init__(self, address: int, size: int) -> None:
        where = f"{size} bytes at 0x{address:x} {_what_is_wrong(address)}"
        super().__init__(f"CUDA error: an illegal memory access was encountered: {where}")


def allocate(size: int, kind: str = "device") -> int | None:
    """Allocate memory and return its address; None if there is none. `free` takes the same `kind`."""
    size = max(int(size), 1)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, _rounded(size), access, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == _FAILED:
        return None
    with _lock:
        _sizes[address] = size
        _kinds[address] = kind
        bisect.insort(_starts, address)
    return address


def free(address: int, kind: str = "device") -> bool:
    """Free memory; return False for an address that was not allocated here with this kind. Address 0 is always fine."""
    global _freed_bytes
    if not address:
        return True
    with _lock:
        if _kinds.get(address) != kind:
            return False
        size = _rounded(_sizes.pop(address))
        del _kinds[address], _starts[bisect.bisect_left(_starts, address)]
        how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED | _NORESERVE
        if _libc.mmap(address, size, _PROT_NONE, how, -1, 0) == _FAILED:
            _libc.munmap(address, size)
            return True
        _freed.append((address, size))
        _freed_bytes += size
        while _freed and (_freed_bytes > _KEPT_BYTES or len(_freed) > _KEPT_COUNT):
            oldest, size = _freed.popleft()
            _libc.munmap(oldest, size)
            _freed_bytes -= size
    return True


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _allocation(address: int) -> int | None:
    """Return the start of the allocation that contains an address."""
    place = bisect.bisect_right(_starts, address) - 1
    if place < 0:
        return None
    start = _starts[place]
    return start if address < start + _rounded(_sizes[start]) else None


def _was_freed(address: int, size: int) -> bool:
    return any(start < address + size and address < start + length for start, length in _freed)


def _what_is_wrong(address: int) -> str:
    start = _allocation(address)
    if start is not None:
        return f"do not lie in an allocation of {_sizes[start]} bytes at 0x{start:x}"
    return "were given back" if _was_freed(address, 1) else "are no memory of this process"


def check(address: int, size: int) -> None:
    """Raise `BadAddress` unless a whole range of addresses is accessible."""
    if not size:
        return
    with _lock:
        start = _allocation(address)
        if start is not None:
            good = address + size <= start + _sizes[start]
        else:
            first = address // _PAGE * _PAGE
            good = 0 < address < address + size < 1 << 63 and not _was_freed(address, size)
            # msync fails if nothing is mapped there.
            good = good and not _libc.msync(first, address + size - first, _MS_ASYNC)
        if not good:
            raise BadAddress(address, size)


def address_of(x: Any, size: int) -> int:
    """Return the address of an argument: a number, a handle, a ctypes object or a buffer.

    Raises `BadAddress` for an object that has fewer than `size` bytes.
    """
    if x is None:
        return 0
    if isinstance(x, int):
        return x
    if isinstance(x, (ctypes.c_void_p, ctypes._Pointer)):
        return ctypes.cast(x, ctypes.c_void_p).value or 0
    if isinstance(x, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
        return _enough(ctypes.addressof(x), ctypes.sizeof(x), size)
    if isinstance(x, bytes):
        return _enough(ctypes.cast(ctypes.c_char_p(x), ctypes.c_void_p).value or 0, len(x), size)
    is_numpy_scalar = hasattr(x, "__array_interface__") and not hasattr(x, "ctypes")
    try:
        view = None if is_numpy_scalar else memoryview(x)
    except TypeError:
        view = None
    if view is None:
        return int(x)
    if not view.nbytes:
        return 0
    if not view.readonly:
        return _enough(ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B"))), view.nbytes, size)
    return _enough(numpy.frombuffer(view, dtype=numpy.uint8).__array_interface__["data"][0], view.nbytes, size)


def _enough(address: int, has: int, size: int) -> int:
    if has < size:
        raise BadAddress(address, size)
    return address


def _tell(address: int, size: int, write: bool) -> None:
    """Tell the sanitizer of an access. It may wait for other threads, so that nothing is locked."""
    if ranks.current() is not None:
        check(address, size)
        ranks.accesses(address, size, write)


def copy(target: int, source: int, size: int) -> None:
    """Copy bytes between ranges that may overlap."""
    _tell(source, size, False)
    _tell(target, size, True)
    with _lock:  # checked memory must not be freed before the copy
        check(target, size)
        check(source, size)
        ctypes.memmove(target, source, size)


def fill(address: int, value: int, width: int, count: int) -> None:
    """Set `count` elements of `width` bytes to a value."""
    pattern = (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    _tell(address, width * count, True)
    with _lock:
        check(address, width * count)
        if len(set(pattern)) == 1:
            ctypes.memset(address, pattern[0], width * count)
        else:
            ctypes.memmove(address, pattern * count, width * count)
