"""Parts of the language whose interface may still change."""

from __future__ import annotations

from ..._support import lazy

__getattr__ = lazy.names(__name__, {}, ("iket",))
