"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

from .dsl import BaseDSL

__all__ = ["BaseDSL"]
