"""`kiln profile`: shows where the time of a kernel goes."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main", "profile"), ".cli"), None)
