"""`kiln tune`: finds the fastest config of a kernel for a problem."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main", "tune"), ".cli"), None)
