"""`kiln learn`: lists the lessons, writes one of them into a folder, and checks its exercises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, dict.fromkeys(("main", "make_parser"), ".cli"), None)
