"""The types of the language by name, for annotations: numbers, pointers, tensors, layouts and integer trees."""

from __future__ import annotations

from typing import Any

from ..base_dsl.typing import *  # noqa: F403
from ..base_dsl.typing import Integer
from .composed_layout import ComposedLayout
from .int_tuple import Coord, IntTuple, Shape
from .layout import Layout, Stride, Tile
from .pointer import AddressSpace, Pointer
from .swizzle import Swizzle
from .tensor import Tensor

Int = int | Integer
"""An integer, known when compiling or not."""

Tiler = Tile
"""What a layout is divided or multiplied by: a tile of integers and layouts."""

XTuple = Any
"""A tree of anything."""

__all__ = [
    "AddressSpace", "ComposedLayout", "Coord", "Int", "IntTuple", "Layout", "Pointer", "Shape", "Stride", "Swizzle",
    "Tensor", "Tile", "Tiler", "XTuple",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "T":  # the bindings' shorthand for types
        from .. import cutlass_dsl

        return cutlass_dsl.T
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
