"""`kiln verify`: checks whether a kernel is right."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main", "verify", "checks"), ".cli"), None)
