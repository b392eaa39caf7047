"""The detector, compiled and loaded."""

from __future__ import annotations

import functools
from typing import Any

from ...._support import fork_safe
from ....native.deferred_library import DeferredLibrary
from ...host import jit
from ..runtime.parts import PARTS
from .state import State
from .state import state as memory

_DETECTOR = DeferredLibrary("sanitizer", "detector", ".detector", __package__)
lock: Any = fork_safe.rlock()
"""A lock that is held from the start of an instrumented call until its findings are read: there is one detector."""


@functools.lru_cache(maxsize=1)
def library() -> jit.Library:
    """Return the detector, loaded once per process."""
    with lock:
        return jit.loading(_DETECTOR, parts=PARTS)()


def state() -> State:
    """Return the detector's memory."""
    return State.from_address(library().addresses[memory.symbol])
