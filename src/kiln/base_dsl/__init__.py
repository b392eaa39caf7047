"""The language machinery: rewriting, tracing and compiling, for any dialect and any target."""

from __future__ import annotations

from .dsl import BaseDSL
from .frontend import texts as _texts  # sees, from now on, what exec() compiles

__all__ = ["BaseDSL"]
