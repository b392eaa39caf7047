"""The types of the language: numbers, shapes, tensors and pointers."""

from __future__ import annotations

from typing import Any

from ..base_dsl.typing import *  # noqa: F403
from .composed_layout import ComposedLayout
from .int_tuple import Coord, IntTuple, Shape, XTuple
from .layout import Layout, Stride, Tile
from .pointer import AddressSpace, Pointer
from .tensor import Tensor

Int = IntTuple

__all__ = [
    "AddressSpace", "ComposedLayout", "Coord", "Int", "IntTuple", "Layout", "Pointer", "Shape", "Stride", "Tensor", "Tile", "XTuple",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "T":  # the bindings' shorthand for types
        from .. import cutlass_dsl

        return cutlass_dsl.T
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
