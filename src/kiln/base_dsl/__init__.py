"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

from .dsl import BaseDSL
from .frontend import texts

__all__ = ["BaseDSL"]

texts.watch()
