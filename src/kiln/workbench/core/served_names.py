"""Which names of `cutlass` Kiln serves: modules, attributes, members of classes and parameters, by their dotted names.

Nothing is called. A name counts as served if it can be imported or read; a placeholder, which raises an error where it is
used, does not.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType, ModuleType

from kiln import _alias
from kiln._support import unavailable

UNKNOWN = inspect.Parameter.empty
"""Something that is there, of which no more can be said without running the program."""


@dataclass(frozen=True)
class Lacking:
    """The first part of a dotted name that is not served: "cutlass.block" for "cutlass.block.copy"."""

    name: str
    why: str
    """"missing", "placeholder: " with the reason, or the error that importing it raises."""


@functools.cache
def find(name: str) -> object:
    """Return the object that a dotted name such as "cutlass.cute.arch.fence" stands for, `UNKNOWN`, or `Lacking`."""
    above, _, last = name.rpartition(".")
    if not above:
        _alias.take_over()
        return importlib.import_module(name)
    parent = find(above)
    if isinstance(parent, Lacking):
        return parent
    if parent is UNKNOWN or isinstance(parent, (property, functools.cached_property)):
        return UNKNOWN
    served = _attribute(parent, last)
    if isinstance(served, Lacking) and isinstance(parent, ModuleType):
        served = _submodule(name)
    if isinstance(served, Lacking) and isinstance(parent, FunctionType):
        served = _attribute(_submodule(above), last)  # a function with the name of the module that defines it
    if isinstance(served, unavailable.Unavailable) or _is_module_of_placeholders(served):
        return _placeholder(name, served)
    return Lacking(name, served.why) if isinstance(served, Lacking) else served


def _attribute(parent: object, name: str) -> object:
    try:
        return inspect.getattr_static(parent, name) if isinstance(parent, type) else getattr(parent, name)
    except AttributeError:
        if isinstance(parent, type) and (name in members_set_by(parent) or hasattr(parent, name)):
            return UNKNOWN  # a field, whose value only an object has
        return Lacking(name, "missing")
    except Exception as error:  # a module that loads when it is used may fail in any way
        return Lacking(name, f"{type(error).__name__}: {error}")


@functools.cache
def module(name: str) -> object:
    """Return a module by its path, as `import` finds it, `UNKNOWN` if it needs a package that is not here, or `Lacking`."""
    _alias.take_over()
    parts = name.split(".")
    served: object = None
    for count in range(1, len(parts) + 1):
        served = _submodule(".".join(parts[:count]))
        if isinstance(served, Lacking) or served is UNKNOWN:
            break
    return served


@functools.cache
def _submodule(name: str) -> object:
    try:
        served = importlib.import_module(name)
    except ModuleNotFoundError as error:
        inside = (error.name or "").partition(".")[0] in (_alias.ALIAS, _alias.REAL)
        return Lacking(name, "missing") if inside else UNKNOWN
    except Exception as error:
        return Lacking(name, f"{type(error).__name__}: {error}")
    return _placeholder(name, served) if _is_module_of_placeholders(served) else served


def _placeholder(name: str, served: object) -> Lacking:
    return Lacking(name, f"placeholder: {getattr(served, '__kiln_reason__', '')}")


def _is_module_of_placeholders(served: object) -> bool:
    return isinstance(served, ModuleType) and hasattr(served, "__kiln_reason__")


@functools.cache
def members_set_by(cls: type) -> frozenset[str]:
    """Return the names that objects of a class have besides the class's own: annotated fields, and what `__init__` sets."""
    names: set[str] = set()
    for base in cls.__mro__:
        names.update(vars(base).get("__annotations__", {}))
        for method in ("__init__", "__new__", "__post_init__"):
            if (function := vars(base).get(method)) is not None and base is not object:
                names |= _assigned(inspect.unwrap(getattr(function, "__func__", function)))
    return frozenset(names)


def _assigned(function: object) -> set[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError, SyntaxError):
        return set()
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.attr for node in stored}


def signature(served: object) -> inspect.Signature | None:
    """Return how an object is called, without `self` of methods that are read from a class; None if nobody says."""
    if isinstance(served, (staticmethod, classmethod)):
        inner = signature(served.__func__)
        return _without_first(inner) if inner and isinstance(served, classmethod) else inner
    if isinstance(served, property) or not callable(served):
        return None
    try:
        return inspect.signature(served)
    except (TypeError, ValueError):
        return None


def takes(served: object, keyword: str) -> bool:
    """Return whether a function takes a keyword, as far as its signature says."""
    parameters = () if (of := signature(served)) is None else of.parameters.values()
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return not parameters or keyword in named or any(one.kind is one.VAR_KEYWORD for one in parameters)


def _without_first(of: inspect.Signature) -> inspect.Signature:
    return of.replace(parameters=list(of.parameters.values())[1:])
