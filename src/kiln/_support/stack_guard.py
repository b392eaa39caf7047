"""Stack space for compiling: of the thread, where MLIR and LLVM recurse, and of Python's frames."""

from __future__ import annotations

import ctypes
import functools
import resource
import sys
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

LEAST = 512 << 10
"""The bytes of stack that a thread needs to compile."""
_FRAME_WORDS = 66_000
"""A frame that needs more than 512 KiB gets a chunk of 1 MiB; the rest of the chunk holds about 3,000 frames."""


def with_frames(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose callees have their frames in one piece of memory.

    Python keeps frames in chunks of 16 KiB and frees a chunk when its first frame ends: calls at the end of a chunk map
    and unmap memory each time, a fifth of the time of a trace. One large frame makes one large chunk.
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    if sys.version_info >= (3, 11):
        run.__code__ = run.__code__.replace(co_stacksize=_FRAME_WORDS)
    return functools.wraps(function)(run)


def check() -> None:
    """Raise an error in a thread whose stack is too small for compiling."""
    is_main = threading.current_thread() is threading.main_thread()
    size = _limit() if is_main else _size()
    if not 0 < size < LEAST:
        return
    larger = f"threading.stack_size({2 * LEAST >> 20} << 20)"
    if is_main:
        hint = f"start the program after `ulimit -s 8192`, or compile in a thread, with {larger} before it starts"
    else:
        hint = f"call {larger} before it starts, or compile in the main thread"
    raise RuntimeError(f"compiling needs a stack of {LEAST >> 10} KB; this thread's has {size >> 10} KB: {hint}")


def is_enough_for_new_threads() -> bool:
    """Return whether threads that Python starts now can compile."""
    size = threading.stack_size() or _limit()
    return size == 0 or size >= LEAST


def _limit() -> int:
    """Return the bytes that the main thread's stack may grow to; 0 if nothing limits them."""
    return max(resource.getrlimit(resource.RLIMIT_STACK)[0], 0)


def _size() -> int:
    """Return the bytes of this thread's stack; 0 if they are unknown."""
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
