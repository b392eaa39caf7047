"""Objects whose attributes are values, carried through control flow and into kernels attribute by attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base_dsl import tree
from ..base_dsl.typing import Numeric
from ..base_dsl.user_op import extract_mlir_values, new_from_mlir_values

__all__ = ["ValueParts"]


class ValueParts:
    """The value protocols of an object: numbers in its attributes (also in tuples and in other such objects) are
    values.

    Everything else, Python integers too, is static, and two objects merge only where it is equal.
    """

    def __extract_mlir_values__(self) -> list[Any]:
        return [value for part in vars(self).values() for value in extract_mlir_values(part)]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        parts = {}
        first = 0
        for name, part in vars(self).items():
            last = first + len(extract_mlir_values(part))
            parts[name] = new_from_mlir_values(part, values[first:last])
            first = last
        return tree.copy_with(self, parts)

    def __kiln_static_key__(self) -> Any:
        return tuple(_without_values(part) for part in vars(self).values())


def _without_values(part: Any) -> Any:
    """Return what is static in a part."""
    if isinstance(part, tuple):
        return tuple(map(_without_values, part))
    if isinstance(part, Numeric):
        return type(part)
    if tree.is_protocol(part):
        key = getattr(part, "__kiln_static_key__", None)
        return type(part), key and key()
    return part
