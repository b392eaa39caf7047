"""What a trace depended on besides its arguments: globals and closure cells of the functions it may have run.

Compiled code is used again only while all of them are as they were.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import types
from typing import Any

from .diagnostics import is_internal
from .static_key import static_key

_IMMUTABLE = (int, float, str, bytes, bool, complex, type(None), types.BuiltinFunctionType, types.ModuleType)
_LIBRARY_DIRS = tuple(
    os.path.realpath(p) + os.sep
    for p in {sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_MISSING = object()


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", *_LIBRARY_DIRS)) and os.path.exists(filename)


class Dependencies:
    """The globals and cells that a function, and what it can call, read; with what they held."""

    def __init__(self, function: types.FunctionType) -> None:
        self._names: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._keys: list[tuple[Any, Any]] = []
        self._visited: set[types.CodeType] = set()
        self._functions: set[int] = set()
        self._visit(function)

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
        for name in sorted(_global_names(code)):
            value = function.__globals__.get(name, _MISSING)
            if value is _MISSING:
                if not hasattr(function.__globals__.get("__builtins__"), name):
                    self._names.append((function.__globals__, name, _MISSING))
                continue
            self._names.append((function.__globals__, name, value))
            self._follow(value)
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
