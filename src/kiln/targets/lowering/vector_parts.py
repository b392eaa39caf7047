"""Elements and parts of vectors, as passes take them out and put them together."""

from __future__ import annotations

import functools
from typing import Any

from ...mlir import context, ir


def make_before(
    op: ir.Operation, name: str, type_: ir.Type, operands: object = (), attributes: object = None
) -> ir.Value:
    """Return the result of a new operation before another."""
    point = ir.InsertionPoint(op)
    return ir.Operation.create(name, (type_,), operands, attributes, None, 0, op.location, point).result


@functools.lru_cache(maxsize=1024)
def position(number: int) -> dict[str, ir.Attribute]:
    """Return the attributes of `vector.extract` for an element."""
    return {"static_position": ir.DenseI64ArrayAttr.get([number], context())}


@functools.lru_cache(maxsize=1024)
def span(first: int, count: int) -> dict[str, ir.Attribute]:
    """Return the attributes of `vector.extract_strided_slice` for elements in a row."""
    numbers = (("offsets", first), ("sizes", count), ("strides", 1))
    return {name: ir.Attribute.parse(f"[{number} : i64]", context()) for name, number in numbers}


@functools.lru_cache(maxsize=1024)
def vector_of(element: ir.Type, count: int) -> ir.Type:
    """Return the type of a vector of one dimension."""
    return ir.VectorType.get([count], element, loc=ir.Location.unknown(context()))


def element_of_vector(before: ir.Operation, value: ir.Value, number: int) -> ir.Value:
    """Return an element of a vector; the value, if it is none."""
    type_: Any = value.type
    if not isinstance(type_, ir.VectorType):
        return value
    return make_before(before, "vector.extract", type_.element_type, (value,), position(number))


def part_of_vector(before: ir.Operation, value: ir.Value, first: int, count: int) -> ir.Value:
    """Return some elements of a vector, in a row; one of them by itself."""
    type_: Any = value.type
    if count == 1:
        return element_of_vector(before, value, first)
    part = vector_of(type_.element_type, count)
    return make_before(before, "vector.extract_strided_slice", part, (value,), span(first, count))


def joined(before: ir.Operation, type_: ir.Type, parts: list[ir.Value]) -> ir.Value:
    """Return a vector of its elements, or of vectors of equal length; the last may be shorter."""
    if not isinstance(parts[0].type, ir.VectorType):
        return make_before(before, "vector.from_elements", type_, parts)
    each = parts[0].type.shape[0]
    whole = make_before(before, "ub.poison", type_, (), {"value": ir.Attribute.parse("#ub.poison", context())})
    for number, part in enumerate(parts):
        place = {name: span(number * each, each)[name] for name in ("offsets", "strides")}
        whole = make_before(before, "vector.insert_strided_slice", type_, (part, whole), place)
    return whole
