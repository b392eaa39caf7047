"""The detector, compiled and loaded."""

from __future__ import annotations

import functools

from .... import forks
from ....base_dsl import cache
from ...host import jit
from ...host.lower import lower_library
from ..runtime.parts import PARTS
from .detector import detector
from .state import State
from .state import state as memory

lock = forks.rlock()
"""Held from the start of an instrumented call until its findings have been read: there is one detector."""


def _object() -> bytes:
    text = lower_library(detector.build(), "kiln_cpu_sanitizer", detector.exports)
    return jit.emit_object(jit.optimize(text, 2), 2)


@functools.lru_cache(maxsize=1)
def library() -> jit.Library:
    """Loaded once per process."""
    with lock:
        return cache.keep(
            "sanitizer", "/".join(jit.host()), _object, lambda data: jit.Library(data, detector.exports, parts=PARTS)
        )


def state() -> State:
    """The detector's memory."""
    return State.from_address(library().addresses[memory.symbol])
