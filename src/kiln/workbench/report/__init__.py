"""`kiln report`: shows what journals say, as a page, CSV or JSON."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main",), ".cli"), None)
