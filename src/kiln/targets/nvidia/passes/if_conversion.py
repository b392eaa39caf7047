"""Branches that do nothing but set an element of a thread's own memory: the element becomes a choice.

A mask is many such branches: `if column > limit: sums[i] = -inf`. LLVM makes choices of them too, but only after each was
a block of its own.
"""

from __future__ import annotations

from ....dialects import cute
from ....mlir import find, ir
from ...lowering.builder import constant_value


def convert_branches(module: ir.Module) -> None:
    """Replace branches by choices."""
    for branch in find(module.operation, ("scf.if",)):
        store = _only_store(branch)
        if store is not None:
            _choose(branch, store)


def _only_store(branch: ir.Operation) -> ir.Operation | None:
    """The only operation of a branch, if it sets an element of a thread's memory at a known place."""
    if len(branch.results):
        return None
    then, orelse = branch.regions
    if len(orelse.blocks) and len(orelse.blocks[0].operations) > 1:
        return None
    inside = then.blocks[0].operations
    if len(inside) != 2:
        return None
    op = inside[0].operation
    if op.name != "cute.store" or isinstance(op.operands[0].type, ir.VectorType):
        return None
    pointer, place = op.operands[1], constant_value(op.operands[2])
    owner = pointer.owner
    if place is None or isinstance(owner, ir.Block) or owner.operation.name != "cute.alloc_rmem":
        return None
    # elsewhere nothing may be read or written that the program does not
    return op if 0 <= place < owner.operation.attributes["count"].value else None


def _choose(branch: ir.Operation, store: ir.Operation) -> None:
    value = store.operands[0]
    operands = (branch.operands[0], value, cute.load_before(store, branch))
    point = ir.InsertionPoint(branch)
    chosen = ir.Operation.create("arith.select", (value.type,), operands, None, None, 0, store.location, point)
    store.move_before(branch)
    store.operands[0] = chosen.result
    branch.erase()
