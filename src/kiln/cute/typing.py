"""The types of the language: numbers, shapes, tensors and pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Type, Union  # noqa: UP035 - programs take them from here

from .._support import lazy
from ..base_dsl.typing import *  # noqa: F403
from .layout.composed_layout import ComposedLayout
from .layout.int_tuple import Coord, IntTuple, Shape, XTuple, is_int_tuple
from .layout.layout import Layout, Stride, Tile
from .layout.leaf import is_integer
from .tensor.pointer import AddressSpace, Pointer
from .tensor.tensor import Tensor

Int = IntTuple
Tiler = Tile

if TYPE_CHECKING:  # what loads when it is first used
    from .runtime import SymInt, sym_int, sym_int32, sym_int64
    from .tensor.array import Array

_PLACES = {
    "Array": ".tensor.array",
    "T": "..mlir",  # the bindings' shorthand for types
    **dict.fromkeys(("SymInt", "sym_int", "sym_int32", "sym_int64"), ".runtime"),
}
__all__ = [
    "AddressSpace",
    "Array",
    "ComposedLayout",
    "Coord",
    "Int",
    "IntTuple",
    "Layout",
    "Optional",
    "Pointer",
    "Shape",
    "Stride",
    "SymInt",
    "Tensor",
    "Tile",
    "Tiler",
    "Type",
    "Union",
    "XTuple",
    "is_int_tuple",
    "is_integer",
    "sym_int",
    "sym_int32",
    "sym_int64",
]


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES)
