"""The layout of a block's shared memory, which is the same on every target."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from ...dialects.cute import AllocSmem
from ...mlir import ir
from .builder import int_type

if TYPE_CHECKING:
    Piece = tuple[Any, int, int]
    """A piece of memory: name, bytes, alignment."""

OFFSET = "kiln.offset"
"""Attribute of an allocation: its offset in the block's shared memory."""


def place(
    pieces: list[Piece], body: ir.Block | None, piece_of: Callable[[ir.Operation], Hashable]
) -> tuple[dict[Any, int], int]:
    """Place pieces one after the other, and return their offsets and the end of the last one.

    With a `body`, pieces that branches of an `if` allocate, which exclude each other, overlap; `piece_of` names the
    piece that an operation allocates or takes the address of, None for other operations.
    """
    sizes = {name: (size, alignment) for name, size, alignment in pieces}
    offsets: dict[Any, int] = {}

    def put(name: object, end: int) -> int:
        size, alignment = sizes[name]
        offsets[name] = -(-end // alignment) * alignment
        return offsets[name] + size

    def visit(block: ir.Block, end: int) -> int:
        for item in block.operations:
            op = item.operation
            name = piece_of(op)
            if name in sizes and name not in offsets:
                end = put(name, end)
            # the branches of an `if` begin at the same place; what comes after begins where the longer one ends
            branches = op.name == "scf.if"
            ends = [end]
            for region in op.regions:
                for inner in region.blocks:
                    ends.append(visit(inner, end if branches else ends[-1]))
            end = max(ends)
        return end

    end = visit(body, 0) if body is not None else 0
    for name in sizes:
        if name not in offsets:
            end = put(name, end)
    return offsets, end


def place_allocations(kernel: ir.Operation, allocations: Sequence[AllocSmem], merged: bool) -> int:
    """Give the allocations of a kernel their `OFFSET`, and return the end of the last one; `merged` branches share
    memory."""
    pieces = [(op.result, max(op.bytes, 1), max(op.alignment, 1)) for op in allocations]
    body = kernel.regions[0].blocks[0] if merged else None
    offsets, end = place(pieces, body, lambda op: op.result if op.name == AllocSmem.OPERATION_NAME else None)
    for op in allocations:
        op.attributes[OFFSET] = ir.IntegerAttr.get(int_type(64), offsets[op.result])
    return end
