"""Symbols: extents and strides that several arguments share. Compiled code checks that they are equal.

n = cute.sym_int()
cute.compile(add, make_fake_tensor(Float32, (n,), (1,)), make_fake_tensor(Float32, (n,), (1,)))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...base_dsl.arguments import ONE_SYMBOL, GroupNode, Node
from ...base_dsl.bindings import ir
from ...base_dsl.typing import Int32, Int64
from ..deferred_dialects import cute


def symbols_of(extents: Sequence[Any], strides: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return for each dynamic leaf of a description the identity of its symbol, and the leaf's name in messages."""
    found: list[tuple[Any, str]] = []
    for what, leaves in (("extent", extents), ("stride", strides)):
        for mode, leaf in enumerate(leaves):
            if not isinstance(leaf, int):
                name = getattr(leaf, "symbol", None)
                found.append((id(leaf) if name is None else name, f"the {what} of mode {mode}"))
    return found


def check_shared(nodes: Sequence[Node], names: Sequence[str], values: Sequence[ir.Value]) -> ir.Value | None:
    """Add checks that leaves with one symbol have one value; return the condition that all hold, or None."""
    known: dict[Any, tuple[str, str, ir.Value]] = {}
    fits: Any = None
    position = 0
    for name, node in zip(names, nodes, strict=True):
        for part in _parts(node):
            leaves = list(values[position : position + len(part.types())])
            position += len(leaves)
            symbols: list[tuple[Any, str]] = getattr(part, "symbols", None) or []
            for (symbol, what), value in zip(symbols, leaves[1:], strict=False):
                if symbol not in known:
                    known[symbol] = name, what, value
                    continue
                equal = _require_equal(known[symbol], (name, what, value))
                fits = equal if fits is None else fits & equal
    return None if fits is None else fits.ir_value()


def _parts(node: Node) -> Iterator[Node]:
    if isinstance(node, GroupNode):
        for child in node.children:
            yield from _parts(child)
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
