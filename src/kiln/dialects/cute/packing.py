"""Operands of mixed types as one `tuple`: every element of a variadic group must have the same type."""

from collections.abc import Sequence

from ...base_dsl.trace import emit_value
from ...mlir import ir

__all__ = ["pack", "unpack"]

_CAST = "builtin.unrealized_conversion_cast"


def pack(values: Sequence[ir.Value]) -> ir.Value:
    """Return one `tuple` value of values of mixed types, for an operation that takes them; see `unpack`."""
    return emit_value(_CAST, ir.TupleType.get_tuple([v.type for v in values]), values)


def unpack(value: ir.Value) -> list[ir.Value]:
    """Return the values that `pack` was given."""
    return list(_pack_owner(value).operands)


def _pack_owner(value: ir.Value) -> ir.Operation:
    owner = value.owner
    return owner.operation if not isinstance(owner, ir.Block) else owner.owner.operation


def is_pack(value: ir.Value) -> bool:
    """Return whether a value is what `pack` made."""
    return isinstance(value.type, ir.TupleType) and _pack_owner(value).name == _CAST
