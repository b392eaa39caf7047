"""MLIR values of an object as a tree of dicts and lists, and what loops carry, printed for debugging.

A class may return such a tree from `__extract_mlir_values__`, and gets a tree of the same structure back in
`__new_from_mlir_values__`.
"""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterator, Sequence
from typing import Any

from . import trace, tree
from .typing import Numeric

debug: int | None = None
"""The depth to which the values that loops carry are printed while tracing; -1: any, None: they are not printed."""


def structure(obj: Any) -> Any:
    """Return the values of an object as a tree; of a number, the value itself. Static parts are left out."""
    if isinstance(obj, Numeric):
        return obj.ir_value()
    if tree.is_mlir_value(obj):
        return obj
    if isinstance(obj, (tuple, list)):
        return [structure(part) for part in obj]
    if isinstance(obj, dict):
        return {key: structure(part) for key, part in obj.items()}
    if tree.is_protocol(obj):
        return obj.__extract_mlir_values__()
    if not tree.is_plain_object(obj):
        return None
    return {name: structure(part) for name, part in tree.attributes_of(obj).items() if _is_dynamic(part)}


def _is_dynamic(part: object) -> bool:
    return isinstance(part, Numeric) or tree.has_dynamic(part) or dataclasses.is_dataclass(part)


def from_structure(obj: Any, values: Any) -> Any:
    """Return an object like `obj` made of a tree of other values, the inverse of `structure`."""
    if isinstance(obj, Numeric):
        return type(obj)._make(values[0] if isinstance(values, list) else values)
    if tree.is_mlir_value(obj):
        return values
    if isinstance(obj, tuple):
        return tree.rebuild_tuple(obj, [from_structure(part, v) for part, v in zip(obj, values, strict=True)])
    if isinstance(obj, list):
        return [from_structure(part, v) for part, v in zip(obj, values, strict=True)]
    if isinstance(obj, dict):
        return {key: from_structure(part, values[key]) for key, part in obj.items()}
    if tree.is_protocol(obj):
        return obj.__new_from_mlir_values__(values)
    if not tree.is_plain_object(obj):
        return obj
    parts = tree.attributes_of(obj)
    return tree.copy_with(obj, {n: from_structure(p, values[n]) if n in values else p for n, p in parts.items()})


def flat(values: Any) -> list[Any]:
    """Return the values of a tree in order."""
    if isinstance(values, dict):
        return [value for part in values.values() for value in flat(part)]
    if isinstance(values, (list, tuple)):
        return [value for part in values for value in flat(part)]
    return [] if values is None else [values]


def refilled(template: object, values: Iterator[object]) -> Any:
    """Return a tree of the structure of another one, with other values."""
    if isinstance(template, dict):
        return {key: refilled(part, values) for key, part in template.items()}
    if isinstance(template, (list, tuple)):
        return [refilled(part, values) for part in template]
    return None if template is None else next(values)


def difference(first: object, second: object, path: str = "") -> str:
    """Return where two trees differ in structure or types, as a sentence; nothing if they agree."""
    if isinstance(first, dict) and isinstance(second, dict):
        if list(first) != list(second):
            return f"{path or 'the value'} has the fields {', '.join(first)} and then {', '.join(second)}"
        differences = (difference(first[key], second[key], f"{path}.{key}") for key in first)
        return next(filter(None, differences), "")
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            return f"{path or 'the value'} has {len(first)} elements and then {len(second)}"
        differences = (difference(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(first, second, strict=True)))
        return next(filter(None, differences), "")
    a = _kind(first)
    b = _kind(second)
    return "" if a == b else f"{path or 'the value'} is {a} and then {b}"


def _kind(leaf: Any) -> str:
    return str(leaf.type) if tree.is_mlir_value(leaf) else "a dict" if isinstance(leaf, dict) else type(leaf).__name__


def debug_print_mlir_values(obj: object, max_depth: int = -1) -> str:
    """Return the tree of the MLIR values that an object is made of, a line for each value."""
    return "\n".join(_lines(structure(obj), type(obj).__name__, 0, max_depth))


def _lines(values: Any, name: str, depth: int, most: int) -> Iterator[str]:
    indent = "  " * depth
    if not isinstance(values, (dict, list, tuple)):
        yield f"{indent}{name}: {_kind(values)}"
        return
    count = len(flat(values))
    yield f"{indent}{name}: {count} value{'s' * (count != 1)}"
    if depth == most + 1 and most >= 0:
        return
    parts = values.items() if isinstance(values, dict) else ((f"[{n}]", part) for n, part in enumerate(values))
    for key, part in parts:
        yield from _lines(part, str(key), depth + 1, most)


def set_dynamic_debug(enable: bool, max_depth: int | None = None) -> None:
    """Print while tracing what loops carry, to a depth of the structures (0: their names only); or stop that."""
    global debug
    debug = (-1 if max_depth is None else max_depth) if enable else None


def report_loop(title: str, span: Any, carried: Sequence[tuple[str, object]]) -> None:
    """Print the variables that a loop carries, with the source line of the loop."""
    if debug is None:
        return
    with trace.require("a loop").detached():  # constants that become values here stay out of the program
        structures = [(name, structure(value)) for name, value in carried]
    source = linecache.getline(span.filename, span.line).strip()
    count = len(flat([values for _, values in structures]))
    print(f"[loop] {span}: {title} carries {count} values\n    {source}")
    for name, values in structures:
        for line in _lines(values, name, 1, debug + 1 if debug >= 0 else debug):
            print(line)
