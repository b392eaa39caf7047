"""Symbols: extents and strides that several arguments share. Compiled code checks that they are equal.

n = cute.sym_int()
cute.compile(add, make_fake_tensor(Float32, (n,), (1,)), make_fake_tensor(Float32, (n,), (1,)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...base_dsl.arguments import ONE_SYMBOL, TOO_MANY, GroupNode, Node
from ...base_dsl.bindings import ir
from ...base_dsl.typing import Boolean, Int32, Int64
from ..deferred_dialects import cute
from ..layout.offset_width import INT32_MAX
from .tensor_forms import DynamicLeaf, TensorSignature


def symbols_of(extents: Sequence[object], strides: Sequence[object]) -> list[tuple[Any, str]]:
    """Return for each dynamic leaf of a description the identity of its symbol, and the leaf's name in messages."""
    symbols: list[tuple[Any, str]] = []
    for what, leaves in (("extent", extents), ("stride", strides)):
        for mode, leaf in enumerate(leaves):
            if not isinstance(leaf, int):
                name = getattr(leaf, "symbol", None)
                symbols.append((id(leaf) if name is None else name, f"the {what} of mode {mode}"))
    return symbols


def check_shared(nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value]) -> ir.Value | None:
    """Add checks that leaves with one symbol have one value; return the condition that all hold, or None."""
    first_use: dict[Any, tuple[str, str, ir.Value]] = {}
    fits: Any = None
    for name, part, leaves in _parts(nodes, names, values):
        symbols: list[tuple[Any, str]] = getattr(part, "symbols", None) or []
        for (symbol, what), value in zip(symbols, leaves[1:], strict=False):
            if symbol not in first_use:
                first_use[symbol] = name, what, value
                continue
            equal = _require_equal(first_use[symbol], (name, what, value))
            fits = equal if fits is None else fits & equal
    return None if fits is None else fits.ir_value()


def may_overflow(nodes: Sequence[Node]) -> bool:
    """Return whether 32-bit extents of some arguments may multiply to more than 32 bits."""
    return any(_may_overflow(part.key) for node in nodes for part in _flat(node))


def check_counts(
    nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value], fits: ir.Value | None
) -> ir.Value | None:
    """Add checks that tensors whose number of elements no call promises have fewer than 2**31.

    Returns the condition that this and `fits` hold, or None.
    """
    fits_all: Any = None if fits is None else Boolean._make(fits)
    for name, part, leaves in _parts(nodes, names, values):
        key: Any = part.key
        if _may_overflow(key):
            passed = iter(leaves[1:])
            count: Any = Int64(1)
            for extent in key.shape:
                count = count * (Int64(Int32._make(next(passed))) if isinstance(extent, DynamicLeaf) else extent)
            few = count <= INT32_MAX
            message = f"argument '{name}' has %ld elements, and its 32-bit extents are multiplied: {TOO_MANY}"
            cute.assert_(few.ir_value(), message, [count.ir_value()])  # noqa: PT009
            fits_all = few if fits_all is None else fits_all & few
    return None if fits_all is None else fits_all.ir_value()


def _may_overflow(key: object) -> bool:
    """Return whether a tensor of a signature may have 2**31 elements or more, which no extent shows."""
    if not isinstance(key, TensorSignature) or key.counted or not key.promised:
        return False
    extents = [extent for extent in key.shape if isinstance(extent, DynamicLeaf) or extent > 1]
    return len(extents) > 1 and any(isinstance(extent, DynamicLeaf) for extent in extents)


def _parts(
    nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value]
) -> Iterator[tuple[str, Node, list[ir.Value]]]:
    """Yield the parts of arguments, each with the argument's name and the values of its leaves."""
    position = 0
    for name, node in zip(names, nodes, strict=True):
        for part in _flat(node):
            leaves = list(values[position : position + len(part.types())])
            position += len(leaves)
            yield name, part, leaves


def _flat(node: Node) -> Iterator[Node]:
    if isinstance(node, GroupNode):
        for child in node.children:
            yield from _flat(child)
    else:
        yield node


def _require_equal(first: tuple[str, str, ir.Value], second: tuple[str, str, ir.Value]) -> Any:
    a, b = (Int64(_typed(value)) for _, _, value in (first, second))
    message = (
        f"{second[1]} of argument '{second[0]}' is %ld, and {first[1]} of argument '{first[0]}' is %ld: {ONE_SYMBOL}"
    )
    equal = a == b
    cute.assert_(equal.ir_value(), message, [b.ir_value(), a.ir_value()])  # noqa: PT009
    return equal


def _typed(value: ir.Value) -> Any:
    return (Int64 if value.type == Int64.mlir_type else Int32)._make(value)
