"""Installing the handler of signals of accesses outside memory (`signal_handler.py`)."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from signal import SIGBUS, SIGFPE, SIGSEGV

SIGNALS = (int(SIGSEGV), int(SIGBUS), int(SIGFPE))
SIGINFO = 4
"""The flag of a handler that takes three arguments."""
UNSAFE_RANGES = 4
SAFE_PLACES = 3

SIGNAL, ADDRESS, PLACE = range(3)
"""Words of what was caught."""

# struct sigaction of Linux
_ACTION_BYTES = 152
_ACTION_FLAGS = 136
_ONSTACK = 0x08000000
_NODEFER = 0x40000000

_libc = ctypes.CDLL(None, use_errno=True)
_PROGRAM_COUNTER = 440 if platform.machine() in ("aarch64", "arm64") else 168
"""Byte offset in a `ucontext_t` of Linux."""
_addresses: dict[str, int] = {}


def load(addresses: Mapping[str, int]) -> None:
    """Make the handler ready, once its code is loaded, and install it."""
    key = ctypes.c_uint32.from_address(addresses["kiln_cpu_signal_key"])
    if _libc.pthread_key_create(ctypes.byref(key), ctypes.c_void_p(addresses["kiln_cpu_leave_thread"])):
        return
    safe = (ctypes.c_uint64 * SAFE_PLACES).from_address(addresses["kiln_cpu_signal_safe"])
    for number, copying in enumerate((_libc.memcpy, _libc.memmove, _libc.memset)):
        safe[number] = ctypes.cast(copying, ctypes.c_void_p).value or 0
    unsafe = (ctypes.c_uint64 * (2 * UNSAFE_RANGES)).from_address(addresses["kiln_cpu_signal_unsafe"])
    for number, (begin, end) in enumerate(_code_with_locks()[:UNSAFE_RANGES]):
        unsafe[2 * number] = begin
        unsafe[2 * number + 1] = end
    ctypes.c_uint64.from_address(addresses["kiln_cpu_signal_counter"]).value = _PROGRAM_COUNTER
    _addresses.update(addresses)
    install()


def install() -> None:
    """Put the handler before those of the signals now, unless it is there."""
    if not _addresses:
        return
    ours = _addresses["kiln_cpu_signal"]
    for position, number in enumerate(SIGNALS):
        current, ours_ = (ctypes.create_string_buffer(_ACTION_BYTES) for _ in range(2))
        if _libc.sigaction(number, None, current):
            continue
        handler = ctypes.c_uint64.from_buffer(current).value
        if handler == ours:
            continue
        previous = (ctypes.c_uint64 * 2).from_address(_addresses["kiln_cpu_signal_previous"] + 16 * position)
        previous[0] = handler
        previous[1] = ctypes.c_uint32.from_buffer(current, _ACTION_FLAGS).value
        ctypes.c_uint64.from_buffer(ours_).value = ours
        ctypes.c_uint32.from_buffer(ours_, _ACTION_FLAGS).value = SIGINFO | _ONSTACK | _NODEFER
        _libc.sigaction(number, ours_, None)


def _code_with_locks() -> list[tuple[int, int]]:
    """Return where the code of the C library's allocator and streams lies: it may hold locks when a signal comes."""
    lock_functions = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in (_libc.malloc, _libc.free, _libc.fprintf)]
    ranges: list[tuple[int, int]] = []
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                if "x" not in line.split(" ", 2)[1]:
                    continue
                begin, end = (int(number, 16) for number in line.split(" ", 1)[0].split("-"))
                if any(begin <= address < end for address in lock_functions):
                    ranges.append((begin, end))
    except OSError:
        pass
    return ranges
