"""Modules that load names when they are first used."""

from __future__ import annotations

import contextlib
import importlib
import sys

from . import one_import, unavailable
from .gc_pause import gc_paused

TYPE_CHECKING = False  # as in `_alias.py`: importing `kiln` stays quick
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any


def name_beside(package: str, name: str) -> object:
    """Return a name that a module has besides its own, or raise AttributeError; the package puts its function here."""
    raise AttributeError


def names(
    module: str,
    places: Mapping[str, str],
    modules: Collection[str] | None = (),
    otherwise: Callable[[str, str], object] | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module.

    A name in `places` is loaded from the module given there, relative to this module's package; `modules` are
    submodules (None: any), besides those that only the alias has. Other names are what `otherwise(module, name)`
    returns, or missing. `elsewhere` has names of other languages, and what to write here. `dir()` of the module has the
    names that load later, too, unless it has a `__dir__` of its own.
    """
    here = sys.modules[module]
    vars(here).setdefault("__dir__", listing(module, places, modules))
    package = module if hasattr(here, "__path__") else module.rpartition(".")[0]

    def __getattr__(name: str) -> Any:
        if name in places:
            with gc_paused, one_import.at_a_time():
                value = getattr(importlib.import_module(places[name], package), name)
            setattr(here, name, value)
            return value
        if modules is None or name in modules:
            whole = f"{module}.{name}"
            try:
                with gc_paused, one_import.at_a_time():
                    return importlib.import_module(whole)
            except ModuleNotFoundError as missing:
                if missing.name != whole:
                    raise
        for look in filter(None, (name_beside, otherwise)):
            with contextlib.suppress(AttributeError):
                return look(module, name)
        missing_name = f"module {module!r} has no attribute {name!r}"
        if elsewhere is not None and name in elsewhere:
            raise AttributeError(f"{missing_name}: write {elsewhere[name]}", name=name, obj=None)
        if (owner := _module_with(name)) is not None:  # `obj`: Python proposes nothing else
            raise AttributeError(f"{missing_name}: it is {owner}.{name}", name=name, obj=None)
        raise AttributeError(f"{missing_name}{unavailable.why(f'cutlass{module[4:]}', name)}")

    return __getattr__


def _module_with(name: str) -> str | None:
    """Return which of the modules that programs know best has a public name."""
    for module in ("kiln", "kiln.cute", "kiln.cute.arch", "kiln.utils"):
        if module in sys.modules and not name.startswith("_") and name in dir(sys.modules[module]):
            return module
    return None


def listing(module: str, places: Collection[str] = (), modules: Collection[str] | None = ()) -> Callable[[], list[str]]:
    """Return the `__dir__` of a module: its public names and those that load later, without what it imports for itself.

    `__all__` says which names are public; without it they are those that come from no module of helpers.
    """
    here = sys.modules[module]

    def __dir__() -> list[str]:
        below = _submodules(here) if modules is None else modules
        if (public := getattr(here, "__all__", None)) is None:
            public = [name for name, value in vars(here).items() if _is_public(name, value)]
        special = [name for name in vars(here) if name.startswith("__")]
        return sorted({*public, *places, *below, *special})

    return __dir__


def _is_public(name: str, value: object) -> bool:
    if name.startswith("_") or name in ("TYPE_CHECKING", "annotations") or isinstance(value, type(sys)):
        return False
    place = getattr(value, "__module__", None) or type(value).__module__
    return not place.startswith(("kiln._support", "typing", "collections"))


def _submodules(package: Any) -> list[str]:
    import pkgutil

    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]


class Module:
    """A module, or an attribute of one, that is imported when a name in it is first used.

    Names are kept after their first use, so that later uses cost no more than those of any module. Do not use it for
    names that their module rebinds.
    """

    def __init__(self, name: str, attribute: str = "") -> None:
        self._kiln_module = name
        self._kiln_attribute = attribute

    def __getattr__(self, name: str) -> Any:
        with gc_paused, one_import.at_a_time():
            module = importlib.import_module(self._kiln_module)
        value = getattr(getattr(module, self._kiln_attribute) if self._kiln_attribute else module, name)
        setattr(self, name, value)
        return value
