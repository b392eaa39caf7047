"""Whether the thread that compiles has room for it: MLIR and LLVM recurse, and end the process where the stack ends."""

from __future__ import annotations

import ctypes
import threading

LEAST = 512 << 10
"""Bytes of stack that a thread needs to compile."""


def check() -> None:
    """Refuse to compile in a thread whose stack is too small for it."""
    if threading.current_thread() is threading.main_thread():
        return
    size = _size()
    if 0 < size < LEAST:
        raise RuntimeError(
            f"compiling needs a stack of {LEAST >> 10} KB; this thread's has {size >> 10} KB: call "
            f"threading.stack_size({2 * LEAST >> 20} << 20) before it starts, or compile in the main thread"
        )


def is_enough_for_new_threads() -> bool:
    """Whether threads that Python starts now can compile."""
    size = threading.stack_size()
    return size == 0 or size >= LEAST


def _size() -> int:
    """Bytes of this thread's stack; 0 if that cannot be told."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "pthread_getattr_np"):
        return 0
    library.pthread_self.restype = ctypes.c_void_p
    attributes = (ctypes.c_char * 256)()  # pthread_attr_t: 56 or 64 bytes
    if library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes):
        return 0
    size = ctypes.c_size_t()
    library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return size.value
