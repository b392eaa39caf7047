"""Keys for what a trace took as known: equal keys mean the same code would be traced.

Objects are keyed by value wherever that is possible, and by identity through a weak reference where it is
not; never by `id()`, which is reused.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Hashable
from typing import Any

_SCALARS = (int, str, bytes, bool, type(None), complex)
# Packages whose objects are not looked into: they hold native state.
_FOREIGN = {
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "cupy",
    "torch_mlir",
    "llvmlite",
    "cuda",
    "ctypes",
    "_ctypes",
    "threading",
    "_thread",
}


class Identity:
    """Equal only to the key of the very same object. Does not keep the object alive where that can be avoided."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, x: Any) -> None:
        self._hash = object.__hash__(x) if not isinstance(x, type) else type.__hash__(x)
        try:
            self._ref: Any = weakref.ref(x)
        except TypeError:
            self._ref = lambda: x

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return False
        mine = self._ref()
        return mine is not None and mine is other._ref()


def static_key(x: Any, _seen: dict[int, int] | None = None) -> Hashable:
    """A hashable key of a Python object known while tracing. Cycles are fine."""
    kind = type(x)
    if kind in _SCALARS:
        return (kind, x)
    if kind is float:
        return (kind, x.hex())
    if isinstance(x, enum.Enum):
        return (kind, x.name)
    if isinstance(x, (type, types.ModuleType)):
        return Identity(x)
    if isinstance(x, types.BuiltinFunctionType):
        return (kind, x.__module__, x.__qualname__, Identity(x))
    own = getattr(kind, "__kiln_key__", None)
    if own is not None:
        return (kind, own(x))
    seen = {} if _seen is None else _seen
    if id(x) in seen:
        return ("cycle", seen[id(x)])
    seen[id(x)] = len(seen)
    if isinstance(x, (tuple, list)):
        return (kind, *(static_key(e, seen) for e in x))
    if isinstance(x, dict):
        return (kind, *((static_key(k, seen), static_key(v, seen)) for k, v in x.items()))
    if isinstance(x, (set, frozenset)):
        return (kind, frozenset(static_key(e, seen) for e in x))
    if isinstance(x, types.FunctionType):
        cells = tuple(_cell_key(c, seen) for c in x.__closure__ or ())
        defaults = (static_key(x.__defaults__, seen), static_key(x.__kwdefaults__, seen))
        return ("function", x.__code__, cells, defaults)
    if isinstance(x, types.MethodType):
        return ("method", static_key(x.__func__, seen), static_key(x.__self__, seen))
    if hasattr(kind, "__extract_mlir_values__"):
        return _value_key(x)
    if kind.__module__.partition(".")[0] in _FOREIGN:
        return Identity(x)
    if hasattr(x, "__dict__") or hasattr(kind, "__slots__"):
        from .tree import attributes_of

        attributes = attributes_of(x)
        if attributes or hasattr(x, "__dict__"):
            return (Identity(kind), *((k, static_key(v, seen)) for k, v in sorted(attributes.items())))
    try:
        hash(x)
    except TypeError:
        return Identity(x)
    return (kind, x) if kind.__module__ == "builtins" else Identity(x)


def _value_key(x: Any) -> Hashable:
    """A typed number by its value. What is left over of an earlier trace says nothing but what kind it was."""
    from .numeric.meta import NumericMeta

    value = x.value if isinstance(type(x), NumericMeta) else None
    return (type(x), static_key(value)) if type(value) in (int, float, bool) else ("traced", type(x))


def _cell_key(cell: types.CellType, seen: dict[int, int]) -> Hashable:
    try:
        return static_key(cell.cell_contents, seen)
    except ValueError:
        return "empty"
