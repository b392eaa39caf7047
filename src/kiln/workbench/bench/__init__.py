"""`kiln bench`: times a kernel beside its baselines."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main", "bench"), ".cli"), None)
