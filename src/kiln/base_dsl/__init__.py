"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

import importlib
from typing import Any

from .dsl import BaseDSL

__all__ = ["BaseDSL"]

_PARTS = ("compiler", "typing")
"""Modules that programs reach as attributes of the package, without importing them."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    from .._alias import junction

    return junction(__name__, name)
