"""The detector, native code: happens-before over every access, and the rules of memory and synchronization.

Each thread has a vector clock; a release (arrival at a barrier, a fence, ...) publishes it, an acquire joins it. Two
accesses to the same bytes, one of them a write, race unless the later thread's clock contains the earlier access.
Instrumented code (`instrument.py`) calls the functions; each file defines those of one subject, on the structures of
`state.py`.
"""

from __future__ import annotations

import functools
from typing import Any

from . import (  # noqa: F401 - they define functions
    barriers,
    boxes,
    default_checks,
    devices,
    host_accesses,
    independent_threads,
    launches,
    locations,
    mbarriers,
    memory_order,
    schedules,
    shadow,
    store_buffer,
    tensor_memory,
    tiles,
    wgmma,
)
from .state import detector


@functools.lru_cache(maxsize=1)
def functions() -> dict[str, tuple[str, list[int], int]]:
    """Return the functions that instrumented code may call, by name: symbol, widths of the arguments, width of the
    result."""

    def width(kind: Any) -> int:
        return 0 if kind is None else getattr(kind, "width", 64)

    by_name: dict[str, tuple[str, list[int], int]] = {}
    for function in detector.functions:
        inputs, result = function.signature
        by_name[function.name.strip("_")] = function.symbol, [width(kind) for kind in inputs.values()], width(result)
    return by_name
