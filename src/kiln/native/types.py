"""Types of native code: numbers, arrays and structures. Pointers are in `pointers.py`.

A structure is a `ctypes.Structure`: native code and Python read and write the same memory.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..base_dsl.typing import Boolean, NumericMeta
from ..base_dsl.typing import Float32 as f32
from ..base_dsl.typing import Float64 as f64
from ..base_dsl.typing import Int8 as i8
from ..base_dsl.typing import Int16 as i16
from ..base_dsl.typing import Int32 as i32
from ..base_dsl.typing import Int64 as i64
from ..base_dsl.typing import Uint8 as u8
from ..base_dsl.typing import Uint16 as u16
from ..base_dsl.typing import Uint32 as u32
from ..base_dsl.typing import Uint64 as u64

if TYPE_CHECKING:
    Array = Annotated
else:

    class Array:
        """`Array[T, n]`: n values of a type, one after the other. Its place is a pointer to the first."""

        def __class_getitem__(cls, of: tuple[object, int]) -> _ArrayOf:
            return _ArrayOf(*of)


class _ArrayOf(NamedTuple):
    element: Any
    count: int

    def __repr__(self) -> str:
        return f"Array[{name_of(self.element)}, {self.count}]"


_NUMBERS: dict[Any, Any] = {
    i8: ctypes.c_int8,
    i16: ctypes.c_int16,
    i32: ctypes.c_int32,
    i64: ctypes.c_int64,
    u8: ctypes.c_uint8,
    u16: ctypes.c_uint16,
    u32: ctypes.c_uint32,
    u64: ctypes.c_uint64,
    f32: ctypes.c_float,
    f64: ctypes.c_double,
}


def is_struct(kind: object) -> bool:
    """Return whether a type is a structure."""
    return isinstance(kind, type) and issubclass(kind, ctypes.Structure)


def is_array(kind: object) -> bool:
    """Return whether a type is an array."""
    return isinstance(kind, _ArrayOf)


def name_of(kind: object) -> str:
    """Return a type as errors name it."""
    if kind is None:
        return "nothing"
    return getattr(kind, "__name__", None) or repr(kind)


def in_memory(kind: Any) -> Any:
    """Return the type of `ctypes` that lies in memory as a type of native code does."""
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if is_struct(kind):
        return kind
    if is_array(kind):
        return in_memory(kind.element) * kind.count
    if getattr(kind, "__kiln_pointer__", False):
        return ctypes.c_void_p
    what = "a bool" if kind in (bool, Boolean) else name_of(kind)
    raise error(
        DSLUserCodeTypeError,
        f"{what} has no place in the memory of native code",
        hint="a field is a number (i8 to u64, f32, f64), a Ptr, a Fn, an Array or a structure; a truth value is an i32",
    )


def size_of(kind: object) -> int:
    """Bytes of a type, as a Python number."""
    return ctypes.sizeof(in_memory(kind))


def resolved(annotation: Any, space: dict[str, Any], names: Any = None) -> Any:
    """Return the type that an annotation names; `bool` is an i1."""
    kind = eval(annotation, space, names) if isinstance(annotation, str) else annotation
    return Boolean if kind is bool else kind


class Field:
    """A field of a structure. Its type may name what is defined later, behind a `Ptr` or in a `Fn`."""

    def __init__(self, annotation: Any, space: dict[str, Any], names: Any) -> None:
        self._annotation = annotation
        self._names = (space, names)
        self.offset = 0
        self._kind: Any = None

    @property
    def kind(self) -> Any:
        """The type of the field."""
        if self._kind is None:
            self._kind = resolved(self._annotation, *self._names)
        return self._kind

    def in_memory(self) -> Any:
        later = isinstance(self._annotation, str) and self._annotation.startswith(("Ptr", "Fn["))
        return ctypes.c_void_p if later else in_memory(self.kind)


def struct(cls: type) -> Any:
    """Decorator of a class whose annotations are the fields of a structure, laid out as C does."""
    frame = sys._getframe(1)
    fields = {name: Field(kind, frame.f_globals, frame.f_locals) for name, kind in cls.__annotations__.items()}
    body = {name: value for name, value in vars(cls).items() if not name.startswith("__")}
    names = {name: getattr(cls, name) for name in ("__doc__", "__module__", "__qualname__")}
    laid_out = [(name, field.in_memory()) for name, field in fields.items()]
    make: Any = type(ctypes.Structure)
    struct_class = make(cls.__name__, (ctypes.Structure,), {**body, **names, "_fields_": laid_out})
    for name, field in fields.items():
        field.offset = getattr(struct_class, name).offset
    struct_class.__kiln_fields__ = fields
    return struct_class


def field_of(kind: object, name: str) -> Field:
    """Return a field of what a pointer points to."""
    fields: dict[str, Field] = getattr(kind, "__kiln_fields__", {})
    if name not in fields:
        what = f"{name_of(kind)} has no field {name!r}" if fields else f"a pointer to {name_of(kind)} has no fields"
        hint = f"its fields are {', '.join(fields)}" if fields else "Ptr[T](p) takes it for a pointer to a structure T"
        raise error(DSLUserCodeTypeError, what, hint=hint)
    return fields[name]


def is_number(kind: object) -> bool:
    """Return whether a type is one of numbers or truth values."""
    return isinstance(kind, NumericMeta)
