"""Values of the object program inside Python structures: taking them apart and putting them together again.

A *leaf* is one MLIR value. Around leaves stand tuples, NamedTuples, lists, dicts, dataclasses,
SimpleNamespaces, plain instances and objects with the value protocols (`__extract_mlir_values__`,
`__new_from_mlir_values__`); everything else is static and stays what it is.

Three walks use the same rules:
- `Merge.unify(a, b)`: one structure for the values two branches leave behind;
- `open_value(v)`: a copy of v whose leaves are to be replaced by block arguments;
- `match(opened, v)`: the leaves of v in the order of `opened`, for a back edge.
"""

from __future__ import annotations

import copy
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import trace
from . import typing as T
from .bindings import ir


class _Undefined:
    """No value: what a variable holds on a path where nobody will read it."""

    __kiln_static__ = True

    def __repr__(self) -> str:
        return "<undefined>"


UNDEFINED = _Undefined()


class Mismatch(Exception):
    """Two values cannot be merged. `path` is the part that differs (`.x`, `[0]`, or empty).

    `why` and `hint` say what stands in the way and what to write, where it is not their types.
    """

    def __init__(self, path: str, first: object, second: object, why: str = "", hint: str = "") -> None:
        super().__init__(path)
        self.path, self.first, self.second, self.why, self.hint = path, first, second, why, hint


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
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.FunctionType, types.MethodType,
    types.BuiltinFunctionType, enum.Enum, range, slice, type(Ellipsis), types.CodeType, property,
)  # fmt: skip


@_classes
def is_atomic_class(kind: type) -> bool:
    """Return whether there is nothing to look into in objects of a class."""
    return issubclass(kind, (*_ATOMIC, T.Numeric))


def is_plain_object(x: object) -> bool:
    """Return an instance of a user's class whose attributes are looked into."""
    return _is_looked_into(type(x)) and has_attributes(x)


@_classes
def _is_looked_into(kind: type) -> bool:
    if issubclass(kind, (*_ATOMIC, tuple, list, dict, set, frozenset)) or is_protocol_class(kind):
        return False
    return not getattr(kind, "__kiln_static__", False) and kind.__module__ not in (
        "builtins",
        "numpy",
        "torch",
        "functools",
        "threading",
    )


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
    found: dict[str, Any] = dict(getattr(x, "__dict__", {}))
    for name in _slot_names(type(x)):
        if hasattr(x, name):
            found[name] = getattr(x, name)
    return found


def set_attribute(x: Any, name: str, value: Any) -> None:
    """Set an attribute, whatever the class does when a program sets one."""
    try:
        object.__setattr__(x, name, value)
    except TypeError:  # classes that are written in C, and proxies, take their own way only
        setattr(x, name, value)


def delete_attribute(x: Any, name: str) -> None:
    """Remove an attribute of the object itself."""
    try:
        object.__delattr__(x, name)
    except TypeError:
        delattr(x, name)


def copy_with(x: Any, attributes: dict[str, Any]) -> Any:
    """Return a new instance of x's class with these attributes; its constructor is not run."""
    made = _bare(type(x))
    for name, value in attributes.items():
        set_attribute(made, name, value)
    return made


def _bare(kind: type) -> Any:
    """Return an instance without attributes."""
    try:
        return object.__new__(kind)
    except TypeError:  # a subclass of a class written in C makes its own
        make: Any = kind.__new__
        return make(kind)


def is_mutable(x: Any) -> bool:
    """Return whether x, or a part of it, may be changed in place."""
    if isinstance(x, tuple):
        return any(is_mutable(e) for e in x)
    kind = type(x)
    if is_atomic_class(kind) or getattr(kind, "__kiln_immutable__", False):
        return False
    return isinstance(x, (list, dict, set)) or is_protocol_class(kind) or is_plain_object(x)


Kept = dict[int, Any]
"""Objects that are not taken apart, by the identity of their stand-ins: a merged value holds the object itself."""
_NOTHING: Kept = {}


def frozen(x: Any, memo: dict[int, Any] | None = None, kept: Kept = _NOTHING) -> Any:
    """Return a copy that later changes of x do not reach; parts that cannot change, and those in `kept`, are shared.

    `memo` gets the copies by the identity of their originals, which it has to outlive.
    """
    if not is_mutable(x) or id(x) in kept:
        return x
    memo = {} if memo is None else memo
    made: Any
    if id(x) in memo:
        return memo[id(x)]
    if isinstance(x, tuple):
        return rebuild_tuple(x, [frozen(e, memo, kept) for e in x])
    if isinstance(x, set):
        made = memo[id(x)] = copy.copy(x)
    elif isinstance(x, list):
        made = memo[id(x)] = [] if type(x) is list else copy.copy(x)
        made[:] = [frozen(e, memo, kept) for e in x]
    elif isinstance(x, dict):
        made = memo[id(x)] = {} if type(x) is dict else copy.copy(x)
        made.update((k, frozen(e, memo, kept)) for k, e in x.items())
    elif is_protocol(x) and not has_attributes(x):
        values = x.__extract_mlir_values__()
        made = rebuilt(x, values) if values else x
    else:
        made = memo[id(x)] = _bare(type(x))
        # An object with the value protocols says itself what it is made of; what else it refers to stays the same object.
        apart = is_protocol(x)
        for name, value in attributes_of(x).items():
            if is_mutable(value) and not (apart and is_plain_object(value) and not has_dynamic(value)):
                value = frozen(value, memo, kept)
            set_attribute(made, name, value)
    return made


def same_state(a: Any, b: Any, seen: set[tuple[int, int]] | None = None) -> bool:
    """Return whether two values are made of the very same parts; no operation is needed to find out."""
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
    first, second = attributes_of(a), attributes_of(b)
    return list(first) == list(second) and all(
        x is second[k] or same_state(x, second[k], seen) for k, x in first.items()
    )


def rebuilt(x: Any, values: list[ir.Value]) -> Any:
    """Return an object with the value protocols, made of other values.

    The parts of `x` may belong to another function or block: operations that its class emits on the way, to count
    values for example, stay out of the program (see `detached`).
    """
    active = trace.current()
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
    """Return whether two static values are the same for all a program can tell."""
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


class Leaf(NamedTuple):
    """One value that is merged: its MLIR type, and how each side makes its value when its block is current."""

    type: ir.Type
    first: Callable[[], ir.Value]
    second: Callable[[], ir.Value]


def _undef(type_: ir.Type) -> Callable[[], ir.Value]:
    def make() -> ir.Value:
        active = trace.require("a merge")
        return active.dsl.make_undefined(type_)

    return make


def _raw(value: ir.Value) -> Callable[[], ir.Value]:
    return lambda: value


def _numeric(kind: type[T.Numeric], x: Any) -> Callable[[], ir.Value]:
    return lambda: kind(x).ir_value()


class Merge:
    """One merge of what two paths leave behind: the values it merges, and the objects it makes.

    `kept`: objects that keep their identity where both paths refer to the same one.
    """

    def __init__(self, kept: Kept = _NOTHING) -> None:
        self.leaves: list[Leaf] = []
        self.kept = kept
        self._filled: set[int] = set()
        self._made: dict[tuple[int, int], Callable[[Iterator[Any]], Any]] = {}
        self._alive: list[Any] = []
        self._open: set[tuple[int, int]] = set()
        """The pairs that are being merged."""

    def unify(self, a: Any, b: Any, path: str = "") -> Callable[[Iterator[Any]], Any]:
        """Plan the merge of two values: adds to `leaves`, and returns what rebuilds the merged value from results.

        Where both sides agree statically nothing is merged and the value stays static. Objects that can change become a
        third one, the same wherever the same two are merged. Raises Mismatch.
        """
        kept = self.kept
        if a is b:
            same = kept.get(id(a), a)
            return lambda _: same
        if id(a) in kept and kept[id(a)] is kept.get(id(b)):
            same = kept[id(a)]
            return lambda _: same
        if not is_mutable(b if a is UNDEFINED else a):
            return self._unify(a, b, path)
        key = id(a), id(b)
        if key in self._open:
            raise Mismatch(path, a, b, *_CONTAINS_ITSELF)
        known = self._made.get(key)
        if known is None:
            self._alive += (a, b)
            self._open.add(key)
            try:
                known = self._made[key] = _once(self._unify(a, b, path))
            finally:
                self._open.discard(key)
        return known

    def _unify(self, a: Any, b: Any, path: str) -> Callable[[Iterator[Any]], Any]:
        if a is UNDEFINED or b is UNDEFINED:
            return _unify_undefined(a, b, self)
        if is_dynamic(a) or is_dynamic(b) or (_is_scalar(a) and _is_scalar(b)):
            return _unify_scalars(a, b, self.leaves, path)
        if is_protocol(a) and is_protocol(b):
            return _unify_protocol(a, b, self.leaves, path)
        if isinstance(a, (tuple, list)) and type(a) is type(b):
            if len(a) != len(b):
                raise Mismatch(path, a, b, f"their lengths differ ({len(a)} and {len(b)})")
            parts = [self.unify(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True))]
            if isinstance(a, list):
                return lambda values: refilled(a, [part(values) for part in parts])
            return lambda values: rebuild_tuple(a, [part(values) for part in parts])
        if isinstance(a, dict) and type(a) is type(b):
            if a.keys() != b.keys():
                raise Mismatch(path, a, b, "their keys differ")
            if list(a) != list(b):
                raise Mismatch(path, a, b, "their keys have another order")
            named = {k: self.unify(a[k], b[k], f"{path}[{k!r}]") for k in a}
            return lambda values: refilled(a, {k: part(values) for k, part in named.items()})
        if isinstance(a, set) and type(a) is type(b):
            if a != b:
                raise Mismatch(path, a, b, "their elements differ")
            return lambda _: copy.copy(a)
        if type(a) is type(b) and is_plain_object(a):
            first, second = attributes_of(a), attributes_of(b)
            if first.keys() != second.keys():
                first, second = {**_defaults(a, second), **first}, {**_defaults(b, first), **second}
            if first.keys() != second.keys():
                raise Mismatch(path, a, b, _other_attributes(first, second))
            named = {k: self.unify(first[k], second[k], f"{path}.{k}") for k in first}
            return lambda values: copy_with(a, {k: part(values) for k, part in named.items()})
        if static_equal(a, b):
            return lambda _: a
        raise Mismatch(path, a, b)


def _defaults(x: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that an object's class gives it."""
    found: dict[str, Any] = {}
    for base in reversed(type(x).__mro__):
        found |= {name: vars(base)[name] for name in names if name in vars(base)}
    return {name: value for name, value in found.items() if not hasattr(type(value), "__get__")}


def _other_attributes(first: dict[str, Any], second: dict[str, Any]) -> str:
    return f"their attributes differ ({', '.join(sorted(first.keys() ^ second.keys()))})"


def _once(make: Callable[[Iterator[Any]], Any]) -> Callable[[Iterator[Any]], Any]:
    made: list[Any] = []

    def run(values: Iterator[Any]) -> Any:
        if not made:
            made.append(make(values))
        return made[0]

    return run


_CONTAINS_ITSELF = (
    "it contains itself",
    "keep such objects out of what branches and loops choose, and change their attributes in place",
)


def refilled(like: Any, items: Any) -> Any:
    """Return a list or dict of the same class with other items."""
    if type(like) in (list, dict):
        return items
    made = copy.copy(like)
    if isinstance(like, list):
        made[:] = items
    else:
        made.clear()
        made.update(items)
    return made


def _is_scalar(x: object) -> bool:
    return isinstance(x, (bool, int, float, T.Numeric))  # members of an IntEnum are integers


def _unify_scalars(a: Any, b: Any, leaves: list[Leaf], path: str) -> Callable[[Iterator[Any]], Any]:
    if is_mlir_value(a) or is_mlir_value(b):
        if not (is_mlir_value(a) and is_mlir_value(b)) or a.type != b.type:
            raise Mismatch(path, a, b)
        if a == b:
            return lambda _: a
        leaves.append(Leaf(a.type, _raw(a), _raw(b)))
        return next
    if not (_is_scalar(a) and _is_scalar(b)):
        raise Mismatch(path, a, b)
    if not isinstance(a, T.Numeric) and not isinstance(b, T.Numeric) and static_equal(a, b):
        return lambda _: a
    if isinstance(a, T.Numeric) and type(a) is type(b) and a.value is b.value:
        return lambda _: a
    a, b = _plain_number(a), _plain_number(b)
    kind = T.join(a, b)
    if kind is None:
        raise Mismatch(path, a, b, *T.lost_by_joining(a, b))
    leaves.append(Leaf(kind.mlir_type, _numeric(kind, a), _numeric(kind, b)))
    return _numeric_result(kind, a, b)


def _plain_number(x: Any) -> Any:
    """Return the number that a member of an IntEnum is; other values as they are."""
    return x.value if isinstance(x, enum.Enum) else x


def _numeric_result(kind: type[T.Numeric], a: Any, b: Any) -> Callable[[Iterator[Any]], Any]:
    if issubclass(kind, T.Integer) and _is_nonneg(a) and _is_nonneg(b):
        return lambda values: kind._make(next(values), nonneg=True)
    return lambda values: kind._make(next(values))


def _is_nonneg(x: Any) -> bool:
    return bool(x.nonneg) if isinstance(x, T.Integer) else not isinstance(x, float) and x >= 0


def _unify_protocol(a: Any, b: Any, leaves: list[Leaf], path: str) -> Callable[[Iterator[Any]], Any]:
    if type(a) is not type(b):
        raise Mismatch(path, a, b)
    if same_state(a, b):
        return lambda _: a
    if hasattr(type(a), "__kiln_join__"):
        joined = a.__kiln_join__(b)
        if joined is None:
            raise Mismatch(path, a, b)
        a, b = joined
    first, second = _parts(a.__extract_mlir_values__), _parts(b.__extract_mlir_values__)
    if len(first.types) != len(second.types):
        raise Mismatch(path, a, b)
    if first.values is not None and first.values == second.values and static_protocol_equal(a, b):
        return lambda _: a
    for i, (x, y) in enumerate(zip(first.types, second.types, strict=True)):
        if x != y:
            raise Mismatch(path, a, b)
        leaves.append(Leaf(x, first.maker(i), second.maker(i)))
    count = len(first.types)
    return lambda values: rebuilt(a, [next(values) for _ in range(count)])


class _Parts:
    """The MLIR values of an object. Where taking it apart takes operations, that is left to the block that needs them."""

    def __init__(
        self, extract: Callable[[], list[ir.Value]], types_: list[ir.Type], values: list[ir.Value] | None
    ) -> None:
        self._extract, self.types, self.values = extract, types_, values

    def maker(self, i: int) -> Callable[[], ir.Value]:
        """Return what gives value number i in the current block; the first call takes the object apart there."""

        def make() -> ir.Value:
            if self.values is None:
                self.values = self._extract()
            return self.values[i]

        return make


def _parts(extract: Callable[[], list[ir.Value]]) -> _Parts:
    block = trace.require("a merge").detached_block([])
    with ir.InsertionPoint(block):
        values = extract()
    types_ = [v.type for v in values]
    made = list(block.operations)
    if not made:
        return _Parts(extract, types_, values)
    del values
    for operation in reversed(made):
        operation.operation.erase()
    return _Parts(extract, types_, None)


def value_types(x: Any) -> list[ir.Type]:
    """Return the types of the MLIR values of an object with the value protocols. Nothing is added to the program."""
    return _parts(x.__extract_mlir_values__).types if trace.current() is not None else x.__extract_mlir_values__()


def static_protocol_equal(a: Any, b: Any) -> bool:
    """Return whether two objects with the value protocols agree on all that is no MLIR value, as far as visible."""
    key = getattr(type(a), "__kiln_static_key__", None)
    return key(a) == key(b) if key is not None else True


def _unify_undefined(a: Any, b: Any, merge: Merge) -> Callable[[Iterator[Any]], Any]:
    """Merge with a side that nobody reads: the other side's value, with undefined leaves there. Its objects stay."""
    known = b if a is UNDEFINED else a
    rebuild: Any = None
    before = set(merge._filled)

    def opened() -> list[ir.Value]:
        nonlocal rebuild
        merge._filled = set(before)  # objects may be taken apart a second time, where that emits operations
        _, values, rebuild = open_value(known, promote=False, kept=merge.kept, filled=merge._filled)
        return values

    parts = _parts(opened)
    inner = [Leaf(type_, parts.maker(i), _undef(type_)) for i, type_ in enumerate(parts.types)]
    if a is UNDEFINED:
        inner = [Leaf(leaf.type, leaf.second, leaf.first) for leaf in inner]
    merge.leaves.extend(inner)

    def run(values: Iterator[Any]) -> Any:
        return rebuild(values)  # the last one, made where the object was taken apart

    return run


def promoted(x: Any) -> Any:
    """Return a Python number as a value of the program; others unchanged. Raises Mismatch if its type lacks it."""
    if type(x) not in (bool, int, float):
        return x
    if T.join(x, x) is None:
        raise Mismatch("", x, x, *T.lost_by_joining(x, x))
    return T.as_numeric(x)


def open_value(
    x: Any, promote: bool, kept: Kept = _NOTHING, filled: set[int] | None = None
) -> tuple[Any, list[ir.Value], Callable[[Iterator[Any]], Any]]:
    """Return x with Python numbers promoted (`promote`), its leaves, and what rebuilds it around other leaves.

    Objects of `kept` are no leaves: they keep their identity. With `filled`, mutable objects are not rebuilt: they get
    the other leaves themselves; those already in `filled` are left alone.
    """
    leaves: list[ir.Value] = []
    inside: set[int] = set()

    def parts_of(owner: Any, values: list[Any]) -> list[Callable[[Iterator[Any]], Any]]:
        inside.add(id(owner))
        found = [walk(value) for value in values]
        inside.discard(id(owner))
        return found

    def walk(x: Any) -> Callable[[Iterator[Any]], Any]:
        v: Any = x
        if id(v) in kept:
            same = kept[id(v)]
            return lambda _: same
        if id(v) in inside:
            raise Mismatch("", x, x, *_CONTAINS_ITSELF)
        if filled is not None and not isinstance(v, tuple) and is_mutable(v):
            if id(v) in filled:
                return lambda _: v
            filled.add(id(v))
        if promote:
            v = promoted(v)
        if isinstance(v, T.Numeric) and (promote or is_dynamic(v)):
            kind = type(v)
            leaves.append(v.ir_value())
            return lambda values: kind._make(next(values))
        if is_mlir_value(v):
            leaves.append(v)
            return next
        make: Callable[[Iterator[Any]], Any]
        if is_protocol(v):
            parts: list[ir.Value] = v.__extract_mlir_values__()  # pyright: ignore[reportAttributeAccessIssue]
            leaves.extend(parts)
            if not parts:
                return lambda _: v
            make = lambda values: rebuilt(v, [next(values) for _ in parts])
        elif isinstance(v, (tuple, list)):
            inner = parts_of(v, list(v))
            if isinstance(v, tuple):
                return lambda values: rebuild_tuple(v, [make(values) for make in inner])
            make = lambda values: refilled(v, [make(values) for make in inner])
        elif isinstance(v, dict):
            named = dict(zip(v, parts_of(v, list(v.values())), strict=True))
            make = lambda values: refilled(v, {k: make(values) for k, make in named.items()})
        elif is_plain_object(v) and (has_dynamic(v) or (promote and _is_made_of_numbers(v))):
            attributes = attributes_of(v)
            named = dict(zip(attributes, parts_of(v, list(attributes.values())), strict=True))
            make = lambda values: copy_with(v, {k: make(values) for k, make in named.items()})
        else:
            return lambda _: v
        return make if filled is None or not has_state(v) else lambda values: assign(v, make(values))

    rebuild = walk(x)
    return (x if filled is not None else rebuild(iter(leaves))), leaves, rebuild


def has_state(x: Any) -> bool:
    """Return whether an object can be given the state of another one."""
    return isinstance(x, (list, dict)) or has_attributes(x)


def assign(target: Any, source: Any) -> Any:
    """Give an object the state of another of its class, and return it. What the other holds is not copied."""
    if isinstance(target, list):
        target[:] = source
    elif isinstance(target, dict):
        for key, value in source.items():
            target[key] = value
    else:
        for name, value in attributes_of(source).items():
            set_attribute(target, name, value)
    return target


def _is_made_of_numbers(x: Any) -> bool:
    attributes = attributes_of(x)
    return bool(attributes) and all(_is_scalar(v) for v in attributes.values())


def match(opened: Any, x: Any, kept: Kept = _NOTHING) -> list[ir.Value]:
    """Return the leaves of `x`, converted where the language converts, in the order `open_value` gave for `opened`."""
    out: list[ir.Value] = []
    _match(opened, x, out, "", kept)
    return out


class OtherObject(Mismatch):
    """Another object stands where an object that keeps its identity stood."""


class WeakerDescription(Mismatch):
    """Less is known of a value than of the one before it: both could have the description of `like`."""

    def __init__(self, path: str, first: Any, second: Any, like: Any) -> None:
        super().__init__(path, first, second)
        self.like = like


def weakened(x: Any, likes: dict[str, Any], path: str = "") -> Any:
    """Return `x` with the values at some paths described no more precisely than `likes`."""
    like = likes.get(path)
    if like is not None:
        joined = x.__kiln_join__(like) if type(x) is type(like) else None
        return x if joined is None else joined[0]
    if type(x) is tuple:
        return tuple(weakened(part, likes, f"{path}[{i}]") for i, part in enumerate(x))
    return x


def _match(opened: Any, x: Any, out: list[ir.Value], path: str, kept: Kept) -> None:
    if id(opened) in kept:
        if x is not kept[id(opened)]:
            raise OtherObject(path, opened, x)
    elif isinstance(opened, T.Numeric) and is_dynamic(opened):
        if not _is_scalar(x):
            raise Mismatch(path, opened, x)
        if T.join(opened, x) is not type(opened):
            raise Mismatch(path, opened, x, *T.lost_by_joining(opened, x))
        out.append(type(opened)(x).ir_value())
    elif is_mlir_value(opened):
        if not is_mlir_value(x) or x.type != opened.type:  # pyright: ignore[reportAttributeAccessIssue]
            raise Mismatch(path, opened, x)
        out.append(x)
    elif is_protocol(opened):
        if type(x) is not type(opened):
            raise Mismatch(path, opened, x)
        if hasattr(type(x), "__kiln_coerce__"):
            coerced = x.__kiln_coerce__(opened)
            if coerced is None:
                join: Any = getattr(opened, "__kiln_join__", None)
                joined = None if join is None else join(x)
                raise Mismatch(path, opened, x) if joined is None else WeakerDescription(path, opened, x, joined[0])
            x = coerced
        mine, theirs = opened.__extract_mlir_values__(), x.__extract_mlir_values__()
        if [v.type for v in mine] != [v.type for v in theirs]:
            raise Mismatch(path, opened, x)
        out.extend(theirs)
    elif isinstance(opened, (tuple, list)):
        if type(x) is not type(opened) or len(x) != len(opened):
            raise Mismatch(path, opened, x)
        for i, (o, e) in enumerate(zip(opened, x, strict=True)):
            _match(o, e, out, f"{path}[{i}]", kept)
    elif isinstance(opened, dict):
        if type(x) is not type(opened) or list(x) != list(opened):
            raise Mismatch(path, opened, x)
        for k, o in opened.items():
            _match(o, x[k], out, f"{path}[{k!r}]", kept)
    elif is_plain_object(opened) and has_dynamic(opened):
        if type(x) is not type(opened):
            raise Mismatch(path, opened, x)
        began, now = attributes_of(opened), attributes_of(x)
        now = {**_defaults(x, began.keys() - now.keys()), **now}
        if began.keys() != now.keys():
            raise Mismatch(path, opened, x, _other_attributes(began, now))
        for k, o in began.items():
            _match(o, now[k], out, f"{path}.{k}", kept)
    elif not static_equal(opened, x):
        raise Mismatch(path, opened, x)
