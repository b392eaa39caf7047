"""Modules that load names when they are first used."""

from __future__ import annotations

import importlib
import sys

from .gc_pause import gc_paused

TYPE_CHECKING = False  # as in `_alias.py`: importing `kiln` stays quick
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


def names(
    module: str,
    places: Mapping[str, str],
    modules: Collection[str] | None = (),
    otherwise: Callable[[str, str], Any] | None = None,
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    A name in `places` is loaded from the module given there, relative to this module's package; `modules` are
    submodules (None: any). Other names are what `otherwise(module, name)` returns, or missing.
    """
    here = sys.modules[module]
    package = module if hasattr(here, "__path__") else module.rpartition(".")[0]

    def __getattr__(name: str) -> Any:
        if name in places:
            with gc_paused:
                value = getattr(importlib.import_module(places[name], package), name)
            setattr(here, name, value)
            return value
        if modules is None or name in modules:
            whole = f"{module}.{name}"
            try:
                with gc_paused:
                    return importlib.import_module(whole)
            except ModuleNotFoundError as missing:
                if missing.name != whole:
                    raise
        if otherwise is not None:
            return otherwise(module, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


class Module:
    """A module, or an attribute of one, that is imported when a name in it is first used.

    Names are kept after their first use, so that later uses cost no more than those of any module. Do not use it for
    names that their module rebinds.
    """

    def __init__(self, name: str, attribute: str = "") -> None:
        self._kiln_module, self._kiln_attribute = name, attribute

    def __getattr__(self, name: str) -> Any:
        with gc_paused:
            module = importlib.import_module(self._kiln_module)
        value = getattr(getattr(module, self._kiln_attribute) if self._kiln_attribute else module, name)
        setattr(self, name, value)
        return value
