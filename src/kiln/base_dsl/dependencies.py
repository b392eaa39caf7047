"""What a trace depended on besides its arguments: globals, closure cells, attributes of modules and classes.

Compiled code is used again only while all that the function, and what it can call, may read is as it was.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
import types
from typing import TYPE_CHECKING, Any

from . import call_plan
from .diagnostics import is_internal
from .static_key import static_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_IMMUTABLE = (int, float, str, bytes, bool, complex, type(None), types.BuiltinFunctionType, types.ModuleType)
_LIBRARY_DIRS = tuple(
    os.path.realpath(sysconfig.get_paths()[kind]) + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
_KILN_DIR = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_MISSING = object()


class Dependencies:
    """The names and cells that a function, and what it can call, read; with what they held."""

    def __init__(
        self, function: types.FunctionType, arguments: Iterable[Any] = (), keyed: Iterable[types.CellType] = ()
    ) -> None:
        """`arguments`: what was passed in as known while tracing; code can be reached through it. `keyed`: cells whose
        contents are part of a key, and are not looked at again."""
        self._keyed = {id(cell) for cell in keyed}
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._keys: list[tuple[Any, Any]] = []
        self._functions: set[types.FunctionType] = set()
        self._classes: set[type] = set()
        self._function(function)
        for value in arguments:
            value = getattr(value, "__wrapped__", value)
            if isinstance(value, (types.FunctionType, types.MethodType, type)):
                self._follow(value)
            elif not isinstance(value, _IMMUTABLE):
                self._class(type(value))

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

    def guards(self) -> list[tuple[int, Any, Any, Any]]:
        """The same as guards for native code (see `call_plan`), which ask for the very objects."""
        found: list[tuple[int, Any, Any, Any]] = []
        for names, name, value in self._names:
            kind = call_plan.IN_DICT if type(names) is dict else call_plan.IN_MAPPING
            found.append((kind, names, name, call_plan.NOTHING if value is _MISSING else value))
        found += [(call_plan.IN_CELL, cell, None, value) for cell, value in self._cells if value is not _MISSING]
        if self._keys or len(found) < len(self._names) + len(self._cells):
            found.append((call_plan.IS_TRUE, self.unchanged, None, None))
        return found

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        if function in self._functions or is_internal(code) or _is_library(code.co_filename):
            return
        self._functions.add(function)
        global_names, attributes = _names_read(code)
        for name in sorted(global_names):
            value = function.__globals__.get(name, _MISSING)
            self._names.append((function.__globals__, name, value))
            self._follow(value)
            if isinstance(value, types.ModuleType) and not _is_library_module(value):
                for attribute in sorted(attributes & vars(value).keys()):  # `config.size`
                    self._names.append((vars(value), attribute, vars(value)[attribute]))
                    self._follow(vars(value)[attribute])
        for cell in function.__closure__ or ():
            value = _contents(cell)
            if id(cell) not in self._keyed:
                self._cells.append((cell, value))
            self._follow(value)

    def _follow(self, value: Any) -> None:
        """What can be reached through a value that the function reads."""
        if not isinstance(value, type):
            value = getattr(value, "__wrapped__", value)
        if isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._follow(value.__func__)
            self._follow(value.__self__)
        elif isinstance(value, type):
            self._class(value)
        elif (
            not isinstance(value, _IMMUTABLE)
            and value is not _MISSING
            and not hasattr(value, "__extract_mlir_values__")
        ):
            self._keys.append((value, static_key(value)))
            self._class(type(value))

    def _class(self, kind: type) -> None:
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
                    self._function(member)
                elif isinstance(member, (int, float, str, bytes, tuple, frozenset, type)) and not name.startswith("__"):
                    self._names.append((vars(base), name, member))


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", _KILN_DIR, *_LIBRARY_DIRS))


def _is_library_module(module: types.ModuleType) -> bool:
    """Whether a module is installed (the standard library, a package, Kiln itself) rather than the user's own."""
    filename = getattr(module, "__file__", None)
    return module.__name__ == "builtins" or (filename is not None and _is_library(os.path.realpath(filename)))


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


@functools.lru_cache(maxsize=4096)
def _names_read(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """(names of globals, names of attributes) that code, and the functions defined in it, may read."""
    global_names: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            global_names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names_read(constant)
            global_names |= inner[0]
            attributes |= inner[1]
    return frozenset(global_names), frozenset(attributes)
