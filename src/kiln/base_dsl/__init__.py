"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

from .. import _alias
from .._support import lazy
from .dsl import BaseDSL

__all__ = ["BaseDSL"]

_PARTS = ("compiler", "typing")
"""Modules that programs reach as attributes of the package, without importing them."""


__getattr__ = lazy.names(__name__, {}, _PARTS, _alias.junction)
