"""Parts of the language whose interface may still change: kernels whose copies predicate themselves, profiling marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import iket as iket
    from .copies import allocate as allocate
    from .copies import copy as copy
    from .copies import partition as partition
    from .program import compile as compile
    from .program import jit as jit
    from .program import kernel as kernel

_PLACES = {
    **dict.fromkeys(("allocate", "copy", "partition"), ".copies"),
    **dict.fromkeys(("compile", "jit", "kernel"), ".program"),
}
if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, ("iket",))
