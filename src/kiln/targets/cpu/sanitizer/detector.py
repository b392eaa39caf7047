"""The detector, native code: happens-before over every access, and the rules of memory and synchronization.

Each thread has a clock; a release (a barrier's arrival, a fence, ...) hands the clock on, an acquire takes it. Two accesses to the
same bytes, one of them a write, race unless the later thread's clock contains the earlier access. The functions are
called by instrumented code (`instrument.py`); each file defines those of one subject, and what they work on is in `state.py`.
"""

from __future__ import annotations

import functools
from typing import Any

from . import barriers, boxes, independent_threads, launches, mbarriers, memory_order, schedules, shadow, tiles, wgmma  # noqa: F401 - they define functions
from .state import detector


@functools.lru_cache(maxsize=1)
def functions() -> dict[str, tuple[str, list[int], int]]:
    """Return what instrumented code may call, by name: the symbol, the widths of its arguments (addresses are
    numbers), of its result."""

    def width(kind: Any) -> int:
        return 0 if kind is None else getattr(kind, "width", 64)

    found: dict[str, tuple[str, list[int], int]] = {}
    for function in detector.functions:
        inputs, result = function.signature
        found[function.name.strip("_")] = function.symbol, [width(kind) for kind in inputs.values()], width(result)
    return found
