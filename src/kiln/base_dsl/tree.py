"""Python structures that hold values of the program: what they are made of, whether they changed, and copies of them.

A structure is a tuple, NamedTuple, list, dict, dataclass, SimpleNamespace, plain instance, or an object with the value
protocols (`__extract_mlir_values__`, `__new_from_mlir_values__`). Everything else is static. `merging` takes
structures apart into MLIR values.
"""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from . import trace
from . import typing as T
from .bindings import ir


class _Undefined:
    """The value of a variable on a path where it has none, or where it will not be read."""

    __kiln_static__ = True

    def __repr__(self) -> str:
        return "<undefined>"


UNDEFINED = _Undefined()


_value_types: tuple[type, ...] = ()


def _find_value_types() -> tuple[type, ...]:
    """Return the class of raw values, without loading the bindings: before they are loaded, nothing is one."""
    global _value_types
    bindings = getattr(sys.modules.get(_MLIR), "ir", None)
    if bindings is not None:
        _value_types = (bindings.Value,)
    return _value_types


_MLIR = f"{__name__.rsplit('.', 2)[0]}.mlir"


def is_mlir_value(x: object) -> bool:
    """Return whether `x` is a raw value of the bindings."""
    return isinstance(x, _value_types or _find_value_types())


def is_mlir_type(kind: type) -> bool:
    """Return whether instances of a class are raw values of the bindings."""
    return issubclass(kind, _value_types or _find_value_types())


def is_dynamic(x: object) -> bool:
    """Return whether `x` is a single value known only when the program runs."""
    return isinstance(x.value if isinstance(x, T.Numeric) else x, _value_types or _find_value_types())


_classes = functools.lru_cache(maxsize=4096)
"""Caches a property of classes that is looked up very often."""


def is_protocol(x: object) -> bool:
    """Return whether `x` says itself which MLIR values it is made of."""
    return is_protocol_class(type(x))


@_classes
def is_protocol_class(kind: type) -> bool:
    """Return whether objects of a class say themselves which MLIR values they are made of."""
    return hasattr(kind, "__extract_mlir_values__") and hasattr(kind, "__new_from_mlir_values__")


_ATOMIC = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    enum.Enum,
    range,
    slice,
    type(Ellipsis),
    types.CodeType,
    types.GenericAlias,
    property,
)


@_classes
def is_atomic_class(kind: type) -> bool:
    """Return whether there is nothing to look into in objects of a class."""
    # a logger caches levels: that reaches messages, never a value
    return issubclass(kind, (*_ATOMIC, T.Numeric)) or any(base.__module__ == "logging" for base in kind.__mro__)


def is_plain_object(x: object) -> bool:
    """Return whether `x` is an instance of a user's class whose attributes are looked into."""
    return _is_looked_into(type(x)) and has_attributes(x)


@_classes
def _is_looked_into(kind: type) -> bool:
    if issubclass(kind, (*_ATOMIC, tuple, list, dict, set, frozenset)) or is_protocol_class(kind):
        return False
    foreign = kind.__module__ in ("builtins", "numpy", "torch", "functools", "threading")
    return not foreign and not getattr(kind, "__kiln_static__", False)


def has_attributes(x: object) -> bool:
    """Return whether an instance can have attributes of its own that Python shows."""
    return hasattr(x, "__dict__") or bool(_slot_names(type(x)))


@_classes
def _slot_names(kind: type) -> list[str]:
    names: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return [n for n in names if n not in ("__dict__", "__weakref__")]


def attributes_of(x: object) -> dict[str, Any]:
    """Return the instance attributes of a plain object."""
    attributes: dict[str, Any] = dict(getattr(x, "__dict__", {}))
    for name in _slot_names(type(x)):
        if hasattr(x, name):
            attributes[name] = getattr(x, name)
    return attributes


def set_attribute(x: object, name: str, value: object) -> None:
    """Set an attribute, whatever the class does when a program sets one."""
    try:
        object.__setattr__(x, name, value)
    except TypeError:  # classes that are written in C, and proxies, take their own way only
        setattr(x, name, value)


def delete_attribute(x: object, name: str) -> None:
    """Remove an attribute of the object itself."""
    try:
        object.__delattr__(x, name)
    except TypeError:
        delattr(x, name)


def copy_with(x: object, attributes: Mapping[str, object]) -> Any:
    """Return a new instance of x's class with these attributes; its constructor is not run."""
    copied = _bare(type(x))
    for name, value in attributes.items():
        set_attribute(copied, name, value)
    return copied


def _bare(kind: type) -> Any:
    """Return an instance without attributes."""
    try:
        return object.__new__(kind)
    except TypeError:  # a subclass of a class written in C makes its own
        make: Any = kind.__new__
        return make(kind)


def is_mutable(x: object) -> bool:
    """Return whether x, or a part of it, may be changed in place."""
    if isinstance(x, tuple):
        return any(is_mutable(e) for e in x)
    kind = type(x)
    if is_atomic_class(kind) or getattr(kind, "__kiln_immutable__", False):
        return False
    return isinstance(x, (list, dict, set)) or is_protocol_class(kind) or is_plain_object(x)


Kept = dict[int, Any]
"""Objects that keep their identity, by the identity of their stand-ins: a merged value holds the object itself."""
NOTHING_KEPT: Kept = {}


def frozen(x: Any, memo: dict[int, Any] | None = None, kept: Kept = NOTHING_KEPT) -> Any:
    """Return a copy that later changes of x do not reach; parts that cannot change, and those in `kept`, are shared.

    `memo` gets the copies by the identity of their originals, which it has to outlive.
    """
    if not is_mutable(x) or id(x) in kept:
        return x
    memo = {} if memo is None else memo
    result: Any
    if id(x) in memo:
        return memo[id(x)]
    if isinstance(x, tuple):
        return rebuild_tuple(x, [frozen(e, memo, kept) for e in x])
    if isinstance(x, set):
        result = memo[id(x)] = copy.copy(x)
    elif isinstance(x, list):
        result = memo[id(x)] = [] if type(x) is list else copy.copy(x)
        result[:] = [frozen(e, memo, kept) for e in x]
    elif isinstance(x, dict):
        result = memo[id(x)] = {} if type(x) is dict else copy.copy(x)
        result.update((k, frozen(e, memo, kept)) for k, e in x.items())
    elif is_protocol(x) and not has_attributes(x):
        values = values_of(x)
        result = rebuilt(x, values) if values else x
    else:
        result = memo[id(x)] = _bare(type(x))
        # An object with the value protocols says itself what it is made of; what else it refers to stays the same object.
        apart = is_protocol(x)
        for name, value in attributes_of(x).items():
            if is_mutable(value) and not (apart and is_plain_object(value) and not has_dynamic(value)):
                value = frozen(value, memo, kept)
            set_attribute(result, name, value)
    return result


def same_state(a: Any, b: Any, seen: set[tuple[int, int]] | None = None) -> bool:
    """Return whether two values consist of the same parts. Adds no operation."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, T.Numeric):
        return a._value is b._value or (is_dynamic(a) and is_dynamic(b) and bool(a._value == b._value))
    if is_mlir_value(a):
        return bool(a == b)
    if is_atomic_class(type(a)):
        return static_equal(a, b)
    seen = set() if seen is None else seen
    if (id(a), id(b)) in seen:  # a structure that contains itself: the rest of it decides
        return True
    seen.add((id(a), id(b)))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(x is y or same_state(x, y, seen) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_state(a[k], b[k], seen) for k in a)
    if isinstance(a, set):
        return a == b
    if not (is_protocol(a) or is_plain_object(a)):
        return False
    first = attributes_of(a)
    second = attributes_of(b)
    return list(first) == list(second) and all(
        x is second[k] or same_state(x, second[k], seen) for k, x in first.items()
    )


_structured: set[type] = set()
"""Classes with the value protocols whose values are trees of dicts and lists (`value_trees`)."""


def values_of(x: Any) -> list[ir.Value]:
    """Return the MLIR values of an object with the value protocols."""
    values = x.__extract_mlir_values__()
    if type(values) is not dict and not any(type(v) in (dict, list) for v in values):
        return values
    from . import value_trees

    _structured.add(type(x))
    return value_trees.flat(values)


def _as_extracted(x: Any, values: list[ir.Value]) -> Any:
    """Return values in the structure in which an object gives its own."""
    if type(x) not in _structured:
        return values
    from . import value_trees

    active = trace.current()
    if active is None:
        return value_trees.refilled(x.__extract_mlir_values__(), iter(values))
    with active.detached():  # the values of `x` may belong to another function
        template = x.__extract_mlir_values__()
    return value_trees.refilled(template, iter(values))


def rebuilt(x: Any, values: list[ir.Value]) -> Any:
    """Return an object with the value protocols, made of other values.

    The parts of `x` may belong to another function or block: operations that its class emits on the way, to count
    values for example, stay out of the program (see `detached`).
    """
    active = trace.current()
    values = _as_extracted(x, values)
    if active is None:
        return x.__new_from_mlir_values__(values)
    active.rebuilding += 1
    try:
        return x.__new_from_mlir_values__(values)
    finally:
        active.rebuilding -= 1


def overwrite(target: Any, source: Any) -> None:
    """Give an object and the objects in it the state of another of the same structure; identities stay."""
    store: Any
    if isinstance(target, list):
        pairs: list[tuple[Any, Any, Any]] = [(i, target[i], source[i]) for i in range(len(target))]
        store = target.__setitem__
    elif isinstance(target, dict):
        pairs = [(k, target[k], source[k]) for k in target]
        store = target.__setitem__
    else:
        own = attributes_of(target)
        pairs = [(k, own.get(k), v) for k, v in attributes_of(source).items()]
        store = functools.partial(set_attribute, target)

    for key, old, new in pairs:
        if old is new:
            continue
        if type(old) is type(new) and (isinstance(old, (list, dict)) or is_plain_object(old)):
            overwrite(old, new)
        else:
            store(key, new)


def static_equal(a: object, b: object) -> bool:
    """Return whether a program cannot tell two static values apart."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    try:
        return bool(a == b)
    except Exception:
        return False


def describe(x: object) -> str:
    """Return a value as an error message names it."""
    if x is UNDEFINED:
        return "no value"
    if isinstance(x, T.Numeric):
        return type(x).__name__
    if x is None:
        return "None"
    if isinstance(x, (bool, int, float, str)):
        return f"{type(x).__name__} ({x!r})"
    if isinstance(x, tuple):
        return "(" + ", ".join(describe(e) for e in x) + ("," if len(x) == 1 else "") + ")"
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if is_protocol(x):
        return f"{type(x).__name__} {x}"
    return f"{type(x).__name__} object" if not isinstance(x, enum.Enum) else str(x)


def has_dynamic(x: object, seen: set[int] | None = None) -> bool:
    """Return whether any leaf of `x` is dynamic."""
    if is_dynamic(x):
        return True
    if is_atomic_class(type(x)):
        return False
    seen = set() if seen is None else seen
    if id(x) in seen:
        return False
    seen.add(id(x))
    if isinstance(x, (tuple, list, set, frozenset)):
        return any(has_dynamic(e, seen) for e in x)
    if isinstance(x, dict):
        return any(has_dynamic(e, seen) for e in x.values())
    if is_protocol(x):
        return bool(value_types(x))
    return is_plain_object(x) and any(has_dynamic(e, seen) for e in attributes_of(x).values())


def rebuild_tuple(like: tuple[Any, ...], items: list[Any]) -> Any:
    """Return a tuple or NamedTuple of the same kind."""
    return type(like)(*items) if hasattr(like, "_fields") else tuple(items)


class ExtractedValues:
    """The MLIR values of an object. If extracting them adds operations, that is left to the block that needs them."""

    def __init__(
        self, extract: Callable[[], list[ir.Value]], types_: list[ir.Type], values: list[ir.Value] | None
    ) -> None:
        self._extract = extract
        self.types = types_
        self.values = values

    def maker(self, i: int) -> Callable[[], ir.Value]:
        """Return a function that gives value number i in the current block; the first call extracts them there."""

        def make() -> ir.Value:
            if self.values is None:
                self.values = self._extract()
            return self.values[i]

        return make


def extracted(extract: Callable[[], list[ir.Value]]) -> ExtractedValues:
    block = trace.require("a merge").detached_block([])
    with ir.InsertionPoint(block):
        values = extract()
    types_ = [v.type for v in values]
    operations = list(block.operations)
    if not operations:
        return ExtractedValues(extract, types_, values)
    del values
    for operation in reversed(operations):
        operation.operation.erase()
    return ExtractedValues(extract, types_, None)


def value_types(x: object) -> list[ir.Type]:
    """Return the types of the MLIR values of an object with the value protocols. Nothing is added to the program."""
    return extracted(lambda: values_of(x)).types if trace.current() is not None else values_of(x)
