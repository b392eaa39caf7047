"""`kiln verify`: checks whether a kernel is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import lazy

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, dict.fromkeys(("main", "make_parser", "verify", "checks"), ".cli"), None)
