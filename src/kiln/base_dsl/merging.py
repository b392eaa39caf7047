"""The walks over structures and their leaves, the MLIR values in them.

- `Merge.unify(a, b)`: one structure for the values at the end of two branches;
- `open_value(v)`: a copy of v whose leaves are to be replaced by block arguments;
- `match(opened, v)`: the leaves of v in the order of `opened`, for a back edge.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from . import trace, value_trees
from . import typing as T
from .bindings import ir
from .tree import (
    NOTHING_KEPT,
    UNDEFINED,
    Kept,
    attributes_of,
    copy_with,
    extracted,
    has_attributes,
    has_dynamic,
    is_dynamic,
    is_mlir_value,
    is_mutable,
    is_plain_object,
    is_protocol,
    rebuild_tuple,
    rebuilt,
    same_state,
    set_attribute,
    static_equal,
    values_of,
)


class Mismatch(Exception):
    """Raised for two values that cannot be merged. `path` is the part that differs (`.x`, `[0]`, or empty).

    `why` and `hint` say what is wrong and what to write, if it is not that their types differ.
    """

    def __init__(self, path: str, first: object, second: object, why: str = "", hint: str = "") -> None:
        super().__init__(path)
        self.path = path
        self.first = first
        self.second = second
        self.why = why
        self.hint = hint


class ContainsItself(Mismatch):
    """Raised for an object that cannot be taken apart, since one of its parts is the object."""


class OtherObject(Mismatch):
    """Raised where another object replaces one that keeps its identity."""


class WeakerDescription(Mismatch):
    """Raised where less is known of a value than of the one before it; `like` describes both."""

    def __init__(self, path: str, first: object, second: object, like: Any) -> None:
        super().__init__(path, first, second)
        self.like = like


class Leaf(NamedTuple):
    """A merged value: its MLIR type, and functions that give each side's value in its block."""

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


def _numeric(kind: type[T.Numeric], x: object) -> Callable[[], ir.Value]:
    return lambda: kind(x).ir_value()


class Merge:
    """A merge of the values at the end of two paths: its leaves, and the objects it makes.

    `kept`: objects that keep their identity where both paths refer to the same one.
    """

    def __init__(self, kept: Kept = NOTHING_KEPT) -> None:
        self.leaves: list[Leaf] = []
        self.kept = kept
        self._filled: set[int] = set()
        self._merged: dict[tuple[int, int], Callable[[Iterator[Any]], Any]] = {}
        self._alive: list[Any] = []
        self._open: set[tuple[int, int]] = set()
        """The pairs that are being merged."""

    def planned(self) -> tuple[int, dict[tuple[int, int], Callable[[Iterator[Any]], Any]], set[int]]:
        """Return what has been planned until now, for `forget`."""
        return len(self.leaves), dict(self._merged), set(self._filled)

    def forget(self, planned: tuple[int, dict[tuple[int, int], Callable[[Iterator[Any]], Any]], set[int]]) -> None:
        """Drop what was planned since: the parts of a value that could not be merged."""
        number, self._merged, self._filled = planned
        del self.leaves[number:]

    def unify(self, a: object, b: object, path: str = "") -> Callable[[Iterator[Any]], Any]:
        """Plan the merge of two values: add their leaves, and return a function that makes the merged value of results.

        Where both sides agree statically nothing is merged, and the value stays static. Two mutable objects become a
        third, the same wherever the same two are merged. Raises Mismatch.
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
        merged = self._merged.get(key)
        if merged is None:
            self._alive += (a, b)
            self._open.add(key)
            try:
                merged = self._merged[key] = _once(self._unify(a, b, path))
            finally:
                self._open.discard(key)
        return merged

    def _unify(self, a: object, b: object, path: str) -> Callable[[Iterator[Any]], Any]:
        if a is UNDEFINED or b is UNDEFINED:
            return _unify_undefined(a, b, self)
        if is_dynamic(a) or is_dynamic(b) or (_is_scalar(a) and _is_scalar(b)):
            return _unify_scalars(a, b, self.leaves, path)
        if is_protocol(a) and is_protocol(b):
            return _unify_protocol(a, b, self.leaves, path)
        if type(a) is type(b) and isinstance(a, set):
            if a != b:
                raise Mismatch(path, a, b, "their elements differ")
            return lambda _: copy.copy(a)
        if type(a) is type(b) and _has_parts(a):
            first, second = _same_parts(a, b, path)
            named = {k: self.unify(first[k], second[k], path + _place(a, k)) for k in first}
            return lambda values: _with_parts(a, {k: part(values) for k, part in named.items()})
        if static_equal(a, b):
            return lambda _: a
        raise Mismatch(path, a, b)


def _has_parts(x: object) -> bool:
    return isinstance(x, (tuple, list, dict)) or is_plain_object(x)


def _parts_of(x: object) -> dict[Any, Any]:
    """Return the parts of a structure, by index, key or attribute."""
    if isinstance(x, (tuple, list)):
        return dict(enumerate(x))
    return dict(x) if isinstance(x, dict) else attributes_of(x)


def _place(x: object, key: object) -> str:
    """Return the suffix by which the path of a part extends that of its structure."""
    return f"[{key!r}]" if isinstance(x, (tuple, list, dict)) else f".{key}"


def _with_parts(x: Any, parts: dict[Any, Any]) -> Any:
    """Return a structure like `x` with other parts."""
    if isinstance(x, tuple):
        return rebuild_tuple(x, list(parts.values()))
    if isinstance(x, list):
        return refilled(x, list(parts.values()))
    return refilled(x, parts) if isinstance(x, dict) else copy_with(x, parts)


def _same_parts(a: Any, b: Any, path: str) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the parts of two structures of one class, class attributes included. Raises Mismatch if names differ."""
    first = _parts_of(a)
    second = _parts_of(b)
    if isinstance(a, (tuple, list)) and len(a) != len(b):
        raise Mismatch(path, a, b, f"their lengths differ ({len(a)} and {len(b)})")
    if isinstance(a, dict) and list(a) != list(b):
        raise Mismatch(path, a, b, "their keys have another order" if a.keys() == b.keys() else "their keys differ")
    if first.keys() != second.keys():
        first, second = {**_defaults(a, second), **first}, {**_defaults(b, first), **second}
    if first.keys() != second.keys():
        names = ", ".join(sorted(first.keys() ^ second.keys()))
        raise Mismatch(path, a, b, f"their attributes differ ({names})")
    return first, second


def _defaults(x: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the attributes that an object's class gives it."""
    attributes: dict[str, Any] = {}
    for base in reversed(type(x).__mro__):
        attributes |= {name: vars(base)[name] for name in names if name in vars(base)}
    return {name: value for name, value in attributes.items() if not hasattr(type(value), "__get__")}


def _once(make: Callable[[Iterator[Any]], Any]) -> Callable[[Iterator[Any]], Any]:
    result: list[Any] = []

    def run(values: Iterator[object]) -> Any:
        if not result:
            result.append(make(values))
        return result[0]

    return run


_CONTAINS_ITSELF = (
    "it contains itself",
    "keep such objects out of what branches and loops choose, and change their attributes in place",
)


def refilled(like: Any, items: Any) -> Any:
    """Return a list or dict of the same class with other items."""
    if type(like) in (list, dict):
        return items
    filled = copy.copy(like)
    if isinstance(like, list):
        filled[:] = items
    else:
        filled.clear()
        filled.update(items)
    return filled


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
    a = _plain_number(a)
    b = _plain_number(b)
    kind = T.join(a, b)
    if kind is None:
        raise Mismatch(path, a, b, *T.lost_by_joining(a, b))
    leaves.append(Leaf(kind.mlir_type, _numeric(kind, a), _numeric(kind, b)))
    return _numeric_result(kind, a, b)


def _plain_number(x: object) -> Any:
    """Return the number that a member of an IntEnum is; other values as they are."""
    return x.value if isinstance(x, enum.Enum) else x


def _numeric_result(kind: type[T.Numeric], a: object, b: object) -> Callable[[Iterator[Any]], Any]:
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
    elif not static_protocol_equal(a, b):
        raise Mismatch(path, a, b)
    first = extracted(lambda: values_of(a))
    second = extracted(lambda: values_of(b))
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


def static_protocol_equal(a: object, b: object) -> bool:
    """Return whether two objects with the value protocols agree in their `__kiln_static_key__`, if they have one."""
    key = getattr(type(a), "__kiln_static_key__", None)
    return key(a) == key(b) if key is not None else True


def _unify_undefined(a: object, b: object, merge: Merge) -> Callable[[Iterator[Any]], Any]:
    """Merge with a side that is never read: take the other side's value, with undefined leaves. Its objects stay."""
    defined = b if a is UNDEFINED else a
    rebuild: Any = None
    before = set(merge._filled)

    def opened() -> list[ir.Value]:
        nonlocal rebuild
        merge._filled = set(before)  # objects may be taken apart a second time, where that emits operations
        _, values, rebuild = open_value(defined, promote=False, kept=merge.kept, filled=merge._filled)
        return values

    parts = extracted(opened)
    inner = [Leaf(type_, parts.maker(i), _undef(type_)) for i, type_ in enumerate(parts.types)]
    if a is UNDEFINED:
        inner = [Leaf(leaf.type, leaf.second, leaf.first) for leaf in inner]
    merge.leaves.extend(inner)

    def run(values: Iterator[object]) -> Any:
        return rebuild(values)  # the last one, made where the object was taken apart

    return run


def promoted(x: object) -> Any:
    """Return a Python number as a value of the program, others unchanged. Raises Mismatch if no type has the number."""
    if type(x) not in (bool, int, float):
        return x
    if T.join(x, x) is None:
        raise Mismatch("", x, x, *T.lost_by_joining(x, x))
    return T.as_numeric(x)


def open_value(
    x: object, promote: bool, kept: Kept = NOTHING_KEPT, filled: set[int] | None = None
) -> tuple[Any, list[ir.Value], Callable[[Iterator[Any]], Any]]:
    """Return x with Python numbers promoted (`promote`), its leaves, and a function that rebuilds it of other leaves.

    Objects in `kept` are not taken apart: they keep their identity. With `filled`, mutable objects are not rebuilt but
    assigned the other leaves, except those already in `filled`.
    """
    leaves: list[ir.Value] = []
    inside: set[int] = set()

    def walk(x: object) -> Callable[[Iterator[Any]], Any]:
        v: Any = x
        if id(v) in kept:
            same = kept[id(v)]
            return lambda _: same
        if id(v) in inside:
            raise ContainsItself("", x, x, *_CONTAINS_ITSELF)
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
            parts = values_of(v)
            leaves.extend(parts)
            if not parts:
                return lambda _: v
            make = lambda values: rebuilt(v, [next(values) for _ in parts])
        elif isinstance(v, (tuple, list, dict)) or (
            is_plain_object(v) and (has_dynamic(v) or (promote and _holds_numbers_only(v)))
        ):
            inside.add(id(v))
            named = {k: walk(part) for k, part in _parts_of(v).items()}
            inside.discard(id(v))
            make = lambda values: _with_parts(v, {k: part(values) for k, part in named.items()})
            if isinstance(v, tuple):
                return make
        else:
            return lambda _: v
        return make if filled is None or not has_state(v) else lambda values: assign(v, make(values))

    rebuild = walk(x)
    return (x if filled is not None else rebuild(iter(leaves))), leaves, rebuild


def has_state(x: object) -> bool:
    """Return whether an object can be given the state of another one."""
    return isinstance(x, (list, dict)) or has_attributes(x)


def assign(target: Any, source: Any) -> Any:
    """Give an object the state of another of its class, without copying its parts, and return it."""
    if isinstance(target, list):
        target[:] = source
    elif isinstance(target, dict):
        for key, value in source.items():
            target[key] = value
    else:
        for name, value in attributes_of(source).items():
            set_attribute(target, name, value)
    return target


def _holds_numbers_only(x: Any) -> bool:
    attributes = attributes_of(x)
    return bool(attributes) and all(_is_scalar(v) for v in attributes.values())


def match(opened: object, x: object, kept: Kept = NOTHING_KEPT) -> list[ir.Value]:
    """Return the leaves of `x`, converted where the language converts, in the order `open_value` gave for `opened`."""
    out: list[ir.Value] = []
    _match(opened, x, out, "", kept)
    return out


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
        elif not static_protocol_equal(opened, x):
            raise Mismatch(path, opened, x)
        mine = values_of(opened)
        theirs = values_of(x)
        if [v.type for v in mine] != [v.type for v in theirs]:
            values: Any = opened.__extract_mlir_values__(), x.__extract_mlir_values__()
            why = value_trees.difference(*values) if isinstance(values[0], dict) else ""
            raise Mismatch(path, opened, x, why)
        out.extend(theirs)
    elif isinstance(opened, (tuple, list, dict)) or (is_plain_object(opened) and has_dynamic(opened)):
        if type(x) is not type(opened):
            raise Mismatch(path, opened, x)
        began, now = _same_parts(opened, x, path)
        for k, part in began.items():
            _match(part, now[k], out, path + _place(opened, k), kept)
    elif not static_equal(opened, x):
        raise Mismatch(path, opened, x)
