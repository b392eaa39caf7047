"""If-conversion: branches that only set an element of a register array become selects.

A mask is many such branches: `if column > limit: scores[i] = -inf`. LLVM converts them too, but only after each was a
block of its own.
"""

from __future__ import annotations

from ....dialects import cute
from ....mlir import find, ir
from ...lowering.builder import constant_value


def convert_branches(module: ir.Module) -> None:
    """Replace branches by selects."""
    for branch in find(module.operation, ("scf.if",)):
        store = _only_store(branch)
        if store is not None:
            _choose(branch, store)


def _only_store(branch: ir.Operation) -> cute.Store | None:
    """Return the only operation of a branch, if it sets an element of a thread's memory at a known place."""
    if len(branch.results):
        return None
    then, orelse = branch.regions
    if len(orelse.blocks) and len(orelse.blocks[0].operations) > 1:
        return None
    inside = then.blocks[0].operations
    if len(inside) != 2:
        return None
    store = cute.Store.of(inside[0].operation)
    if store is None or isinstance(store.value.type, ir.VectorType):
        return None
    allocation = cute.AllocRmem.making(store.target)
    place = constant_value(store.offset)
    # elsewhere nothing may be read or written that the program does not
    return store if allocation and place is not None and 0 <= place < allocation.count else None


def _choose(branch: ir.Operation, store: cute.Store) -> None:
    value = store.value
    operands = (branch.operands[0], value, cute.load_before(store, branch))
    point = ir.InsertionPoint(branch)
    chosen = ir.Operation.create("arith.select", (value.type,), operands, None, None, 0, store.location, point)
    store.operation.move_before(branch)
    store.value = chosen.result
    branch.erase()
