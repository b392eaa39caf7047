"""What byte code may do: the names that it uses, and what it stores besides local variables."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ..cells import contents
from ..code_cache import by_code
from ..dependencies import is_library

ANY_NAME = frozenset(("globals", "vars", "locals", "exec", "eval", "setattr", "delattr", "__dict__", "modules"))
"""Names whose use means that code may rebind any name."""
_EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
_STORE_ATTR = dis.opmap["STORE_ATTR"]
_OF_CELLS = frozenset(dis.opmap[name] for name in ("STORE_DEREF", "DELETE_DEREF"))
_OTHERS = ("STORE_SUBSCR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL")
_STORES = frozenset(dis.opmap[name] for name in _OTHERS) | _OF_CELLS | {_STORE_ATTR}


class CodeFacts:
    """The names that code, and the functions defined in it, may use and rebind, and what it may store."""

    __slots__ = ("any_name", "attributes", "names", "rebinds", "stores")

    def __init__(self, code: types.CodeType) -> None:
        operations = frozenset(code.co_code[::2])
        inner = [code_facts(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
        self.names: frozenset[str] = frozenset(code.co_names).union(*(each.names for each in inner))
        """The names of globals and attributes that it uses."""
        self.any_name: bool = not ANY_NAME.isdisjoint(self.names)
        self.stores: bool = not _STORES.isdisjoint(operations) or any(each.stores for each in inner)
        """Whether it stores anything but local variables."""
        stored = _stored_attributes(code) if _STORE_ATTR in operations else ()
        self.attributes: frozenset[str] = frozenset(stored).union(*(each.attributes for each in inner))
        """The attributes that it stores."""
        own: set[str] = set()
        if code.co_freevars and not _OF_CELLS.isdisjoint(operations):
            own = {i.argval for i in dis.get_instructions(code) if i.opcode in _OF_CELLS}
        self.rebinds: frozenset[str] = frozenset(code.co_freevars).intersection(
            own.union(*(each.rebinds for each in inner))
        )
        """Variables of functions around it that it rebinds."""


@by_code
def code_facts(code: types.CodeType) -> CodeFacts:
    """Return the names that a code object may use and rebind, and what it may store."""
    return CodeFacts(code)


def _stored_attributes(code: types.CodeType) -> Iterator[str]:
    """Yield the attributes that code stores itself. `dis.get_instructions` would take twenty times as long."""
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation == _EXTENDED_ARG:
            extended = (extended | argument) << 8
            continue
        if operation == _STORE_ATTR:
            yield code.co_names[extended | argument]
        extended = 0


def stored_attributes(classes: set[type], calls: Iterable[str], functions: Iterable[object]) -> set[str]:
    """Return the attributes that calls of these names may store, through methods of `classes` or the given functions.

    An over-approximation by name. Python numbers in such attributes become values of the program before a loop is
    traced, because an iteration may change them.
    """
    stored: set[str] = set()
    todo = list(calls)
    done = {"__init__", "__post_init__", "__new__"}

    def add(x: object) -> None:
        code = _code_of(x)
        if code is not None:
            facts = code_facts(code)
            stored.update(facts.attributes)
            todo.extend(facts.names)

    for function in functions:
        add(function)
    while todo:
        name = todo.pop()
        if name not in done:
            done.add(name)
            for kind in classes:
                add(getattr(kind, name, None))
    return stored


def _code_of(x: object) -> types.CodeType | None:
    if isinstance(x, property):
        x = x.fget
    while isinstance(x, (functools.partial, functools.partialmethod)):
        x = x.func
    x = getattr(x, "__wrapped__", x)
    return getattr(x, "__code__", None)


def may_change(x: object, seen: set[int]) -> bool:
    """Return whether a function, or one of the user's that it names, stores anything but local variables."""
    x = unwrapped(x)
    if not isinstance(x, types.FunctionType) or id(x) in seen or is_library(x.__code__.co_filename):
        return False
    seen.add(id(x))
    facts = code_facts(x.__code__)
    if facts.stores:
        return True
    named = [x.__globals__.get(name) for name in facts.names]
    return any(may_change(y, seen) for y in (*named, *map(contents, x.__closure__ or ())))


def unwrapped(x: Any) -> Any:
    """Return the function that decorators wrapped."""
    for _ in range(20):
        if isinstance(x, property):
            x = x.fget
        elif isinstance(x, (staticmethod, classmethod)):
            x = x.__func__
        elif isinstance(x, functools.cached_property):
            x = x.func
        elif not isinstance(x, (type, types.FunctionType)) and hasattr(type(x), "__kiln_traced__"):
            x = x.function
        elif isinstance(x, functools._lru_cache_wrapper):
            x = x.__wrapped__
        else:
            break
    return x
