"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy, unavailable
from .dsl import BaseDSL

if TYPE_CHECKING:
    from . import compiler as compiler
    from . import typing as typing

__all__ = ["BaseDSL"]

_PARTS = ("compiler", "typing")
"""Modules that programs reach as attributes of the package, without importing them."""


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {}, _PARTS, unavailable.name)
