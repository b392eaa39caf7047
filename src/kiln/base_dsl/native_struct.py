"""Structures of numbers whose fields a program may change: `@cute.native_struct`."""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast, overload

from .diagnostics import type_error
from .typing import NumericMeta, is_constexpr

__all__ = ["native_struct"]

_FIELDS = "__native_fields__"


T = TypeVar("T", bound=type)

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform() -> Callable[[T], T]:
        return lambda function: function


@overload
def native_struct(cls: T, /) -> T: ...
@overload
def native_struct(*, zero_init: bool = True, packed: bool = False) -> Callable[[T], T]: ...
@dataclass_transform()
def native_struct(cls: T | None = None, /, *, zero_init: bool = True, packed: bool = False) -> T | Callable[[T], T]:
    """Make a class of its annotations: an argument and a value of programs, whose fields they may change.

        @cute.native_struct
        class Accumulator:
            total: Int32
            count: Int32

    Fields are numbers of the language, other such structures, or `Constexpr`, by position or by name; what is
    assigned to a field is converted to its type. A caller's structure keeps its values: programs have their own.

    Args:
        cls: the class, if the decorator has no arguments.
        zero_init: fields without a value are zero. If False their values are undefined, and must not be read.
        packed: in C such a structure has no padding. Programs do not see a difference, since fields are passed one by one.
    """
    del zero_init, packed  # zero is as good as any undefined value
    names = sys._getframe(1).f_locals
    return _with_fields(cls, names) if cls is not None else lambda kind: _with_fields(kind, names)


def _with_fields(cls: T, names: Mapping[str, object]) -> T:
    if not isinstance(cls, type):  # pyright: ignore[reportUnnecessaryIsInstance]: callers may be untyped
        raise type_error(f"native_struct takes a class, got {cls!r}")
    fields = typing.get_type_hints(cls, localns=dict(names), include_extras=True)
    for name, kind in fields.items():
        if not (isinstance(kind, NumericMeta) or is_constexpr(kind) or hasattr(kind, _FIELDS)):
            raise type_error(
                f"the field {name} of the native_struct {cls.__name__} is of the type {kind!r}",
                "a type of numbers such as Int32, another native_struct, or Constexpr",
            )
    setattr(cls, _FIELDS, fields)
    for method, function in (("__init__", _init), ("__setattr__", _set_field), ("__repr__", _text)):
        setattr(cls, method, function)
    # Arguments that are dataclasses are passed by fields.
    return dataclasses.dataclass(init=False, repr=False, eq=False)(cls)


def _fields(self: object) -> dict[str, type]:
    return cast("dict[str, type]", getattr(type(self), _FIELDS))


def _init(self: object, *values: object, **named: object) -> None:
    fields = _fields(self)
    if len(values) > len(fields):
        raise type_error(f"{type(self).__name__} has {len(fields)} fields, and gets {len(values)} values")
    arguments = dict(zip(fields, values, strict=False))
    for name, value in named.items():
        if name not in fields or name in arguments:
            why = "has two values" if name in arguments else f"is no field of {type(self).__name__}"
            raise type_error(f"{name} {why}", f"its fields are {', '.join(fields)}")
        arguments[name] = value
    for name, kind in fields.items():
        if name not in arguments and is_constexpr(kind):
            raise type_error(f"{type(self).__name__} lacks a value of its Constexpr {name}", f"{name}=...")
        value = arguments[name] if name in arguments else kind() if hasattr(kind, _FIELDS) else kind(0)
        setattr(self, name, value)


def _set_field(self: object, name: str, value: object) -> None:
    kind = _fields(self).get(name)
    if kind is None:
        raise type_error(f"{type(self).__name__} has no field {name}", f"its fields are {', '.join(_fields(self))}")
    if hasattr(kind, _FIELDS) and not isinstance(value, kind):
        raise type_error(f"the field {name} is a {kind.__name__}, and is assigned {value!r}")
    converts = isinstance(kind, NumericMeta) and not isinstance(value, kind)
    object.__setattr__(self, name, kind(value) if converts else value)


def _text(self: object) -> str:
    values = ", ".join(f"{name}={getattr(self, name, '?')!r}" for name in _fields(self))
    return f"{type(self).__name__}({values})"
