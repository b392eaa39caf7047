"""`Later`: a library of native functions whose module is imported where its code has to be made, and not to load what is kept."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .functions import Library


class Later:
    """The library `name` that is `attribute` of `module`, which may be given relative to `package`."""

    def __init__(self, name: str, attribute: str, module: str, package: str | None = None) -> None:
        self.name = name
        self._place = attribute, module, package

    @functools.cached_property
    def library(self) -> Library:
        """The library itself."""
        attribute, module, package = self._place
        found = getattr(importlib.import_module(module, package), attribute)
        assert found.name == self.name
        return found
