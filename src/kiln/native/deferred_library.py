"""A native library whose module is imported only where its code must be compiled, not to load stored object code."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .functions import Library


class DeferredLibrary:
    """The library `name`, which is `attribute` of `module`; the module may be relative to `package`."""

    def __init__(self, name: str, attribute: str, module: str, package: str | None = None) -> None:
        self.name = name
        self._place = attribute, module, package

    @functools.cached_property
    def library(self) -> Library:
        """The library, imported when first used."""
        attribute, module, package = self._place
        library_ = getattr(importlib.import_module(module, package), attribute)
        assert library_.name == self.name
        return library_
