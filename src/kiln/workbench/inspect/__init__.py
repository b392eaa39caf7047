"""`kiln inspect`: shows what the compiler makes of a program's kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, dict.fromkeys(("main", "make_parser"), ".cli"), None)
