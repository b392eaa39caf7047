"""Calls of compiled functions from Python, frameworks and C. Each bridge is loaded when a program uses it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..base_dsl import entry_points, packages

if TYPE_CHECKING:
    from collections.abc import Callable


def _loader(name: str) -> Callable[[], Callable[[Any], Any] | None]:
    """Return the loader of the bridge to a package of the same name."""

    def load() -> Callable[[Any], Any] | None:
        if not packages.is_here(name):
            return None
        return importlib.import_module(f"{__name__}.{name}.function").of

    return load


entry_points.register("tvm_ffi", _loader("tvm_ffi"))
