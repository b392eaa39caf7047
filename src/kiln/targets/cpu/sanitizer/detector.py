"""The detector, native code: happens-before over every access, and the rules of memory and synchronization.

Each thread has a clock; a release (a barrier's arrival, a fence, ...) hands the clock on, an acquire takes it. Two accesses to the
same bytes, one of them a write, race unless the later thread's clock contains the earlier access. The functions are
called by instrumented code (`instrument.py`); each file defines those of one subject, and what they work on is in `state.py`.
"""

from __future__ import annotations

from . import (  # noqa: F401 - they define functions
    barriers,
    clocks,
    independent_threads,
    launches,
    mbarriers,
    orders,
    reporting,
    shadow,
    swizzles,
)
from .registry import PREFIX, build, exports
from .shadow import NO_INIT

__all__ = ["NO_INIT", "PREFIX", "build", "exports"]
