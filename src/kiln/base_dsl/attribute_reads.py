"""Attributes of the program's objects that a trace may read: those that the code it reaches names.

That is all only where objects are not handed to code that is not followed, which may read any attribute: functions of
most packages, and those that list attributes or compute their names. Kiln's own code reads the names that it has.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

_KNOWN = frozenset(
    (
        "builtins",
        "kiln",
        "cutlass",
        "abc",
        "collections",
        "contextlib",
        "contextvars",
        "enum",
        "functools",
        "itertools",
        "math",
        "numbers",
        "os",
        "posix",
        "posixpath",
        "random",
        "sys",
        "threading",
        "time",
        "types",
        "typing",
        "typing_extensions",
        "warnings",
        "weakref",
        "_abc",
        "_collections",
        "_functools",
        "_random",
        "_thread",
        "_typing",
        "_warnings",
        "_weakref",
        "numpy",
        "ml_dtypes",
    )
)
"""Packages that read no attribute of a program's object besides special methods, unless a function of `REFLECTING` asks
them to."""
REFLECTING = frozenset(
    (
        "format",
        "format_map",
        "vformat",
        "setattr",
        "delattr",
        "tree",
        "tree_util",
        "pytree",
        "_pytree",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__dir__",
        "__dataclass_fields__",
        "f_locals",
        "get_type_hints",
    )
)
"""Names of functions and attributes that lead to attributes which the code does not name."""
_BY_NAME = frozenset(("getattr", "hasattr", "attrgetter"))


class Unfollowed(Exception):
    """The code may read attributes that it does not name."""


def refuse_unfollowed(package: str | None) -> None:
    """Raise `Unfollowed` for code of a package that may read any attribute."""
    if (package or "").partition(".")[0] not in _KNOWN:
        raise Unfollowed(package)


class _OwnNames:
    """The names that code of Kiln, of all modules that are loaded, and Python itself may read."""

    def __init__(self) -> None:
        self._names = {"keys", "items", "write", "flush", "read", "readline", "send", "throw", "close", "mro"}
        self._modules: set[str] = set()

    def get(self) -> set[str]:
        modules_before = self._modules
        new = [
            name
            for name in list(sys.modules)
            if name.startswith("kiln") and name not in modules_before and _is_language(name)
        ]
        for name in new:
            module = sys.modules.get(name)
            if isinstance(module, types.ModuleType):
                self._add(name, module)
        self._modules.update(new)
        return self._names

    def _add(self, name: str, module: types.ModuleType) -> None:
        todo: list[types.CodeType] = []
        for value in list(vars(module).values()):
            if isinstance(value, type):
                if value.__module__ == name:
                    todo += [code for member in list(vars(value).values()) for code in _codes(member)]
            elif type(value) is not types.FunctionType or value.__module__ == name:
                todo += _codes(value)
        for code in todo:  # grows meanwhile
            self._names.update(code.co_names)
            if not _BY_NAME.isdisjoint(code.co_names):
                self._names.update(text for text in code.co_consts if type(text) is str)
            todo += [inner for inner in code.co_consts if type(inner) is types.CodeType]


def _is_language(module: str) -> bool:
    """Return whether a module of Kiln may get at objects of a program, other than compilers, hardware and tools."""
    return module.split(".")[1:2] not in (
        ["dialects"],
        ["hardware"],
        ["llvm"],
        ["measure"],
        ["mlir"],
        ["native"],
        ["targets"],
        ["workbench"],
    )


def _codes(member: Any) -> list[types.CodeType]:
    """Return the code of a function, or of the functions of a method, a property or a decorated function."""
    kind = type(member)
    if kind in (staticmethod, classmethod):
        parts = [member.__func__]
    elif kind is property:
        parts = [member.fget, member.fset]
    elif kind is functools.cached_property:
        parts = [member.func]
    elif kind is _CACHED:
        parts = [member.__wrapped__]
    elif getattr(kind, "__kiln_traced__", False):
        parts = [member.function]
    else:
        parts = [member]
    return [part.__code__ for part in parts if type(part) is types.FunctionType]


_CACHED = type(functools.lru_cache(len))
own_names = _OwnNames()
