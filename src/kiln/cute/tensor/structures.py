"""Structures in memory: named fields at fixed offsets, and unions of them.

    @cute.struct
    class Storage:
        barriers: cute.struct.MemRange[Int64, 4]                         # an array
        count: Int32                                                     # a number
        tile: cute.struct.Align[cute.struct.MemRange[Float16, 4096], 128]  # aligned to 128 bytes

Fields lie in the order they are written, each at the next multiple of its alignment; the whole is as aligned as its
most aligned field and a multiple of that long. `Storage(pointer)` is the structure at an address.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int8, NumericMeta
from ..layout.layout import Layout, cosize
from .pointer import Pointer, element_bits, natural_alignment, recast_ptr
from .tensor import make_tensor

__all__ = ["struct", "union"]


class _MemRangeType:
    """An array of `count` elements."""

    def __init__(self, dtype: Any, count: int) -> None:
        self.dtype = dtype
        self.count = count

    def __sizeof__(self) -> int:
        if isinstance(self.dtype, NumericMeta):
            return self.dtype.n_bytes(self.count)
        return _size(self.dtype) * self.count

    def __alignof__(self) -> int:
        return _alignment(self.dtype)

    def __repr__(self) -> str:
        return f"MemRange[{getattr(self.dtype, '__name__', self.dtype)}, {self.count}]"


class _AlignType:
    """A field with a stricter alignment than its own."""

    def __init__(self, inner: Any, alignment: int) -> None:
        self.inner = inner
        self.alignment = alignment

    def __sizeof__(self) -> int:
        return _size(self.inner)

    def __alignof__(self) -> int:
        return max(self.alignment, _alignment(self.inner))

    def __repr__(self) -> str:
        return f"Align[{self.inner}, {self.alignment}]"


def _size(kind: object) -> int:
    if isinstance(kind, NumericMeta):
        return max(1, element_bits(kind) // 8)
    return kind.__sizeof__()


def _alignment(kind: Any) -> int:
    return natural_alignment(kind) if isinstance(kind, NumericMeta) else kind.__alignof__()


class MemRange:
    """`MemRange[T, n]`: a field that is an array of n elements."""

    def __class_getitem__(cls, parameters: object) -> _MemRangeType:
        if not isinstance(parameters, tuple) or len(parameters) != 2:
            raise type_error(f"MemRange[{parameters}]: write MemRange[type, number of elements]")
        dtype, count = parameters
        if not isinstance(dtype, (NumericMeta, struct)):
            raise type_error(f"MemRange takes a numeric type or a structure, got {dtype!r}")
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise type_error(
                f"MemRange[{dtype}, {count}]: the number of elements is an int that is known when compiling"
            )
        return _MemRangeType(dtype, count)


class Align:
    """`Align[field, n]`: a field at a multiple of n bytes."""

    def __class_getitem__(cls, parameters: object) -> _AlignType:
        if not isinstance(parameters, tuple) or len(parameters) != 2:
            raise type_error(f"Align[{parameters}]: write Align[field, bytes]")
        inner, alignment = parameters
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise type_error(f"Align[..., {alignment}]: an alignment is a power of two")
        _check_field(inner, "Align")
        return _AlignType(inner, alignment)


def _check_field(kind: object, name: str) -> None:
    if isinstance(kind, NumericMeta) and not kind.is_abstract:
        return
    if not isinstance(kind, (struct, _MemRangeType, _AlignType)):
        raise type_error(
            f"the field {name!r} of a structure is {kind!r}",
            "a field is a numeric type, MemRange[T, n], Align[field, bytes] or another structure",
        )


class struct:
    """Decorate a class: its annotations are the fields of a structure. Called with a pointer it is the one there."""

    __kiln_static__ = True
    if TYPE_CHECKING:  # a type checker looks at the first parameter only: the others are numbers
        MemRange = Annotated
        Align = Annotated
    else:
        MemRange = MemRange
        Align = Align

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.__name__: str = cls.__name__
        self.__doc__ = cls.__doc__
        self._fields: dict[str, tuple[Any, int]] = {}
        self._place(_annotations(cls))

    def _place(self, fields: Mapping[str, object]) -> None:
        offset = 0
        alignment = 1
        for name, kind in fields.items():
            _check_field(kind, name)
            offset = self.align_offset(offset, _alignment(kind))
            self._fields[name] = (kind, offset)
            offset += _size(kind)
            alignment = max(alignment, _alignment(kind))
        self._alignment = alignment
        self._size = self.align_offset(offset, alignment)

    @staticmethod
    def align_offset(offset: Any, align: int) -> Any:
        """Return the next multiple of `align` from `offset` on."""
        return (offset + (align - 1)) // align * align

    @property
    def _offsets(self) -> dict[str, int]:
        """Where each field begins, in bytes: libraries compute addresses from it."""
        return {name: offset for name, (_, offset) in self._fields.items()}

    def size_in_bytes(self) -> int:
        """Return the size in bytes, a multiple of the alignment."""
        return self._size

    def __sizeof__(self) -> int:
        return self._size

    def __alignof__(self) -> int:
        return self._alignment

    def offset_of(self, name: str) -> int:
        """Return where a field begins, in bytes."""
        return self._fields[name][1]

    def __call__(self, base: object, *, loc: object = None, ip: object = None) -> StructView:
        if isinstance(base, StructView):
            base = base._base
        if not isinstance(base, Pointer):
            raise type_error(f"{self.__name__}(...) takes a pointer to the structure, got {type(base).__name__}")
        return StructView(self, recast_ptr(base, None, Int8))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} at {offset}: {kind}" for name, (kind, offset) in self._fields.items())
        return f"{type(self).__name__} {self.__name__} ({self._size} bytes, align {self._alignment}: {fields})"

    def __kiln_key__(self) -> Any:
        return (type(self), self.__name__, repr(self))


class union(struct):
    """Decorate a class as `struct` does, but with all fields at the same address."""

    def _place(self, fields: Mapping[str, object]) -> None:
        size = 0
        alignment = 1
        for name, kind in fields.items():
            _check_field(kind, name)
            self._fields[name] = (kind, 0)
            size = max(size, _size(kind))
            alignment = max(alignment, _alignment(kind))
        self._alignment = alignment
        self._size = self.align_offset(size, alignment)


def _annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a class, evaluated where it is written."""
    annotations = dict(getattr(cls, "__annotations__", {}))
    if not any(isinstance(a, str) for a in annotations.values()):
        return annotations
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("kiln.cute.tensor.structures"):
        frame = frame.f_back
    return {
        name: eval(a, frame.f_globals, frame.f_locals) if isinstance(a, str) else a for name, a in annotations.items()
    }


class StructView:
    """A structure at an address. Its fields are attributes; numbers are assigned like attributes."""

    __slots__ = ("_base", "_type")

    def __init__(self, kind: struct, base: Pointer) -> None:
        object.__setattr__(self, "_type", kind)
        object.__setattr__(self, "_base", base)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in StructView.__slots__:
            raise AttributeError(name)
        return _view(*self._field(name))

    def __setattr__(self, name: str, value: object) -> None:
        target = _view(*self._field(name))
        if not isinstance(target, ScalarField):
            raise type_error(
                f"the field {name!r} of {self._type.__name__} is assigned, and it is no number",
                "assign elements of an array: s.a[i] = x; whole arrays with s.a.get_tensor(layout).store(...)",
            )
        target.store(value)

    def _field(self, name: str) -> tuple[Any, Pointer]:
        fields = self._type._fields
        if name not in fields:
            raise AttributeError(f"{self._type.__name__} has no field {name!r}; it has {', '.join(fields)}")
        kind, offset = fields[name]
        return kind, self._base + offset

    @property
    def ptr(self) -> Pointer:
        """The address of the structure."""
        return self._base

    def data_ptr(self) -> Pointer:
        """Return the address of the structure."""
        return self._base

    def size_in_bytes(self) -> int:
        """Return the size of the structure."""
        return self._type.size_in_bytes()

    def __repr__(self) -> str:
        return f"{self._type.__name__} at {self._base}"

    def __extract_mlir_values__(self) -> list[Any]:
        return self._base.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: object) -> StructView:
        return StructView(self._type, self._base.__new_from_mlir_values__(values))

    __kiln_immutable__ = True


def _view(kind: object, base: Pointer) -> Any:
    """Return a field of a kind at an address."""
    if isinstance(kind, _AlignType):
        return _view(kind.inner, base.with_alignment(max(base.alignment, kind.alignment)))
    if isinstance(kind, _MemRangeType):
        return MemRangeField(kind, base)
    if isinstance(kind, struct):
        return StructView(kind, base)
    pointer = recast_ptr(base, None, kind)
    return ScalarField._of(pointer)


class ScalarField(Pointer):
    """A number in memory: its pointer, with `load` and `store`."""

    __slots__ = ()

    @classmethod
    def _of(cls, pointer: Pointer) -> ScalarField:
        struct_ = object.__new__(cls)
        for name in Pointer.__slots__:
            object.__setattr__(struct_, name, getattr(pointer, name))
        tracing.hold(struct_)
        return struct_

    @property
    def ptr(self) -> Pointer:
        """The pointer to it."""
        return self._copy()


class MemRangeField:
    """An array in memory."""

    __kiln_immutable__ = True
    __slots__ = ("_base", "_type")

    def __init__(self, kind: _MemRangeType, base: Pointer) -> None:
        self._type = kind
        self._base = base

    def data_ptr(self, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the address of its first element."""
        return (
            recast_ptr(self._base, None, self._type.dtype) if isinstance(self._type.dtype, NumericMeta) else self._base
        )

    @property
    def ptr(self) -> Pointer:
        """The address of its first element."""
        return self.data_ptr()

    def get_tensor(
        self, layout: Any, swizzle: Any = None, dtype: Any = None, *, loc: object = None, ip: object = None
    ) -> Any:
        """Return the array seen through a layout, perhaps with swizzled addresses or elements of another type."""
        dtype = self._type.dtype if dtype is None else dtype
        plain = layout if isinstance(layout, Layout) else getattr(layout, "outer", None)
        needed = cosize(plain) if plain is not None else None
        if isinstance(needed, int) and dtype.n_bytes(needed) > self._type.__sizeof__():
            raise type_error(
                f"the layout {layout} of {dtype.__name__} takes {dtype.n_bytes(needed)} bytes, and {self._type!r} has {self._type.__sizeof__()}"
            )
        return make_tensor(recast_ptr(self._base, swizzle, dtype), layout)

    def _element(self, index: object) -> Any:
        if isinstance(index, int) and not 0 <= index < self._type.count:
            raise type_error(f"index {index} is out of range for {self._type!r}")
        if isinstance(self._type.dtype, NumericMeta):
            return self.data_ptr() + index
        return _view(self._type.dtype, self._base + index * self._type.dtype.size_in_bytes())

    def __getitem__(self, index: object, *, loc: object = None, ip: object = None) -> Any:
        element = self._element(index)
        return element.load() if isinstance(element, Pointer) else element

    def __setitem__(self, index: object, value: object, *, loc: object = None, ip: object = None) -> None:
        self._element(index).store(value)

    def __len__(self) -> int:
        return self._type.count

    @property
    def _size(self) -> int:
        """The number of elements, by the name that programs know."""
        return self._type.count

    def __repr__(self) -> str:
        return f"{self._type!r} at {self._base}"

    def __extract_mlir_values__(self) -> list[Any]:
        return self._base.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: Any) -> MemRangeField:
        return MemRangeField(self._type, self._base.__new_from_mlir_values__(values))
