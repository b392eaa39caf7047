"""Iterators of tensors: pointers, coordinates, matrix descriptors.

A tensor is an iterator and a layout; its element at a coordinate is the element of the iterator at offset
`layout(coordinate)`. There are four kinds of iterators:

- a `Pointer`: memory that any thread reaches by its address. Offsets count elements.
- `Coordinates`: the layout gives coordinates (its strides are basis elements), and the element is their sum with the
  origin.
- a matrix descriptor, through which the tensor cores read shared memory: offsets count 16 bytes, the element is the
  descriptor.
- a pointer into tensor memory: offsets move it, but only copy operations of the tensor cores access it.

`TensorIterator` is the interface of all kinds; operations that a kind lacks raise its own error. A new kind is a
subclass that defines its element type and memory, how it moves, what an element is, and which IR values it is made of.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32
from ..layout.basis import add_coords
from ..layout.composed_layout import ComposedLayout
from ..layout.int_tuple import dynamic_leaves, pretty_str, with_dynamic_leaves
from ..layout.layout import crd2idx
from ..layout.modes import slice_
from .leaf_values import join_coords, leaf_like, leaf_value

__all__ = ["AddressSpace", "Coordinates", "TensorIterator"]


class AddressSpace(enum.Enum):
    """The kinds of memory: global, shared (of a block), registers (of a thread), tensor memory; generic is any."""

    generic = 0
    gmem = 1
    smem = 3
    rmem = 5
    tmem = 6
    dsmem = 7

    def __str__(self) -> str:
        return self.name

    def __index__(self) -> int:
        """Return the number of the space in LLVM, with which programs make its pointer types."""
        return self.value

    if not TYPE_CHECKING:
        __hash__ = object.__hash__  # the members are single objects; Enum's own costs a call in Python


class TensorIterator:
    """The base class of the iterators of tensors. Immutable.

    Values cross regions and functions by the protocol of all objects: `__extract_mlir_values__`,
    `__new_from_mlir_values__`, `__kiln_static_key__` (what is not a value), `__kiln_join__` and `__kiln_coerce__` (two
    of them under one description).
    """

    __kiln_immutable__ = True
    __slots__ = ()

    holds: ClassVar[str]
    """The elements of a tensor of this kind, in error messages."""
    instead: ClassVar[str] = "its elements are t[i]"
    """The hint of errors where memory is needed."""
    dtype: Any
    """The type of the elements."""
    memspace: Any
    """The memory they lie in."""
    alignment: Any
    """The bytes its place is known to be a multiple of."""
    in_memory: Any = False
    """Whether it is a pointer to memory that loads, stores and plain copies reach."""
    far: Any = False
    """Whether offsets may need more than 32 bits without a promise, see `offset_width`."""
    number_format: Any = None
    """How `print_tensor` shows an element: "f" or "d"; None: as `printf` does."""

    @property
    def exposed(self) -> Any:
        """The iterator as programs see it: `tensor.iterator`, which `make_tensor` takes."""
        return self

    def moved(self, offset: Any) -> Any:
        """Return the iterator moved by `offset`, a static or dynamic result of the tensor's layout."""
        raise NotImplementedError

    def sliced(self, layout: object, coord: object, offsets: object, by_thread: bool) -> tuple[Any, Any]:
        """Return the iterator and the layout of the slice at a coordinate with None in it.

        `offsets` is the layout with leaves as wide as its results have to be; `by_thread`: threads have different
        coordinates.
        """
        if isinstance(layout, ComposedLayout):
            return self, layout._slice(coord)
        return self.moved(crd2idx(coord, offsets)), slice_(layout, coord)

    def viewed(self, layout: object) -> Any:
        """Return the iterator for a new tensor with this layout, and record the view for the sanitizer."""
        return self

    def element(self, offset: Any) -> Any:
        """Return the element at an offset."""
        raise NotImplementedError

    def set_element(self, offset: object, value: object) -> None:
        """Write the element at an offset."""
        self.refuse("writing an element")

    def recast(self, dtype: object, swizzle: object) -> Any:
        """Return the same memory as elements of another type, seen through a swizzle; None: its own."""
        self.refuse("recast_tensor")

    def refuse(self, what: str, who: str = "the tensor") -> NoReturn:
        """Raise an error: something needs memory."""
        message = f"{what} needs memory that has addresses, and {who} holds {self.holds}"
        raise type_error(message, self.instead)

    def tensor_type(self, layout: object) -> Any:
        """Return the type of a tensor, as the IR shows it."""
        return f'!cute.tensor<"{self}", "{layout}">'

    def __kiln_print__(self) -> list[Any]:
        """Return the parts that `printf` prints."""
        return [str(self)]

    def __extract_mlir_values__(self) -> list[ir.Value]:
        raise NotImplementedError

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> Any:
        raise NotImplementedError

    def __kiln_static_key__(self) -> Any:
        raise NotImplementedError

    def __kiln_join__(self, other: Any) -> tuple[Any, Any] | None:
        return (self, other) if self.__kiln_static_key__() == other.__kiln_static_key__() else None

    def __kiln_coerce__(self, like: Any) -> Any:
        return self if self.__kiln_static_key__() == like.__kiln_static_key__() else None

    def packed(self, layout: object, leaves: list[ir.Value]) -> list[ir.Value]:
        """Return the values of a tensor; `leaves` are those of its layout."""
        return [*self.__extract_mlir_values__(), *leaves]

    def unpacked(self, layout: Any, values: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Return the iterator made of the values of a tensor, and those of its layout."""
        own = len(values) - len(layout._leaves())
        return self.__new_from_mlir_values__(values[:own]), values[own:]


class Coordinates(TensorIterator):
    """The coordinate of the origin of a tensor whose elements are coordinates."""

    __slots__ = ("_value",)

    holds = "coordinates"
    dtype = Int32
    memspace = AddressSpace.rmem
    alignment = 1

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def exposed(self) -> Any:
        """The coordinate, an integer or a tuple of them."""
        return self._value

    def moved(self, offset: object) -> Coordinates:
        return Coordinates(add_coords(self._value, offset))

    def element(self, offset: object) -> Any:
        return add_coords(self._value, offset)

    def tensor_type(self, layout: object) -> str:
        return f'!cute.coord_tensor<"{self}", "{layout}">'

    def __str__(self) -> str:
        return pretty_str(self._value)

    __repr__ = __str__

    def __kiln_print__(self) -> list[Any]:
        return [self._value]

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [leaf_value(leaf) for leaf in dynamic_leaves(self._value)]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Coordinates:
        leaves = [leaf_like(leaf, v) for leaf, v in zip(dynamic_leaves(self._value), values, strict=True)]
        return Coordinates(with_dynamic_leaves(self._value, leaves))

    def __kiln_static_key__(self) -> Any:
        return (Coordinates, str(self))

    def __kiln_join__(self, other: object) -> tuple[Coordinates, Coordinates] | None:
        joined = join_coords(self._value, other._value) if isinstance(other, Coordinates) else None
        return None if joined is None else (Coordinates(joined[0]), Coordinates(joined[1]))

    def __kiln_coerce__(self, like: object) -> Coordinates | None:
        joined = like.__kiln_join__(self) if isinstance(like, Coordinates) else None
        return None if joined is None or str(joined[0]) != str(like) else joined[1]
