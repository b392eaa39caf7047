"""Calls of compiled functions from Python, frameworks and C. Each bridge is loaded when a program uses it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..base_dsl import conventions
from . import options as options

if TYPE_CHECKING:
    from collections.abc import Callable


def _loader(name: str) -> Callable[[], conventions.Convention]:
    """Return the loader of the convention in the folder of this name."""
    return lambda: importlib.import_module(f"{__name__}.{name}.convention").CONVENTION


conventions.register("tvm_ffi", _loader("tvm_ffi"))
