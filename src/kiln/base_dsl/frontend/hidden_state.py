"""State that a region may change and that cannot be carried out of it: a change is found by comparison, and refused.

There are two kinds: names of modules, classes and functions that code called by a region may rebind (`Reach` finds
them), and contents of objects that are written in C (`fingerprint` compares what they show). Objects that change when
they are used and do not show it, such as generators, are refused where a region reaches them.
"""

from __future__ import annotations

import enum
import functools
import gc
import operator
import os
import sys
import types
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from ..cells import contents
from ..dependencies import is_kilns, is_library, is_library_class, is_library_module
from ..diagnostics import is_internal
from .code_facts import code_facts, may_change, unwrapped
from .unset_attributes import Unset

# ------------------------------------------------------------------------------------------------- namespaces

_PYTHONS_OWN = (
    "__annot",
    "__abstractmethods__",
    "_abc_impl",
    "__dict__",
    "__weakref__",
    "__builtins__",
    "__warningregistry__",
)
"""Entries that Python itself changes."""


class Namespace:
    """Names of a module, class or function, compared by the identity of their values."""

    __slots__ = ("at_start", "label", "mapping", "names", "owner")

    def __init__(
        self, label: str, mapping: Mapping[str, object], names: tuple[str, ...] | None, owner: type | None = None
    ) -> None:
        self.label: str = label
        self.mapping: Mapping[str, Any] = mapping
        self.owner: type | None = owner
        self.names: tuple[str, ...] | None = names
        """None: all that are there."""
        self.at_start: tuple[Any, ...] = self.now()

    def now(self) -> tuple[Any, ...]:
        """Return what the names are bound to; with the names, if any may be added or removed."""
        mapping = self.mapping
        if self.names is None:
            return (*mapping, *mapping.values())
        return tuple(map(mapping.get, self.names))

    def changed(self, before: tuple[object, ...]) -> bool:
        """Return whether a name is bound to something else than in `before`."""
        now = self.now()
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return False
        return self.names is not None or self._first(before, now) is not None

    def path(self, before: tuple[object, ...]) -> str:
        """Return the first name that is bound to something else than in `before`, as error messages show it."""
        now = self.now()
        if self.names is not None:
            name: str | None = next(n for n, a, b in zip(self.names, now, before, strict=True) if a is not b)
        else:
            name = self._first(before, now)
        return f"{self.label}.{name}" if self.label else str(name)

    def restore(self, before: tuple[Any, ...]) -> None:
        """Restore the bindings of `before`."""
        if not self.changed(before):
            return
        names = self.names if self.names is not None else before[: len(before) // 2]
        values = before if self.names is not None else before[len(before) // 2 :]
        for name, value in zip(names, values, strict=True):
            if self.mapping.get(name) is not value:
                if isinstance(self.mapping, dict):
                    self.mapping[name] = value
                elif self.owner is not None:
                    setattr(self.owner, name, value)

    @staticmethod
    def _first(before: tuple[object, ...], now: tuple[object, ...]) -> str | None:
        old = dict(zip(before[: len(before) // 2], before[len(before) // 2 :], strict=True))
        new = dict(zip(now[: len(now) // 2], now[len(now) // 2 :], strict=True))
        for name in (*new, *old):
            a = old.get(name, Reach)
            b = new.get(name, Reach)
            own = str(name).startswith(_PYTHONS_OWN) or isinstance(a, Unset) or isinstance(b, Unset)
            if a is not b and not own:
                return str(name)
        return None


class Globals:
    """All names of a module, for code that may bind any of them."""

    __slots__ = ("mapping",)

    def __init__(self, mapping: dict[str, Any]) -> None:
        self.mapping: dict[str, Any] = mapping


class Roots:
    """The state that functions and classes reach besides their arguments."""

    __slots__ = ("caches", "cells", "namespaces", "values")

    def __init__(self) -> None:
        self.caches: list[tuple[str, Any]] = []
        """Cached functions that change something when they run, which depends on what is in the cache."""
        self.namespaces: list[Namespace] = []
        self.values: list[tuple[str, Any]] = []
        """Objects that are not code, with their names in error messages."""
        self.cells: list[tuple[str, types.CellType, bool]] = []
        """Variables of functions around them; whether they may be rebound."""


class Reach:
    """A cache of what the user's functions, classes and modules reach, valid in a trace while their names stay bound.

    Code of the standard library, of packages and of Kiln is not followed.
    """

    def __init__(self) -> None:
        self._roots_by_id: dict[int, tuple[Any, Roots]] = {}
        self._defaults: dict[type, tuple[str, ...]] = {}

    def forget(self) -> None:
        """Forget everything, because a name was bound to something else."""
        self._roots_by_id.clear()
        self._defaults.clear()

    def defaults(self, kind: type) -> tuple[str, ...]:
        """Return the attributes with plain values that a user's class gives its objects."""
        plain = self._defaults.get(kind)
        if plain is None:
            bases = [base for base in reversed(kind.__mro__) if not is_library_class(base)]
            own = {name: v for base in bases for name, v in vars(base).items()}
            plain = tuple(name for name, v in own.items() if not name.startswith("__") and _is_plain(v))
            self._defaults[kind] = plain
        return plain

    def of(self, start: Any) -> Roots:
        """Return what a function, class or module reaches."""
        entry = self._roots_by_id.get(id(start))
        if entry is None:
            entry = self._roots_by_id[id(start)] = start, _Search(start).roots
        return entry[1]


class _Search:
    def __init__(self, start: object) -> None:
        self.roots = Roots()
        self._seen: set[int] = set()
        self._modules: list[types.ModuleType] = []
        self._names: set[str] = set()
        self._any_name = isinstance(start, types.ModuleType)  # whoever names it may name all that is in it
        self._globals: dict[int, tuple[str, dict[str, Any], set[str]]] = {}
        self._whole: set[int] = set()
        """Modules any name of which may be bound, a new one perhaps."""
        self._todo: list[tuple[str, Any]] = [("", start)]
        size = -1
        while size != len(self._seen):  # names that are found later may be attributes of modules that were found before
            size = len(self._seen)
            while self._todo:
                self._look(*self._todo.pop())
            for module in self._modules:
                if self._any_name:
                    self._all_names(module.__name__, vars(module))
                else:
                    self._bindings(module.__name__, vars(module), self._names & vars(module).keys())
        for number, (label, mapping, names) in self._globals.items():
            if number in self._whole:
                self.roots.namespaces.append(Namespace(label, mapping, None))
            elif names:
                self.roots.namespaces.append(Namespace(label, mapping, tuple(sorted(names))))

    def _look(self, path: str, x: object) -> None:
        if id(x) in self._seen:
            return
        if isinstance(x, functools._lru_cache_wrapper) and may_change(x.__wrapped__, set()):
            self.roots.caches.append((f"the cache of {x.__name__}", x))
        x = unwrapped(x)
        if id(x) in self._seen:
            return
        if isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, Globals):
            self._all_names("", x.mapping)
        elif isinstance(x, types.ModuleType):
            self._seen.add(id(x))
            if not is_library_module(x.__name__):
                self._modules.append(x)
            elif x is os:
                self._environment()
            elif x.__name__ == "random":
                self._value("random", x._inst)
        elif x is os.environ:
            self._seen.add(id(x))
            self._environment()
        elif isinstance(x, (types.MethodType, types.BuiltinMethodType)):
            owner = x.__self__
            if isinstance(x, types.MethodType):
                self._todo.append((path, x.__func__))
            if owner is not None and not isinstance(owner, (type, types.ModuleType)):
                self._value(path, owner)
        else:
            self._value(path, x)

    def _environment(self) -> None:
        self.roots.namespaces.append(Namespace("os.environ", vars(os.environ)["_data"], None))

    def _value(self, path: str, x: object) -> None:
        self._seen.add(id(x))
        kind = type(x)
        if not _is_container(kind) and is_library_class(kind) and not is_opaque(kind):
            return  # what a library keeps for itself
        if not issubclass(kind, enum.Enum):
            self.roots.values.append((path, x))

    def _function(self, f: types.FunctionType) -> None:
        self._seen.add(id(f))
        code = f.__code__
        if is_internal(code) or is_kilns(code.co_filename) or is_library(code.co_filename):
            wrapped = f.__dict__.get("__wrapped__")
            if wrapped is not None:
                self._todo.append(("", wrapped))
            for cell in f.__closure__ or ():  # what a decorator of a library wraps
                inner = contents(cell)
                if isinstance(inner, (types.FunctionType, types.MethodType, functools.partial)):
                    self._todo.append(("", inner))
            return
        facts = code_facts(code)
        space = f.__globals__
        new = facts.names - self._names
        self._names |= new
        self._any_name |= facts.any_name
        if facts.any_name:
            self._all_names("", space)
        else:
            self._bindings("", space, facts.names & space.keys())
        if f.__dict__:
            self.roots.namespaces.append(Namespace(f.__name__, f.__dict__, None))
            self._todo += [(f"{f.__name__}.{k}", v) for k, v in f.__dict__.items()]
        defaults = (*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values())
        self._todo += [(f"a default of {f.__name__}", value) for value in defaults]
        if f.__closure__:
            for name, cell in zip(code.co_freevars, f.__closure__, strict=True):
                if not name.startswith("__kiln"):
                    self.roots.cells.append((name, cell, name in facts.rebinds))

    def _all_names(self, label: str, mapping: dict[str, Any]) -> None:
        self._whole.add(id(mapping))
        self._bindings(label, mapping, _own_names(mapping))

    def _bindings(self, label: str, mapping: dict[str, Any], names: Iterable[str]) -> None:
        """Add names of a module, which may be rebound, and what they are bound to, which may change."""
        names_before = self._globals.setdefault(id(mapping), (label, mapping, set()))[2]
        for name in sorted(set(names) - names_before):
            names_before.add(name)
            value = mapping.get(name)
            if value is not None and type(value) not in _CONSTANTS:
                self._todo.append((f"{label}.{name}" if label else name, value))

    def _class(self, kind: type) -> None:
        self._seen.add(id(kind))
        for base in kind.__mro__:
            if is_library_class(base) or (base is not kind and id(base) in self._seen):
                continue
            self._seen.add(id(base))
            own = vars(base)
            self.roots.namespaces.append(Namespace(base.__name__, own, None, base))
            for name, value in own.items():
                if type(value) not in _CONSTANTS and not _is_pythons(name):
                    self._todo.append((f"{base.__name__}.{name}", value))


def _own_names(mapping: Mapping[str, object]) -> set[str]:
    """Return the names of a module that are not Python's."""
    return {name for name in mapping if not name.startswith("__")}


def _is_pythons(name: str) -> bool:
    """Return whether an entry of a class belongs to Python, `dataclass` or `Enum`, and is no state of the program."""
    return name.startswith(_PYTHONS_OWN) or (name.startswith("_") and name.endswith("_") and name not in _METHODS)


_METHODS = frozenset(vars(operator)) | {
    "__init__",
    "__new__",
    "__post_init__",
    "__enter__",
    "__exit__",
    "__iter__",
    "__next__",
    "__call__",
}
_CONTAINERS = (list, dict, set, tuple, frozenset, types.SimpleNamespace, functools.partial)


def _is_container(kind: type) -> bool:
    """Return whether objects of a class hold what a program puts there."""
    return issubclass(kind, _CONTAINERS) or kind.__module__ in ("collections", "queue")


_CONSTANTS = frozenset((int, float, complex, str, bytes, bool, type(None)))


def _is_plain(x: object) -> bool:
    """Return whether objects of a class see a value in it as it is: it is no descriptor, class or function."""
    return not hasattr(type(x), "__get__") and not isinstance(x, type) and not callable(x)


# ------------------------------------------------------------------------------------------------ fingerprints


class Untold:
    """Stands for the contents of an object that does not show them, such as a generator: equal to nothing."""


class _Identities:
    """Objects that are compared by identity; they live as long as this does."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[object]) -> None:
        self.items = tuple(items)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Identities)
            and len(self.items) == len(other.items)
            and all(map(operator.is_, self.items, other.items))
        )

    __hash__ = None  # type: ignore[assignment]


def _buffer(x: Any) -> Any:
    view = memoryview(x)
    try:
        return view.nbytes, view.format, zlib.crc32(view if view.contiguous else view.tobytes())
    except (TypeError, ValueError, NotImplementedError):
        return None


def _of_array(x: Any) -> Any:
    """Return the fingerprint of a numpy array; elements that are objects count by identity."""
    if x.dtype.hasobject:
        return x.shape, _Identities(x.ravel().tolist())
    return x.shape, x.strides, zlib.crc32(x.tobytes())


def _of_count(x: object) -> Any:
    return repr(x), _Identities(gc.get_referents(x))


def _of_file(x: Any) -> Any:
    """Return the position in a file. What Python's own streams get is written while tracing, as by `print`."""
    if x is sys.stdout or x is sys.stderr or x.closed:
        return None
    return x.tell() if x.seekable() else Untold()


def _of_stream(x: Any) -> Any:
    return None if x.closed else (x.tell(), x.getvalue())


@functools.lru_cache(maxsize=1024)
def _taker(kind: type) -> Any:
    """Return the function that takes the fingerprint of objects of a class; None if they are not opaque."""
    import array
    import collections
    import contextvars
    import io
    import itertools
    import random
    import weakref

    if issubclass(kind, collections.deque):
        return _Identities
    if issubclass(kind, (bytearray, array.array, memoryview)) or _is_ctypes_data(kind):
        return _buffer
    if issubclass(kind, types.GeneratorType) or kind.__name__ == "SimpleQueue":
        return _of_what_is_untold
    if issubclass(kind, itertools.count):
        return _of_count
    if issubclass(kind, functools._lru_cache_wrapper):
        return lambda x: x.cache_info().misses
    if issubclass(kind, contextvars.ContextVar):
        return lambda x: _Identities([x.get(None)])
    if issubclass(kind, (weakref.ref, weakref.ProxyType, weakref.CallableProxyType, types.MappingProxyType)):
        return _of_nothing
    if issubclass(kind, (io.StringIO, io.BytesIO)):
        return _of_stream
    if issubclass(kind, io.IOBase):
        return _of_file
    if issubclass(kind, random.Random):
        return lambda x: x.getstate()
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "ndarray") and issubclass(kind, numpy.ndarray):
        return _of_array
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and issubclass(kind, torch.Tensor):
        return lambda x: x._version
    if isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType):  # written in C
        counts = isinstance(getattr(kind, "__length_hint__", None), types.MethodDescriptorType)
        return operator.length_hint if counts else _of_what_is_untold
    return None


def _is_ctypes_data(kind: type) -> bool:
    return any(base.__module__ == "_ctypes" and base.__name__ == "_CData" for base in kind.__mro__)


def _of_nothing(x: object) -> Any:
    return None


def _of_what_is_untold(x: object) -> Any:
    return Untold()


def is_opaque(kind: type) -> bool:
    """Return whether objects of a class have contents that can change and cannot be carried."""
    return _taker(kind) is not None


def is_filled_cache(x: object, name: str) -> bool:
    """Return whether a new attribute is what a class of a library keeps for itself, such as the text of a path."""
    return name.startswith("_") and is_library_class(type(x))


def fingerprint(x: object) -> Any:
    """Return a value that changes whenever an opaque object, one that is written in C, does."""
    take = _taker(type(x))
    return None if take is None else take(x)


def parts_of(x: object) -> list[tuple[str, Any]]:
    """Return the objects that an opaque one holds, with what is added to its path."""
    import weakref

    if isinstance(x, weakref.ref):
        return [("", x())]
    if isinstance(x, (weakref.ProxyType, weakref.CallableProxyType)):
        try:
            return [("", x.__repr__.__self__)]  # the proxy hands on the method of its object
        except (AttributeError, ReferenceError):
            return []
    if type(x).__module__ in ("numpy", "torch") or isinstance(x, (memoryview, bytearray, types.GeneratorType)):
        return []
    return [("", part) for part in gc.get_referents(x) if not isinstance(part, type)]
