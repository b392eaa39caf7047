"""The types of the language: numeric types, `Constexpr`, and the protocols of values that cross into the program.

Importing this module loads neither MLIR nor numpy.
"""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Annotated, Any, Generic, Protocol, TypeVar, runtime_checkable

from .bindings import ir
from .numeric.functions import cast, join, logical_not, lost_by_joining, maximum, minimum, zero_of  # noqa: F401  # pyright: ignore[reportUnusedImport] - Kiln's own
from .numeric.host import keeping  # noqa: F401  # pyright: ignore[reportUnusedImport] - the same
from .numeric.meta import FloatMeta, IntegerMeta, NumericMeta, dtype
from .numeric.operands import (
    as_numeric,
    plain_scalar,  # noqa: F401  # pyright: ignore[reportUnusedImport] - the same
)
from .numeric.operators import select
from .numeric.promotion import common_type
from .numeric.scalar import Float, Integer, Numeric
from .numeric.types import (
    BFloat16,
    Boolean,
    Float4E2M1FN,
    Float4E2M1FNx2,
    Float6E2M3FN,
    Float6E3M2FN,
    Float6E3M2FNx4,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E5M2,
    Float8E8M0FNU,
    Float16,
    Float32,
    Float64,
    FloatNV8E5M3FNU,
    Int4,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    TFloat32,
    Uint4,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Uint128,
)

__all__ = [
    "BFloat16",
    "Boolean",
    "Constexpr",
    "DynamicExpression",
    "Float",
    "Float4E2M1FN",
    "Float4E2M1FNx2",
    "Float6E2M3FN",
    "Float6E3M2FN",
    "Float6E3M2FNx4",
    "Float8E4M3",
    "Float8E4M3B11FNUZ",
    "Float8E4M3FN",
    "Float8E5M2",
    "Float8E8M0FNU",
    "Float16",
    "Float32",
    "Float64",
    "FloatMeta",
    "FloatNV8E5M3FNU",
    "Int4",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Int128",
    "Integer",
    "IntegerMeta",
    "JitArgument",
    "Numeric",
    "NumericMeta",
    "TFloat32",
    "Uint4",
    "Uint8",
    "Uint16",
    "Uint32",
    "Uint64",
    "Uint128",
    "as_numeric",
    "cast",
    "common_type",
    "dtype",
    "get_c_pointers",
    "get_mlir_types",
    "is_constexpr",
    "logical_not",
    "maximum",
    "minimum",
    "select",
]

T = TypeVar("T")

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVarWithDefault

    _Known = _TypeVarWithDefault("_Known", default=Any)
    Constexpr = Annotated[_Known, "known when compiling"]
    """An argument known when compiling: any Python object. `Constexpr[T]` also says its type."""
else:

    class Constexpr(Generic[T]):
        """An argument known when compiling: any Python object. `Constexpr[T]` also says its type."""


def is_constexpr(annotation: object) -> bool:
    """Return whether `annotation`, already evaluated, is `Constexpr`, `Constexpr[...]`, or a union or Optional of
    them.
    """
    origin = typing.get_origin(annotation)
    if annotation is Constexpr or origin is Constexpr:
        return True
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        return is_constexpr(arguments[0])
    # the members of a union; None beside Constexpr says that the argument may be left out
    return _is_union(annotation) and any(is_constexpr(member) for member in arguments)


def _is_union(annotation: object) -> bool:
    import types

    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


@runtime_checkable
class JitArgument(Protocol):
    """The protocol of values that can be arguments of compiled functions: memory, IR types, and how to rebuild them."""

    def __c_pointers__(self) -> list[Any]:
        """Return the addresses of the values to pass, one for each IR type."""
        ...

    def __get_mlir_types__(self) -> list[ir.Type]:
        """Return the IR types of the arguments this value becomes."""
        ...

    def __new_from_mlir_values__(self, values: list[ir.Value]) -> Any:
        """Return the same kind of value, made of IR values inside the function."""
        ...


@runtime_checkable
class DynamicExpression(Protocol):
    """The protocol of values that regions of a program can carry: IR values, and how to rebuild them of new ones."""

    def __extract_mlir_values__(self) -> list[ir.Value]:
        """Return the IR values this value consists of."""
        ...

    def __new_from_mlir_values__(self, values: list[ir.Value]) -> Any:
        """Return the same kind of value, made of other IR values."""
        ...


def get_mlir_types(value: Any) -> list[ir.Type]:
    """Return the IR types of `value`, an argument or a value of the program; of a tuple or list, those of its
    elements.
    """
    if hasattr(type(value), "__get_mlir_types__"):
        return list(value.__get_mlir_types__())
    if isinstance(value, (tuple, list)):
        return [type_ for part in value for type_ in get_mlir_types(part)]
    from . import tree

    return tree.value_types(value)


def get_c_pointers(value: Any) -> list[Any]:
    """Return the addresses that pass `value` to compiled code; of a tuple or list, those of its elements.

    Raises TypeError if it has no `__c_pointers__`.
    """
    if hasattr(type(value), "__c_pointers__"):
        return list(value.__c_pointers__())
    if isinstance(value, (tuple, list)):
        return [pointer for part in value for pointer in get_c_pointers(part)]
    raise TypeError(f"{type(value).__name__} has no __c_pointers__")
