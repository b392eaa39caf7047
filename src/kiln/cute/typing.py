"""The types of the language: numbers, shapes, tensors and pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Type, Union  # noqa: UP035 - programs take them from here

from .._support import lazy
from ..base_dsl.typing import *  # noqa: F403
from .layout.composed_layout import ComposedLayout
from .layout.int_tuple import Coord, IntTuple, Shape, XTuple
from .layout.layout import Layout, Stride, Tile
from .tensor.pointer import AddressSpace, Pointer
from .tensor.tensor import Tensor

Int = IntTuple

__dir__ = lazy.listing(__name__)
__all__ = [
    "AddressSpace",
    "ComposedLayout",
    "Coord",
    "Int",
    "IntTuple",
    "Layout",
    "Optional",
    "Pointer",
    "Shape",
    "Stride",
    "Tensor",
    "Tile",
    "Type",
    "Union",
    "XTuple",
]


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {"T": "..mlir"})  # the bindings' shorthand for types
