"""What a trace depended on besides its arguments: globals and closure cells of the functions it may have run.

Compiled code is used again only while all of them are as they were.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from typing import TYPE_CHECKING, Any

from .diagnostics import is_internal
from .static_key import static_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_IMMUTABLE = (int, float, str, bytes, bool, complex, type(None), types.BuiltinFunctionType, types.ModuleType)
_LIBRARY_DIRS = tuple(
    os.path.realpath(p) + os.sep
    for p in {sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_KILN_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MISSING = object()


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", *_LIBRARY_DIRS)) and os.path.exists(filename)


class Dependencies:
    """The globals and cells that a function, and what it can call, read; with what they held."""

    def __init__(self, function: types.FunctionType, arguments: Iterable[Any] = ()) -> None:
        """`arguments`: what was passed in as known while tracing; code can be reached through it."""
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._keys: list[tuple[Any, Any]] = []
        self._functions: set[int] = set()
        self._classes: set[type] = set()
        self._visit(function)
        for value in arguments:
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, (types.FunctionType, types.MethodType, type)):
                self._follow(value)
            elif not isinstance(value, _IMMUTABLE):
                self._follow(type(value))

    def unchanged(self) -> bool:
        """Whether all still hold what they held."""
        for names, name, value in self._names:
            now = names.get(name, _MISSING)
            if now is not value and not _same(now, value):
                return False
        for cell, value in self._cells:
            if _contents(cell) is not value and not _same(_contents(cell), value):
                return False
        return all(static_key(owner) == key for owner, key in self._keys)

    def _visit(self, function: types.FunctionType) -> None:
        code = function.__code__
        if id(function) in self._functions or is_internal(code) or _is_library(code.co_filename):
            return
        self._functions.add(id(function))
        names = sorted(_global_names(code))
        for name in names:
            value = function.__globals__.get(name, _MISSING)
            if value is _MISSING:
                if not hasattr(function.__globals__.get("__builtins__"), name):
                    self._names.append((function.__globals__, name, _MISSING))
                continue
            self._names.append((function.__globals__, name, value))
            self._follow(value)
            if isinstance(value, types.ModuleType) and not _is_library_module(value):
                for attribute in names:  # `config.size`: read through the module
                    if attribute in vars(value):
                        self._names.append((vars(value), attribute, vars(value)[attribute]))
                        self._follow(vars(value)[attribute])
        for cell in function.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, value))
            self._follow(value)

    def _follow(self, value: Any) -> None:
        value = getattr(value, "__wrapped__", value) if not isinstance(value, type) else value
        if isinstance(value, types.FunctionType):
            self._visit(value)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__)
            self._follow(value.__self__)
        elif isinstance(value, type):
            self._follow_class(value)
        elif not isinstance(value, _IMMUTABLE):
                self._follow(type(value))

    def unchanged(self) -> bool:
        """Whether all still hold what they held."""
        for names, name, value in self._names:
            now = names.get(name, _MISSING)
            if now is not value and not _same(now, value):
                return False
        for cell, value in self._cells:
            if _contents(cell) is not value and not _same(_contents(cell), value):
                return False
        return all(static_key(owner) == key for owner, key in self._keys)

    def _visit(self, function: types.FunctionType) -> None:
        code = function.__code__
        if id(function) in self._functions or is_internal(code) or _is_library(code.co_filename):
            return
        self._functions.add(id(function))
        names = sorted(_global_names(code))
        for name in names:
            value = function.__globals__.get(name, _MISSING)
            if value is _MISSING:
                if not hasattr(function.__globals__.get("__builtins__"), name):
                    self._names.append((function.__globals__, name, _MISSING))
                continue
            self._names.append((function.__globals__, name, value))
            self._follow(value)
            if isinstance(value, types.ModuleType) and not _is_library_module(value):
                for attribute in names:  # `config.size`: read through the module
                    if attribute in vars(value):
                        self._names.append((vars(value), attribute, vars(value)[attribute]))
                        self._follow(vars(value)[attribute])
        for cell in function.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, value))
            self._follow(value)

    def _follow(self, value: Any) -> None:
        value = getattr(value, "__wrapped__", value) if not isinstance(value, type) else value
        if isinstance(value, types.FunctionType):
            self._visit(value)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__)
            self._follow(value.__self__)
        elif isinstance(value, type):
            module = sys.modules.get(value.__module__)
            if module is not None and not _is_library(getattr(module, "__file__", None) or ""):
                for member in vars(value).values():
                    member = getattr(member, "__func__", member)
                    member = getattr(member, "__wrapped__", member)
                    if isinstance(member, types.FunctionType):
                        self._visit(member)
        elif not isinstance(value, _IMMUTABLE) and value is not _MISSING:
            from . import typing as T

            if isinstance(value, T.Numeric):
                return
            self._keys.append((value, static_key(value)))


    def _follow_class(self, kind: type) -> None:
        """The methods of a class, and the plain values it keeps, with those of its bases."""
        for base in kind.__mro__:
            module = sys.modules.get(base.__module__)
            if base in self._classes or module is None or _is_library_module(module):
                continue
            self._classes.add(base)
            for name, member in vars(base).items():
                member = getattr(member, "__func__", member)
                member = getattr(member, "__wrapped__", member)
                if isinstance(member, types.FunctionType):
                    self._visit(member)
                elif isinstance(member, (int, float, str, bytes, tuple, frozenset, type)) and not name.startswith("__"):
                    self._names.append((vars(base), name, member))


def _is_library_module(module: types.ModuleType) -> bool:
    """Whether a module is installed (the standard library, a package, Kiln itself) rather than the user's own."""
    filename = getattr(module, "__file__", None)
    return filename is not None and (_is_library(filename) or filename.startswith(_KILN_DIR)) or module.__name__ == "builtins"


def _same(now: Any, before: Any) -> bool:
    if type(now) is not type(before):
        return False
    if isinstance(now, float):
        return now.hex() == before.hex()
    if isinstance(now, (int, str, bytes, complex)):
        return now == before
    return isinstance(now, (tuple, frozenset)) and static_key(now) == static_key(before)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
