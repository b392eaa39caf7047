"""Lazy loading of other packages' modules, when they are first used."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

from . import one_import

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Deferred(types.ModuleType):
    def _run(self) -> None:
        with (
            one_import.at_a_time()
        ):  # other threads wait until all names are there; the module itself may look at them before
            if "_begun" not in self.__dict__:
                self.__dict__["_begun"] = True
                self.__dict__["_loader"].exec_module(self)

    def __getattr__(self, name: str) -> object:
        if name == "__path__":  # the import system asks every module
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._run()
        if name not in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        self._run()
        return list(self.__dict__)


def defer(name: str) -> None:
    """Execute a module when a name in it is first used, unless it has been executed."""
    spec = importlib.util.find_spec(name)
    if name not in sys.modules and spec is not None:
        module = _Deferred(name)
        module.__spec__ = spec
        module.__file__ = spec.origin
        module.__package__ = spec.parent
        module.__loader__ = spec.loader
        module.__dict__["_loader"] = spec.loader  # `__spec__` is another's while an alias is put into place
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)


class Used:
    """A module that is imported when a name in it is used; `within` n steps, when an attribute n levels below is."""

    def __init__(self, name: str, within: int = 0, path: tuple[str, ...] = ()) -> None:
        self._name = name
        self._within = within
        self._path = path

    def __getattr__(self, name: str) -> Any:
        path = (*self._path, name)
        if len(path) <= self._within:
            return Used(self._name, self._within, path)
        return functools.reduce(getattr, path, importlib.import_module(self._name))


class importing:
    """While open, loads one module in which some imports give other objects: `instead` maps the name after `import` or
    `from` to them.

    `then` is called with the module once it has run.
    """

    def __init__(self, module: str, instead: Mapping[str, Any], then: Callable[[Any], None] | None = None) -> None:
        self._module = module
        self._instead = instead
        self._then = then
        self._open = False

    def find_spec(self, name: str, path: Any = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of that module; None for all others, and when closed."""
        if name != self._module or not self._open:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.instead = self._instead
            spec.loader.then = self._then
        return spec

    def __enter__(self) -> None:
        self._open = True
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        self._open = False
        # A new list: another thread that goes through the old one would pass over the finder behind this one.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]


class _Loader(importlib.machinery.SourceFileLoader):
    instead: Mapping[str, Any] = {}
    then: Callable[[Any], None] | None = None

    def exec_module(self, module: types.ModuleType) -> None:
        def import_(name: str, *rest: Any) -> Any:
            return self.instead[name] if name in self.instead else __import__(name, *rest)

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
        super().exec_module(module)
        if self.then is not None:
            self.then(module)
