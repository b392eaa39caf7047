"""`kiln inspect`: shows what the compiler makes of a program's kernels."""

from __future__ import annotations

from kiln import lazy

__getattr__ = lazy.names(__name__, dict.fromkeys(("main",), ".cli"), None)
