"""`kiln kb`: searches, checks and extends the knowledge base."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main",), ".cli"), None)
