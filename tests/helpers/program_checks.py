"""The front end with one of its checks switched off, to see that random programs find what the check is for.

Each check is a few attributes of the front end that are replaced; one that is not there any more is an error.
"""

from __future__ import annotations

import array
import builtins
import collections
import contextlib
import contextvars
import ctypes
import dataclasses
import functools
import io
import operator
import random
import types
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from kiln.base_dsl import trace
from kiln.base_dsl.frontend import (
    assert_,
    carry,
    comparison,
    hidden_state,
    hooks,
    lazy_effects,
    loops,
    merged_objects,
    regions,
)
from kiln.base_dsl.numeric import scalar, text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Replacement = tuple[Any, str, "Callable[[Any], Any]"]
"""An owner, the name of its attribute or key, and what makes the new value of the old one."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of the front end, the productions that need it, and how it is switched off."""

    productions: tuple[str, ...]
    replacements: tuple[Replacement, ...]


def _contents_of(*kinds: type) -> tuple[Replacement, ...]:
    """Do not compare the contents of objects of these classes."""

    def replaced(old: Any) -> Any:
        def taker(kind: type) -> Any:
            found = old(kind)
            return (lambda x: None) if found is not None and issubclass(kind, kinds) else found

        return taker

    return ((hidden_state, "_taker", replaced),)


def _iterators() -> tuple[Replacement, ...]:
    def replaced(old: Any) -> Any:
        def taker(kind: type) -> Any:
            is_iterator = hasattr(kind, "__next__") and not issubclass(kind, types.GeneratorType)
            return (lambda x: None) if is_iterator and old(kind) is not None else old(kind)

        return taker

    return ((hidden_state, "_taker", replaced),)


def _names_of(matches: Callable[[Any], bool]) -> tuple[Replacement, ...]:
    """Do not compare the names of some modules, classes or functions."""

    def replaced(old: Any) -> Any:
        return lambda self, before: False if matches(self) else old(self, before)

    return ((hidden_state.Namespace, "changed", replaced),)


def _reached(drop: Callable[[hidden_state.Roots], None]) -> tuple[Replacement, ...]:
    """Leave out something of what code reaches."""

    def replaced(old: Any) -> Any:
        def of(self: Any, start: Any) -> Any:
            roots = old(self, start)
            drop(roots)
            return roots

        return of

    return ((hidden_state.Reach, "of", replaced),)


def _values_named(matches: Callable[[str], bool]) -> tuple[Replacement, ...]:
    def drop(roots: hidden_state.Roots) -> None:
        roots.values[:] = [(path, x) for path, x in roots.values if not matches(path)]

    return _reached(drop)


def _not_followed(*kinds: type) -> tuple[Replacement, ...]:
    return ((carry, "_reach", lambda old: lambda kind: "" if issubclass(kind, kinds) else old(kind)),)


def _no_deeper_than(most: int) -> tuple[Replacement, ...]:
    def replaced(old: Any) -> Any:
        def visit(self: Any, x: Any, path: str, seen: Any, depth: int) -> None:
            if depth <= most:
                old(self, x, path, seen, depth)

        return visit

    return ((carry.Snapshot, "_visit", replaced),)


def _instead(value: Any) -> Callable[[Any], Any]:
    return lambda old: value


def _copied_parts(old: Any) -> Any:
    return lambda self, value, kept: old(self, value, {})


def _forgotten_caches(old: Any) -> Any:
    def without_cached(snapshot: Any, changes: Any) -> Any:
        gained = snapshot.new_attributes()
        for key in list(gained):
            if isinstance(getattr(type(snapshot.owner_of(key)), key[1], None), functools.cached_property):
                snapshot.drop_attributes([key])
                del gained[key]
        return gained

    return without_cached


def _eager(function: Any, thunks: Any) -> Any:
    """`any` or `all` of elements that have all been evaluated."""
    values = [thunk() for thunk in thunks]
    if function not in (builtins.any, builtins.all):
        return function(values)
    result: Any = function is builtins.all
    for value in values:
        result = (result & (value != 0)) if function is builtins.all else (result | (value != 0))
    return result


CHECKS: dict[str, Check] = {
    "deques": Check(("deques",), _contents_of(collections.deque)),
    "bytearrays": Check(("bytearrays",), _contents_of(bytearray, memoryview)),
    "arrays": Check(("arrays",), _contents_of(array.array)),
    "numpy arrays": Check(("numpy_arrays",), _contents_of(np.ndarray)),
    "ctypes": Check(("ctypes",), _contents_of(*ctypes.c_int.__mro__[-2:-1])),
    "context variables": Check(("context_variables",), _contents_of(contextvars.ContextVar)),
    "streams": Check(("streams",), _contents_of(io.StringIO)),
    "random numbers": Check(("random_numbers",), _contents_of(random.Random)),
    "generators": Check(("generators",), _contents_of(types.GeneratorType)),
    "iterators": Check(("iterators", "counts"), _iterators()),
    "names of modules": Check(
        ("module_names", "globals_call"), _names_of(lambda space: space.owner is None and not space.label)
    ),
    "attributes of modules": Check(("module_attributes",), _names_of(lambda space: space.label == "config")),
    "attributes of classes": Check(("class_attributes",), _names_of(lambda space: space.owner is not None)),
    "attributes of functions": Check(("function_attributes",), _names_of(lambda space: space.label == "counted")),
    "environment": Check(("environment",), _names_of(lambda space: space.label == "os.environ")),
    "objects of modules": Check(("module_objects",), _values_named(lambda path: path in ("LOG", "TABLE", "SETTINGS"))),
    "mutable defaults": Check(("mutable_defaults",), _values_named(lambda path: path.startswith("a default of"))),
    "closures": Check(("factories", "nonlocals"), _reached(lambda roots: roots.cells.clear())),
    "partials": Check(("partials",), _not_followed(functools.partial)),
    "weak references": Check(("weak_references",), _not_followed(weakref.ref)),
    "far objects": Check(("two_away",), _no_deeper_than(1)),
    "deep lists": Check(("deep_lists",), _no_deeper_than(20)),
    "class defaults": Check(
        ("class_defaults",),
        (
            (hidden_state.Reach, "defaults", _instead(lambda self, kind: ())),
            (carry.Snapshot, "new_attributes", _instead(lambda self: {})),
        ),
    ),
    "lengths and keys": Check(
        ("lists", "dicts", "sets"), ((carry.Snapshot, "resized", _instead(lambda self: iter(()))),)
    ),
    "gained attributes": Check(
        ("gained_attributes",), ((carry.Snapshot, "new_attributes", _instead(lambda self: {})),)
    ),
    "chosen objects": Check(("chosen", "swapped"), ((merged_objects.Watched, "check", _instead(lambda self: None)),)),
    "cached properties": Check(("cached_property",), ((merged_objects, "without_cached", _forgotten_caches),)),
    "parts in common": Check(("common_part",), ((regions.ArmEnd, "at_end", _copied_parts),)),
    "objects with two names": Check(
        ("iadd", "fluent"), ((loops._LoopState, "_shared_objects", _instead(lambda self, carried: {})),)
    ),
    "parts of expressions": Check(
        ("properties", "nonlocals"),
        ((lazy_effects, "Snapshot", lambda old: lambda roots, own=frozenset(): old([], own)),),
    ),
    "any and all": Check(("any_all",), ((hooks.Hooks, "quantifier", _instead(staticmethod(_eager))),)),
    "messages of assert": Check(("assertions",), ((assert_, "_evaluated", _instead(lambda message: message())),)),
    "exceptions": Check(
        ("exceptions",), ((trace.Trace, "broken", _instead(property(lambda self: None, lambda self, value: None))),)
    ),
    "texts": Check(("texts",), ((scalar, "DynamicText", _instead(str)), (text, "DynamicText", _instead(str)))),
    "identity": Check(
        ("identity",),
        (
            (comparison._OPERATORS, "Is", _instead(operator.is_)),
            (comparison._OPERATORS, "IsNot", _instead(operator.is_not)),
        ),
    ),
}
"""All checks by name."""


@contextlib.contextmanager
def switched_off(names: Iterable[str]) -> Iterator[None]:
    """While open, these checks are not made."""
    with contextlib.ExitStack() as stack:
        for name in names:
            for owner, key, replaced in CHECKS[name].replacements:
                stack.callback(_replace(owner, key, replaced))
        _forget()
        stack.callback(_forget)
        yield


def switch_off(names: Iterable[str]) -> None:
    """Leave these checks out for as long as this process lives."""
    _for_good.enter_context(switched_off(names))


_for_good = contextlib.ExitStack()
_ABSENT = object()


def _replace(owner: Any, key: str, replaced: Callable[[Any], Any]) -> Callable[[], None]:
    if isinstance(owner, dict):
        old = owner[key]
        owner[key] = replaced(old)
        return lambda: owner.__setitem__(key, old)
    old = vars(owner).get(key, _ABSENT)
    if old is _ABSENT and key not in owner.__init__.__code__.co_names:
        raise AttributeError(f"{owner} has no {key}: the check has moved")
    setattr(owner, key, replaced(old.__func__ if isinstance(old, staticmethod) else old))
    return lambda: delattr(owner, key) if old is _ABSENT else setattr(owner, key, old)


def _forget() -> None:
    """What was found out about classes before."""
    for cached in (carry._reach, hidden_state._taker):
        clear = getattr(cached, "cache_clear", None)
        if clear is not None:
            clear()
