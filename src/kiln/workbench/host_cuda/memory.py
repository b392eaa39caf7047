"""Memory that programs allocate through cuda-bindings: the host's, aligned as CUDA's is."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

_ALIGNMENT = 256
_libc = ctypes.CDLL(None)
_libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None

_lock = threading.Lock()
_sizes: dict[int, int] = {}


def allocate(size: int) -> int | None:
    """The address of new memory; None if there is none."""
    made = ctypes.c_void_p()
    if _libc.posix_memalign(ctypes.byref(made), _ALIGNMENT, max(int(size), 1)) or not made.value:
        return None
    with _lock:
        _sizes[made.value] = int(size)
    return made.value


def free(address: int) -> bool:
    """Give memory back; False for an address that was not allocated here. Address 0 is nothing to give back."""
    if not address:
        return True
    with _lock:
        if _sizes.pop(address, None) is None:
            return False
    _libc.free(address)
    return True


def size_at(address: int) -> int | None:
    """Size of the allocation that starts at an address."""
    return _sizes.get(address)


def address_of(x: Any) -> int:
    """The address that an argument stands for: a number, a handle, a ctypes object or something with a buffer."""
    if isinstance(x, int):
        return x
    if isinstance(x, (ctypes.c_void_p, ctypes._Pointer)):
        return ctypes.cast(x, ctypes.c_void_p).value or 0
    if isinstance(x, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
        return ctypes.addressof(x)
    try:
        return int(x)
    except (TypeError, ValueError):
        pass
    if isinstance(x, bytes):
        return ctypes.cast(ctypes.c_char_p(x), ctypes.c_void_p).value or 0
    view = memoryview(x)
    if not view.readonly:
        return ctypes.addressof(ctypes.c_char.from_buffer(view.cast("B")))
    import numpy

    return numpy.frombuffer(view, dtype=numpy.uint8).__array_interface__["data"][0]


def copy(target: int, source: int, size: int) -> None:
    """Copy bytes; the two may overlap."""
    ctypes.memmove(target, source, int(size))


def fill(address: int, value: int, width: int, count: int) -> None:
    """Set `count` elements of `width` bytes to a value."""
    pattern = (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if len(set(pattern)) == 1:
        ctypes.memset(address, pattern[0], width * count)
    else:
        ctypes.memmove(address, pattern * count, width * count)
