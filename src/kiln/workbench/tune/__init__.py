"""`kiln tune`: finds the fastest config of a kernel for a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, dict.fromkeys(("main", "make_parser", "tune"), ".cli"), None)
