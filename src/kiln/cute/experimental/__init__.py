"""Parts of the language whose interface may still change: kernels whose copies predicate themselves, profiling marks."""

from __future__ import annotations

from ..._support import lazy

_PLACES = {
    **dict.fromkeys(("allocate", "copy", "partition"), ".copies"),
    **dict.fromkeys(("compile", "jit", "kernel"), ".program"),
}
__getattr__ = lazy.names(__name__, _PLACES, ("iket",))
